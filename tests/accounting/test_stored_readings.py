"""Readings as they are stored: what a restarted controller goes on from, in the present form and in the earlier one."""

from __future__ import annotations

import json
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark_controller.accounting import stored
from lark_controller.accounting.account import DROPS, PEAK, PORT, SIZE, STRETCH, SUMS, WORKER, Account
from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.readings import PortReading, TransferCounts, WorkerCounts
from lark_controller.accounting.usage import MOST, Usage
from tests.accounting.test_entries import COUNTS, SUM
from tests.accounting.test_ledger import job, opened, used
from tests.fixtures.databases import NOW
from tests.fixtures.stored_readings import as_json, members


@pytest.mark.parametrize("name", ["reported", "told"])
@pytest.mark.parametrize("final", [False, True])
def test_readings_stored_by_an_earlier_version_are_continued(name: str, final: bool) -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(5, 500, 5, 500), port_age=10.0)
    ledger.report(1, NOW + 20, WorkerCounts(PortReading(9, 900, 6, 600)), final)
    (entry,) = ledger.entries([1])
    earlier = members(entry.readings)
    earlier[name] = earlier.pop("reported")
    again = Ledger()
    again.resume(job(), "group_cms", json.dumps(earlier), entry.usage)
    assert used(again) == Usage(600, 900, 6, 9)
    # After a worker's last report, readings of the job's port are older and change nothing.
    again.read(1, NOW + 30, PortReading(11, 1100, 8, 800))
    assert used(again) == (Usage(600, 900, 6, 9) if final else Usage(800, 1100, 8, 11))


def test_stored_readings_have_these_members() -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(5, 500, 7, 700), port_age=10.0)
    (entry,) = ledger.entries([1])
    found = members(entry.readings)
    assert (found["at"], found["started"], found["reported"]) == (NOW + 10, True, False)
    assert found["counters"][:4] == [5, 500, 7, 700]


def numbers_of(ledger: Ledger) -> tuple[object, ...]:
    account = ledger._accounts[1]
    return account.numbers, account.at, account.started, account.reported, account.moved_at, account.unwritten


@settings(deadline=None)
@given(
    counters=st.lists(COUNTS, min_size=STRETCH - PORT, max_size=STRETCH - PORT),
    sums=st.lists(SUM, min_size=SUMS, max_size=SUMS),
    quiet=st.booleans(),
    at=st.floats(0, 2.0**40),
    flags=st.tuples(st.booleans(), st.booleans()),
    little=st.booleans(),
)
def test_what_is_stored_is_what_is_gone_on_from_as_from_json(
    counters: list[int], sums: list[int], quiet: bool, at: float, flags: tuple[bool, bool], little: bool
) -> None:
    """Also on a machine whose numbers have the highest byte first, by its own readings."""
    account = Account(job(), "group_cms")
    account.opened()[PORT:STRETCH] = array("Q", counters)
    if quiet:
        account.numbers[WORKER:DROPS] = array("Q", bytes(8 * (DROPS - WORKER)))
    account.at, (account.started, account.reported) = at, flags
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "_LITTLE", little)
        text = stored.readings_of(account, account.numbers.tobytes())
        packed, plain = Ledger(), Ledger()
        packed.resume(job(), "group_cms", text, sums)
    if little:
        plain.resume(job(), "group_cms", as_json(text), sums)
        assert numbers_of(packed) == numbers_of(plain)
    found = packed._accounts[1]
    assert found.numbers[PORT:DROPS] == account.numbers[PORT:DROPS]
    assert found.numbers[PEAK:STRETCH] == account.numbers[PEAK:STRETCH]
    assert found.numbers[DROPS:PEAK].tolist() == sums[8:12]
    assert found.numbers[:PORT].tolist() == [*sums, *sums]
    assert (found.at, found.started, found.reported) == (at, *flags)
    assert len(found.numbers) == SIZE
    assert not any(found.numbers[STRETCH:])


def test_readings_that_were_cut_off_are_refused() -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(5, 500, 7, 700), port_age=10.0)
    (entry,) = ledger.entries([1])
    with pytest.raises(ValueError, match="stored readings of 168 bytes"):
        Ledger().resume(job(), "group_cms", entry.readings[:-4], entry.usage)


@pytest.mark.parametrize("place", range(len(Usage._fields)))
def test_a_sum_that_is_too_large_is_stored_as_the_largest_and_changes_no_other(place: int) -> None:
    """The first versions wrote such sums. What is new is the difference to what is written, never less than none."""
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(5, 500, 5, 500), port_age=10.0)
    (entry,) = ledger.entries([1])
    written = [*entry.usage]
    written[place] = (1 << 63) - 1
    again = Ledger()
    again.resume(job(), "group_cms", entry.readings, written)
    again.read(1, NOW + 20, PortReading(9, 900, 6, 600))
    again.transferred(1, NOW + 20, TransferCounts(*[10**6] * 5), None)
    (after,) = again.entries([1])
    expected = [100, 400, 1, 4, *[0] * 9, *[10**6] * 5]
    expected[place] = 0
    assert after.new == Usage(*expected)
    assert after.usage == Usage(*(min(old, MOST) + new for old, new in zip(written, expected, strict=True)))

"""Readings as they are stored: what a restarted controller goes on from, in the present form and in the earlier one."""

from __future__ import annotations

import json

import pytest

from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.readings import PortReading, TransferCounts, WorkerCounts
from lark_controller.accounting.usage import MOST, Usage
from tests.accounting.test_ledger import job, opened, used
from tests.fixtures.databases import NOW


@pytest.mark.parametrize("name", ["reported", "told"])
@pytest.mark.parametrize("final", [False, True])
def test_readings_stored_by_an_earlier_version_are_continued(name: str, final: bool) -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(5, 500, 5, 500), port_age=10.0)
    ledger.report(1, NOW + 20, WorkerCounts(PortReading(9, 900, 6, 600)), final)
    (entry,) = ledger.entries([1])
    stored = json.loads(entry.readings)
    stored[name] = stored.pop("reported")
    again = Ledger()
    again.begin(job(), "group_cms", json.dumps(stored), entry.usage)
    assert used(again) == Usage(600, 900, 6, 9)
    # After a worker's last report, readings of the job's port are older and change nothing.
    again.read(1, NOW + 30, PortReading(11, 1100, 8, 800))
    assert used(again) == (Usage(600, 900, 6, 9) if final else Usage(800, 1100, 8, 11))


def test_stored_readings_have_these_members() -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(5, 500, 7, 700), port_age=10.0)
    (entry,) = ledger.entries([1])
    stored = json.loads(entry.readings)
    assert stored.keys() == {"at", "started", "reported", "counters"}
    assert (stored["at"], stored["started"], stored["reported"]) == (NOW + 10, True, False)
    assert stored["counters"][:4] == [5, 500, 7, 700]


@pytest.mark.parametrize("place", range(len(Usage._fields)))
def test_a_sum_that_is_too_large_is_stored_as_the_largest_and_changes_no_other(place: int) -> None:
    """The first versions wrote such sums. What is new is the difference to what is written, never less than none."""
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(5, 500, 5, 500), port_age=10.0)
    (entry,) = ledger.entries([1])
    written = [*entry.usage]
    written[place] = (1 << 63) - 1
    again = Ledger()
    again.begin(job(), "group_cms", entry.readings, written)
    again.read(1, NOW + 20, PortReading(9, 900, 6, 600))
    again.transferred(1, NOW + 20, TransferCounts(*[10**6] * 5), None)
    (after,) = again.entries([1])
    expected = [100, 400, 1, 4, *[0] * 9, *[10**6] * 5]
    expected[place] = 0
    assert after.new == Usage(*expected)
    assert after.usage == Usage(*(min(old, MOST) + new for old, new in zip(written, expected, strict=True)))

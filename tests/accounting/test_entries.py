"""Entries and buckets that are made of accounts, against the same written down plainly."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from lark_controller.accounting.account import DROPS, HELD, PEAK, PORT, QUEUES, SIZE, STRETCH, SUMS, WORKER, Account
from lark_controller.accounting.buckets import MINUTE, WIDTHS, Bucket, Subject, buckets
from lark_controller.accounting.entry import Entry, entry_of
from lark_controller.accounting.usage import MOST, NOTHING, Peak, Usage
from tests.accounting.test_ledger import job
from tests.fixtures.databases import NOW
from tests.fixtures.stored_readings import members

COUNTS = st.one_of(st.just(0), st.integers(0, 10**6), st.integers(0, 2**64 - 1))
SUM = st.one_of(st.just(0), st.integers(0, 10**9), st.integers(0, MOST))


@settings(deadline=None)
@given(
    counters=st.lists(COUNTS, min_size=SIZE - PORT, max_size=SIZE - PORT),
    written=st.lists(SUM, min_size=SUMS, max_size=SUMS),
    sums=st.lists(SUM, min_size=SUMS, max_size=SUMS),
    counts=st.sampled_from([(), (WORKER,), (QUEUES,), (HELD + 3,)]),
    times=st.tuples(st.sampled_from([0.0, NOW + 10, NOW + 10.123456]), st.sampled_from([0.0, NOW + 5, NOW + 20])),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_an_entry_has_the_numbers_of_its_account(
    counters: list[int],
    written: list[int],
    sums: list[int],
    counts: Sequence[int],
    times: tuple[float, float],
    flags: tuple[bool, bool, bool],
) -> None:
    account = Account(job(), "group_cms")
    numbers = account.opened()
    sums = [min(old + new, MOST) for old, new in zip(written, sums, strict=True)]
    numbers[:] = array("Q", [*sums, *written, *counters])
    # Most accounts have no counts of workers and queues, and nothing is held over.
    numbers[WORKER : HELD + 4] = array("Q", [int(place in counts) for place in range(WORKER, HELD + 4)])
    account.at, account.moved_at = times
    account.started, account.reported, account.final = flags
    made = entry_of(7, account)
    assert made == Entry(
        7, account.id, account.owner, account.user, account.group, account.host, account.created, account.created,
        max(account.at or account.created, account.moved_at), Usage(*sums),
        Usage(*(now - old for now, old in zip(sums, written, strict=True))),
        made.readings, account.final, Peak(*numbers[PEAK:STRETCH]),
    )  # fmt: skip
    expected = {
        "at": account.at,
        "started": account.started,
        "reported": account.reported,
        "counters": [*numbers[PORT:DROPS], *[0] * (PEAK - DROPS), *numbers[PEAK:STRETCH]],
    }
    assert made.readings == "" if account.final else members(made.readings) == expected


USE = st.tuples(*(st.one_of(st.integers(0, 5), st.integers(0, 10**12), SUM) for _ in Usage._fields))
ENTRIES = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.sampled_from("gh"), st.sampled_from("xy"),
        st.one_of(st.integers(0, 180), st.floats(0, 180)), st.one_of(st.integers(0, 90), st.floats(0, 2000)),
        USE, st.booleans(),
    ),
    max_size=12,
)  # fmt: skip


@settings(deadline=None)
@given(ENTRIES)
def test_buckets_are_the_sums_of_each_jobs_minutes(
    some: list[tuple[str, str, str, float, float, tuple[int, ...], bool]],
) -> None:
    entries = [
        entry_of(number, Account(job(), "group_cms"))._replace(
            user=user, group=group, host=host, begun=NOW + begun, at=NOW + begun + lasts,
            new=Usage(*use).bounded() if bounded else Usage(*use),
        )
        for number, (user, group, host, begun, lasts, use, bounded) in enumerate(some)
    ]  # fmt: skip
    assert buckets(entries) == plainly(entries)


def plainly(entries: Sequence[Entry]) -> list[Bucket]:
    sums: dict[tuple[Subject, int, int], Usage] = defaultdict(Usage)
    for entry in entries:
        for subject in (
            Subject("user", entry.user, entry.group),
            Subject("group", entry.group, entry.group),
            Subject("host", entry.host, ""),
        ):
            for minute, use in minutes(entry):
                for seconds in WIDTHS:
                    key = subject, seconds, minute - minute % seconds
                    sums[key] = sums[key].plus(use)
    return [Bucket(*key, use.kept()) for key, use in sorted(sums.items())]


def minutes(entry: Entry) -> Iterator[tuple[int, Usage]]:
    """The new use by minutes: each has what came until its end less what came before, and no part above its whole."""
    begun = max(min(entry.begun, entry.at), entry.at - 900)
    first, last = (int(at) - int(at) % MINUTE for at in (begun, entry.at))
    whole = max(1, round((entry.at - begun) * 1e6))
    counted = NOTHING
    for minute in range(first, last, MINUTE):
        passed = min(whole, round((minute + MINUTE - begun) * 1e6))
        some = Usage(*(value * passed // whole for value in entry.new)).minus(counted).bounded()
        if some != NOTHING:
            yield minute, some
        counted = counted.plus(some)
    if (rest := entry.new.minus(counted)) != NOTHING:
        yield last, rest

"""The highest rate that a job has kept up: over stretches of five seconds and more, whatever the readings are."""

from __future__ import annotations

import json
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_controller.accounting.account import LEAST_STRETCH, SIZE, ZEROS
from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.readings import PortReading, WorkerCounts
from lark_controller.accounting.usage import FLAT, Peak
from tests.accounting.test_ledger import job, opened, used
from tests.fixtures.databases import NOW
from tests.fixtures.stored_readings import members

MEGA = 1_000_000


def port(sent: float, received: float = 0.0) -> PortReading:
    """Megabytes that a job has sent and received."""
    return PortReading(1, round(sent * MEGA), 1, round(received * MEGA))


def peak(ledger: Ledger, number: int = 1) -> Peak:
    found = ledger.usage(number)
    assert found is not None
    return found.peak


def read(ledger: Ledger, *readings: tuple[float, float, float]) -> None:
    for at, sent, received in readings:
        ledger.read(1, NOW + at, port(sent, received), port_age=1.0)


def test_it_is_the_highest_of_each_direction() -> None:
    ledger = opened()
    read(ledger, (10, 10, 0), (20, 30, 5), (30, 35, 25), (40, 35, 25))
    assert peak(ledger) == Peak(16 * MEGA, 16 * MEGA)
    ledger.close(1, NOW + 41)
    (entry,) = ledger.entries([1])
    assert entry.peak == Peak(16 * MEGA, 16 * MEGA)


def test_readings_that_come_close_together_are_one_stretch() -> None:
    ledger = opened()
    # 10 MB in half a second are 160 Mb/s, which the job kept up for half a second.
    read(ledger, (4, 0, 0), (4.5, 10, 0), (6, 10, 0))
    assert peak(ledger).outward == round(80 * MEGA / 6)
    # What a job that ended soon kept up is not known.
    ledger = opened()
    read(ledger, (4, 10, 0))
    assert peak(ledger) == FLAT


def test_a_clock_that_was_set_back_begins_a_stretch() -> None:
    ledger = opened()
    read(ledger, (100, 10, 0), (50, 20, 0), (52, 30, 0))
    assert peak(ledger).outward == round(80 * MEGA / 100)
    read(ledger, (60, 40, 0))
    assert peak(ledger).outward == 16 * MEGA


def test_what_a_worker_reports_after_a_pause_came_when_it_says() -> None:
    told, silent = opened(), opened()
    for ledger, within in ((told, 10.0), (silent, None)):
        ledger.report(1, NOW + 1, WorkerCounts(port(0)), False)
        # Nothing happened for a hundred seconds, so nothing was reported.
        ledger.report(1, NOW + 111, WorkerCounts(port(100), new_within=within), False)
    assert peak(told).outward == 80 * MEGA
    assert peak(silent).outward == round(800 * MEGA / 111)
    found = told.usage(1)
    assert found is not None
    assert (found.rate.outward, found.at) == (80 * MEGA, NOW + 111)
    # What cannot be is not believed.
    told.report(1, NOW + 121, WorkerCounts(port(101), new_within=0.0), False)
    told.report(1, NOW + 131, WorkerCounts(port(102), new_within=10_000.0), False)
    assert peak(told).outward == 80 * MEGA


def test_it_goes_on_after_a_restart_and_from_what_earlier_versions_wrote() -> None:
    ledger = opened()
    read(ledger, (10, 100, 0), (13, 101, 0))
    (entry,) = ledger.entries([1])
    again = Ledger()
    again.resume(job(), "group_cms", entry.readings, entry.usage)
    assert peak(again) == peak(ledger) == Peak(0, 80 * MEGA)
    # Earlier versions wrote neither, or the stretch that was not over, too.
    written = members(entry.readings)
    counters, stretch = written["counters"], [1000 * round(NOW + 10), 0, 100 * MEGA]
    neither, both = Ledger(), Ledger()
    for old, known in ((neither, counters[: -len(FLAT)]), (both, counters + stretch)):
        old.resume(job(), "group_cms", json.dumps({**written, "counters": known}), entry.usage)
    # Another controller's clock may be another: a stretch is between two readings of one.
    for each, before in ((again, 80 * MEGA), (both, 80 * MEGA), (neither, 0)):
        each.read(1, NOW + 14, port(301))
        assert peak(each).outward == before
        assert (used(each).bytes_out, each.rates()) == (301 * MEGA, {})
        each.read(1, NOW + 34, port(901))
        assert peak(each).outward == 240 * MEGA


def test_a_controller_whose_clock_is_behind_has_no_rate_that_was_none() -> None:
    """As after a takeover: the last reading was another machine's."""
    ledger = opened()
    read(ledger, (10, 100, 0), (20, 200, 0))
    (entry,) = ledger.entries([1])
    for busy in (True, False):
        again = Ledger()
        again.resume(job(), "group_cms", entry.readings, entry.usage)
        assert again.states([1]) == [None]
        # Ten seconds later, by a clock that is eight behind.
        again.report(1, NOW + 22, WorkerCounts(port(300 if busy else 200), new_within=1.0), False)
        assert (peak(again).outward, again.rates()) == (80 * MEGA, {})
        assert again.states([1]) != [None]
        again.read(1, NOW + 32, port(400))
        assert peak(again).outward == (80 if busy else 160) * MEGA


def test_a_higher_peak_is_written_though_nothing_was_sent_since() -> None:
    ledger = opened()
    read(ledger, (4, 10, 0))
    before = ledger.entries([1])
    read(ledger, (6, 10, 0))
    ledger.wrote(before)
    assert ledger.changed() == [1]
    ledger.wrote(ledger.entries([1]))
    assert ledger.changed() == []


@given(st.lists(st.tuples(st.floats(0.01, 30), st.integers(0, 10_000_000)), min_size=1, max_size=30))
def test_it_lies_between_the_mean_and_the_highest_rate_of_a_reading(steps: list[tuple[float, int]]) -> None:
    ledger = opened()
    times, sums = (list(accumulate(each)) for each in zip(*steps, strict=True))
    for at, sent in zip(times, sums, strict=True):
        ledger.read(1, NOW + at, PortReading(1, sent, 1, 0), port_age=1.0)
    found = peak(ledger).outward
    highest = max(8 * new / elapsed for elapsed, new in steps)
    assert found <= highest * 1.01 + 1
    if all(elapsed >= LEAST_STRETCH + 0.01 for elapsed, _ in steps):
        assert found == pytest.approx(highest, rel=0.01, abs=1)
    if times[-1] >= LEAST_STRETCH + 0.01 and steps[-1][0] >= LEAST_STRETCH + 0.01:
        assert found >= 8 * sums[-1] / times[-1] * 0.99 - 1


def test_a_jobs_account_has_five_numbers_for_it() -> None:
    assert (SIZE, ZEROS.itemsize) == (77, 8)

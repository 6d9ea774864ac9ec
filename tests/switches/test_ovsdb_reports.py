"""Reports about a switch's queues: how many of them the loop takes in, whatever a database does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lark_controller.switches.ovsdb import reports
from lark_controller.switches.ovsdb.reports import LatestReports, Report


def test_a_database_that_changes_without_a_pause_takes_its_part_of_the_loop_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = spent = 0.0
    taken: list[Report] = []
    later: list[tuple[float, Any, int]] = []

    def take(report: Report) -> None:
        """Reports about the first switch take long, as with thousands of jobs."""
        nonlocal spent
        taken.append(report)
        spent += 0.05 if report.datapath == 1 else 0.00001

    loop = SimpleNamespace(call_later=lambda pause, work, value: later.append((now + pause, work, value)))
    monkeypatch.setattr(reports, "time", SimpleNamespace(monotonic=lambda: now, thread_time=lambda: spent))
    monkeypatch.setattr(reports, "asyncio", SimpleNamespace(get_running_loop=lambda: loop))
    handed_over: list[tuple[Any, int]] = []
    latest = LatestReports(lambda work, value: handed_over.append((work, value)), take)
    for tick in range(10_000):
        now = tick * 0.01
        for datapath in (1, 2):
            for revision in (2 * tick, 2 * tick + 1):
                latest.put(Report(datapath, revision))
        # Of those that wait the last one is left.
        assert len(handed_over) <= 2
        due = [each for each in later if each[0] <= now]
        later[:] = [each for each in later if each[0] > now]
        for work, value in [*handed_over, *((work, value) for _, work, value in due)]:
            work(value)
        handed_over.clear()
    assert [each.revision for each in taken if each.datapath == 2] == list(range(1, 20_000, 2))
    slow = [each.revision for each in taken if each.datapath == 1]
    assert slow == sorted(set(slow))
    assert all(revision % 2 for revision in slow)
    assert 0.9 < len(slow) * 0.05 / (reports.LOOP_SHARE * 100 + reports.LOOP_AT_ONCE) < 1.1

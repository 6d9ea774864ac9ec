"""Rates that workers report end once a worker is silent about them, and not before."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.readings import PortReading, TransferCounts, WorkerCounts
from lark_controller.accounting.reporting import Reporting
from lark_controller.accounting.usage import IDLE, Rate
from tests.accounting.test_ledger import job
from tests.fixtures.databases import NOW


class Reports:
    """A ledger with a job for each number, whose workers report at times counted from the jobs' beginning."""

    def __init__(self, numbers: Iterable[int] = (1,)) -> None:
        self.ledger = Ledger()
        self.reporting = Reporting(self.ledger)
        for number in numbers:
            self.ledger.begin(job(number), "group_cms")

    def sends(
        self, at: float, packets: int, number: int = 1, *, interval: float | None = 30.0, within: float | None = None
    ) -> None:
        self.reporting.reported(number, at, interval, within)
        counts = WorkerCounts(PortReading(packets, 1000 * packets, 0, 0), policy_drops=(0, packets), new_within=within)
        self.ledger.report(number, NOW + at, counts, False)

    def rate(self, number: int = 1) -> Rate:
        found = self.ledger.usage(number)
        assert found is not None
        return found.rate

    def dropped(self) -> int:
        return self.ledger.drop_sum().jobs


def test_a_dead_worker_s_rates_and_drops_end() -> None:
    reports = Reports()
    reports.sends(30, 0)
    reports.sends(60, 3000)
    assert reports.reporting.look(60 + 74) == 0
    assert (reports.rate().outward, reports.dropped()) == (800_000, 1)
    assert reports.reporting.look(60 + 75) == 1
    assert (reports.rate(), reports.dropped()) == (IDLE, 0)
    assert (reports.ledger.rates()["group_cms"], reports.ledger.flowing("job", 9)) == (IDLE, ())
    found = reports.ledger.usage(1)
    # What it has used stays, as of its last report.
    assert found is not None
    assert (found.usage.bytes_out, found.at) == (3_000_000, NOW + 60)
    reports.sends(300, 3300, within=30.0)
    assert (reports.rate().outward, reports.dropped()) == (80_000, 1)


def test_a_steady_rate_stays_between_reports() -> None:
    reports = Reports()
    for round_ in range(1, 20):
        # One report in three is lost.
        if round_ % 3:
            reports.sends(30.0 * round_, 1000 * round_)
        assert reports.reporting.look(30.0 * round_ + 29) == 0
        assert reports.rate().outward > 0
    # However many reports: one entry.
    assert len(reports.reporting._due) == 1


@pytest.mark.parametrize(
    ("told", "between", "over"), [(5.0, 5.0, 13), (300.0, 300.0, 751), (None, 30.0, 76), (None, 300.0, 751)]
)
def test_the_interval_is_what_the_worker_says_or_what_lies_between_its_reports(
    told: float | None, between: float, over: float
) -> None:
    reports = Reports()
    for round_ in range(1, 4):
        reports.sends(round_ * between, round_, interval=told, within=between if told is None else None)
    # A job that asks for its advice has its counts reported then.
    reports.sends(3 * between + 1, 4, interval=told, within=1.0)
    assert reports.reporting.look(3 * between + 2.4 * between) == 0
    assert reports.rate().outward > 0
    assert reports.reporting.look(3 * between + 1 + over) == 1
    assert reports.rate() == IDLE


def test_no_interval_is_too_short_or_too_long() -> None:
    reports = Reports((1, 2))
    reports.sends(10, 5, interval=0.0)
    reports.sends(10, 5, 2, interval=1e9)
    assert (reports.reporting.look(12), reports.reporting.look(12.5)) == (0, 1)
    assert reports.reporting.look(10 + 2.5 * 3600) == 1


def test_transfers_end_apart_from_what_the_job_sends_itself() -> None:
    reports = Reports()
    reports.sends(20, 100)
    reports.reporting.reported(1, 60, 30.0, None, transfers=True)
    reports.ledger.transferred(1, NOW + 60, TransferCounts(60_000, 0, 0, 0, 1000), None)
    assert reports.reporting.look(95) == 1
    assert reports.rate() == Rate(transfer_inward=8000)
    assert reports.reporting.look(60 + 75) == 1
    assert reports.rate() == IDLE
    reports.sends(140, 200)
    reports.reporting.reported(1, 60, 30.0, None, transfers=True)
    reports.reporting.look(140)
    assert reports.rate().outward > 0


def test_of_many_jobs_those_end_that_are_overdue() -> None:
    reports = Reports(range(1, 101))
    for number in range(1, 101):
        reports.sends(number, 100, number)
    for number in range(51, 101):
        reports.sends(number + 30, 200, number)
    assert reports.reporting.look(120) == 45
    assert [number for number in range(1, 101) if reports.rate(number) is not IDLE] == list(range(46, 101))
    assert len(reports.reporting._due) == len(reports.reporting._known) == 55

"""A worker's reports of the use by bridge and nat jobs: changes, and once that there are no more."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lark_worker.errors import AwayError
from lark_worker.usage import reports
from tests.worker.test_loops import IDS, some


class Reporting:
    """The reports of a worker that makes them every 30 seconds, on a clock that is set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.away = 0.0, False
        self.posts: list[tuple[float, str, dict[str, int]]] = []
        monkeypatch.setattr(reports, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.reports = reports.UsageReports(
            some(counters=self._post), some(), some(), some(), tuple, 30.0, lambda: None, some()
        )

    def _post(self, job_id: str, counted: dict[str, int]) -> None:
        if self.away:
            raise AwayError("nobody answers")
        self.posts.append((self.now, job_id, counted))

    def at(self, now: float, *counts: int) -> list[tuple[str, dict[str, int]]]:
        """The posts at a time, at which each job has counted so many bytes."""
        self.now = now
        self.reports._report_counters({IDS[at]: {"bytes_out": count} for at, count in enumerate(counts)})
        return [(job_id, counted) for posted, job_id, counted in self.posts if posted == now]


def test_that_a_job_has_stopped_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Reporting(monkeypatch)
    assert worker.at(30, 0, 500) == [
        (IDS[0], {"bytes_out": 0, "interval": 30_000}), (IDS[1], {"bytes_out": 500, "interval": 30_000})
    ]  # fmt: skip
    assert worker.at(60, 0, 900) == [(IDS[1], {"bytes_out": 900, "interval": 30_000, "new_within": 30_000})]
    # The same counts again: the rate between the two is 0. Of the other nothing was shown.
    assert worker.at(90, 0, 900) == [(IDS[1], {"bytes_out": 900, "interval": 30_000})]
    assert worker.at(120, 0, 900) == worker.at(150, 0, 900) == []
    assert worker.at(180, 0, 950) == [(IDS[1], {"bytes_out": 950, "interval": 30_000, "new_within": 30_000})]


def test_counts_that_are_the_same_for_a_moment_have_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Reporting(monkeypatch)
    worker.at(30, 500)
    worker.at(59, 900)
    assert worker.at(60, 900) == []
    assert worker.at(89, 950) != []
    assert (worker.at(90, 950), len(worker.at(120, 950))) == ([], 1)


def test_an_end_that_is_not_heard_is_reported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Reporting(monkeypatch)
    worker.at(30, 500)
    worker.away = True
    with pytest.raises(AwayError):
        worker.at(60, 500)
    worker.away = False
    assert len(worker.at(90, 500)) == 1
    assert worker.at(120, 500) == []

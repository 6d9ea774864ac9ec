"""The queues of reserved flows, read by the active instance where another reads the jobs' counters."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lark_controller.accounting.pairs import PairLedger, PairUse
from lark_controller.jobs.job import Job
from lark_controller.reconcile.pair_counters import PairCounters
from lark_controller.switches.openflow.replies import QueueCounters
from tests.accounting.test_pairs import MEGA, flow, sending, used
from tests.fixtures.databases import NOW
from tests.reconcile.test_counters import Pool

PORT, QUEUE = 1, 32_768


class Sending(Pool):
    """A switch with a queue of a reserved flow, an active instance that has the pairs' accounts, and its clock."""

    def __init__(self, job: Job, pairs: PairLedger, clock: SimpleNamespace) -> None:
        super().__init__(job)
        self.clock = clock
        self.sent = 0
        link = cast("Any", self.link)
        link.features = SimpleNamespace(ports={PORT: SimpleNamespace(number=PORT, name="eth0")})
        link.queue_stats = self.queue_stats
        queues = SimpleNamespace(
            reserved_flows=lambda _: {QUEUE: 7}, dropped=lambda _: {}, waited=lambda _: {}
        )  # fmt: skip
        loop = SimpleNamespace(
            switches=self.switches, desired_of=lambda _: SimpleNamespace(jobs_at=lambda _: self.placed)
        )
        self.pairs = PairCounters(pairs, cast("Any", loop), cast("Any", queues))

    async def queue_stats(self, _timeout: float | None) -> list[QueueCounters]:
        return [QueueCounters(PORT, QUEUE, self.sent, 0, 0)]

    def read(self, at: float, sent: int) -> None:
        """One that stands by has read the switch, and the queue has sent so many bytes by then."""
        self.clock.at, self.sent = NOW + at, sent
        asyncio.run(self.take(self.answer(self.ordered())))


def test_they_are_read_too_and_count_once_with_no_rate_that_was_none_across_a_takeover(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, clock = sending(flow()), SimpleNamespace(at=NOW)
    monkeypatch.setattr("lark_controller.reconcile.pair_counters.time", SimpleNamespace(time=lambda: clock.at))
    pairs = PairLedger()
    pairs.follow(job, NOW)
    pool = Sending(job, pairs, clock)
    pool.read(10, 100 * MEGA)
    pool.read(20, 200 * MEGA)
    assert pool.counted == {"taken": 2}
    assert _figures(used(pairs)) == (200 * MEGA, 20_000, 80 * MEGA)

    # Another takes over whose clock is ten seconds behind, and a third one reads the jobs for it.
    (entry,) = pairs.entries(pairs.changed())
    again = PairLedger()
    again.restore(entry.number, entry.job_id, entry.key, entry.use, entry.readings)
    again.follow(job, NOW + 15, {7})
    pool = Sending(job, again, clock)
    pool.read(25, 350 * MEGA)
    assert _figures(used(again)) == (350 * MEGA, 25_000, 80 * MEGA)
    pool.read(35, 450 * MEGA)
    assert _figures(used(again)) == (450 * MEGA, 35_000, 80 * MEGA)
    assert pool.counted == {"taken": 2}


def _figures(use: PairUse) -> tuple[int, int, int]:
    return use.sent, use.counted, use.peak

"""Compares the directory with the pool at intervals, on a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from lark_common.errors import PoolError, StoreError
from lark_common.log import (
    ERROR,
    WARNING,
    event,
    failure,
)
from lark_common.threads import StoppableThread
from lark_controller.api.metrics import Metrics
from lark_controller.htcondor.compare import follow, judge, why_kept
from lark_controller.htcondor.read import PAUSE, PORTION, read_pool
from lark_controller.htcondor.slots import Reading
from lark_controller.jobs.job import Job

ACTOR: Final = "pool"


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """The collector to read, the interval and the limits of time; how late its ads may be. Durations in seconds."""

    collector: str
    interval: float = 60.0
    timeout: float = 30.0
    margin: float = 60.0
    ad_seconds: float = 600.0


class Jobs(Protocol):
    """The owner of the live jobs, who can quarantine them."""

    def live(self) -> list[Job]:
        """The live jobs."""

    def quarantine(self, job_id: str, reason: str, actor: str) -> Job | None:
        """Let nothing pass of a live job. None where it does not live any more. Raises StoreError."""

    def lift(self, job_id: str, reason: str, actor: str, *, vouched: bool = False) -> Job | None:
        """End a quarantine. None where there is none. Raises StoreError."""


class PoolWatch:
    """From :meth:`start` to :meth:`stop`. ``ask`` reads the pool; :func:`read_pool` does it for real."""

    def __init__(
        self,
        options: PoolOptions,
        jobs: Jobs,
        metrics: Metrics,
        ask: Callable[[str, float], Reading] = read_pool,
    ) -> None:
        self._options = options
        self._jobs = jobs
        self._metrics = metrics
        self._ask = ask
        self._reading: Reading | None = None
        self._doubted: dict[str, float] = {}
        self._trouble = ""
        self._kept: dict[str, str] = {}
        self._thread = StoppableThread("lark-pool", self._run)

    def start(self) -> None:
        """Begin to compare."""
        self._thread.start()

    def stop(self) -> None:
        """End; a question that is under way ends by itself, as nothing waits for it."""
        self._thread.stop(patience=0)

    @property
    def threads(self) -> tuple[StoppableThread, ...]:
        """The threads that live from start to stop."""
        return (self._thread,)

    def why_kept(self, job: Job) -> str:
        """The reason why a job whose lease is over is not ended; ``""`` where it may be. From any thread."""
        reading, now = self._reading, time.time()
        old = 2 * self._options.interval + self._options.timeout
        if reading is not None and now - reading.at > old:
            reading = None
        why = why_kept(job, reading, now, margin=self._options.margin, ad_seconds=self._options.ad_seconds)
        if why and self._kept.get(job.id) != why:
            event("job kept beyond its lease", level=WARNING, job=job.id, reason=why)
            self._metrics.leases_kept.inc()
            self._kept[job.id] = why
        elif not why:
            self._kept.pop(job.id, None)
        return why

    def compare_once(self) -> bool:
        """Reads the pool once and acts on the verdicts; False where it could not be read; then nothing has changed."""
        try:
            reading = self._ask(self._options.collector, self._options.timeout)
        except PoolError as error:
            self._metrics.pool_readings.labels("failed").inc()
            if not self._trouble:
                event("pool cannot be asked", level=WARNING, reason=str(error))
            self._trouble = str(error)
            return False
        self._metrics.pool_readings.labels("read").inc()
        self._metrics.pool_read_at.set(reading.at)
        if self._trouble:
            event("pool answers again", slots=len(reading.slots))
        self._trouble = ""
        self._reading = reading
        self._compare(reading)
        return True

    def _compare(self, reading: Reading) -> None:
        jobs = self._jobs.live()
        doubted: dict[str, float] = {}
        for number, job in enumerate(jobs):
            verdict = judge(job, reading, self._options.margin)
            step = follow(job, verdict, self._doubted.get(job.id), reading.at, self._options.margin)
            if step.doubted is not None:
                doubted[job.id] = step.doubted
            if step.quarantine and self._jobs.quarantine(job.id, step.quarantine, ACTOR):
                self._metrics.quarantines.inc()
            if step.lift:
                self._jobs.lift(job.id, "the pool agrees", ACTOR)
            if number % PORTION == 0:
                # A directory of 200,000 jobs takes a while, and posts want their turn.
                time.sleep(PAUSE)
        self._doubted = doubted
        known = {job.id for job in jobs}
        self._kept = {job_id: why for job_id, why in list(self._kept.items()) if job_id in known}

    def _run(self) -> None:
        while True:
            try:
                self.compare_once()
            except StoreError as error:
                event("the pool's reading could not be applied", level=ERROR, error=str(error))
            except Exception as error:
                # An unexpected error must not stop this thread: nothing else compares.
                failure("the pool's reading could not be applied", error)
            if self._thread.pause(self._options.interval):
                return

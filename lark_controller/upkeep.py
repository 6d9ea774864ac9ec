"""What goes on beside requests, each on a thread of its own: states into the store, leases, full checks of switches."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from lark_controller.errors import StoreError
from lark_controller.jobs import Job, JobState
from lark_controller.log import ERROR, WARNING, event
from lark_controller.metrics import Metrics
from lark_controller.registration import Registration
from lark_controller.reservations import Reservations
from lark_controller.store import Store

# Seconds that states are gathered before they are written together, and before a failed write is tried again.
GATHER = 0.1
RETRY = 1.0
PRUNE_EVERY = 3600.0


class Upkeep:
    """Threads that run from :meth:`start` to :meth:`stop`.

    ``check`` compares one switch in full and ``datapaths`` says which there are; every switch is checked once in
    ``check_seconds`` (0: never). Ended jobs and the audit trail are kept for ``retention`` seconds (0: for ever).
    """

    def __init__(
        self,
        store: Store,
        registration: Registration,
        reservations: Reservations,
        metrics: Metrics,
        *,
        lease_seconds: float,
        check_seconds: float,
        retention: float,
        datapaths: Callable[[], list[int]],
        check: Callable[[int], object],
    ) -> None:
        self._store = store
        self._registration = registration
        self._reservations = reservations
        self._metrics = metrics
        self._lease = lease_seconds
        self._check_every = check_seconds
        self._retention = retention
        self._datapaths = datapaths
        self._check = check
        self._states: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._trouble = ""
        # States that the store does not have yet, by job id.
        self.unwritten: dict[str, Job] = {}

    def start(self) -> None:
        """Start the threads."""
        for name, work in (
            ("lark-states", self._write_states),
            ("lark-leases", self._watch_leases),
            ("lark-checks", self._check_switches),
        ):
            thread = threading.Thread(target=work, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Write what is waiting, and end the threads."""
        self._stopping.set()
        self._states.put(None)
        for thread in self._threads:
            thread.join(timeout=5.0)
        with suppress(StoreError):
            self._registration.write_leases()

    def state_changed(self, job: Job) -> None:
        """Write a job's state soon; may be called from any thread and does not wait."""
        self.unwritten[job.id] = job
        self._states.put(job)

    def _write_states(self) -> None:
        found: dict[str, Job] = {}
        ending = False
        while not ending:
            if not found and (job := self._states.get()) is not None:
                found[job.id] = job
                self._stopping.wait(GATHER)
            with suppress(queue.Empty):
                while (more := self._states.get_nowait()) is not None:
                    found[more.id] = more
            ending = self._stopping.is_set()
            if self._guarded(partial(self._store_states, found)):
                found = {}
            elif not ending:
                self._stopping.wait(RETRY)

    def _store_states(self, found: Mapping[str, Job]) -> None:
        chosen = [job for job in found.values() if job.state is not JobState.REFUSED or self._registration.refused(job)]
        self._store.set_states([(job.id, job.state, job.reason) for job in chosen])
        for job in found.values():
            if self.unwritten.get(job.id) is job:
                del self.unwritten[job.id]

    def _watch_leases(self) -> None:
        pruned = 0.0
        while not self._stopping.wait(min(5.0, self._lease / 4)):
            self._guarded(self._expire)
            self._guarded(lambda: self._reservations.expire(time.time()))
            if self._retention and time.time() - pruned > PRUNE_EVERY:
                pruned = time.time()
                self._guarded(lambda: self._store.prune(time.time() - self._retention))

    def _expire(self) -> None:
        count = self._registration.expire(time.time())
        if count:
            self._metrics.leases_expired.inc(count)

    def _check_switches(self) -> None:
        while self._check_every and not self._stopping.wait(GATHER):
            datapaths = self._datapaths()
            pause = self._check_every / max(1, len(datapaths))
            for datapath in datapaths:
                if self._stopping.wait(pause):
                    return
                self._check(datapath)

    def _guarded(self, work: Callable[[], object]) -> bool:
        """Do work on the database; False where it is away, which is logged once."""
        try:
            work()
        except StoreError as error:
            if not self._trouble:
                event("database trouble", level=ERROR, error=str(error))
            self._trouble = str(error)
            return False
        if self._trouble:
            event("database is back", level=WARNING)
        self._trouble = ""
        return True

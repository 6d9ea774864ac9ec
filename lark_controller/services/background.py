"""Work beside requests, each on a thread of its own: states into the store, leases, full checks of switches."""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from lark_common.errors import StoreError
from lark_common.log import WARNING, event, failure
from lark_common.threads import StoppableThread
from lark_controller.api.metrics import Metrics
from lark_controller.jobs.job import Job, JobState
from lark_controller.services.attempts import Attempts
from lark_controller.services.external import ExternalAddresses
from lark_controller.services.lease_clock import LeaseClock
from lark_controller.services.registration import Registration
from lark_controller.services.reservations import Reservations
from lark_controller.store import Store

# Seconds that states are gathered before they are written together, and before a failed write is tried again.
GATHER = 0.1
RETRY = 1.0
PRUNE_EVERY = 3600.0
# Seconds between two looks at which switches have been compared, at most: a look goes through all of them.
LOOK = 1.0
# Seconds within which the switches that a marker stands for are compared in full, but for the bound that follows.
MARKED_CHECK = 600.0
# Checks take at most one part in this many of their thread's time, in which the loop does the work.
CHECK_SHARE = 4
# Seconds, and part of a lease, that may pass unseen before leases begin anew; the greater counts.
UNSEEN = 5.0
UNSEEN_PART = 0.25


class Upkeep:
    """Threads that run from :meth:`start` to :meth:`stop`.

    ``check`` compares one switch in full. ``datapaths`` gives those that there are, with the monotonic time of the last
    full comparison, None for one that nothing but its marker vouches for; every switch is checked once in
    ``check_seconds`` (0: never), and one that was compared as it connected has had its check. ``note_late`` looks for
    workers that are behind their rules or their reports, ``look_again`` finds out what the store has not answered.
    Ended jobs and the audit trail are kept for ``retention`` seconds (0: for ever). Leases and other promises end by
    ``clock``.
    """

    def __init__(
        self,
        store: Store,
        registration: Registration,
        reservations: Reservations,
        external: ExternalAddresses,
        metrics: Metrics,
        *,
        lease_seconds: float,
        check_seconds: float,
        retention: float,
        datapaths: Callable[[], Mapping[int, float | None]],
        check: Callable[[int], object],
        note_late: Callable[[], object],
        look_again: Callable[[], object],
        clock: LeaseClock,
    ) -> None:
        self._store = store
        self._registration = registration
        self._reservations = reservations
        self._external = external
        self._metrics = metrics
        self._lease = lease_seconds
        self._check_every = check_seconds
        self._retention = retention
        self._datapaths = datapaths
        self._check = check
        self._note_late = note_late
        self._look_again = look_again
        self._clock = clock
        self._states: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._writing = StoppableThread("lark-states", self._write_states, wake=lambda: self._states.put(None))
        self._leasing = StoppableThread("lark-leases", self._watch_leases)
        self._checking = StoppableThread("lark-checks", self._check_switches)
        self._attempts = Attempts("upkeep failed", "upkeep works again")
        # States that the store does not have yet, by job id.
        self.unwritten: dict[str, Job] = {}

    def start(self) -> None:
        """Start the threads."""
        for thread in self.threads:
            thread.start()

    @property
    def threads(self) -> tuple[StoppableThread, ...]:
        """The threads that live from start to stop."""
        return (self._writing, self._leasing, *((self._checking,) if self._check_every else ()))

    def stop_watching(self) -> None:
        """End the threads that call switches, while these can still be reached; states are written on."""
        for thread in (self._leasing, self._checking):
            thread.stop(patience=5.0)

    def stop(self) -> None:
        """Write the states that wait, and end the threads."""
        self.stop_watching()
        self._writing.stop(patience=5.0)
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
                self._writing.pause(GATHER)
            with suppress(queue.Empty):
                while (more := self._states.get_nowait()) is not None:
                    found[more.id] = more
            ending = self._writing.stopping
            if self._attempts.succeed(partial(self._store_states, found), "states"):
                found = {}
            elif not ending:
                self._writing.pause(RETRY)

    def _store_states(self, found: Mapping[str, Job]) -> None:
        chosen = [job for job in found.values() if job.state is not JobState.REFUSED or self._registration.refused(job)]
        self._store.runs.set_states([(job.id, job.state, job.reason) for job in chosen])
        for job in found.values():
            if self.unwritten.get(job.id) is job:
                del self.unwritten[job.id]

    def _watch_leases(self) -> None:
        pruned, anew = 0.0, False
        pause = min(5.0, self._lease / 4)
        seen = time.monotonic()
        while not self._leasing.pause(pause):
            # Before what went by unseen is looked at: where the process stands still from here on, in the midst of a
            # question to the store, no lease is over by that, and the next turn sees it.
            now = self._clock()
            unseen, seen = time.monotonic() - seen - pause, time.monotonic()
            if unseen > max(UNSEEN, UNSEEN_PART * self._lease):
                # The process was stopped, or its machine: workers could not renew meanwhile.
                event("time has passed unseen; all leases begin anew", level=WARNING, seconds=round(unseen))
                anew = True
            if self._clock.was_set and not anew:
                event("the machine's clock was set; all leases begin anew", level=WARNING)
                anew = True
            self._attempts.succeed(self._note_late, "workers that are behind")
            # SQLite goes on with a file that has been deleted: nothing but this check finds that.
            if not self._attempts.succeed(self._store.ping, "the database itself"):
                continue
            self._attempts.succeed(self._look_again, "changes without an answer")
            if anew and not self._attempts.succeed(self._begin_leases_anew, "leases"):
                continue
            anew = False
            self._attempts.succeed(partial(self._expire, now), "leases")
            now = self._clock.earliest()
            self._attempts.succeed(partial(self._reservations.expire, now), "reservations")
            self._attempts.succeed(partial(self._external.expire, now), "external addresses")
            if self._retention and now - pruned > PRUNE_EVERY:
                pruned = now
                self._attempts.succeed(partial(self._store.prune, now - self._retention), "old entries")

    def _begin_leases_anew(self) -> None:
        # If it is set meanwhile, they begin anew once more.
        self._clock.forget()
        # Renewals of the time before are not to be written over what they are extended to.
        self._registration.write_leases()
        self._store.runs.begin_leases(self._clock() + self._lease)

    def _expire(self, now: float) -> None:
        count = self._registration.expire(now)
        if count:
            self._metrics.leases_expired.inc(count)

    def _check_switches(self) -> None:
        # When each was compared last, as far as it has counted, in that order.
        checked: dict[int, float] = {}
        ended, took = time.monotonic(), 0.0
        pause = GATHER
        while not self._checking.pause(pause):
            compared = self._datapaths()
            checked = {each: checked.get(each, -math.inf) for each in (*checked, *compared) if each in compared}
            first = next((each for each in checked if compared[each] is None), None)
            interval = self._check_every if first is None else min(self._check_every, MARKED_CHECK)
            # While switches connect and are compared by that, nothing is checked beside them. One that connects again
            # and again counts once in the interval, so that it does not keep the others from being checked.
            fresh = {each: at for each, at in compared.items() if at is not None and at > checked[each] + interval}
            for each, at in sorted(fresh.items(), key=lambda item: item[1]):
                del checked[each]
                checked[each] = at
                ended = max(ended, at)
            each_after = interval / max(1, len(compared))
            left = ended + max(each_after, (CHECK_SHARE - 1) * took) - time.monotonic()
            # Without a switch no check moves the time of the next one, which has come long since.
            pause = min(max(left, 0.0), LOOK) if compared else GATHER
            if left > 0 or not compared:
                continue
            datapath = next(iter(checked)) if first is None else first
            del checked[datapath]
            began = time.monotonic()
            try:
                self._check(datapath)
            except Exception as error:
                # An unexpected error must not stop this thread: no other checks.
                failure("a switch could not be checked", error, datapath=f"{datapath:016x}")
            checked[datapath] = ended = time.monotonic()
            took = ended - began
            # A look before the next one is due would cost as much as the one that finds it due.
            pause = min(max(each_after, (CHECK_SHARE - 1) * took), LOOK)

"""Renews the leases of running jobs, and gives back the shares of reservations whose leases are over."""

from __future__ import annotations

import math
import time
from typing import Final

from lark_common import log
from lark_common.threads import StoppableThread
from lark_worker.controller_link import ControllerLink
from lark_worker.errors import AwayError
from lark_worker.life.registration import Registrations
from lark_worker.life.shares import Requests
from lark_worker.records.known_jobs import KnownJobs, key_of
from lark_worker.records.records import Record

TICK: Final = 1.0
# Between two renewals, however long leases are, and where the controller has not answered.
LONGEST_PAUSE: Final = 300.0
AWAY_PAUSE: Final = 30.0
# After the first look at a job that is pending; each further one is twice as long, up to the longest.
SOON: Final = 10.0


class LeaseRenewal:
    """Renews on a thread of its own, from :meth:`start` to :meth:`stop`."""

    def __init__(
        self, jobs: KnownJobs, link: ControllerLink, registrations: Registrations, reservations: Requests
    ) -> None:
        self._jobs = jobs
        self._link = link
        self._registrations = registrations
        self._reservations = reservations
        # No share is given back before this time of the monotonic clock.
        self._shares_at = 0.0
        self._thread = StoppableThread("renew", self._run)
        # The jobs that were pending at the last round.
        self._pending: frozenset[str] = frozenset()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._thread.stop()

    def _run(self) -> None:
        """Renew every job's lease three times within it; a job that the controller has forgotten is posted again.

        The first round is soon after the start: the leases' length is not known then, and running jobs have waited. One
        is soon after a job has become pending, too, since it is told of its state by these rounds alone.
        """
        began, pause, soon = -math.inf, 0.0, SOON
        while not self._thread.pause(TICK):
            self._give_back()
            try:
                pending = frozenset(record.id for record in self._jobs.all() if _is_pending(record))
                if not pending <= self._pending:
                    soon = SOON
                # The length may have changed: the first job's registration has it.
                longest = min(pause, self._link.lease / 3)
                if time.monotonic() - began < (min(longest, soon) if pending else longest):
                    continue
                began, self._pending, soon = time.monotonic(), pending, min(2 * soon, LONGEST_PAUSE)
                pause = LONGEST_PAUSE if self._round() else AWAY_PAUSE
            except Exception as error:  # an unexpected error must not stop this thread
                pause = AWAY_PAUSE
                log.failure("leases are not renewed", error)

    def _give_back(self) -> None:
        """Give back shares that are over; after a failure not for a while, since the jobs' leases come first."""
        if time.monotonic() < self._shares_at:
            return
        try:
            self._reservations.give_back()
        except Exception as error:  # of whatever kind: leases are to be renewed
            self._shares_at = time.monotonic() + AWAY_PAUSE
            if isinstance(error, AwayError):
                log.event("shares of reservations that are over are not given back", level=log.WARNING, reason=error)
            else:
                log.failure("shares of reservations that are over are not given back", error)

    def _round(self) -> bool:
        """One renewal of all; False where the controller does not answer."""
        by_machine: dict[str, dict[str, Record]] = {}
        for record in self._jobs.all():
            if not record.over and "register" not in record.pending and record.state != "refused":
                by_machine.setdefault(record.machine, {})[record.id] = record
        for machine, records in by_machine.items():
            try:
                renewed = self._link.renew(machine, list(records))
            except AwayError as error:
                log.event("leases are not renewed", level=log.WARNING, reason=error)
                return False
            for job_id, record in records.items():
                try:
                    if job_id in renewed.missing:
                        self._post_again(record)
                    elif renewed.unsettled is not None:
                        self._note(record, *renewed.unsettled.get(job_id, ("enforced", "")))
                except Exception as error:  # an error about one job must not cost the others their leases
                    log.failure("a lease is not renewed", error, job=job_id)
        return True

    def _note(self, record: Record, state: str, reason: str) -> None:
        """Keep the state that the controller has told, unless another was told since it was asked."""
        # The start of a job takes its own answers.
        if "registering" in (record.state, state) or (record.state, record.reason) == (state, reason):
            return
        key = key_of(record)
        with self._jobs.locked(key):
            current = self._jobs.of(key)
            if current is None or current.over or current.pending or current.id != record.id:
                return
            if (current.state, current.reason) == (record.state, record.reason):
                self._jobs.change(key, state=state, reason=reason)

    def _post_again(self, record: Record) -> None:
        key = key_of(record)
        with self._jobs.locked(key):
            current = self._jobs.of(key)
            if current is None or current.over or current.pending:
                return
            record = self._jobs.change(key, state="pending", then="register")
        self._registrations.post_later(key, record)
        log.event("the controller had forgotten a job; posted again", job=record.id)


def _is_pending(record: Record) -> bool:
    return record.state == "pending" and not record.over and "register" not in record.pending

"""Renews the leases of running jobs."""

from __future__ import annotations

import math
import time
from typing import Final

from lark_common import log
from lark_common.threads import StoppableThread
from lark_worker.controller_link import ControllerLink
from lark_worker.errors import AwayError
from lark_worker.life.registration import Registrations
from lark_worker.records.known_jobs import KnownJobs, key_of
from lark_worker.records.records import Record

TICK: Final = 1.0
# Between two renewals, however long leases are, and where the controller has not answered.
LONGEST_PAUSE: Final = 300.0
AWAY_PAUSE: Final = 30.0


class LeaseRenewal:
    """Renews on a thread of its own, from :meth:`start` to :meth:`stop`."""

    def __init__(self, jobs: KnownJobs, link: ControllerLink, registrations: Registrations) -> None:
        self._jobs = jobs
        self._link = link
        self._registrations = registrations
        self._thread = StoppableThread("renew", self._run)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._thread.stop()

    def _run(self) -> None:
        """Renew every job's lease three times within it; a job that the controller has forgotten is posted again.

        The first round is soon after the start: the leases' length is not known then, and running jobs have waited.
        """
        began, pause = -math.inf, 0.0
        while not self._thread.pause(TICK):
            # The length may have changed: the first job's registration has it.
            if time.monotonic() - began < min(pause, self._link.lease / 3):
                continue
            began = time.monotonic()
            try:
                pause = LONGEST_PAUSE if self._round() else AWAY_PAUSE
            except Exception as error:  # an unexpected error must not stop this thread
                pause = AWAY_PAUSE
                log.failure("leases are not renewed", error)

    def _round(self) -> bool:
        """One renewal of all; False where the controller does not answer."""
        by_machine: dict[str, dict[str, Record]] = {}
        for record in self._jobs.all():
            if not record.over and "register" not in record.pending and record.state != "refused":
                by_machine.setdefault(record.machine, {})[record.id] = record
        for machine, records in by_machine.items():
            try:
                missing = self._link.renew(machine, list(records))
            except AwayError as error:
                log.event("leases are not renewed", level=log.WARNING, reason=error)
                return False
            for job_id in missing.intersection(records):
                try:
                    self._post_again(records[job_id])
                except Exception as error:  # an error about one job must not cost the others their leases
                    log.failure("a lease is not renewed", error, job=job_id)
        return True

    def _post_again(self, record: Record) -> None:
        key = key_of(record)
        with self._jobs.locked(key):
            current = self._jobs.of(key)
            if current is None or current.over or current.pending:
                return
            record = self._jobs.change(key, state="pending", then="register")
        self._registrations.post_later(key, record)
        log.event("the controller had forgotten a job; posted again", job=record.id)

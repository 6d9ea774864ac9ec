"""Reports to the controller what jobs' transfers have moved, in one post an interval."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final

from lark_common import log
from lark_common.threads import StoppableThread
from lark_worker.controller_link import ControllerLink, Noted
from lark_worker.errors import AwayError, RefusedError
from lark_worker.records.known_jobs import key_of
from lark_worker.records.records import Record
from lark_worker.transfers.book import Sums
from lark_worker.transfers.fireflies import Fireflies
from lark_worker.transfers.following import Transfers

# Jobs in one post.
AT_ONCE: Final = 500
# Seconds until a controller that has no such route is asked again: it may be a newer one by then.
OLD_SECONDS: Final = 300.0
# Seconds between two looks for a first job, and until a controller that was away is asked again.
LEARN_SECONDS: Final = 0.5
AWAY_SECONDS: Final = 5.0


class TransferReports:
    """Reports transfers; :meth:`report` is called by one thread. ``records`` returns the worker's jobs."""

    def __init__(
        self,
        link: ControllerLink,
        transfers: Transfers,
        records: Callable[[], tuple[Record, ...]],
        fireflies: Fireflies,
    ) -> None:
        self._link = link
        self._transfers = transfers
        self._records = records
        self._fireflies = fireflies
        self._sent: dict[str, Sums] = {}
        self._at: dict[str, float] = {}
        # Jobs of which the controller shows a rate: it learns when that is over.
        self._moving: set[str] = set()
        self._not_before = -math.inf
        self._thread = StoppableThread("transfer networks", self._learn)

    def start(self) -> None:
        """Learn which networks are not the WAN, with the first job of a new worker: it may be over before a report."""
        self._thread.start()

    def stop(self) -> None:
        """Learn no more."""
        self._thread.stop()

    def last(self, record: Record) -> None:
        """Report what was moved for a job that is over. Raises AwayError."""
        if record.moved:
            # Refused counts must not keep the end from being reported.
            with contextlib.suppress(RefusedError):
                self._send(record.machine, {record.id: record.moved})

    def report(self) -> None:
        """Report what is new of live jobs. Raises AwayError; the next report has all of it then."""
        now = time.monotonic()
        live = {record.id: record for record in self._records() if not record.over and record.machine}
        for kept in (self._sent, self._at):
            for job_id in [job_id for job_id in kept if job_id not in live]:
                del kept[job_id]
        self._moving &= live.keys()
        if now < self._not_before or not live:
            return
        sums = self._transfers.written({key_of(record) for record in live.values()})
        found = {job_id: sums[key] for job_id, record in live.items() if (key := key_of(record)) in sums}
        new = {
            job_id: each for job_id, each in found.items() if self._sent.get(job_id) != each or job_id in self._moving
        }
        machine = next(iter(live.values())).machine
        rest = iter(new.items())
        while part := dict(islice(rest, AT_ONCE)):
            try:
                answer = self._send(machine, dict(self._rows(part, now)))
            except RefusedError as error:
                log.event("transfers are refused by the controller", level=log.WARNING, reason=error)
                self._not_before = now + OLD_SECONDS
                return
            if answer is None:
                self._not_before = now + OLD_SECONDS
                return
            for job_id in part.keys() - answer.missing:
                before = self._sent.get(job_id)
                (self._moving.discard if before == part[job_id] else self._moving.add)(job_id)
                self._sent[job_id], self._at[job_id] = part[job_id], now

    def _send(self, machine: str, moved: Mapping[str, Mapping[str, int]]) -> Noted | None:
        answer = self._link.transfers(machine, moved)
        if answer is not None:
            self._transfers.local(answer.local)
            self._fireflies.revise(answer.scitags)
        return answer

    def _learn(self) -> None:
        pause = LEARN_SECONDS
        while not (self._transfers.knows_local and self._fireflies.informed) and not self._thread.pause(pause):
            pause = LEARN_SECONDS
            machine = next((record.machine for record in self._records() if record.machine), "")
            try:
                if machine and self._send(machine, {}) is None:
                    pause = OLD_SECONDS
            except (AwayError, RefusedError):
                pause = AWAY_SECONDS
            except Exception as error:  # an unexpected error must not stop this thread
                log.failure("the networks that are not the WAN are unknown", error)
                pause = AWAY_SECONDS

    def _rows(self, part: dict[str, Sums], now: float) -> Iterator[tuple[str, dict[str, int]]]:
        for job_id, each in part.items():
            at = self._at.get(job_id)
            within = {} if at is None else {"within": math.ceil(1000 * (now - at))}
            yield job_id, each._asdict() | within

"""Reports to the controller what jobs' transfers have moved, in one post an interval, and takes their treatment from
the answers."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from lark_common import log
from lark_common.threads import StoppableThread
from lark_common.transfers import Treatment
from lark_worker.controller_link import ControllerLink, Noted
from lark_worker.errors import AwayError, RefusedError
from lark_worker.records.known_jobs import key_of
from lark_worker.records.records import Record
from lark_worker.transfers.book import NOTHING, Sums
from lark_worker.transfers.fireflies import Fireflies
from lark_worker.transfers.following import Transfers

# Jobs in one post.
AT_ONCE: Final = 500
# Seconds until a controller that has no such route is asked again: it may be a newer one by then.
OLD_SECONDS: Final = 300.0
# Seconds after which all jobs' treatments are asked for again, where the policy has rules of transfers, and whether
# flows are reported, where they are.
AGAIN_SECONDS: Final = 60.0
# Seconds between two looks for new jobs, and until a controller that was away is asked again.
LEARN_SECONDS: Final = 0.5
AWAY_SECONDS: Final = 5.0


class TransferReports:
    """Reports transfers; :meth:`report` is called by one thread, every ``seconds`` (0: it is not said how often).
    ``records`` returns the worker's jobs."""

    def __init__(
        self,
        link: ControllerLink,
        transfers: Transfers,
        records: Callable[[], tuple[Record, ...]],
        fireflies: Fireflies,
        seconds: float = 0.0,
    ) -> None:
        self._link = link
        self._interval = {"interval": math.ceil(1000 * seconds)} if seconds else {}
        self._transfers = transfers
        self._records = records
        self._fireflies = fireflies
        # Held for each round of posts: what one thread was answered, the other has not to ask for.
        self._lock = threading.Lock()
        self._sent: dict[str, Sums] = {}
        self._at: dict[str, float] = {}
        # Jobs of which the controller shows a rate: it learns when that is over.
        self._moving: set[str] = set()
        self._not_before = -math.inf
        # True where the policy has rules of transfers (None: not known), and when that was answered.
        self._has_rules: bool | None = None
        self._answered = -math.inf
        self._asked_all = -math.inf
        # The treatments that the controller has as in place, of the jobs that it was asked about.
        self._said: dict[str, tuple[Treatment | None, str]] = {}
        # True while there may be treatments that no rule gives any more, as of a service before this one.
        self._left_over = True
        self._thread = StoppableThread("transfer treatments", self._learn)

    def start(self) -> None:
        """Learn which networks are not the WAN, whether flows are reported, and the treatment of new jobs'
        transfers: the first job of a new worker may be over before a report."""
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
        with self._lock:
            now = time.monotonic()
            live = self._live()
            if now < self._not_before or not live:
                return
            found = self._sums(live)
            new = [
                job_id
                for job_id, each in found.items()
                if each != NOTHING and (self._sent.get(job_id) != each or job_id in self._moving)
            ]
            # All that they move later comes after this.
            self._at.update(dict.fromkeys(found.keys() - set(new), now))
            try:
                known = self._post(live, {job_id: found[job_id] for job_id in new}, now)
            except RefusedError as error:
                log.event("transfers are refused by the controller", level=log.WARNING, reason=error)
                known = False
            if not known:
                self._not_before = now + OLD_SECONDS

    def _live(self) -> dict[str, Record]:
        """The jobs to report, by id; of others nothing is kept."""
        live = {record.id: record for record in self._records() if not record.over and record.machine}
        for kept in (self._sent, self._at, self._said):
            for job_id in kept.keys() - live.keys():
                del kept[job_id]
        self._moving &= live.keys()
        return live

    def _sums(self, live: Mapping[str, Record]) -> dict[str, Sums]:
        sums = self._transfers.written({key_of(record) for record in live.values()})
        return {job_id: sums.get(key_of(record), NOTHING) for job_id, record in live.items()}

    def _post(self, live: Mapping[str, Record], sums: Mapping[str, Sums], now: float) -> bool:
        """Post these jobs' sums; False where the controller is an older one. Raises AwayError, RefusedError."""
        rest = iter(sums.items())
        while part := dict(islice(rest, AT_ONCE)):
            keys = {job_id: key_of(live[job_id]) for job_id in part}
            words = {job_id: self._transfers.in_place(key) for job_id, key in keys.items()} if self._has_rules else {}
            answer = self._send(live[next(iter(part))].machine, dict(self._rows(part, words, now)))
            if answer is None:
                return False
            self._said |= words
            given = answer.treatments or {}
            self._transfers.treat({key: given.get(job_id) for job_id, key in keys.items()})
            for job_id in part.keys() - answer.missing:
                before = self._sent.get(job_id)
                (self._moving.discard if before == part[job_id] else self._moving.add)(job_id)
                self._sent[job_id], self._at[job_id] = part[job_id], now
        return True

    def _send(self, machine: str, moved: Mapping[str, Mapping[str, Any]]) -> Noted | None:
        answer = self._link.transfers(machine, moved)
        if answer is not None:
            self._transfers.local(answer.local)
            self._fireflies.revise(answer.scitags)
            self._has_rules, self._answered = answer.treatments is not None, time.monotonic()
        return answer

    def _learn(self) -> None:
        pause = LEARN_SECONDS
        while not self._thread.pause(pause):
            pause = LEARN_SECONDS
            try:
                with self._lock:
                    if not self._ask():
                        pause = OLD_SECONDS
            except (AwayError, RefusedError):
                pause = AWAY_SECONDS
            except Exception as error:  # an unexpected error must not stop this thread
                log.failure("the treatment of transfers is unknown", error)
                pause = AWAY_SECONDS

    def _ask(self) -> bool:
        """Ask for what is not known; False where the controller is an older one. Raises AwayError, RefusedError."""
        live = self._live()
        if not live:
            return True
        now = time.monotonic()
        informed = self._transfers.knows_local and self._fireflies.informed and self._has_rules is not None
        # Where flows are reported, a change of that is not to wait for the next file that is moved.
        unknown = not informed or now - self._answered > (AGAIN_SECONDS if self._fireflies.told else OLD_SECONDS)
        if unknown and self._send(next(iter(live.values())).machine, {}) is None:
            self._untreat(live)
            return False
        if not self._has_rules:
            self._untreat(live)
            return True
        self._left_over = True
        due: Collection[str] = live
        if now - self._asked_all < AGAIN_SECONDS:
            due = [id_ for id_, record in live.items() if self._said.get(id_) != self._word(record)]
        else:
            self._asked_all = now
        if not due:
            return True
        sums = self._sums({job_id: live[job_id] for job_id in due})
        return self._post(live, sums, now)

    def _untreat(self, live: Mapping[str, Record]) -> None:
        """End all treatments, once the last rule has gone."""
        if self._left_over:
            self._transfers.treat(dict.fromkeys((key_of(record) for record in live.values()), None))
            self._said.clear()
            self._left_over = False

    def _word(self, record: Record) -> tuple[Treatment | None, str]:
        return self._transfers.in_place(key_of(record))

    def _rows(
        self, part: Mapping[str, Sums], words: Mapping[str, tuple[Treatment | None, str]], now: float
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        for job_id, each in part.items():
            at = self._at.get(job_id)
            row: dict[str, Any] = each._asdict() | self._interval
            row |= {} if at is None else {"within": math.ceil(1000 * (now - at))}
            if job_id in words:
                treatment, trouble = words[job_id]
                row |= {"treatment": None if treatment is None else treatment.to_json(), "trouble": trouble}
            yield job_id, row

"""Brings this worker's rules from the controller into the kernel, and confirms them.

One thread waits for another revision; another puts the newest in place, so that a wait never holds up a job that has
just been made. While no job needs rules, none are requested.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from lark_common import log
from lark_common.limits import Bucket
from lark_common.threads import StoppableThread
from lark_common.worker_rules import WorkerRules
from lark_worker.controller_link import ControllerLink
from lark_worker.errors import AwayError, NetworkError, RefusedError
from lark_worker.queues.shaping import Shaping
from lark_worker.records.records import Record
from lark_worker.rules.events import TableWatch
from lark_worker.rules.firewall import Firewall, is_ruled

# Seconds that the controller holds a request, and pauses where it does not or cannot.
HOLD: Final = 30.0
PAUSE: Final = 2.0
FIRST_PAUSE: Final = 0.25
LONGEST_PAUSE: Final = 5.0
# Lines of the log about rules that are in place: at once, and a second afterwards. A job that changes what it has
# reserved in a loop has other rules each time.
LINES_AT_ONCE: Final = 256
LINES: Final = 1 / 10


@dataclass(frozen=True, slots=True)
class _Revision:
    """The rules that came last."""

    host: str
    revision: str
    rules: WorkerRules


class RulesFeed:
    """Keeps the kernel's tables equal to the controller's rules, from :meth:`start` to :meth:`stop`.

    ``records`` returns the worker's jobs.
    """

    def __init__(
        self, link: ControllerLink, firewall: Firewall, shaping: Shaping, records: Callable[[], tuple[Record, ...]]
    ) -> None:
        self._link = link
        self._firewall = firewall
        self._shaping = shaping
        self._records = records
        self._changed = threading.Condition()
        self._dirty = False
        self._needed = threading.Event()
        self._given: _Revision | None = None
        self._confirmed: tuple[object, ...] = ()
        self._lines = Bucket(LINES, LINES_AT_ONCE, time.monotonic())
        self._watch = TableWatch(firewall.name, self._table_deleted)
        self._fetching = StoppableThread("rules fetch", self._fetch, wake=self._needed.set)
        self._applying = StoppableThread("rules apply", self._apply_changes, wake=self._notify)

    def start(self) -> None:
        """Start the threads; jobs that are there already have their rules in the kernel."""
        if not any(True for _ in self._live()):
            self._firewall.remove()
            self._shaping.remove()
        self._watch.start()
        self._fetching.start()
        self._applying.start()
        self.jobs_changed()

    def stop(self) -> None:
        """Stop the threads; rules stay. A request that the controller holds is not waited for."""
        self._watch.stop()
        self._fetching.stop(patience=0)
        self._applying.stop()

    def prepare(self, record: Record) -> None:
        """Close the table before a job's device is there: without rules it passes nothing. Raises NetworkError."""
        self._firewall.prepare(record)

    def jobs_changed(self) -> None:
        """Apply the rules again: a job's network was made, or a job ended."""
        self._needed.set()
        with self._changed:
            self._dirty = True
            self._changed.notify_all()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _live(self) -> list[Record]:
        return [record for record in self._records() if is_ruled(record) and not record.over]

    def _table_deleted(self, family: str) -> None:
        if self._firewall.note_deleted(family):
            log.event("somebody deleted the table of rules; it is made again", level=log.WARNING, family=family)
            self.jobs_changed()

    # -- fetching ----------------------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        pause = FIRST_PAUSE
        while not self._fetching.stopping:
            self._needed.clear()
            try:
                host = next((record.machine for record in self._live()), None)
                if host is None:
                    self._needed.wait()
                    continue
                known = self._given.revision if self._given is not None and self._given.host == host else ""
                began = time.monotonic()
                revision, rules = self._link.rules(host, known, HOLD)
            except Exception as error:  # an unexpected error must not stop this thread
                if isinstance(error, AwayError | RefusedError):
                    log.event("rules cannot be asked for; trying again", reason=error, seconds=pause)
                else:
                    log.failure("rules cannot be asked for; trying again", error, seconds=pause)
                self._fetching.pause(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            if rules is not None:
                with self._changed:
                    self._given = _Revision(host, revision, rules)
                    self._dirty = True
                    self._changed.notify_all()
            elif time.monotonic() - began < HOLD / 2:
                # The controller has no place to hold the request; the next job of this worker is a reason to ask again.
                self._needed.wait(PAUSE)

    # -- putting in place ----------------------------------------------------------------------------------------------

    def _apply_changes(self) -> None:
        pause = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._dirty or self._applying.stopping, pause or None)
                if self._applying.stopping:
                    return
                self._dirty = False
                given = self._given
            try:
                self._apply(given)
                pause = 0.0
            except (AwayError, RefusedError, NetworkError) as error:
                pause = min((pause or FIRST_PAUSE) * 2, LONGEST_PAUSE)
                log.event("rules are not in place or not confirmed", level=log.WARNING, reason=error, seconds=pause)
            except Exception as error:  # an unexpected error must not stop this thread
                pause = LONGEST_PAUSE
                log.failure("rules are not in place", error)

    def _apply(self, given: _Revision | None) -> None:
        live = self._live()
        if given is None:
            # Rules of an earlier run of the service stay until the controller's arrive.
            if live:
                self._firewall.close(live)
            else:
                self._firewall.remove()
            return
        # A class is there before packets are sent through it.
        shaped = self._shaping.apply(given.rules, live)
        applied = self._firewall.apply(given.rules, live, shaped)
        if not live:
            self._shaping.remove()
        confirmation = (given.revision, applied.late, applied.out)
        if self._confirmed == confirmation:
            return
        self._link.rules_confirmed(given.host, given.revision, applied)
        self._confirmed = confirmation
        if self._lines.take_whole(time.monotonic()):
            log.event("rules in place", revision=given.revision, jobs=len(given.rules.jobs) - len(applied.refused))

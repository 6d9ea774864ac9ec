"""The rates that workers report, and that are over once a worker has been silent about them for too long.

A worker reports a job's counts while they change, and once more when they have stopped. One that has died, or that
reports changes alone as workers of earlier releases do, leaves a rate behind that nothing ends. Times are monotonic.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

from lark_controller.accounting.ledger import Ledger

# Intervals without a report after which a rate is over: one report may be late, and another lost.
SILENT: Final = 2.5
# Seconds between the reports of a worker that does not say, at least, and the bounds of what one may say.
USUAL: Final = 30.0
LEAST: Final = 1.0
MOST: Final = 3600.0

# A job's number, and whether it is about its transfers, which have reports of their own.
_Of = tuple[int, bool]


class _Report(NamedTuple):
    """The last report, and the seconds until the next one. ``made`` is False where none has come since a start."""

    at: float
    interval: float
    made: bool = True


class Reporting:
    """The times until which rates hold without another report; thread-safe.

    A job has one entry from a report on until it is overdue: a busy one costs what its reports cost, an idle one
    nothing.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._known: dict[_Of, _Report] = {}
        # The times to look at an entry, the next one first; by then it may have moved on.
        self._due: list[tuple[float, _Of]] = []

    def reported(
        self, number: int, now: float, interval: float | None, within: float | None, *, transfers: bool = False
    ) -> None:
        """Note a report of a job, before the ledger takes it: what is new came ``within`` so many seconds, and the next
        one follows in ``interval`` seconds (None: the worker does not say)."""
        key = number, transfers
        with self._lock:
            known = self._known.get(key)
            if interval is None:
                # Its reports are as far apart, or closer where a job has asked for its advice.
                since, before = (0.0, 0.0) if known is None else (now - known.at, known.interval)
                interval = max(USUAL, before, since, within or 0.0)
            interval = min(max(interval, LEAST), MOST)
            self._known[key] = _Report(now, interval)
            if known is None:
                heapq.heappush(self._due, (now + SILENT * interval, key))

    def expected(self, numbers: Iterable[int], now: float) -> None:
        """Note jobs that were there before this start: those of which no report comes in the usual time are idle, if
        their worker has been heard by then."""
        with self._lock:
            for number in numbers:
                key = number, False
                if key not in self._known:
                    self._known[key] = _Report(now, USUAL, made=False)
                    heapq.heappush(self._due, (now + SILENT * USUAL, key))

    def look(self, now: float, silent: Callable[[Sequence[int]], Collection[int]] = lambda _numbers: ()) -> int:
        """End the rates whose reports are overdue; returns how many. ``silent`` returns those of some jobs whose worker
        has not been heard since the start: they stay unknown."""
        due: list[_Of] = []
        with self._lock:
            while self._due and self._due[0][0] <= now:
                due.append(heapq.heappop(self._due)[1])
            unmade = [key[0] for key in due if not self._known[key].made]
        # Not under the lock: it may wait.
        try:
            unknown = silent(unmade) if unmade else ()
        except BaseException:
            with self._lock:
                for key in due:
                    heapq.heappush(self._due, (now, key))
            raise
        over: dict[bool, list[int]] = {False: [], True: []}
        with self._lock:
            for key in due:
                known = self._known[key]
                if not known.made and key[0] in unknown:
                    known = self._known[key] = known._replace(at=now)
                if (until := known.at + SILENT * known.interval) > now:
                    heapq.heappush(self._due, (until, key))
                    continue
                del self._known[key]
                over[key[1]].append(key[0])
            # Under the lock: a report that comes meanwhile is taken after this.
            for transfers, numbers in over.items():
                self._ledger.quiet(numbers, transfers=transfers)
        return sum(map(len, over.values()))

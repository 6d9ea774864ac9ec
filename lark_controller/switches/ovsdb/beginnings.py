"""The databases that are connected and brought up to date: so many at a time. Pure, by the caller's clock.

A server asks a silent client whether it is there, by default after 5 s, and closes the connection 5 s later. With
thousands of databases read at once the questions of each would wait for longer than that: they would be closed and read
again, without end.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import Final

# Databases that are begun with at a time, and the seconds after which one has no place any more: it may never answer.
AT_A_TIME: Final = 64
LONGEST: Final = 5.0


class Beginnings:
    """Decides which databases may be begun with. For one thread."""

    def __init__(self) -> None:
        # When each was begun with, the oldest first; those that wait, in the order in which they came; and those of
        # them for which somebody waits.
        self._begun: dict[int, float] = {}
        self._waiting: dict[int, None] = {}
        self._first: dict[int, None] = {}

    def begins(self, datapath: int, now: float) -> bool:
        """True if a database may be begun with, or has been; one that may not waits."""
        if datapath in self._begun:
            return True
        if len(self._begun) >= AT_A_TIME:
            if datapath not in self._first:
                self._waiting.setdefault(datapath)
            return False
        self._leave(datapath)
        self._begun[datapath] = now
        return True

    def hurry(self, datapath: int) -> None:
        """Let one that waits go before those for which nobody waits."""
        if datapath in self._waiting:
            del self._waiting[datapath]
            self._first[datapath] = None

    def over(self, datapath: int) -> None:
        """Give a database's place back."""
        self._begun.pop(datapath, None)

    def forget(self, datapath: int) -> None:
        """Forget a database that is no more."""
        self.over(datapath)
        self._leave(datapath)

    def due(self) -> float | None:
        """The time at which the next place is free at the latest; None where nobody waits for one."""
        if not self._waiting and not self._first:
            return None
        oldest = next(iter(self._begun.values()), 0.0)
        return oldest + LONGEST if len(self._begun) >= AT_A_TIME else 0.0

    def take(self, now: float) -> list[int]:
        """The databases that are to begin now; each has to ask (:meth:`begins`)."""
        while self._begun and (oldest := next(iter(self._begun.items())))[1] + LONGEST <= now:
            del self._begun[oldest[0]]
        room = AT_A_TIME - len(self._begun)
        return list(islice(chain(self._first, self._waiting), room))

    def _leave(self, datapath: int) -> None:
        self._first.pop(datapath, None)
        self._waiting.pop(datapath, None)

"""The external addresses that have no flows at a switch: no room there, or refused by it. Pure.

Rules of the policy come first at a core whose rules are limited: what they leave is for external addresses. One that
has room keeps it, until the policy's rules take it, the youngest address's first. Those without wait, and the oldest
that fits is the first to get it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from lark_controller.jobs.external import External
from lark_controller.jobs.job import Job

# More rules than any switch has.
_ENDLESS: Final = 1 << 62


class Moved(NamedTuple):
    """The jobs whose flows come to a core, and those whose flows go, because there is room or none."""

    opened: tuple[int, ...] = ()
    closed: tuple[int, ...] = ()


class Room:
    """The room for external addresses at one core: the flows of each job that has some or waits, by its number."""

    def __init__(self, first: Collection[int] = ()) -> None:
        self.has: dict[int, int] = {}
        self.waits: dict[int, int] = {}
        self.used = 0
        # No more than the smallest that waits needs.
        self._least = _ENDLESS
        # Those that had room before a comparison keep it.
        self._first = frozenset(first)

    def copy(self) -> Room:
        """The same once more."""
        other = Room(self._first)
        other.has, other.waits, other.used, other._least = dict(self.has), dict(self.waits), self.used, self._least
        return other

    def leave(self, number: int) -> None:
        """Take a job out."""
        self.used -= self.has.pop(number, 0)
        self.waits.pop(number, None)

    def enter(self, number: int, flows: int) -> None:
        """Take a job in, or another number of its flows. One that has room keeps it until :meth:`settle`."""
        if number in self.has:
            self.used += flows - self.has[number]
            self.has[number] = flows
        else:
            self.waits[number] = flows
            self._least = min(self._least, flows)

    def settle(self, room: int, age: Callable[[int], int]) -> Moved:
        """Share so many rules out; ``age`` is smaller for older jobs."""
        closed: list[int] = []
        if self.used > room:
            youngest = sorted(self.has, key=lambda number: self._order(number, age), reverse=True)
            for number in itertools.takewhile(lambda _: self.used > room, youngest):
                closed.append(number)
                self.waits[number] = self.has.pop(number)
                self.used -= self.waits[number]
                self._least = min(self._least, self.waits[number])
        opened: list[int] = []
        if self._least <= room - self.used:
            for number in sorted(self.waits, key=lambda number: self._order(number, age)):
                if (flows := self.waits[number]) <= room - self.used:
                    self.has[number] = self.waits.pop(number)
                    self.used += flows
                    opened.append(number)
            self._least = min(self.waits.values(), default=_ENDLESS)
        # From now on age alone counts.
        self._first = frozenset()
        both = set(closed) & set(opened)
        return Moved(tuple(n for n in opened if n not in both), tuple(n for n in closed if n not in both))

    def _order(self, number: int, age: Callable[[int], int]) -> tuple[bool, int, int]:
        return number not in self._first, age(number), number


class Refusals:
    """External addresses that switches refused, with the reason; each until its job has another, or none."""

    def __init__(self) -> None:
        self._by_job: dict[int, dict[int, tuple[tuple[External, ...], str]]] = {}

    def copy(self) -> Refusals:
        """The same once more."""
        other = Refusals()
        other._by_job = {number: dict(each) for number, each in self._by_job.items()}
        return other

    def note(self, datapath: int, job: Job, reason: str) -> None:
        """Note that a switch has refused a job's external addresses as they are."""
        self._by_job.setdefault(job.number, {})[datapath] = (job.external, reason)

    def why(self, datapath: int | None, job: Job) -> str:
        """The reason why a switch refuses a job's external addresses as they are; ``""``: it does not."""
        if datapath is None or not self._by_job:
            return ""
        external, reason = self._by_job.get(job.number, {}).get(datapath, ((), ""))
        return reason if external == job.external else ""

    def oldest(self) -> dict[int, int]:
        """The oldest job of which each switch has refused an external address."""
        found: dict[int, int] = {}
        for number, by_switch in self._by_job.items():
            for datapath in by_switch:
                found[datapath] = min(number, found.get(datapath, number))
        return found

    def forget(self, number: int, datapath: int) -> None:
        """Forget what a switch refused of a job."""
        refused = self._by_job.get(number, {})
        refused.pop(datapath, None)
        if not refused:
            self._by_job.pop(number, None)

    def follow(self, number: int, external: tuple[External, ...]) -> None:
        """Forget what was refused of a job that has other external addresses now."""
        for datapath, (refused, _) in list(self._by_job.get(number, {}).items()):
            if refused != external:
                self.forget(number, datapath)

    def forget_at(self, datapath: int) -> set[int]:
        """Forget what a switch refused; returns the jobs of which it was."""
        gone = {number for number, refused in self._by_job.items() if datapath in refused}
        for number in gone:
            self.forget(number, datapath)
        return gone

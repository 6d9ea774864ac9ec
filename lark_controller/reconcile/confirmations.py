"""The confirmations that each job needs, and the callers that wait for them. No I/O; for the reconcile loop alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

Waiter = Callable[[], None]
# Values that many jobs have in common are shared; so many are remembered for that.
_SHARED: Final = 65_536
# Parts of a job that are gone through one by one; more, as of a job that opens a block and is awaited at a thousand
# switches, are looked up while any of them is not confirmed.
_FEW: Final = 8


@dataclass(frozen=True, slots=True)
class NoSwitch:
    """A switch for the job's host, while none is known."""


@dataclass(frozen=True, slots=True)
class FlowsAt:
    """Flows at a switch, confirmed by barrier."""

    datapath: int


@dataclass(frozen=True, slots=True)
class QueuesAt:
    """Queues at a switch."""

    datapath: int


@dataclass(frozen=True, slots=True)
class RulesAt:
    """Rules at a worker, which confirms a revision of them."""

    host: str


@dataclass(frozen=True, slots=True)
class Translated:
    """The translation of an external address by a plain Linux gateway."""


Awaited = NoSwitch | FlowsAt | QueuesAt | RulesAt | Translated
NO_SWITCH: Final = NoSwitch()
TRANSLATED: Final = Translated()


def rank(what: Awaited) -> tuple[int, int, str]:
    """The order in which reasons are shown: switches, then queues, then workers, then gateways."""
    match what:
        case NoSwitch():
            return 0, 0, ""
        case FlowsAt(datapath):
            return 1, datapath, ""
        case QueuesAt(datapath):
            return 2, datapath, ""
        case RulesAt(host):
            return 3, 0, host
        case Translated():
            return 4, 0, ""


class _Part(NamedTuple):
    """One thing that a job needs: barriers that are out for it, and why it is not confirmed (``""``: it is)."""

    what: Awaited
    out: int
    reason: str


class _Many:
    """The parts of a job that needs many things, with the number of those not confirmed and of those under way."""

    __slots__ = ("lacking", "parts", "under_way")

    def __init__(self, parts: Iterable[_Part]) -> None:
        self.parts: dict[Awaited, _Part] = {}
        self.lacking = 0
        self.under_way = 0
        for part in parts:
            self.put(part)

    def __iter__(self) -> Iterator[_Part]:
        return iter(self.parts.values())

    def put(self, new: _Part) -> None:
        """Set one part, in the place of what it was before."""
        old = self.parts.get(new.what)
        if old is not None:
            self.lacking -= bool(old.reason)
            self.under_way -= bool(old.out)
        self.parts[new.what] = new
        self.lacking += bool(new.reason)
        self.under_way += bool(new.out)


class Confirmations:
    """The things that each job needs, by its number: confirmed, or the reason why not.

    To note one costs the same however many there are of the job.
    """

    def __init__(self) -> None:
        # Few parts a job, and mostly the same for many jobs, so that they are shared.
        self._jobs: dict[int, tuple[_Part, ...] | _Many] = {}
        self._shared: dict[tuple[_Part, ...], tuple[_Part, ...]] = {}
        self._confirmed: dict[Awaited, _Part] = {}
        self._waiters: dict[int, list[Waiter]] = {}
        # Those of them that wait for a job's reserved flows alone.
        self._of_flows: dict[int, list[Waiter]] = {}
        self._open: dict[Awaited, set[int]] = {}

    def sent(self, number: int, what: Awaited) -> None:
        """Note that something was sent for a job; a confirmation is due."""
        part = self._part(number, what)
        out = 1 if part is None else part.out + 1
        self._set(number, _Part(what, out, "has not confirmed yet"))

    def blocked(self, number: int, what: Awaited, reason: str) -> None:
        """Note that nothing can be sent for a job now; ``reason`` is shown."""
        self._set(number, _Part(what, 0, reason))

    def begin(self, numbers: Collection[int], lacking: Sequence[tuple[Awaited, str]]) -> None:
        """:meth:`blocked` of jobs of which nothing is noted yet, each with all of these reasons."""
        if len(lacking) > _FEW or not self._jobs.keys().isdisjoint(numbers):
            for number in numbers:
                for what, reason in lacking:
                    self.blocked(number, what, reason)
            return
        parts = tuple(_Part(what, 0, reason) for what, reason in lacking)
        self._jobs.update(dict.fromkeys(numbers, parts))
        for what, _ in lacking:
            self._open.setdefault(what, set()).update(numbers)

    def confirmed(self, number: int, what: Awaited) -> bool:
        """Note a confirmation; True if that was the last thing that the job waited for."""
        part = self._part(number, what)
        if part is None or not part.reason:
            return False
        out = max(0, part.out - 1)
        self._set(number, _Part(what, out, part.reason if out else ""))
        return not out and self._settled(number)

    def under_way(self, number: int, what: Awaited) -> bool:
        """True where something was sent for a job and its confirmation is due."""
        part = self._part(number, what)
        return part is not None and bool(part.out)

    def unneeded(self, number: int, what: Awaited) -> bool:
        """Note that a job does not need a thing any more, whatever was sent for it; True if that was the last thing
        that it waited for."""
        part, parts = self._part(number, what), self._jobs.get(number, ())
        if part is None:
            return False
        rest = tuple(each for each in parts if each.what != what)
        many = _Many(rest) if isinstance(parts, _Many) else None
        self._jobs[number] = many if many is not None and many.lacking else rest
        self._close(number, what)
        return bool(part.reason) and self._settled(number)

    def synced(self, what: Awaited, but: Container[int] = ()) -> Iterator[int]:
        """Confirm all of a switch, ``but`` for some jobs; yields those that thereby wait for nothing more."""
        for number in [number for number in self._open.get(what, ()) if number not in but]:
            part = self._part(number, what)
            if part is not None and not part.out:
                self._set(number, _Part(what, 0, ""))
                if self._settled(number):
                    yield number

    def waiting_for(self, what: Awaited) -> int:
        """The number of jobs that wait for a thing."""
        return len(self._open.get(what, ()))

    def open_at(self, what: Awaited) -> list[int]:
        """The jobs that wait for a thing."""
        return list(self._open.get(what, ()))

    def open(self) -> list[int]:
        """The jobs that wait for anything."""
        return list({number for numbers in self._open.values() for number in numbers})

    def lost(self, what: Awaited, reason: str) -> list[int]:
        """Let all that was sent to a lost switch and not confirmed wait for its return; returns these jobs."""
        numbers = list(self._open.get(what, ()))
        for number in numbers:
            self._set(number, _Part(what, 0, reason))
        return numbers

    def waiting(self, number: int) -> dict[Awaited, str]:
        """The things not confirmed, with the reason, in the order of :func:`rank`."""
        parts = [part for part in self._jobs.get(number, ()) if part.reason]
        return {part.what: part.reason for part in sorted(parts, key=lambda part: rank(part.what))}

    def awaits(self, number: int, what: Awaited) -> str:
        """The reason why a thing that a job needs is not confirmed; ``""`` where it is, or is not needed."""
        part = self._part(number, what)
        return "" if part is None else part.reason

    def stuck(self, number: int) -> bool:
        """True where a job waits for something, and no confirmation is under way."""
        parts = self._jobs.get(number, ())
        if isinstance(parts, _Many):
            return bool(parts.lacking) and not parts.under_way
        return any(part.reason for part in parts) and not any(part.out for part in parts)

    def done(self, number: int) -> list[Awaited]:
        """The things confirmed, in the order of :func:`rank`."""
        return sorted((part.what for part in self._jobs.get(number, ()) if not part.reason), key=rank)

    def when_settled(self, number: int, waiter: Waiter, *, of_flows: bool = False) -> None:
        """Call ``waiter`` once nothing more is waited for (at once if that is so now); ``of_flows`` also once
        :meth:`flows_settled` is called."""
        if not self._lacks(number):
            waiter()
            return
        self._waiters.setdefault(number, []).append(waiter)
        if of_flows:
            self._of_flows.setdefault(number, []).append(waiter)

    def flows_settled(self, number: int) -> None:
        """Call those who wait for the reserved flows of a job, whatever else it waits for."""
        for waiter in self._of_flows.pop(number, ()):
            self.stop_waiting(number, waiter)
            waiter()

    def awaited(self) -> list[int]:
        """The jobs that callers wait for, those that have waited longest first."""
        return list(self._waiters)

    def is_awaited(self, what: Awaited) -> bool:
        """True where a caller waits for a job that waits for this."""
        return not self._waiters.keys().isdisjoint(self._open.get(what, ()))

    def stop_waiting(self, number: int, waiter: Waiter) -> None:
        """Forget a waiter that has given up."""
        for of_jobs in (self._waiters, self._of_flows):
            waiters = of_jobs.get(number, [])
            if waiter in waiters:
                waiters.remove(waiter)
            if not waiters:
                of_jobs.pop(number, None)

    def forget(self, number: int) -> None:
        """Forget a job that is over; its waiters are called."""
        for part in self._jobs.pop(number, ()):
            if part.reason:
                self._close(number, part.what)
        self._call(number)

    def __len__(self) -> int:
        return len(self._jobs) + len(self._waiters) + len(self._of_flows) + len(self._open)

    def _part(self, number: int, what: Awaited) -> _Part | None:
        parts = self._jobs.get(number, ())
        if isinstance(parts, _Many):
            return parts.parts.get(what)
        for part in parts:
            if part.what == what:
                return part
        return None

    def _lacks(self, number: int) -> bool:
        """True if anything that a job needs is not confirmed."""
        parts = self._jobs.get(number, ())
        return bool(parts.lacking) if isinstance(parts, _Many) else any(part.reason for part in parts)

    def _settled(self, number: int) -> bool:
        """True if a job waits for nothing more; its waiters are called then."""
        if self._lacks(number):
            return False
        self._call(number)
        return True

    def _call(self, number: int) -> None:
        self._of_flows.pop(number, None)
        for waiter in self._waiters.pop(number, ()):
            waiter()

    def _set(self, number: int, new: _Part) -> None:
        for shared in (self._shared, self._confirmed):
            if len(shared) >= _SHARED:
                shared.clear()
        old = self._jobs.get(number, ())
        self._jobs[number] = self._with(old, new) if isinstance(old, _Many) or len(old) >= _FEW else self._few(old, new)
        if new.reason:
            self._open.setdefault(new.what, set()).add(number)
        else:
            self._close(number, new.what)

    def _few(self, old: tuple[_Part, ...], new: _Part) -> tuple[_Part, ...]:
        parts = tuple(new if part.what == new.what else part for part in old) if old else (new,)
        if new not in parts:
            parts = (*parts, new)
        return parts if new.out else self._shared.setdefault(parts, parts)

    def _with(self, old: tuple[_Part, ...] | _Many, new: _Part) -> tuple[_Part, ...] | _Many:
        parts = old if isinstance(old, _Many) else _Many(old)
        # One that is confirmed is the same object for all jobs, since a job that needs many lives with them for long.
        parts.put(new if new.out or new.reason else self._confirmed.setdefault(new.what, new))
        return parts if parts.lacking else tuple(parts)

    def _close(self, number: int, what: Awaited) -> None:
        numbers = self._open.get(what)
        if numbers is not None:
            numbers.discard(number)
            if not numbers:
                del self._open[what]

"""Which switches have confirmed which job's flows, and who waits for it. No I/O; used by the reconcile loop alone."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field

Waiter = Callable[[], None]


@dataclass(slots=True)
class _Part:
    """One switch's part in a job: barriers that are out, and why it is not confirmed (``""``: it is)."""

    out: int = 0
    reason: str = ""


@dataclass(slots=True)
class _Progress:
    parts: dict[int, _Part] = field(default_factory=dict)
    waiters: list[Waiter] = field(default_factory=list)


class Confirmations:
    """For each job's number, each concerned datapath: confirmed by barrier, or the reason why not."""

    def __init__(self) -> None:
        self._jobs: dict[int, _Progress] = {}
        self._open: dict[int, set[int]] = {}
        # Jobs that wait for nothing: most of them, so they are kept small.
        self._settled: dict[int, tuple[int, ...]] = {}

    def sent(self, number: int, datapath: int) -> None:
        """Flows of a job went to a switch; a barrier reply is due."""
        part = self._part(number, datapath)
        part.out += 1
        part.reason = "has not confirmed yet"
        self._open.setdefault(datapath, set()).add(number)

    def blocked(self, number: int, datapath: int, reason: str) -> None:
        """A switch cannot be told of a job now; ``reason`` is shown."""
        part = self._part(number, datapath)
        part.out = 0
        part.reason = reason
        self._open.setdefault(datapath, set()).add(number)

    def confirmed(self, number: int, datapath: int) -> bool:
        """A barrier reply came; True if that was the last thing that the job waited for."""
        progress = self._jobs.get(number)
        part = None if progress is None else progress.parts.get(datapath)
        if progress is None or part is None:
            return False
        part.out = max(0, part.out - 1)
        if part.out or not part.reason:
            return False
        return self._close(number, datapath, progress, part)

    def synced(self, datapath: int, but: Container[int] = ()) -> Iterator[int]:
        """A whole switch is in sync, ``but`` for some jobs: yields those that thereby wait for nothing more."""
        for number in [number for number in self._open.get(datapath, ()) if number not in but]:
            progress = self._jobs[number]
            part = progress.parts[datapath]
            if part.out == 0 and self._close(number, datapath, progress, part):
                yield number

    def lost(self, datapath: int, reason: str) -> list[int]:
        """A switch is gone: what was sent and not confirmed waits for it to come back; the jobs concerned."""
        numbers = list(self._open.get(datapath, ()))
        for number in numbers:
            part = self._jobs[number].parts[datapath]
            part.out, part.reason = 0, reason
        return numbers

    def waiting(self, number: int) -> dict[int, str]:
        """The switches that have not confirmed, with the reason."""
        progress = self._jobs.get(number)
        return {} if progress is None else {dp: part.reason for dp, part in progress.parts.items() if part.reason}

    def stuck(self, number: int) -> bool:
        """True where a job waits for switches, and no barrier of it is under way to any."""
        progress = self._jobs.get(number)
        return progress is not None and not any(part.out for part in progress.parts.values())

    def done(self, number: int) -> list[int]:
        """The switches that have confirmed."""
        progress = self._jobs.get(number)
        now = () if progress is None else [dp for dp, part in progress.parts.items() if not part.reason]
        pending = () if progress is None else progress.parts
        return sorted({*now, *(dp for dp in self._settled.get(number, ()) if dp not in pending)})

    def when_settled(self, number: int, waiter: Waiter) -> None:
        """Call ``waiter`` once nothing more is waited for (at once if that is so now)."""
        progress = self._jobs.get(number)
        if progress is None or not any(part.reason for part in progress.parts.values()):
            waiter()
        else:
            progress.waiters.append(waiter)

    def stop_waiting(self, number: int, waiter: Waiter) -> None:
        """Whoever waited for a job has given up."""
        progress = self._jobs.get(number)
        if progress is not None and waiter in progress.waiters:
            progress.waiters.remove(waiter)

    def release(self, number: int) -> None:
        """Call all who wait for a job: there is nothing more to wait for (it was refused)."""
        progress = self._jobs.get(number)
        if progress is not None:
            waiters, progress.waiters = progress.waiters, []
            for waiter in waiters:
                waiter()

    def forget(self, number: int) -> None:
        """A job is over."""
        self.release(number)
        self._settled.pop(number, None)
        progress = self._jobs.pop(number, None)
        for datapath in () if progress is None else progress.parts:
            numbers = self._open.get(datapath)
            if numbers is not None:
                numbers.discard(number)
                if not numbers:
                    del self._open[datapath]

    def _part(self, number: int, datapath: int) -> _Part:
        return self._jobs.setdefault(number, _Progress()).parts.setdefault(datapath, _Part())

    def _close(self, number: int, datapath: int, progress: _Progress, part: _Part) -> bool:
        part.reason = ""
        numbers = self._open.get(datapath)
        if numbers is not None:
            numbers.discard(number)
            if not numbers:
                del self._open[datapath]
        if any(other.reason for other in progress.parts.values()):
            return False
        waiters, progress.waiters = progress.waiters, []
        del self._jobs[number]
        self._settled[number] = tuple(sorted({*self._settled.get(number, ()), *progress.parts}))
        for waiter in waiters:
            waiter()
        return True

"""Which revision of its rules each worker has in place, and who waits for one. No I/O; for the reconcile loop alone."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Final

Waiter = Callable[[], None]

# Where switches are told apart by datapath id (64 bits) and their queues by bit 64, hosts have numbers above both.
FIRST: Final = 1 << 65
_COUNT: Final = re.compile(r"[0-9]{1,18}")


@dataclass(slots=True)
class _State:
    """One host. ``needs`` has for each job the revision from which on its own rules are in force."""

    revision: int = 0
    needs: dict[int, int] = field(default_factory=dict)
    waiters: list[Waiter] = field(default_factory=list)


class HostStates:
    """Revisions are counted from the controller's start, so a revision names its start too: ``5f0e12ab.17``."""

    def __init__(self) -> None:
        self._start = secrets.token_hex(4)
        self._states: dict[str, _State] = {}
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._released = False

    def number(self, host: str) -> int:
        """The number by which confirmations know a host."""
        number = self._numbers.setdefault(host, FIRST + len(self._numbers))
        self._names[number] = host
        return number

    def name(self, number: int) -> str:
        """The host of a number."""
        return self._names[number]

    def revision(self, host: str) -> str:
        """The revision of a host's rules as they should be now."""
        state = self._states.get(host)
        return f"{self._start}.{0 if state is None else state.revision}"

    def changed(self, host: str, numbers: Iterable[int]) -> None:
        """A host's rules changed, and those of these jobs are new; who waits for a change is called."""
        state = self._states.setdefault(host, _State())
        state.revision += 1
        for number in numbers:
            state.needs[number] = state.revision
        waiters, state.waiters = state.waiters, []
        for waiter in waiters:
            waiter()

    def confirmed(self, host: str, revision: str, late: Container[int] = ()) -> list[int]:
        """A worker has a revision in place, but for the jobs ``late``: those whose rules are thereby in force.

        Revisions of another start of the controller, or of the future, confirm nothing.
        """
        state = self._states.get(host)
        start, _, count = revision.partition(".")
        if state is None or start != self._start or not _COUNT.fullmatch(count):
            return []
        reached = int(count)
        if reached > state.revision:
            return []
        done = [number for number, needed in state.needs.items() if needed <= reached and number not in late]
        for number in done:
            del state.needs[number]
        return done

    def forget(self, host: str, number: int) -> None:
        """A job is over."""
        state = self._states.get(host)
        if state is not None:
            state.needs.pop(number, None)

    def release(self) -> None:
        """Nobody waits any longer: the controller stops."""
        self._released = True
        for state in self._states.values():
            waiters, state.waiters = state.waiters, []
            for waiter in waiters:
                waiter()

    def when_changed(self, host: str, after: str, waiter: Waiter) -> None:
        """Call ``waiter`` once the host's revision is another than ``after`` (at once if it is so now)."""
        if self._released or self.revision(host) != after:
            waiter()
        else:
            self._states.setdefault(host, _State()).waiters.append(waiter)

    def stop_waiting(self, host: str, waiter: Waiter) -> None:
        """Whoever waited has given up."""
        state = self._states.get(host)
        if state is None:
            return
        if waiter in state.waiters:
            state.waiters.remove(waiter)
        # Whoever asks may name any host; only those that have had jobs are kept.
        if not state.waiters and not state.revision:
            del self._states[host]

"""The lives of transfers' flows, as fireflies tell them: start, ongoing, end. Pure: no socket, clock or thread.

A transfer may begin and end before the controller has its job: its messages wait for the job's mark, with the times
that they are about.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from lark_common.scitags import Scitag
from lark_worker.records.known_jobs import Key
from lark_worker.transfers.book import Flow
from lark_worker.transfers.firefly import State
from lark_worker.transfers.inet_diag import Connection, Name

# Flows that go on, and those that are over and whose messages wait.
MOST_OPEN: Final = 16_384
MOST_OVER: Final = 4096
# Seconds that the messages of a flow that is over wait for its job's mark.
PATIENCE: Final = 600.0


@dataclass(slots=True)
class _Life:
    key: Key
    connection: Connection
    since: float
    # The time of the last message; None: none yet.
    reported: float | None = None
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """A message that is due: the state of a flow that began at ``since`` and ended at ``ended`` (None: it goes on), in
    seconds of the clock by which the lives are kept."""

    state: State
    mark: Scitag
    connection: Connection
    since: float
    ended: float | None


class FlowLives:
    """The flows of a worker's transfers; not thread-safe. ``lost`` counts those without a report for want of
    room."""

    def __init__(self) -> None:
        self.lost = 0
        self._open: dict[Name, _Life] = {}
        self._over: deque[_Life] = deque()

    def __len__(self) -> int:
        """The number of flows with messages to come."""
        return len(self._open) + len(self._over)

    def begin(self, flow: Flow) -> None:
        """Take a flow that has been found; one that is known stays as it is."""
        if flow.connection.name in self._open:
            return
        if len(self._open) >= MOST_OPEN:
            self.lost += 1
            return
        # Of one that an earlier service followed, the start was reported.
        reported = flow.since if flow.again else None
        self._open[flow.connection.name] = _Life(flow.key, flow.connection, flow.since, reported)

    def count(self, flow: Flow) -> None:
        """Take the counts of a flow that goes on."""
        if (life := self._open.get(flow.connection.name)) is not None:
            life.connection = flow.connection

    def end(self, flow: Flow, at: float) -> None:
        """Take the last counts of a flow that is over."""
        life = self._open.pop(flow.connection.name, None)
        if life is None:
            return
        life.connection, life.ended = flow.connection, at
        if len(self._over) >= MOST_OVER:
            self._over.popleft()
            self.lost += 1
        self._over.append(life)

    def clear(self) -> None:
        """Drop all flows: nothing is reported of them any more."""
        self._open.clear()
        self._over.clear()

    def keys(self) -> set[Key]:
        """The starters of flows with messages to come."""
        return {life.key for life in (*self._open.values(), *self._over)}

    def marked(self, mark: Callable[[Connection, Key], Scitag | None]) -> Iterator[tuple[Connection, Scitag]]:
        """The flows that go on and have a mark."""
        for life in self._open.values():
            if (found := mark(life.connection, life.key)) is not None:
                yield life.connection, found

    def due(
        self,
        now: float,
        ongoing: float,
        has_answer: Callable[[Key], bool],
        mark: Callable[[Connection, Key], Scitag | None],
    ) -> Iterator[Message]:
        """Messages that are due, those of flows that are over first; each counts as sent when the next is taken.

        ``has_answer`` is false for a starter whose job has no answer yet, so that its flows wait; flows without a mark
        are dropped. ``ongoing`` is the seconds between two messages of a flow that goes on, 0 for none.
        """
        for _ in range(len(self._over)):
            life = self._over[0]
            if has_answer(life.key):
                if (found := mark(life.connection, life.key)) is not None:
                    if life.reported is None:
                        yield Message(State.START, found, life.connection, life.since, None)
                        life.reported = now
                    yield Message(State.END, found, life.connection, life.since, life.ended)
            elif life.ended is not None and now - life.ended < PATIENCE:
                self._over.append(life)
            else:
                self.lost += 1
            self._over.popleft()
        for name, life in list(self._open.items()):
            if not has_answer(life.key):
                continue
            if (found := mark(life.connection, life.key)) is None:
                del self._open[name]
            elif life.reported is None:
                yield Message(State.START, found, life.connection, life.since, None)
                life.reported = now
            elif ongoing and now - life.reported >= ongoing:
                yield Message(State.ONGOING, found, life.connection, life.since, None)
                life.reported = now

"""The controller's own lines in the audit trail: its starts and ends, switches that go and return, links that fail.

They are noted on the event loop's thread, which waits for nothing, and written by a thread of their own.
"""

from __future__ import annotations

import queue
import re
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Final

from lark_common.limits import Buckets
from lark_common.log import WARNING, event
from lark_common.threads import StoppableThread
from lark_controller import __version__
from lark_controller.api.audit import AuditEntry, Happening
from lark_controller.api.instances import Term, Why
from lark_controller.services.attempts import Attempts
from lark_controller.store.store import Trail

ACTOR: Final = "controller"
# The subject of the controller's own starts and ends.
CONTROLLER: Final = "controller"
STARTED: Final = "controller started"
STOPPED: Final = "controller stopped"
# The one before did not say that it stops: it was not heard of any more, or is known to be gone.
LOST: Final = "controller lost"
ENDED: Final = "controller ended"
TOOK_OVER: Final = "controller took over"

# Seconds that lines are gathered before they are written together, and before a failed write is tried again.
_GATHER: Final = 0.1
_RETRY: Final = 1.0
# Lines of one subject: so many at once, then one a minute. A link that comes and goes must not fill the trail.
_BURST: Final = 20
_RATE: Final = 1 / 60
# Seconds after which it is looked whether there is room.
_ROOM: Final = 10.0
# Of what is beyond that the last line on each port, queue or the like is written once there is room, so that the trail
# ends with what is so; of so many subjects, and of one of so many: names of ports are a switch's own.
_HELD: Final = 1_000
_HELD_OF_ONE: Final = 16
_SUBJECT_ENDS: Final = re.compile(r" is |: ")
# Lines on the controller among which its last start or end is.
_LOOKED_AT: Final = 100
# Lines that wait for a database that is away; the oldest ones give way.
_WAITING: Final = 10_000


class Journal:
    """Writes lines from :meth:`start` to :meth:`stop`. :meth:`note` may be called from any thread and does not wait."""

    def __init__(self, trail: Trail) -> None:
        self._trail = trail
        self._noted: queue.SimpleQueue[tuple[float, Happening] | None] = queue.SimpleQueue()
        self._waiting: deque[tuple[float, Happening]] = deque(maxlen=_WAITING)
        self._limits = Buckets(_RATE, _BURST)
        # By subject, and by what a line is about, with the number of lines that were left out.
        self._held: dict[str, dict[str, tuple[float, Happening, int]]] = {}
        self._open = True
        self._attempts = Attempts("the audit trail is not written", "the audit trail is written again")
        self._thread = StoppableThread("lark-journal", self._run, wake=lambda: self._noted.put(None))

    @property
    def threads(self) -> tuple[StoppableThread, ...]:
        """The threads that live from start to stop."""
        return (self._thread,)

    def start(self, takeover: str = "", term: Term | None = None) -> None:
        """Write that the controller has started, and what is known of the one before if its end is not in the trail;
        ``takeover`` is how it became the active one in its ``term``. Raises StoreError."""
        lines = self._trail.page(CONTROLLER, None, _LOOKED_AT).entries
        last = next((each for each in lines if each.action in (STARTED, STOPPED, LOST, ENDED)), None)
        if last is not None and last.action == STARTED:
            unsaid = _unsaid(last, term)
            self._record(unsaid)
            event("the controller before this one did not say that it stops", level=WARNING, known=unsaid.detail)
        self._record(Happening(CONTROLLER, STARTED, f"version {__version__}"))
        if takeover:
            self._record(Happening(CONTROLLER, TOOK_OVER, takeover))
        self._thread.start()

    def note(self, happening: Happening) -> None:
        """Write a line soon."""
        if self._open:
            self._noted.put((time.time(), happening))

    def close(self) -> None:
        """Note nothing more: connections that the controller itself ends are no events."""
        self._open = False

    def stop(self) -> None:
        """Write what waits, and that the controller has stopped. As far as the database is there."""
        self.close()
        self._thread.stop(patience=5.0)
        self._attempts.succeed(partial(self._record, Happening(CONTROLLER, STOPPED)))

    def _record(self, happening: Happening, at: float | None = None) -> None:
        self._trail.record(
            time.time() if at is None else at, ACTOR, happening.action, happening.subject, happening.detail
        )

    def _run(self) -> None:
        while not self._thread.stopping:
            if not self._waiting:
                self._wait()
            self._thread.pause(_GATHER)
            while not self._noted.empty():
                self._take(self._noted.get())
            self._give_back()
            if not self._attempts.succeed(self._write):
                self._thread.pause(_RETRY)
        self._give_back(all_=True)
        self._attempts.succeed(self._write)

    def _wait(self) -> None:
        """Wait for a line, or until there may be room for one that is held back."""
        with suppress(queue.Empty):
            self._take(self._noted.get(timeout=_ROOM if self._held else None))

    def _take(self, noted: tuple[float, Happening] | None) -> None:
        if noted is None:
            return
        at, happening = noted
        subject, about = happening.subject, _SUBJECT_ENDS.split(happening.detail, maxsplit=1)[0]
        held = self._held.get(subject, {})
        _, _, left_out = held.pop(about, (at, happening, 0))
        if not self._limits.take(subject):
            self._waiting.append((at, _after(happening, left_out)))
            return
        held[about] = at, happening, left_out + 1
        if len(held) > _HELD_OF_ONE:
            del held[next(iter(held))]
        self._held[subject] = held
        if len(self._held) > _HELD:
            del self._held[next(iter(self._held))]

    def _give_back(self, *, all_: bool = False) -> None:
        """Have lines written that were held back, as far as there is room."""
        for subject, held in list(self._held.items()):
            while held and (all_ or not self._limits.take(subject)):
                at, happening, left_out = held.pop(next(iter(held)))
                self._waiting.append((at, _after(happening, left_out - 1)))
            if not held:
                del self._held[subject]

    def _write(self) -> None:
        while self._waiting:
            at, happening = self._waiting[0]
            self._record(happening, at)
            self._waiting.popleft()


def _after(happening: Happening, left_out: int) -> Happening:
    """A line, and how many before it were left out."""
    if not left_out:
        return happening
    lines = "1 line before it was" if left_out == 1 else f"{left_out} lines before it were"
    return happening._replace(detail=f"{happening.detail} ({lines} left out)")


def _unsaid(last: AuditEntry, term: Term | None) -> Happening:
    """The line on a controller whose ``last`` word is its start: no more than is known at the beginning of a term."""
    one = f"the one that started at {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(last.at))} UTC"
    why, silence = (None, None) if term is None else (term.why, term.silence)
    silent = "gave no sign of life" + ("" if silence is None else f" for {silence:.0f} s")
    match why:
        case Why.SILENT:
            words = f"{one} {silent}: it stands still, cannot reach the database, or has ended"
            return Happening(CONTROLLER, LOST, words)
        case Why.ENDED:
            words = f"{one} {silent}, and its session with the database ended: it has ended, or cannot reach that"
            return Happening(CONTROLLER, LOST, words)
        case Why.RELEASED | Why.DRAINED:
            return Happening(CONTROLLER, ENDED, f"{one} let go in order, and its end was not written here")
        case _:
            words = f"{one} ended without saying so: it crashed, was killed, or its machine went down"
            return Happening(CONTROLLER, ENDED, words)

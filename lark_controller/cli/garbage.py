"""Collections of garbage, without long pauses.

A collection stops every thread while it looks at objects, and Python has one look at all that came since the one
before, once more at those of several, and now and then at everything. In a large pool these take 0.1 s, 0.2 s and
seconds. It counts what comes less what goes: where jobs end as fast as others start, a collection is rare, and all the
longer.

Hardly anything here refers to itself, so that little is garbage which only a collection frees. Therefore what comes is
looked at once, a tenth of a second at a time, and where that is much, not at all; everything is looked at where memory
has grown. What a switch's connection leaves behind has lived longer than that, and waits for it.
"""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lark_common.log import event
from lark_common.threads import TurnThread
from lark_controller.cli.allocator import give_back

# Seconds between two turns, and objects that have come at most where they are looked at: that takes some milliseconds.
# Python's count is less those that have gone. (A list of them would tell their number, and break a tuple that another
# thread makes meanwhile.)
PAUSE: Final = 0.1
MOST: Final = 10_000
# Collections in turns take at most one part in this many of the processor's time: what is made anew for thousands of
# switches would be gone through again and again. Were it of the time that passes, every second turn of a busy process
# would look at nothing: other threads have the interpreter before the end is noted.
SHARE: Final = 50
# Memory has grown if it is by this part, and so many bytes, more than after the last collection of everything: for so
# many seconds, since a change of policy takes much for a while; or at once.
GROWN: Final = 0.25, 64 << 20, 300.0
GROWN_AT_ONCE: Final = 1.0, 256 << 20
# Free memory is given back where there are so many bytes more than there were at least, once in so many seconds.
SPARE: Final = 32 << 20, 10.0
_KIBIBYTES: Final = re.compile(rb"^Vm(?:RSS|Swap):\s*(\d+) kB$", re.MULTILINE)


def taken(status: Path = Path("/proc/self/status")) -> int:
    """The memory of this process in bytes, with what was moved to the swap: garbage, which nothing uses, goes there
    first, and what is left in memory would not grow."""
    return sum(map(int, _KIBIBYTES.findall(status.read_bytes()))) << 10


class Garbage:
    """The collector of this process, from :meth:`start` to :meth:`stop`; ``memory`` is in bytes, ``spent`` the
    processor time of the thread that asks. ``spare`` gives free memory back to the system."""

    def __init__(
        self,
        memory: Callable[[], int] = taken,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
        spare: Callable[[], None] = give_back,
    ) -> None:
        self._memory = memory
        self._clock = clock
        self._spent = spent
        self._spare = spare
        self._spared_at = 0.0
        words = "garbage is not collected"
        self.thread = TurnThread("lark-garbage", self.turn, words, first=PAUSE, later=PAUSE)
        # The least memory since the last collection of everything, since when it has been more, and until when nothing
        # is looked at.
        self._least = 0
        self._grown_since: float | None = None
        self._rests_until = 0.0

    def start(self) -> None:
        """Take over from Python's own collections."""
        gc.disable()
        self._least = self._memory()
        self.thread.start()

    def stop(self) -> None:
        """Leave it to Python again."""
        self.thread.stop()
        gc.enable()

    def turn(self) -> float:
        """Look at what has come since the last turn; returns the seconds until the next."""
        now = self._clock()
        if now >= self._rests_until and gc.get_count()[0] <= MOST:
            began = self._spent()
            gc.collect(0)
            self._rests_until = now + SHARE * (self._spent() - began)
        # This puts all objects among the oldest, and looks at none of them.
        gc.freeze()
        gc.unfreeze()
        memory = self._asked()
        if memory is not None:
            least = self._least
            if self._has_grown(memory, now):
                self._collect_all(memory)
            elif memory > least + SPARE[0] and now >= self._spared_at + SPARE[1]:
                self._spare()
                self._spared_at = now
        return PAUSE

    def _collect_all(self, before: int) -> None:
        began = self._clock()
        found = gc.collect()
        self._spare()
        now = self._asked()
        self._least, self._grown_since = before if now is None else now, None
        took = self._clock() - began
        event("memory had grown", before=before, now=self._least, garbage=found, seconds=round(took, 3))

    def _asked(self) -> int | None:
        """The memory; None where no descriptor is free, as under a flood of connections."""
        try:
            return self._memory()
        except OSError:
            return None

    def _has_grown(self, memory: int, now: float) -> bool:
        self._least = min(self._least, memory)
        part, size = GROWN_AT_ONCE
        if memory > self._least * (1 + part) + size:
            return True
        part, size, seconds = GROWN
        if memory <= self._least * (1 + part) + size:
            self._grown_since = None
            return False
        if self._grown_since is None:
            self._grown_since = now
        return now - self._grown_since >= seconds

"""The time for which this controller stood still: its process was stopped (SIGSTOP, a frozen container), its machine
slept, or its loop was busy. Switches leave such a controller, and have not failed.

For the reconcile loop's thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

# Seconds between two signs of life of the loop, and beyond these for which it may be late.
BEAT: Final = 1.0
STILL: Final = 5.0
# Seconds after a standstill in which what switches do may come from it: they are asked whether they are there, and have
# this long to answer.
AFTER: Final = 30.0


def awake_and_asleep() -> float:
    """Seconds of a clock that goes on while the machine sleeps, as the monotonic one does not on Linux."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Standstill:
    """The last standstill of a loop that tells of itself by :meth:`beat`; until the first one nothing is known."""

    def __init__(self, clock: Callable[[], float] = awake_and_asleep) -> None:
        self._clock = clock
        self._last: float | None = None
        self._lasted, self._ended = 0.0, 0.0

    async def run(self) -> None:
        """Beat until the loop ends."""
        while True:
            self.beat()
            await asyncio.sleep(BEAT)

    def beat(self) -> None:
        """Note that the loop goes on."""
        now = self._clock()
        if (lasted := self._since_last(now)) > STILL:
            self._lasted, self._ended = lasted, now
        self._last = now

    def seconds(self) -> float:
        """The seconds of a standstill that is over, if it is since a moment ago; else 0."""
        now = self._clock()
        # The messages that lay waiting meanwhile come before the next beat.
        if (lasted := self._since_last(now)) > STILL:
            return lasted
        return self._lasted if self._lasted and now - self._ended <= AFTER else 0.0

    def after(self) -> str:
        """The end of a sentence on what may come from such a standstill; ``""`` where there was none."""
        seconds = self.seconds()
        return f"this controller stood still for {seconds:.0f} s" if seconds else ""

    def _since_last(self, now: float) -> float:
        return 0.0 if self._last is None else now - self._last - BEAT

"""Turns of the reconcile loop that a long work takes, so that other work goes ahead between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

# Seconds that a long work goes on before the loop turns to other work, and at most where that takes long itself: in a
# large pool one job may concern a thousand switches, and a turn of the loop with several of those takes half a second.
PORTION: Final = 0.005
LONGEST: Final = 0.1
# A portion is so large a part of what others took before it. What is handed over takes as long as all others did before
# it: were this as long, both would grow with each other as long as anything waits, and every turn be a long one.
SHARE: Final = 0.5
# A job's start takes the loop so many turns: the job is put, its change handed to the socket, the answer read, and its
# caller woken. They come between two portions, as long as that takes others no longer than the portion took.
TURNS: Final = 4


class Pace:
    """The portions of one long work on the running loop.

    A portion is half as long as the other work took before it, within bounds: a fixed one would be a small part of the
    time of a loop that is busy, and the long work would take as many turns of it as it has steps. After it the loop
    turns several times, where that is quick, so that a start does not wait for a portion at each of its steps.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began = clock()
        self._until = self._began + PORTION

    async def step(self) -> None:
        """Let other work go ahead, if the portion is over."""
        ended = self._clock()
        if ended < self._until:
            return
        took = ended - self._began
        for _ in range(TURNS):
            await asyncio.sleep(0)
            self._began = self._clock()
            if self._began - ended >= took:
                break
        self._until = self._began + min(max(PORTION, SHARE * (self._began - ended)), LONGEST)

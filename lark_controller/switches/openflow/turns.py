"""Turns of the switches that connect: a few at a time, and first those that callers wait for; and of their long steps
of calculation one in each turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

# A switch that takes longer than this (seconds) goes on beside the next, so that none holds up another.
TURN_SECONDS: Final = 2.0


class LongSteps:
    """Long steps of calculation, one in each turn of the event loop, in the order in which they were asked for.

    Switches that are asked at the same time answer at the same time. Their steps would make one long turn of the loop,
    and a job's start, which takes several turns, would wait for such a turn in each.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        # A step is taken in this turn of the loop, or is to be in the next; and one was let go in the turn before.
        self._taken = self._let_go = False

    async def begin(self) -> None:
        """Wait for a turn of the loop in which no other step is taken: what follows, up to the next wait, is the
        step."""
        if self._taken:
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(place)
            await place
        else:
            self._taken = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Let the next one go, which takes its step in the turn that follows; the one before takes it in this one."""
        taken, self._let_go = self._let_go, False
        while self._waiting and not self._let_go:
            place = self._waiting.popleft()
            # One whose connection was lost waits no more.
            if not place.done():
                place.set_result(None)
                self._let_go = True
        self._taken = taken or self._let_go
        if self._taken:
            asyncio.get_running_loop().call_soon(self._next)


class Turn:
    """One switch's turn to be taken in, which ends once: by :meth:`end`, or when its time is over."""

    def __init__(self, over: Callable[[], None], steps: LongSteps) -> None:
        self._over: Callable[[], None] | None = over
        self._steps = steps
        self._timer = asyncio.get_running_loop().call_later(TURN_SECONDS, self.end)

    async def step(self) -> None:
        """Wait until a long step may be taken."""
        await self._steps.begin()

    async def before_step(self, work: Awaitable[T]) -> T:
        """The outcome of what is waited for, once a long step may be taken."""
        found = await work
        await self._steps.begin()
        return found

    def end(self) -> None:
        """Let the next switch begin."""
        over, self._over = self._over, None
        if over is not None:
            self._timer.cancel()
            over()


class Turns:
    """``count`` turns at a time. ``first`` are the datapaths of the switches that callers wait for now;
    the others take turns in the order in which they came."""

    def __init__(self, count: Callable[[], int], first: Callable[[], Iterable[int]]) -> None:
        self._count = count
        self._taken = 0
        self._first = first
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}
        self._steps = LongSteps()

    async def take(self, datapath: int) -> Turn:
        """A turn, once it is this switch's."""
        if self._taken >= self._count():
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(datapath, deque()).append(place)
            try:
                await place
            except asyncio.CancelledError:
                if place.done() and not place.cancelled():
                    self._over()
                else:
                    self._drop(datapath, place)
                raise
        else:
            self._taken += 1
        return Turn(self._over, self._steps)

    def _over(self) -> None:
        self._taken -= 1
        while self._waiting and self._taken < self._count():
            datapath = next((each for each in self._first() if each in self._waiting), None)
            if datapath is None:
                datapath = next(iter(self._waiting))
            place = self._waiting[datapath][0]
            self._drop(datapath, place)
            self._taken += 1
            place.set_result(None)

    def _drop(self, datapath: int, place: asyncio.Future[None]) -> None:
        places = self._waiting[datapath]
        places.remove(place)
        if not places:
            del self._waiting[datapath]

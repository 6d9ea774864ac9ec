"""Turns of the switches that connect: a few at a time, and first those that callers wait for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

# A switch that takes longer than this (seconds) goes on beside the next, so that none holds up another.
TURN_SECONDS: Final = 2.0


class Turn:
    """One switch's turn to be taken in, which ends once: by :meth:`end`, or when its time is over."""

    def __init__(self, over: Callable[[], None]) -> None:
        self._over: Callable[[], None] | None = over
        self._timer = asyncio.get_running_loop().call_later(TURN_SECONDS, self.end)

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
        return Turn(self._over)

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

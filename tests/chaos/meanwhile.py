"""The faults of several controllers by twos: what else goes wrong while one of them is under way, by a seed."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol, TypeVar

from tests.chaos.switches import Fleet

Kind = TypeVar("Kind")

# Seconds that such a fault lasts, at least and at most: longer than most takeovers.
LEAST: Final = 2.0
MOST: Final = 6.0


class Meanwhile(StrEnum):
    """A fault that overlaps with another one."""

    NOTHING = "nothing else happens"
    SLOW = "the database is slow"
    AWAY = "switches are away"
    EMPTY = "switches come back empty"
    HANG = "switches do not read"
    STILL = "an instance that stands by stands still"


class Slow(Protocol):
    """A database that can be slow for some seconds."""

    def slow(self, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Beside:
    """A fault that begins together with another one; ``chosen``, from 0 to 1, is how it and the other one go."""

    kind: Meanwhile
    seconds: float
    chosen: float

    async def undergo(self, fleet: Fleet, database: Slow, send: Callable[[int], None]) -> None:
        """Do it, from its beginning to its end; ``send`` sends a signal to an instance that stands by."""
        # Of each three switches one; all connections of it.
        numbers = sorted(fleet.switches)[int(3 * self.chosen) % 3 :: 3]
        connections = [each for number in numbers for each in fleet.connections[number]]
        match self.kind:
            case Meanwhile.NOTHING:
                return
            case Meanwhile.SLOW:
                await asyncio.to_thread(database.slow, self.seconds)
                return
            case Meanwhile.AWAY | Meanwhile.EMPTY:
                for each in connections:
                    each.leave()
                for number in numbers if self.kind is Meanwhile.EMPTY else ():
                    fleet.switches[number].forget()
            case Meanwhile.HANG:
                for each in connections:
                    each.stall()
            case Meanwhile.STILL:
                send(signal.SIGSTOP)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            match self.kind:
                case Meanwhile.AWAY | Meanwhile.EMPTY:
                    for number in numbers:
                        fleet.switches[number].there.set()
                case Meanwhile.HANG:
                    for each in connections:
                        each.resume()
                case Meanwhile.STILL:
                    send(signal.SIGCONT)


def turns(draw: random.Random, kinds: Sequence[Kind]) -> Iterator[tuple[Kind, Beside]]:
    """Every kind once in each turn, in another order each time; each overlaps with every other fault, and with none,
    once in as many turns as there are of those."""
    orders = {kind: draw.sample(list(Meanwhile), len(Meanwhile)) for kind in kinds}
    turn = 0
    while True:
        for kind in draw.sample(kinds, len(kinds)):
            beside = orders[kind][turn % len(Meanwhile)]
            yield kind, Beside(beside, draw.uniform(LEAST, MOST), draw.random())
        turn += 1

"""The faults of a run: when each begins, how long it lasts, what it falls on. Pure: the same seed, the same faults."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

# Seconds between two faults' begins on average, the quiet at a round's begin, and before its end the last begin.
EVERY: Final = 2.5
FIRST: Final = 2.0
LAST: Final = 2.0


class Kind(StrEnum):
    """A kind of fault."""

    KILL = "the controller is killed"
    PAUSE = "the controller is paused"
    DISK = "the disk is full"
    LOCK = "the database is locked"
    STOP = "the database is stopped"
    CRASH = "the database crashes"
    SESSIONS = "the database ends all sessions"
    AWAY = "a switch is away"
    REBOOT = "a switch comes back empty"
    HANG = "a switch does not read"
    CUT_SWITCHES = "all connections of switches are cut"
    HALVE_SWITCHES = "connections of switches end for one side alone"
    LOSE_SWITCHES = "nothing passes between controller and switches"
    CUT_HOOKS = "all connections of hooks are cut"
    LOSE_HOOKS = "nothing passes between hooks and controller"
    LOSS = "packets are lost"
    OVSDB_AWAY = "OVSDB servers are away"
    OVSDB_HANG = "OVSDB servers do not answer"
    CLOCK_BACK = "the clock is set back"
    CLOCK_AHEAD = "the clock is set ahead"
    POLICY = "another policy is put in force"


# How often each comes beside the others, and how long it lasts at least and at most, in seconds.
_KINDS: Final[dict[Kind, tuple[int, float, float]]] = {
    Kind.KILL: (2, 0.1, 3.0),
    Kind.PAUSE: (3, 0.5, 8.0),
    Kind.DISK: (3, 1.0, 8.0),
    Kind.LOCK: (3, 0.5, 12.0),
    Kind.STOP: (2, 0.5, 6.0),
    Kind.CRASH: (2, 0.2, 3.0),
    Kind.SESSIONS: (2, 0.0, 0.0),
    Kind.AWAY: (3, 0.5, 10.0),
    Kind.REBOOT: (2, 0.2, 5.0),
    Kind.HANG: (3, 1.0, 10.0),
    Kind.CUT_SWITCHES: (2, 0.0, 0.0),
    Kind.HALVE_SWITCHES: (2, 2.0, 8.0),
    Kind.LOSE_SWITCHES: (2, 0.5, 8.0),
    Kind.CUT_HOOKS: (3, 0.0, 0.0),
    Kind.LOSE_HOOKS: (2, 0.5, 6.0),
    Kind.LOSS: (2, 1.0, 8.0),
    Kind.OVSDB_AWAY: (2, 0.5, 8.0),
    Kind.OVSDB_HANG: (2, 1.0, 12.0),
    Kind.CLOCK_BACK: (2, 1.0, 10.0),
    Kind.CLOCK_AHEAD: (2, 1.0, 10.0),
    Kind.POLICY: (2, 0.0, 0.0),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: seconds after its round's begin, how long it lasts, and a number from 0 to 1 that chooses what it falls
    on."""

    at: float
    kind: Kind
    seconds: float
    chosen: float

    @property
    def end(self) -> float:
        """The time at which it is over."""
        return self.at + self.seconds


def rounds(seed: int, lengths: Sequence[float], kinds: Sequence[Kind]) -> tuple[tuple[Fault, ...], ...]:
    """The faults of rounds of so many seconds. Every kind comes at least once in all rounds together. Different kinds
    overlap; one of a kind begins when the last is over, and all end with their round."""
    draw = random.Random(seed)
    bag = draw.sample(kinds, len(kinds))
    found, total, passed, dealt = [], sum(lengths), 0.0, 0
    for length in lengths:
        passed += length
        until = round(len(bag) * passed / total)
        found.append(_round(draw, length, kinds, bag[dealt:until]))
        dealt = until
    return tuple(found)


def _round(draw: random.Random, length: float, kinds: Sequence[Kind], certain: Sequence[Kind]) -> tuple[Fault, ...]:
    count = max(len(certain), round(length / EVERY))
    weights = [_KINDS[kind][0] for kind in kinds]
    chosen = [*certain, *draw.choices(kinds, weights, k=count - len(certain))]
    faults: list[Fault] = []
    for kind in chosen:
        at = draw.uniform(FIRST, max(FIRST, length - LAST))
        least, most = _KINDS[kind][1:]
        fault = Fault(at, kind, min(draw.uniform(least, most), length - at), draw.random())
        if not any(other.kind is kind and other.at <= fault.end and at <= other.end for other in faults):
            faults.append(fault)
    return tuple(sorted(faults, key=lambda fault: fault.at))

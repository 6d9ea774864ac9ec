"""Switches whose counters are to be read, and the instances that stand by and read them: who has which order.

Whatever is offered comes back within :data:`PATIENCE`: answered, or to be read by the active instance itself. So one
that stands by and is slow, paused or gone costs a delay and nothing else.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lark_controller.accounting.shares.messages import (
    TOKEN,
    Answer,
    GarbledError,
    Order,
    OrderedSwitch,
    ReadSwitch,
    answer_of,
    portion,
)

# Seconds from the offer of a switch until the active instance reads it itself.
PATIENCE: Final = 4.0
# An instance that has not asked for so many seconds reads nothing: nothing is offered for its sake.
SILENCE: Final = 2.0
# A switch that an instance could not read is not ordered of it again for so many seconds.
UNABLE: Final = 60.0
# An instance that has not asked for so many seconds is gone, and its place is another's.
GONE: Final = 60.0
# The time of a reading is that of the order and the seconds until the switch was read. An order or an answer that is on
# its way for longer than this is none: the reading was as much later, and rates and highest rates would be too high.
UNSURE: Final = 0.25
# Bytes of states that are offered at a time, and instances that read.
MOST_OFFERED: Final = 8 << 20
MOST_READERS: Final = 16


def _random_token() -> bytes:
    return secrets.token_bytes(TOKEN)


class Taken(NamedTuple):
    """A switch of an order, with the answer for it."""

    ordered: OrderedSwitch
    read: ReadSwitch


@dataclass(slots=True)
class _Reader:
    asked: float
    order: Order | None = None
    given: float = 0.0
    until: float = 0.0
    unable: dict[int, float] = field(default_factory=dict)


class Offers:
    """Hands out what is offered, once. Thread-safe."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        token: Callable[[], bytes] = _random_token,
    ) -> None:
        self._clock, self._wall, self._token = clock, wall, token
        self._lock = threading.Lock()
        self._readers: dict[str, _Reader] = {}
        self._offered: dict[int, tuple[OrderedSwitch, float]] = {}
        self._size = 0
        # Switches that come back without a reading.
        self._back: list[int] = []

    def wanted(self, datapath: int) -> bool:
        """True where somebody may read this switch."""
        now = self._clock()
        with self._lock:
            return self._size < MOST_OFFERED and any(_can(each, datapath, now) for each in self._readers.values())

    def offer(self, switch: OrderedSwitch) -> None:
        """Have somebody read a switch, which is not offered or ordered at the moment."""
        with self._lock:
            self._offered[switch.datapath] = switch, self._clock() + PATIENCE
            self._size += switch.size

    def order(self, reader: str) -> Order:
        """An order for an instance that asks for one, with what is offered to it; it may have no switch. Switches of
        the one before come back."""
        now = self._clock()
        with self._lock:
            known = self._reader(reader, now)
            if known is None:
                return Order(self._token(), self._wall())
            self._give_back(known)
            able = (switch for switch, _ in self._offered.values() if known.unable.get(switch.datapath, 0.0) <= now)
            chosen = tuple(portion(able))
            until = min((self._offered[switch.datapath][1] for switch in chosen), default=0.0)
            for switch in chosen:
                del self._offered[switch.datapath]
                self._size -= switch.size
            made = Order(self._token(), self._wall(), chosen)
            if chosen:
                known.order, known.given, known.until = made, now, until
            return made

    def answered(self, reader: str, data: bytes) -> list[Taken] | None:
        """The readings in an answer. The switches of the order that have none come back. None where this instance has
        no such order at the moment (it was answered before, or it has come back), or was reached by the order or its
        answer too late. Raises GarbledError."""
        now = self._clock()
        with self._lock:
            known = self._readers.get(reader)
            order = None if known is None else known.order
        # Thousands of steps: the loop is not to wait for them.
        answer = answer_of(data, 0.0 if order is None else order.at)
        with self._lock:
            if known is None or order is None or known.order is not order:
                return None
            if answer.token != order.token or now >= known.until:
                return None
            found = _matched(order, answer)
            if abs(now - known.given - answer.held) > UNSURE:
                self._give_back(known)
                return None
            known.order = None
            taken = [each for each in found if each.read.steps]
            read, plain = ({each.ordered.datapath for each in some} for some in (found, taken))
            self._back += [switch.datapath for switch in order.switches if switch.datapath not in plain]
            for switch in order.switches:
                if switch.datapath not in read:
                    known.unable[switch.datapath] = now + UNABLE
            return taken

    def back(self) -> list[int]:
        """The switches that have come back without a reading since the last call: refused, or not answered in time."""
        now = self._clock()
        with self._lock:
            for datapath in [each for each, (_, until) in self._offered.items() if until <= now]:
                self._size -= self._offered.pop(datapath)[0].size
                self._back.append(datapath)
            for known in self._readers.values():
                if known.order is not None and known.until <= now:
                    self._give_back(known)
            found, self._back = self._back, []
            return found

    # inside; the caller holds the lock

    def _reader(self, reader: str, now: float) -> _Reader | None:
        """The instance that asks; None where there are too many."""
        known = self._readers.get(reader)
        if known is None:
            for other, each in list(self._readers.items()):
                if now - each.asked > GONE:
                    self._give_back(each)
                    del self._readers[other]
            if len(self._readers) >= MOST_READERS:
                return None
            known = self._readers[reader] = _Reader(now)
        known.asked = now
        return known

    def _give_back(self, known: _Reader) -> None:
        if known.order is not None:
            self._back += [switch.datapath for switch in known.order.switches]
            known.order = None


def _can(known: _Reader, datapath: int, now: float) -> bool:
    # One with an order is reading, and asks again once it has answered.
    asks = now - known.asked <= SILENCE or known.order is not None
    return asks and known.unable.get(datapath, 0.0) <= now


def _matched(order: Order, answer: Answer) -> list[Taken]:
    """The switches of an order with their readings. Raises GarbledError."""
    read = {each.datapath: each for each in answer.switches}
    taken = [Taken(switch, read.pop(switch.datapath)) for switch in order.switches if switch.datapath in read]
    if read or len(taken) != len(answer.switches):
        raise GarbledError("switches that were not ordered, or twice")
    for switch, found in taken:
        if len(found.steps) not in (0, len(switch.jobs)) or not 0.0 <= found.after <= answer.held:
            raise GarbledError(f"switch {switch.datapath:016x} is not as it was ordered")
    return taken

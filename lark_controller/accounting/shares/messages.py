"""Orders to read switches' counters, and their answers, as bytes; every length is looked at first. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from lark_controller.accounting.shares.steps import PACKED, STATE, Step, packed, unpacked

# Of an order its token, the time and the number of its switches; of each switch its datapath id and the number of its
# jobs; of each job its number, its port's, and the state of its account.
_ORDER: Final = struct.Struct("=16sdI")
_SWITCH: Final = struct.Struct("=QI")
_JOB: Final = struct.Struct("=QI")
# Of an answer the order's token, the seconds from the order to the answer, and the number of switches; of each switch
# its datapath id, the seconds from the order until it was read, and the number of its jobs; of each job 1 where a step
# follows, else 0.
_ANSWER: Final = struct.Struct("=16sdI")
_READ: Final = struct.Struct("=QdI")
TOKEN: Final = 16
# Bytes of an order's jobs at most, with which a switch of more is not ordered at all; and of an answer.
LONGEST_ORDER: Final = 1 << 21
LONGEST_ANSWER: Final = 2 * LONGEST_ORDER


class OrderedJob(NamedTuple):
    """A job whose port and counting flows are to be read, and the state that its account is in."""

    number: int
    port: int
    state: bytes


class OrderedSwitch(NamedTuple):
    """A switch that is to be read."""

    datapath: int
    jobs: tuple[OrderedJob, ...]

    @property
    def size(self) -> int:
        """Bytes that it takes of an order."""
        return _SWITCH.size + len(self.jobs) * (_JOB.size + STATE)


@dataclass(frozen=True, slots=True)
class Order:
    """Switches that are to be read; its ``token`` is no other order's, ``at`` the time by the clock of the one who has
    given it."""

    token: bytes
    at: float
    switches: tuple[OrderedSwitch, ...] = ()


class ReadSwitch(NamedTuple):
    """A switch that was read ``after`` so many seconds, with a step for each of its jobs, in the order's sequence.

    Without steps the active instance reads it: a job's reading is not plain, or the switch had no turn, or answered
    late.
    """

    datapath: int
    after: float
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """The switches of an order that could be read; ``held`` is for how many seconds the one that answers had it."""

    token: bytes
    held: float
    switches: tuple[ReadSwitch, ...] = ()


class GarbledError(ValueError):
    """Bytes that are no order, or no answer."""


def order_bytes(order: Order) -> bytes:
    """An order as bytes."""
    return b"".join(_order_parts(order))


def _order_parts(order: Order) -> Iterator[bytes]:
    yield _ORDER.pack(order.token, order.at, len(order.switches))
    for switch in order.switches:
        yield _SWITCH.pack(switch.datapath, len(switch.jobs))
        for job in switch.jobs:
            yield _JOB.pack(job.number, job.port)
            yield job.state


def order_of(data: bytes) -> Order:
    """The order in some bytes. Raises GarbledError."""
    with _Bytes(data) as read:
        token, at, count = read.unpack(_ORDER)
        switches = []
        for _ in range(count):
            datapath, jobs = read.unpack(_SWITCH)
            if not jobs:
                # So few bytes could name very many.
                raise GarbledError("a switch without jobs")
            read.expect(jobs * (_JOB.size + STATE))
            found = ((*read.unpack(_JOB), read.take(STATE)) for _ in range(jobs))
            switches.append(OrderedSwitch(datapath, tuple(OrderedJob(*each) for each in found)))
    return Order(token, at, tuple(switches))


def answer_bytes(token: bytes, held: float, switches: Sequence[ReadSwitch]) -> bytes:
    """An answer as bytes."""
    parts = [_ANSWER.pack(token, held, len(switches))]
    for switch in switches:
        parts.append(_READ.pack(switch.datapath, switch.after, len(switch.steps)))
        for each in switch.steps:
            step = packed(each)
            parts.append(b"\1" + step if step else b"\0")
    return b"".join(parts)


def answer_of(data: bytes, at: float) -> Answer:
    """The answer in some bytes, to an order of the time ``at``. Raises GarbledError."""
    with _Bytes(data) as read:
        token, held, count = read.unpack(_ANSWER)
        switches = []
        for _ in range(count):
            datapath, after, jobs = read.unpack(_READ)
            read.expect(jobs)
            steps = tuple(
                unpacked(at + after, read.take(PACKED) if read.take(1) == b"\1" else b"") for _ in range(jobs)
            )
            switches.append(ReadSwitch(datapath, after, steps))
    return Answer(token, held, tuple(switches))


def portion(switches: Iterable[OrderedSwitch], most: int = LONGEST_ORDER) -> Sequence[OrderedSwitch]:
    """The first of them that one order has room for."""
    chosen: list[OrderedSwitch] = []
    size = 0
    for switch in switches:
        size += switch.size
        if size > most:
            break
        chosen.append(switch)
    return chosen


class _Bytes:
    """Reads one thing after the other, and has to be at the end at its own."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._at != len(self._data):
            raise GarbledError(f"{len(self._data) - self._at} bytes too many")

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        self.expect(form.size)
        found = form.unpack_from(self._data, self._at)
        self._at += form.size
        return found

    def take(self, count: int) -> bytes:
        self.expect(count)
        self._at += count
        return self._data[self._at - count : self._at]

    def expect(self, count: int) -> None:
        """Raise GarbledError where fewer bytes are left."""
        if len(self._data) - self._at < count:
            raise GarbledError("cut short")

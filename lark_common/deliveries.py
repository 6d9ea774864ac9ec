"""The delivery of reserved flows: bytes that left each one's queue, by readings of the kernel's counters. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

# Seconds between two readings that a rate is calculated from.
LEAST: Final = 0.5

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Delivered:
    """The bytes (of L2) that have left a queue since it was made, and a second in ``seconds`` before ``at`` (of the
    monotonic clock); no rate is known before the second reading."""

    total: int
    rate: float | None
    seconds: float
    at: float


class Deliveries(Generic[Key]):
    """The last readings of queues, by key; for one thread. A queue may stand at several ports, which are added up."""

    def __init__(self) -> None:
        self._of: dict[Key, Delivered] = {}
        # By key and port: the counter as it was read last, and what earlier queues there had counted.
        self._counted: dict[tuple[Key, int], tuple[int, int]] = {}

    def read(self, counters: Iterable[tuple[Key, int, int]], at: float) -> None:
        """Take a reading in: key, port and bytes of each queue that there is."""
        now: dict[tuple[Key, int], tuple[int, int]] = {}
        for key, port, counted in counters:
            last, before = self._counted.get((key, port), (0, 0))
            # A counter that is less than before is that of a queue made anew.
            now[key, port] = (counted, before + last if counted < last else before)
        self._counted = now
        totals: dict[Key, int] = {}
        for (key, _), (counted, before) in now.items():
            totals[key] = totals.get(key, 0) + counted + before
        self._of = {key: _next(self._of.get(key), total, at) for key, total in totals.items()}

    def of(self, key: Key) -> Delivered | None:
        """The last reading of a queue; None where there is none."""
        return self._of.get(key)


def _next(last: Delivered | None, total: int, at: float) -> Delivered:
    if last is None or total < last.total:
        return Delivered(total, None, 0.0, at)
    seconds = at - last.at
    if seconds < LEAST:
        return last
    return Delivered(total, (total - last.total) / seconds, seconds, at)

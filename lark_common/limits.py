"""Limits that keep one caller from the others' service: token buckets, and places that requests occupy."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Final

_KEYS: Final = 4096


class Buckets:
    """A token bucket for each key: ``burst`` at once, then ``rate`` a second; thread-safe.

    At most ``keys`` are remembered, the ones used last; a forgotten one starts full again.
    """

    def __init__(
        self, rate: float, burst: float, keys: int = _KEYS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._keys = keys
        self._clock = clock
        self._lock = threading.Lock()
        self._levels: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def take(self, key: Hashable) -> float:
        """Take one; 0 where there was one, else the seconds until there is one."""
        with self._lock:
            # In the lock: a thread that waited for it must not come with a time from before another's.
            now = self._clock()
            level, since = self._levels.get(key, (self._burst, now))
            level = min(self._burst, level + (now - since) * self._rate)
            short = 0.0 if level >= 1 else (1 - level) / self._rate if self._rate else math.inf
            self._levels[key] = (level if short else level - 1, now)
            self._levels.move_to_end(key)
            if len(self._levels) > self._keys:
                self._levels.popitem(last=False)
        return short


class Places:
    """Places that callers occupy for a time, ``most`` for each; there is no queue for a place. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._taken: Counter[Hashable] = Counter()

    def take(self, caller: Hashable = None, most: int | None = None) -> bool:
        """Occupy a place; False where the caller has ``most`` already. Each True is followed by one :meth:`give`."""
        with self._lock:
            free = self._taken[caller] < (self._most if most is None else most)
            if free:
                self._taken[caller] += 1
            return free

    def give(self, caller: Hashable = None) -> None:
        """Free a place that was taken."""
        with self._lock:
            self._taken[caller] -= 1
            if not self._taken[caller]:
                del self._taken[caller]

    @contextmanager
    def place(self, caller: Hashable = None, most: int | None = None) -> Iterator[bool]:
        """Occupy a place for the length of the block; False where none was free (the block runs all the same)."""
        taken = self.take(caller, most)
        try:
            yield taken
        finally:
            if taken:
                self.give(caller)

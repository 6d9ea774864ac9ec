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


class Bucket:
    """A token bucket, full at first: fills at ``rate`` a second up to ``most``. For one thread; times are handed in."""

    __slots__ = ("_left", "_most", "_rate", "_since")

    def __init__(self, rate: float, most: float, now: float) -> None:
        self._rate = rate
        self._most = most
        self._left = most
        self._since = now

    def left(self, now: float) -> float:
        """The amount that is left now."""
        self._left = min(self._most, self._left + (now - self._since) * self._rate)
        self._since = now
        return self._left

    def take(self, amount: float, now: float) -> float:
        """Take an amount, whether it is there or not; returns the seconds until something is there again."""
        self._left = self.left(now) - amount
        return max(0.0, -self._left / self._rate)

    def until_one(self) -> float:
        """The seconds from the last call until there is one; infinite where the rate is 0."""
        if self._left >= 1.0:
            return 0.0
        return (1.0 - self._left) / self._rate if self._rate else math.inf

    def take_one(self, now: float) -> bool:
        """Take one if there is one."""
        if self.left(now) < 1.0:
            return False
        self._left -= 1.0
        return True


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
        self._of: OrderedDict[Hashable, Bucket] = OrderedDict()

    def take(self, key: Hashable) -> float:
        """Take one; 0 where there was one, else the seconds until there is one."""
        with self._lock:
            # In the lock: a thread that waited for it must not come with a time from before another's.
            now = self._clock()
            bucket = self._of.get(key)
            if bucket is None:
                bucket = self._of[key] = Bucket(self._rate, self._burst, now)
            taken = bucket.take_one(now)
            self._of.move_to_end(key)
            if len(self._of) > self._keys:
                self._of.popitem(last=False)
            return 0.0 if taken else bucket.until_one()


class Places:
    """Places that callers occupy for a time, ``most`` for each; there is no queue for a place. Thread-safe."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._taken: Counter[Hashable] = Counter()

    def take(self, caller: Hashable = None, most: int | None = None) -> bool:
        """Occupy a place; False where the caller has ``most`` already. Each True is followed by one :meth:`give`."""
        with self._lock:
            free = self._taken[caller] < (self.most if most is None else most)
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

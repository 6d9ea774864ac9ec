"""What one caller may take of the service: connections at a time, and requests over time."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Final

# So many callers are remembered before those that have been quiet are forgotten.
_REMEMBERED: Final = 1024


class Places:
    """Counts what is going on at the same time; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: Counter[Hashable] = Counter()

    def take(self, caller: Hashable, most: int) -> bool:
        """A place, to be given back; False where the caller has ``most`` already."""
        with self._lock:
            free = self._taken[caller] < most
            if free:
                self._taken[caller] += 1
            return free

    def give(self, caller: Hashable) -> None:
        """Give a place back."""
        with self._lock:
            self._taken[caller] -= 1
            if not self._taken[caller]:
                del self._taken[caller]

    @contextmanager
    def place(self, caller: Hashable, most: int) -> Iterator[bool]:
        """A place for the time of the block; False where the caller has ``most`` already."""
        free = self.take(caller, most)
        try:
            yield free
        finally:
            if free:
                self.give(caller)


class Rates:
    """So many at once (``burst``), and ``rate`` a second on average; thread-safe."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        # What is left, and when that was so.
        self._left: dict[Hashable, tuple[float, float]] = {}

    def take(self, caller: Hashable) -> bool:
        """One more of a caller's; False where that is too many."""
        now = self._clock()
        with self._lock:
            left = self._now(caller, now)
            if len(self._left) >= _REMEMBERED:
                self._left = {each: held for each, held in self._left.items() if self._now(each, now) < self._burst}
            allowed = left >= 1
            self._left[caller] = (left - allowed, now)
            return allowed

    def _now(self, caller: Hashable, now: float) -> float:
        left, at = self._left.get(caller, (self._burst, now))
        return min(self._burst, left + (now - at) * self._rate)

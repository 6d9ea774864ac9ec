"""Limits that keep one client from the others' service: token buckets, failed attempts by peer, waiting requests."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

# After this many wrong tokens at once, a peer gets one more attempt each so many seconds.
FAILURES: Final = 10
FAILURE_SECONDS: Final = 6.0
_PEERS: Final = 4096


class Buckets:
    """A token bucket for each key: ``burst`` at once, then ``rate`` a second.

    At most ``keys`` are remembered, the ones used last; a forgotten one starts full again.
    """

    def __init__(
        self, rate: float, burst: float, keys: int = _PEERS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._keys = keys
        self._clock = clock
        self._lock = threading.Lock()
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> float:
        """Take one; 0 where there was one, else the seconds until there is one."""
        with self._lock:
            # In the lock: a thread that waited for it must not come with a time from before another's.
            now = self._clock()
            level, since = self._levels.get(key, (self._burst, now))
            level = min(self._burst, level + (now - since) * self._rate)
            short = 0.0 if level >= 1 else (1 - level) / self._rate
            self._levels[key] = (level if short else level - 1, now)
            self._levels.move_to_end(key)
            if len(self._levels) > self._keys:
                self._levels.popitem(last=False)
        return short


class Places:
    """A number of places that requests occupy while they wait; there is no queue for a place."""

    def __init__(self, number: int) -> None:
        self._free = threading.BoundedSemaphore(number)

    def take(self) -> bool:
        """Occupy a place; False where none is free. Each True is followed by one :meth:`give`."""
        return self._free.acquire(blocking=False)

    def give(self) -> None:
        """Free a place that was taken."""
        self._free.release()

    @contextmanager
    def place(self) -> Iterator[bool]:
        """Occupy a place for the length of the block; False where none was free (the block runs all the same)."""
        taken = self.take()
        try:
            yield taken
        finally:
            if taken:
                self.give()

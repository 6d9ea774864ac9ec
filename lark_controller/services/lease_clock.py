"""The clock of leases: the machine's, which may be set at any time, and whether it was set."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

# Seconds by which the machine's clock may stray before it counts as set.
STRAY: Final = 5.0


class LeaseClock:
    """Follows the machine's clock, and keeps that it was set: leases that were given before mean nothing any more.

    Thread-safe. ``steady`` goes on evenly, however the machine's clock (``wall``) is set.
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._steady = wall, steady
        self._lock = threading.Lock()
        self._offset = wall() - steady()
        self._was_set = False

    def __call__(self) -> float:
        """The machine's time, give or take :data:`STRAY`."""
        with self._lock:
            now = self._steady() + self._offset
            jump = self._wall() - now
            if abs(jump) <= STRAY:
                return now
            self._offset += jump
            self._was_set = True
            return now + jump

    @property
    def was_set(self) -> bool:
        """True if the machine's clock was set since :meth:`forget`."""
        self()
        return self._was_set

    def forget(self) -> None:
        """Take the clock as it is now: leases that end by another one begin anew from now on."""
        with self._lock:
            self._was_set = False

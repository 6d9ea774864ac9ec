"""The clock of leases: the machine's, which may be set at any time, and whether it was set."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Final

# Seconds by which the machine's clock may stray before it counts as set.
STRAY: Final = 5.0
# Seconds for which a clock that was set may be set right again.
DOUBTFUL: Final = 900.0


class LeaseClock:
    """Follows the machine's clock, and keeps that it was set: leases that were given before mean nothing any more.

    What was promised until a time has no lease that could begin anew. While a clock that was set may yet be set right,
    a promise is over only by both clocks (:meth:`earliest`), and lasts long enough by both (:meth:`latest`). What is
    written of it, as into the audit trail, has the machine's time like all else.

    Thread-safe. ``steady`` goes on evenly, however the machine's clock (``wall``) is set.
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._steady = wall, steady
        self._lock = threading.Lock()
        self._offset = self._before = wall() - steady()
        self._was_set, self._set_at = False, -math.inf

    def __call__(self) -> float:
        """The machine's time, give or take :data:`STRAY`."""
        with self._lock:
            return self._now(self._steady())

    def earliest(self) -> float:
        """The time by which a promise is over, if it is."""
        with self._lock:
            return min(self._both())

    def latest(self) -> float:
        """The time from which the length of a promise counts."""
        with self._lock:
            return max(self._both())

    def _both(self) -> tuple[float, float]:
        steady = self._steady()
        now = self._now(steady)
        return now, steady + self._before if self._is_doubtful(steady) else now

    def _now(self, steady: float) -> float:
        now = steady + self._offset
        jump = self._wall() - now
        if abs(jump) <= STRAY:
            return now
        if not self._is_doubtful(steady):
            self._before = self._offset
        self._offset += jump
        self._was_set, self._set_at = True, steady
        return now + jump

    def _is_doubtful(self, steady: float) -> bool:
        return steady - self._set_at <= DOUBTFUL

    @property
    def was_set(self) -> bool:
        """True if the machine's clock was set since :meth:`forget`."""
        self()
        return self._was_set

    def forget(self) -> None:
        """Take the clock as it is now: leases that end by another one begin anew from now on."""
        with self._lock:
            self._was_set = False

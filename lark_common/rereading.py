"""Files that are read again when they change, also where that fails for the moment: :class:`Rereading`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

# Seconds after which a file that could not be read is read again.
AGAIN_SECONDS: Final = 5.0

Mark = TypeVar("Mark")


class Rereading(Generic[Mark]):
    """Decides when a file is to be read again, by a mark that changes with it; not thread-safe.

    A change that could not be read, without a descriptor for instance, is read :data:`AGAIN_SECONDS` later: a token
    that it revokes must not stay good until the next change.
    """

    def __init__(self, seen: Mark, clock: Callable[[], float] = time.monotonic) -> None:
        self._seen = seen
        self._clock = clock
        self._rests_until = -math.inf
        self._trouble = ""

    def is_due(self, mark: Mark) -> bool:
        """True where a file with this mark is to be read now."""
        return mark != self._seen and self._clock() >= self._rests_until

    def done(self, mark: Mark) -> None:
        """Note that a file with this mark was read, whether its content is good or not."""
        self._seen = mark
        self._trouble = ""

    def failed(self, mark: Mark, error: Exception, *, again: bool) -> bool:
        """Note that a file with this mark could not be used, and is to be read ``again`` even if it does not change;
        True where that is to be logged: once for each reason while it lasts."""
        if not again:
            self.done(mark)
            return True
        self._rests_until = self._clock() + AGAIN_SECONDS
        before, self._trouble = self._trouble, str(error)
        return self._trouble != before

"""A process without a free descriptor: the errors that mean it, their log line where connections are accepted, and
files that have changed meanwhile."""

from __future__ import annotations

import errno
import math
import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from lark_common import log

# The process or the machine has no descriptor or no memory for another connection (accept(2)).
EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# Seconds between two log lines about listeners that cannot accept.
LOG_SECONDS: Final = 10.0
# Seconds after which a file that could not be read is read again.
AGAIN_SECONDS: Final = 5.0

Mark = TypeVar("Mark")

_lock: Final = threading.Lock()
_logged: Final[dict[str, tuple[float, int]]] = {}


def exhausted(listener: str, error: OSError) -> None:
    """Log that a listener cannot accept a connection, with how often that was so since it was logged last."""
    now = time.monotonic()
    with _lock:
        last, times = _logged.get(listener, (-LOG_SECONDS, 0))
        due = now - last >= LOG_SECONDS
        _logged[listener] = (now, 0) if due else (last, times + 1)
    if due:
        log.event(
            "no connection can be accepted",
            level=log.ERROR,
            listener=listener,
            error=error.strerror,
            times=times + 1,
            hint="LimitNOFILE of the unit, or ulimit -n",
        )


class Rereading(Generic[Mark]):
    """Decides when a file is to be read again, by a mark that changes with it; ``seen`` is that of what was read last.

    A change that could not be read, without a descriptor for instance, is read :data:`AGAIN_SECONDS` later: a token
    that it revokes must not stay good until the next change.
    """

    def __init__(self, seen: Mark, clock: Callable[[], float] = time.monotonic) -> None:
        self.seen = seen
        self._clock = clock
        self._rests_until = -math.inf

    def is_due(self, mark: Mark) -> bool:
        """True where a file with this mark is to be read now."""
        return mark != self.seen and self._clock() >= self._rests_until

    def failed(self) -> None:
        """Note that it could not be read."""
        self._rests_until = self._clock() + AGAIN_SECONDS

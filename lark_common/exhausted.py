"""A process without a free descriptor: the errors that mean it, and their log line where connections are accepted."""

from __future__ import annotations

import errno
import threading
import time
from typing import Final

from lark_common import log

# The process or the machine has no descriptor or no memory for another connection (accept(2)).
EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# Seconds between two log lines about listeners that cannot accept.
LOG_SECONDS: Final = 10.0

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

"""Removes jobs' networks that could not be removed at the job's end, mostly since Open vSwitch was away."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from lark_common import log
from lark_worker.errors import NetworkError
from lark_worker.records.records import Record

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0


class RemovalRetry:
    """Removes the networks of jobs that have ended; thread-safe. ``remove`` raises NetworkError where it fails.

    ``taken_over`` is true of a job's id where a later starter of the same run has that network now.
    """

    def __init__(self, remove: Callable[[Record], None], taken_over: Callable[[str], bool]) -> None:
        self._remove = remove
        self._taken_over = taken_over
        self._lock = threading.Lock()
        self._left: dict[str, Record] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, record: Record) -> None:
        """Try a job's network again until it is removed."""
        with self._lock:
            self._left[record.id] = record
            if self._thread is None and not self._stopping.is_set():
                thread = threading.Thread(target=self._run, name="leftovers", daemon=True)
                thread.start()
                # Not before: where no thread can be started, the next call tries to.
                self._thread = thread

    def stop(self) -> None:
        """Stop trying; the next start of the service sweeps."""
        self._stopping.set()

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while not self._stopping.wait(pause):
            pause = min(pause * 2, LONGEST_PAUSE)
            with self._lock:
                left = list(self._left.values())
            gone = [record for record in left if self._again(record)]
            with self._lock:
                for record in gone:
                    # A later starter of the same run may have left something meanwhile.
                    if self._left[record.id] is record:
                        del self._left[record.id]
                if not self._left:
                    self._thread = None
                    return

    def _again(self, record: Record) -> bool:
        """Remove a job's network again; True if nothing is left to do."""
        if self._taken_over(record.id):
            return True
        try:
            self._remove(record)
        except NetworkError as error:
            log.event("a job's network is still not removed", level=log.WARNING, job=record.id, reason=error)
            return False
        except Exception as error:  # an error about one job must not keep the others' networks
            log.failure("a job's network is still not removed", error, job=record.id)
            return False
        log.event("a job's network is removed", job=record.id)
        return True

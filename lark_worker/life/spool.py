"""Delivers jobs' reports to the controller: in order for each slot, retried until they arrive."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from lark_common import log
from lark_worker.errors import AwayError

FIRST_PAUSE: Final = 0.25
LONGEST_PAUSE: Final = 5.0


class Spool:
    """Calls ``deliver`` with the ids of jobs that have something pending; thread-safe.

    ``deliver`` delivers all that is pending of a job, and raises AwayError where the controller cannot be asked: then
    it is called again, and jobs behind it on the same slot wait, so that a slot's next job is never registered before
    the end of the one before it.
    """

    def __init__(self, deliver: Callable[[str], None]) -> None:
        self._deliver = deliver
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[str]] = {}
        self._threads: set[threading.Thread] = set()
        self._stopping = threading.Event()

    def add(self, slot: str, job_id: str) -> None:
        """Queue a job of this slot for delivery."""
        with self._lock:
            if self._stopping.is_set():
                return
            line = self._waiting.get(slot)
            if line is not None:
                line.append(job_id)
                return
            self._waiting[slot] = deque([job_id])
            thread = threading.Thread(target=self._run, args=(slot,), name=f"spool {slot}", daemon=True)
            self._threads.add(thread)
            # In the lock: stop() must not find a thread that has not started.
            thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop delivering; what is pending stays on disk."""
        with self._lock:
            self._stopping.set()
            threads = list(self._threads)
        for thread in threads:
            thread.join(timeout)

    def _run(self, slot: str) -> None:
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            with self._lock:
                job_id = self._waiting[slot][0]
            try:
                self._deliver(job_id)
            except AwayError as error:
                log.event("the controller cannot be reached; trying again", job=job_id, error=error, seconds=pause)
                self._stopping.wait(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            except Exception as error:  # an error about one job must not stop the slot's others
                log.failure("a job's reports were given up", error, job=job_id)
            pause = FIRST_PAUSE
            with self._lock:
                line = self._waiting[slot]
                line.popleft()
                if not line:
                    del self._waiting[slot]
                    break
        with self._lock:
            self._threads.discard(threading.current_thread())

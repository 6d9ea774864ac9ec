"""Waits at the controller for all jobs of this worker that wait for the same: one request, however many they are.

The request is there while somebody waits, and ends some seconds later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from lark_common import log
from lark_worker.errors import WorkerError

# Seconds that the controller holds a request, and that are between two where it does not or cannot.
HOLD: Final = 30.0
PAUSE: Final = 5.0
# Seconds between two requests in any case.
LEAST: Final = 0.2

# Asks the controller for what is another than at a version, for so many seconds: HTTP status and JSON document.
Ask = Callable[[str, float], tuple[int, dict[str, Any]]]
# Of a document, the version of each part that somebody may wait for.
Versions = Callable[[dict[str, Any]], Mapping[str, str]]


class SharedWait:
    """Those who wait for parts of one document of the controller's; thread-safe.

    ``absent`` is the version of a part that the document does not have.
    """

    def __init__(self, ask: Ask, versions: Versions, absent: str = "", pause: float = PAUSE) -> None:
        self._ask, self._versions, self._absent, self._pause = ask, versions, absent, pause
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._answers = self._waiting = 0
        self._parts: Mapping[str, str] = {}
        self._thread: threading.Thread | None = None

    @property
    def answers(self) -> int:
        """The number of documents so far."""
        return self._answers

    def until(self, part: str, after: str, answers: int, end: float) -> bool:
        """Wait until a document beyond so many has another version of a part than ``after``; False where none came
        until ``end`` (of the monotonic clock)."""
        with self._changed:
            self._waiting += 1
            try:
                self._begin()
                while self._answers == answers or self._parts.get(part, self._absent) == after:
                    left = end - time.monotonic()
                    if left <= 0 or self._stop.is_set():
                        return False
                    self._changed.wait(left)
                return True
            finally:
                self._waiting -= 1

    def stop(self) -> None:
        """Answer all who wait. A request that the controller holds is not waited for."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()

    def _begin(self) -> None:
        if self._thread is None and not self._stop.is_set():
            self._thread = threading.Thread(target=self._run, name="shared wait", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        version = ""
        while self._is_needed():
            began, found = time.monotonic(), ""
            try:
                status, document = self._ask(version, HOLD)
                if status == 200:
                    found = self._take(version, document)
            except WorkerError:
                # Those who wait find it when they look themselves, at the end of their time.
                pass
            except Exception as error:  # an unexpected error must not stop this thread
                log.failure("a wait at the controller failed", error)
            past = time.monotonic() - began
            # Where too many wait there already, the controller answers at once.
            self._stop.wait(self._pause if found in ("", version) and past < HOLD / 2 else max(0.0, LEAST - past))
            version = found or version

    def _take(self, before: str, document: dict[str, Any]) -> str:
        """Take a document in; returns its version."""
        version = document.get("version")
        if not isinstance(version, str):
            return ""
        if version != before:
            parts = self._versions(document)
            with self._changed:
                self._parts = parts
                self._answers += 1
                self._changed.notify_all()
        return version

    def _is_needed(self) -> bool:
        with self._changed:
            if self._waiting and not self._stop.is_set():
                return True
            self._thread = None
            return False

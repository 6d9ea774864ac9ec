"""Readiness of the controller: the database takes writes, the event loop turns, every thread lives.

One thread tries what may wait, once a second; :meth:`Health.ready` waits for nothing, so that a load balancer
has its answer at once however long a database or a loop stands still.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Protocol

from lark_common.errors import StoreError
from lark_common.log import ERROR, WARNING, event, failure
from lark_common.threads import StoppableThread
from lark_controller.api.health import Readiness
from lark_controller.store import Store
from lark_controller.switches.openflow.loop_thread import OpenFlow

# Seconds between two checks of the loop, and between two test writes to the database.
LOOK_EVERY: Final = 1.0
WRITE_EVERY: Final = 2.0
# Seconds that the loop, or the database, may take to answer.
LOOP_SECONDS: Final = 5.0
STORE_SECONDS: Final = 5.0
# A write that failed counts for so many seconds: a small one may still find room where a post does not.
FAILURE_SECONDS: Final = 10.0


class Living(Protocol):
    """A thread of any kind."""

    @property
    def name(self) -> str:
        """Its name."""

    def is_alive(self) -> bool:
        """True until it has ended."""


class Health:
    """Checks what the controller needs, from :meth:`start` to :meth:`stop`.

    Thread-safe.
    """

    def __init__(self, store: Store, openflow: OpenFlow) -> None:
        self._store = store
        self._openflow = openflow
        self._needed: list[Living] = []
        self._thread = StoppableThread("lark-readiness", self._run)
        # When the check that the loop, or the database, has not answered yet began; 0 where it has.
        self._loop_pending_since = 0.0
        self._store_pending_since = 0.0
        self._store_trouble = ""
        self._reasons: tuple[str, ...] = ()

    def needs(self, *threads: Living) -> None:
        """Add threads without which the controller is not ready."""
        self._needed += threads

    def start(self) -> None:
        """Start the checks."""
        self.needs(self._thread)
        self._thread.start()

    def stop(self) -> None:
        """End; a write that is under way ends by itself."""
        self._thread.stop(patience=0.0)

    def ready(self) -> Readiness:
        """The result of the last checks."""
        if not self._openflow.running:
            return Readiness(False, ("the OpenFlow listener is not running",))
        reasons = tuple(dict.fromkeys((*self._store_reasons(), *self._loop_reasons(), *self._dead(self._needed))))
        return Readiness(not reasons, reasons)

    def alive(self) -> bool:
        """True while the loop turns and every thread lives; what a new start would not mend does not count."""
        return self._openflow.running and not any((*self._loop_reasons(), *self._dead(self._needed)))

    def _store_reasons(self) -> Iterable[str]:
        try:
            self._store.check_room()
        except StoreError as error:
            yield str(error)
        if self._store_trouble:
            yield self._store_trouble
        failed = self._store.failed_write(FAILURE_SECONDS)
        if failed:
            yield failed
        waited = _since(self._store_pending_since)
        if waited > STORE_SECONDS:
            yield f"the database has not answered a write for {waited:.0f} s"

    def _loop_reasons(self) -> Iterable[str]:
        waited = _since(self._loop_pending_since)
        if waited > LOOP_SECONDS:
            yield f"the event loop that serves the switches has not turned for {waited:.0f} s"

    @staticmethod
    def _dead(threads: Iterable[Living]) -> Iterable[str]:
        for thread in threads:
            if not thread.is_alive():
                yield f"the thread {thread.name} has ended; start the controller again"

    def _run(self) -> None:
        written = -WRITE_EVERY
        while not self._thread.pause(LOOK_EVERY):
            try:
                self._check_loop()
                if time.monotonic() - written >= WRITE_EVERY:
                    self._check_store()
                    written = time.monotonic()
                self._log_changes()
            except Exception as error:
                # An unexpected error must not stop this thread: no other checks.
                failure("readiness could not be checked", error)

    def _check_loop(self) -> None:
        if not self._loop_pending_since:
            self._loop_pending_since = time.monotonic()
            with suppress(RuntimeError):
                self._openflow.loop.call_soon_threadsafe(self._loop_turned)

    def _loop_turned(self) -> None:
        self._loop_pending_since = 0.0

    def _check_store(self) -> None:
        self._store_pending_since = time.monotonic()
        try:
            self._store.check_writes()
        except StoreError as error:
            self._store_trouble = str(error)
        else:
            self._store_trouble = ""
        finally:
            self._store_pending_since = 0.0

    def _log_changes(self) -> None:
        """Log where the answer has changed."""
        reasons = self.ready().reasons
        for reason in reasons:
            if not any(_same(reason, before) for before in self._reasons):
                event("not ready", level=ERROR, reason=reason)
        if self._reasons and not reasons:
            event("ready again", level=WARNING)
        self._reasons = reasons


def _since(at: float) -> float:
    """Seconds since a moment; 0 where it is none."""
    return time.monotonic() - at if at else 0.0


def _same(one: str, other: str) -> bool:
    """True if two reasons differ only in their numbers."""
    return one.translate(_NO_DIGITS) == other.translate(_NO_DIGITS)


_NO_DIGITS: Final = str.maketrans("", "", "0123456789")

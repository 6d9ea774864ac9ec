"""Values and calls that other threads hand to the event-loop thread: worked on in the order in which they came, in
portions, so that what comes from switches gets its turn between them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

X = TypeVar("X")

# Seconds of work after which the loop turns to other work, and at most where that takes long itself: a job may concern
# a thousand switches, whose answers take as long as the job did, and shorter portions would let values pile up. They
# are of the thread's own processor time: a pause in which other threads have the interpreter would make the next
# portion as long as itself, up to the longest, and every start wait for both.
PORTION: Final = 0.005
LONGEST: Final = 0.1


class HandedOver:
    """The values and calls for the thread of ``loop``, which may be started later."""

    def __init__(
        self, loop: Callable[[], asyncio.AbstractEventLoop], clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._lock = threading.Lock()
        self._values: deque[tuple[Callable[[Any], object], Any]] = deque()
        self._under_way = False
        # When the portion before ended, as long as there is more to do.
        self._ended: float | None = None

    def put(self, work: Callable[[X], object], value: X) -> None:
        """Hand over a value to ``work`` on; from any thread. Raises RuntimeError where the loop has ended."""
        loop = self._loop()
        with self._lock:
            if loop.is_closed():
                raise RuntimeError("the event loop is closed")
            self._values.append((work, value))
            first, self._under_way = not self._under_way, True
        if first:
            # Waking the loop costs more than most of the work: values that come meanwhile need no second call.
            try:
                loop.call_soon_threadsafe(self._take_in)
            except RuntimeError:
                self.forget()
                raise

    def call(self, work: Callable[[], object]) -> None:
        """Hand over a call, which comes after all values handed over before; otherwise as :meth:`put`."""
        self.put(_call, work)

    def forget(self) -> None:
        """Forget what was handed to a loop that has ended."""
        with self._lock:
            self._values.clear()
            self._under_way, self._ended = False, None

    def _take_in(self) -> None:
        """Work on a portion, on the loop's thread."""
        began = self._clock()
        others = 0.0 if self._ended is None else began - self._ended
        until = began + min(max(PORTION, others), LONGEST)
        loop = self._loop()
        while self._values:
            work, value = self._values.popleft()
            try:
                work(value)
            except Exception as error:
                # One that fails must not keep the others from being handled.
                loop.call_exception_handler({"message": f"Exception in {work}", "exception": error})
            if self._clock() >= until:
                break
        with self._lock:
            self._under_way = bool(self._values)
            self._ended = self._clock() if self._values else None
            if self._values:
                loop.call_soon(self._take_in)


def _call(work: Callable[[], object]) -> None:
    work()

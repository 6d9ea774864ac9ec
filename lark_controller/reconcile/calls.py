"""Calls from REST threads to the event-loop thread, with a time limit."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import Final, TypeVar

from lark_common.errors import SwitchError
from lark_controller.reconcile.awaited import Waiter
from lark_controller.switches.openflow.loop_thread import OpenFlow

# The loop answers in milliseconds; after this many seconds the caller gets an error.
LOOP_TIMEOUT: Final = 30.0

T = TypeVar("T")


class LoopCalls:
    """Calls from other threads to the thread of ``openflow``; thread-safe."""

    def __init__(self, openflow: OpenFlow) -> None:
        self._openflow = openflow

    def call(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the loop and return its answer. Raises SwitchError where the loop does not answer in time."""
        return self.wait(self._openflow.call(work), LOOP_TIMEOUT)

    def wait(self, future: Future[T], timeout: float) -> T:
        """Wait at most ``timeout`` seconds for the answer of a call. Raises SwitchError."""
        try:
            return future.result(timeout)
        except FutureTimeoutError:
            future.cancel()
            raise SwitchError(f"no answer within {timeout:g} s") from None

    def hold(self, timeout: float, wait: Callable[[Waiter], None], give_up: Callable[[Waiter], None]) -> None:
        """Hold the calling thread until the loop calls what it hands to ``wait``, at most ``timeout`` seconds; after
        that ``give_up`` has it forgotten."""
        settled: Future[None] = Future()

        def settle() -> None:
            # The waiting thread may have given up this moment.
            with suppress(InvalidStateError):
                settled.set_result(None)

        def waiter() -> None:
            # The state follows the last confirmation in the same turn of the loop; the answer comes after it.
            self._openflow.loop.call_soon(settle)

        self.call(lambda: wait(waiter))
        with suppress(FutureTimeoutError):
            settled.result(timeout)
        if not settled.done():
            self.call(lambda: give_up(waiter))
        settled.cancel()

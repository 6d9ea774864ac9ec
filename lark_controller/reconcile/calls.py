"""Calls from REST threads to the event-loop thread, with a time limit."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

from lark_common.errors import SwitchError
from lark_common.turns import Elsewhere, aside, gives_way
from lark_controller.reconcile.confirmations import Waiter
from lark_controller.switches.openflow.loop_thread import OpenFlow

# The loop answers in milliseconds; after this many seconds the caller gets an error.
LOOP_TIMEOUT: Final = 30.0
# For so many seconds a caller that gives way keeps its turn while it waits for the loop, and not for a switch.
BRIEFLY: Final = 0.02

T = TypeVar("T")


class LoopCalls:
    """Calls from other threads to the thread of ``openflow``, whose time is charged to the callers; thread-safe."""

    def __init__(self, openflow: OpenFlow) -> None:
        self._openflow = openflow

    def call(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the loop and return its answer. Raises SwitchError where the loop does not answer in time, or
        has ended."""
        future: Future[T] = Future()
        spent = Elsewhere()
        # Without a task, which a coroutine would need: most calls are over in microseconds.
        with _while_it_runs():
            self._openflow.call_in_turn(partial(_carry_out, partial(spent.measured, work), future))
        return self._wait(future, LOOP_TIMEOUT, spent)

    def run(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        """Carry a coroutine out on the loop, and wait at most ``timeout`` seconds for its answer. Raises
        SwitchError."""
        spent = Elsewhere()
        try:
            with _while_it_runs():
                future = self._openflow.call(spent.measured_steps(work))
        except SwitchError:
            # Python would warn of a coroutine that nobody has begun.
            work.close()
            raise
        return self._wait(future, timeout, spent)

    def _wait(self, future: Future[T], timeout: float, spent: Elsewhere) -> T:
        try:
            # Readers who all ask the loop, and come back from it together, would have the interpreter among them.
            if gives_way():
                with suppress(FutureTimeoutError):
                    return future.result(min(BRIEFLY, timeout))
            with aside():
                return future.result(timeout)
        except FutureTimeoutError:
            future.cancel()
            raise SwitchError(f"no answer within {timeout:g} s") from None
        finally:
            spent.charge()

    def hold(
        self,
        timeout: float,
        wait: Callable[[Waiter], None],
        give_up: Callable[[Waiter], None],
        answer: Callable[[], T],
    ) -> T:
        """Hold the calling thread until the loop calls what it hands to ``wait``, at most ``timeout`` seconds; after
        that ``give_up`` has it forgotten. Returns what the loop answers then."""
        held: Future[T] = Future()
        spent = Elsewhere()
        with _while_it_runs():
            loop = self._openflow.loop

        def resolve() -> None:
            # The waiting thread may have given up this moment.
            if held.set_running_or_notify_cancel():
                _answer(partial(spent.measured, answer), held)

        def waiter() -> None:
            # Its caller may be in the middle of a change, so the answer comes after that.
            loop.call_soon(resolve)

        def begin() -> None:
            try:
                spent.measured(lambda: wait(waiter))
            except Exception as error:
                held.set_exception(error)

        with _while_it_runs():
            self._openflow.call_in_turn(begin)
        try:
            with suppress(FutureTimeoutError), aside():
                return held.result(timeout)
        finally:
            spent.charge()
        if not held.cancel():
            return self._wait(held, LOOP_TIMEOUT, spent)

        def late() -> T:
            give_up(waiter)
            return answer()

        return self.call(late)


@contextmanager
def _while_it_runs() -> Iterator[None]:
    """Raise SwitchError where the loop has ended: a request that waited for the database may outlast it."""
    try:
        yield
    except RuntimeError:
        raise SwitchError("this controller stops; ask again") from None


def _carry_out(work: Callable[[], T], future: Future[T]) -> None:
    if future.set_running_or_notify_cancel():
        _answer(work, future)


def _answer(work: Callable[[], T], future: Future[T]) -> None:
    try:
        future.set_result(work())
    except Exception as error:
        # The caller's to handle, on its thread.
        future.set_exception(error)

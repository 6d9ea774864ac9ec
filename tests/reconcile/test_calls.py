"""Calls to the event loop's thread: what the loop works for a caller is charged to that caller."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from threading import Event, Semaphore, Thread

import pytest

from lark_common.errors import SwitchError
from lark_common.turns import Turn, Turns
from lark_controller.reconcile.calls import LoopCalls
from lark_controller.reconcile.confirmations import Waiter
from lark_controller.switches.openflow.loop_thread import OpenFlow
from tests.fixtures.openflow import OPTIONS, Recorder

WORK = 0.03


def work() -> str:
    ends = time.thread_time() + WORK
    while time.thread_time() < ends:
        pass
    return "answer"


async def steps() -> str:
    await asyncio.sleep(0)
    return work()


def hold(calls: LoopCalls) -> str:
    """A wait that is over at once."""

    def at_once(waiter: Waiter) -> None:
        waiter()

    return calls.hold(5.0, at_once, lambda _: None, work)


def in_vain(calls: LoopCalls) -> str:
    """A wait that ends with its time."""
    return calls.hold(0.01, lambda _: None, lambda _: None, work)


@pytest.fixture
def openflow() -> Iterator[OpenFlow]:
    made = OpenFlow(OPTIONS, Recorder())
    made.start()
    yield made
    made.stop()


EACH = pytest.mark.parametrize(
    "ask", [lambda calls: calls.call(work), lambda calls: calls.run(steps(), 5.0), hold, in_vain]
)  # fmt: skip


@EACH
def test_a_caller_that_outlasts_the_loop_is_told_so(openflow: OpenFlow, ask: Callable[[LoopCalls], str]) -> None:
    openflow.stop()
    with pytest.raises(SwitchError, match="this controller stops; ask again"):
        ask(LoopCalls(openflow))


@EACH
def test_the_loops_time_is_the_callers(openflow: OpenFlow, ask: Callable[[LoopCalls], str]) -> None:
    turns, begun = Turns(2, 2, ahead=Turns(2, 2)), list[Turn]()
    turns.ask("reader", "", begun.append)
    with begun[0] as turn:
        assert ask(LoopCalls(openflow)) == "answer"
    assert turn.shares[0].used >= WORK


def test_a_post_is_not_charged_with_what_the_loop_does_for_all(openflow: OpenFlow) -> None:
    turns, begun = Turns(2, 2), list[Turn]()
    turns.ask("hook", "", begun.append)
    with begun[0] as turn:
        assert hold(LoopCalls(openflow)) == "answer"
    assert turn.shares[0].used < WORK


@pytest.mark.parametrize(("briefly", "begun_meanwhile"), [(10.0, 2), (0.0, 3)], ids=["brief", "long"])
def test_readers_who_wait_for_the_loop_keep_their_turns_briefly(
    openflow: OpenFlow, monkeypatch: pytest.MonkeyPatch, briefly: float, begun_meanwhile: int
) -> None:
    """Else all that a token asks is under way at once, and comes back from the loop at once."""
    monkeypatch.setattr("lark_controller.reconcile.calls.BRIEFLY", briefly)
    turns, calls, busy, waiting = Turns(6, 2, ahead=Turns(6, 2)), LoopCalls(openflow), Event(), Semaphore(0)
    begun: list[Thread] = []

    def ask(turn: Turn) -> None:
        with turn:
            waiting.release()
            calls.call(lambda: None)

    def start(turn: Turn) -> None:
        begun.append(Thread(target=ask, args=(turn,)))
        begun[-1].start()

    openflow.loop.call_soon_threadsafe(busy.wait, 10.0)
    for _ in range(3):
        turns.ask("reader", "", start)
    for _ in range(begun_meanwhile):
        assert waiting.acquire(timeout=60.0)
    assert len(begun) == begun_meanwhile
    busy.set()
    for _ in range(3 - begun_meanwhile):
        assert waiting.acquire(timeout=60.0)
    for thread in begun:
        thread.join(60.0)
        assert not thread.is_alive()

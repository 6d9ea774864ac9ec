from __future__ import annotations

import threading

import pytest

from lark_common.threads import StoppableThread, TurnThread


def test_a_pause_ends_with_the_stop() -> None:
    paused = threading.Event()
    stopped: list[bool] = []

    def work() -> None:
        paused.set()
        stopped.append(thread.pause(60))

    thread = StoppableThread("test", work)
    thread.start()
    assert paused.wait(60)
    thread.stop()
    assert stopped == [True]
    thread.stop()


def test_another_wait_is_ended_by_wake() -> None:
    wake = threading.Event()
    seen: list[bool] = []

    def work() -> None:
        wake.wait(60)
        seen.append(thread.stopping)

    thread = StoppableThread("test", work, wake=wake.set)
    thread.start()
    assert not thread.stopping
    thread.stop()
    assert seen == [True]


def test_a_thread_that_never_started_is_stopped() -> None:
    thread = StoppableThread("test", lambda: None)
    thread.stop()
    assert thread.stopping


def test_turns_go_on_after_an_error_which_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    reached = threading.Event()
    numbers = iter(range(10))

    def turn() -> float:
        number = next(numbers)
        if number == 1:
            raise RuntimeError("the second one")
        if number == 2:
            reached.set()
            return 3600.0
        return 0.0

    thread = TurnThread("turns", turn, "a turn failed", first=0.0, later=0.0)
    thread.start()
    assert reached.wait(60)
    thread.stop(60)
    assert not thread.is_alive()
    assert [record.getMessage() for record in caplog.records if "a turn failed" in record.getMessage()] != []
    assert next(numbers) == 3

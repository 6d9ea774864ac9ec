from __future__ import annotations

import threading

from lark_common.threads import StoppableThread


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

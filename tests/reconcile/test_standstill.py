"""A controller that stood still says so where its switches have left it, and asks those that are there first."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_controller.reconcile import standstill as module
from lark_controller.reconcile.standstill import AFTER, STILL, Standstill
from tests.fixtures.controllers import POLICY, an_edge, connect, network, running, until
from tests.fixtures.openflow import Recorder, connected, scenario, serving
from tests.services.test_journal import EDGE, lines

__all__ = ["network"]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_nothing_is_known_before_the_loop_has_begun() -> None:
    clock = Clock()
    still = Standstill(clock)
    clock.now += 600
    assert (still.seconds(), still.after()) == (0.0, "")
    still.beat()
    assert still.seconds() == 0.0


def test_a_standstill_is_known_before_the_next_beat_and_a_moment_after_it() -> None:
    clock = Clock()
    still = Standstill(clock)
    still.beat()
    clock.now += STILL
    assert still.seconds() == 0.0
    clock.now += 26.0
    assert still.after() == "this controller stood still for 30 s"
    still.beat()
    clock.now += 2.0
    still.beat()
    assert still.after() == "this controller stood still for 30 s"
    for _ in range(int(AFTER)):
        clock.now += 1.0
        still.beat()
    assert still.after() == ""


def test_the_clock_goes_on_while_the_machine_sleeps() -> None:
    assert abs(module.awake_and_asleep() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 5.0


def test_events_say_that_it_was_the_controller_that_stood_still(tmp_path: Path, network: FakeNetwork) -> None:
    def told() -> list[str]:
        return [detail for action, detail in lines(controller, EDGE) if action.startswith("switch")]

    with running(tmp_path, POLICY) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        still = controller._reconciler.standstill
        until(lambda: still._last is not None)
        network.run(edge.disconnect)
        until(lambda: len(told()) == 1)
        connect(network, controller, edge)
        until(lambda: len(told()) == 2)
        assert not any("stood still" in each for each in told())
        # As after a SIGSTOP, in which the switch has closed the connection.
        still._clock = lambda: module.awake_and_asleep() + 31.0
        network.run(edge.disconnect)
        until(lambda: len(told()) == 3)
        reason = controller.switches.find(f"{edge.datapath:016x}").reason
        connect(network, controller, edge)
        until(lambda: len(told()) == 4)
        said = r"; this controller stood still for 3[01] s"
        assert all(re.search(f"{said}$", each) for each in told()[2:])
        assert re.search(rf"{said}\)$", reason)


def test_a_switch_is_asked_before_it_is_dropped_where_the_loop_itself_was_late() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder, echo_interval=1000.0, echo_timeout=600.0) as server:
            connection = (await connected(server, recorder, FakeSwitch(1))).connection
            loop = asyncio.get_running_loop()
            assert connection._keepalive is not None
            connection._keepalive.cancel()
            connection._last_received -= 5000.0
            asked = connection._last_received
            connection._keepalive = loop.call_at(loop.time() - 3000.0, connection._keep_alive)
            async with asyncio.timeout(60.0):
                while connection._last_received == asked:
                    await asyncio.sleep(0.01)
            assert not connection.closed_because
            assert recorder.gone == []

    scenario(play)

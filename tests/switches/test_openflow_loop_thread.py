"""The os-ken application: its one thread, and how it starts and stops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from os_ken.base import app_manager

from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_common.errors import SettingError
from lark_controller.switches.fence import Fence
from lark_controller.switches.openflow import loop_thread
from lark_controller.switches.openflow.handed_over import HandedOver
from lark_controller.switches.openflow.loop_thread import KeptSwitches, LarkSwitches, OpenFlow
from tests.fixtures.controllers import until
from tests.fixtures.descriptors import no_descriptors
from tests.fixtures.openflow import (
    OPTIONS,
    Recorder,
    add,
    flow,
)


def test_the_thread_serves_switches_and_stops_cleanly() -> None:
    recorder = Recorder()
    openflow = OpenFlow(OPTIONS, recorder)
    openflow.start()
    try:
        with FakeNetwork() as network:
            fakes = [FakeSwitch(number) for number in range(5)]
            for fake in fakes:
                network.call(fake.connect(*openflow.addresses[0]))
                openflow.call(recorder.link(fake.datapath)).result(20)
            assert sorted(openflow.call(lambda: list(openflow.links)).result(20)) == [0, 1, 2, 3, 4]
            outcome = openflow.call(lambda: openflow.links[2].apply(add(flow(1)))).result(20)
            assert outcome.complete
            assert list(fakes[2].tables.entries) == [flow(1).key]
            openflow.stop()
            for fake in fakes:
                network.call(fake.closed.wait())
    finally:
        openflow.stop()
    assert not openflow.running
    assert sorted(recorder.gone) == [(number, "the controller stops") for number in range(5)]


def test_os_ken_starts_no_thread_and_no_listener_of_its_own() -> None:
    before = set(threading.enumerate())
    openflow = OpenFlow(OPTIONS, Recorder())
    openflow.start()
    try:
        assert [thread.name for thread in set(threading.enumerate()) - before] == ["openflow"]
        applications = app_manager.AppManager.get_instance().applications
        assert [type(app) for app in applications.values()] == [LarkSwitches]
    finally:
        openflow.stop()
    assert set(threading.enumerate()) <= before
    assert app_manager.AppManager.get_instance().applications == {}
    openflow.start()  # and it can be started again
    openflow.stop()


def test_a_call_after_the_end_is_refused_and_nothing_is_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    async def work() -> None:
        """Do nothing."""

    openflow = OpenFlow(OPTIONS, Recorder())
    openflow.start()
    openflow.stop()
    # Other tests may have left warnings, too.
    gc.collect()
    recwarn.clear()
    for each in (lambda: None, work()):
        with pytest.raises(RuntimeError):
            openflow.call(each)
    gc.collect()
    assert not [warning for warning in recwarn if "never awaited" in str(warning.message)]


def test_without_descriptors_nothing_is_accepted_and_little_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    openflow = OpenFlow(OPTIONS, recorder)
    openflow.start()
    try:
        with FakeNetwork() as network, contextlib.ExitStack() as opened, caplog.at_level("INFO"):
            waiting = [opened.enter_context(socket.socket()) for _ in range(20)]
            with no_descriptors():
                for each in waiting:
                    each.connect(openflow.addresses[0])
                # The loop has tried, in vain, before it answers.
                openflow.call(asyncio.sleep(1.5)).result(20)
            told = [record for record in caplog.records if record.levelname == "ERROR"]
            assert [record.getMessage() for record in told] == ["no connection can be accepted"]
            network.call(FakeSwitch(1).connect(*openflow.addresses[0]))
            openflow.call(recorder.link(1)).result(20)
    finally:
        openflow.stop()


@pytest.mark.parametrize("led", [True, False])
def test_switches_that_were_kept_are_taken_over_with_their_connections(led: bool) -> None:
    recorder = Recorder()
    kept = KeptSwitches(OPTIONS, Fence(), lambda: 4)
    openflow = OpenFlow(replace(OPTIONS, generation=5), recorder, kept=kept)
    assert (kept.count, kept.is_alive()) == (0, True)
    kept.start()
    try:
        with FakeNetwork() as network:
            fake = FakeSwitch(1)
            assert kept._app is not None
            network.call(fake.connect(*kept._app.server.addresses[0]))
            until(lambda: kept.count)
            assert fake.masters.generation == 4
            if led:
                kept.lead(5)
            openflow.start()
            openflow.call(recorder.link(1)).result(20)
            assert (kept.count, fake.masters.generation) == (0, 5)
            assert fake.masters.is_master(fake)
            outcome = openflow.call(lambda: openflow.links[1].apply(add(flow(1)))).result(20)
            assert outcome.complete
            # They are not its own any more.
            kept.lead(6)
            kept.stop()
            openflow.call(lambda: None).result(20)
            assert not fake.closed.is_set()
            openflow.stop()
            network.call(fake.closed.wait())
    finally:
        openflow.stop()
        kept.stop()
    assert app_manager.AppManager.get_instance().applications == {}


def test_switches_that_are_kept_are_let_go_where_nobody_takes_them() -> None:
    kept = KeptSwitches(OPTIONS, Fence(), lambda: 4)
    kept.start()
    with FakeNetwork() as network:
        fake = FakeSwitch(1)
        assert kept._app is not None
        network.call(fake.connect(*kept._app.server.addresses[0]))
        until(lambda: kept.count)
        assert "openflow" in [thread.name for thread in threading.enumerate()]
        kept.stop()
        network.call(fake.closed.wait())
    assert "openflow" not in [thread.name for thread in threading.enumerate()]


def test_a_loop_that_stands_still_or_has_ended_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptSwitches(OPTIONS, Fence(), lambda: 4)
    kept.start()
    app, goes_on = kept._app, threading.Event()
    assert app is not None
    try:
        assert kept.is_alive()
        monkeypatch.setattr(loop_thread, "LOOP_SECONDS", 0.05)
        app.loop.call_soon_threadsafe(goes_on.wait)
        assert not kept.is_alive()
        goes_on.set()
        monkeypatch.undo()
        assert kept.is_alive()
        app.loop.call_soon_threadsafe(app.loop.stop)
        app.thread.join()
        assert not kept.is_alive()
    finally:
        goes_on.set()
        kept.stop()
    assert kept.is_alive()


class Taken(KeptSwitches):
    """Switches that another thread takes over at any moment: the application is there once, and then gone."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name == "_app":
            self._app = None
        return found


@pytest.mark.parametrize(("asked", "answer"), [(lambda kept: kept.count, 3), (lambda kept: kept.is_alive(), True)])
def test_whoever_asks_while_they_are_taken_over_gets_an_answer(
    asked: Callable[[Taken], object], answer: object
) -> None:
    kept = Taken(OPTIONS, Fence(), lambda: 4)
    app = Mock()
    app.server.kept = {1: Mock(), 2: Mock(), 3: Mock()}
    app.loop.call_soon_threadsafe = lambda work: work()
    kept._app = app
    assert asked(kept) == answer


def test_the_thread_that_was_there_before_finds_all_there_when_it_begins_to_serve() -> None:
    running: list[bool] = []
    app = Mock()
    # The thread may be faster than the one that starts.
    app.loop.call_soon_threadsafe = lambda _work, *_given: running.append(openflow.running)
    openflow: OpenFlow = OpenFlow(OPTIONS, Recorder(), kept=Mock(take=lambda: app))
    openflow.start()
    assert running == [True, True]


def test_an_address_in_use_is_a_setting_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        openflow = OpenFlow(type(OPTIONS)(listen=(("127.0.0.1", port),)), Recorder())
        with pytest.raises(SettingError, match=str(port)):
            openflow.start()
        assert not openflow.running


def test_what_is_handed_over_is_taken_in_by_portions_and_in_order() -> None:
    """Between two values that take long, switches get their turn; calls come after what was handed over before."""
    openflow = OpenFlow(OPTIONS, Recorder())
    openflow.start()
    seen: list[object] = []
    at: list[int] = []
    turn = [0]
    try:

        def count() -> None:
            turn[0] += 1
            openflow.loop.call_soon(count)

        def long(value: int) -> None:
            until = time.thread_time() + 0.01
            while time.thread_time() < until:
                pass
            at.append(turn[0])
            seen.append(value)

        openflow.loop.call_soon_threadsafe(count)
        for value in range(4):
            openflow.hand_over(long, value)
        call = openflow.call(lambda: seen.append("a call"))
        openflow.call_in_turn(lambda: seen.append("in turn"))
        openflow.hand_over(seen.append, "behind")
        call.result(20)
        openflow.call(lambda: None).result(20)
    finally:
        openflow.stop()
    # The call itself begins a turn after its place.
    assert [each for each in seen if each != "a call"] == [0, 1, 2, 3, "in turn", "behind"]
    assert seen.index("a call") > 3
    assert len(set(at)) > 1
    openflow.start()
    try:
        openflow.hand_over(seen.append, "again")
        openflow.call(lambda: None).result(20)
    finally:
        openflow.stop()
    assert seen[-1] == "again"


def test_one_value_that_fails_keeps_no_other_from_being_taken_in(caplog: pytest.LogCaptureFixture) -> None:
    openflow = OpenFlow(OPTIONS, Recorder())
    openflow.start()
    seen: list[int] = []
    try:
        for value in (0, 1):
            openflow.hand_over(lambda given: seen.append(1 // given), value)
        openflow.call(lambda: None).result(20)
    finally:
        openflow.stop()
    assert seen == [1]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(("others", "most"), [(0.0, 5), (0.02, 20), (5.0, 100)])
def test_a_portion_is_as_long_as_what_others_did_before_it(others: float, most: int) -> None:
    """In milliseconds, each value being worked on for one."""
    now, portions = [0.0], list[int]()
    loop = asyncio.new_event_loop()
    handed = HandedOver(lambda: loop, lambda: now[0])

    def step(_: int) -> None:
        now[0] += 0.001
        portions[-1] += 1

    def other() -> None:
        now[0] += others
        portions.append(0)
        if sum(portions) < 1000:
            loop.call_soon(other)
        else:
            loop.stop()

    loop.call_soon(other)
    for value in range(1000):
        handed.put(step, value)
    loop.run_forever()
    loop.close()
    assert portions[0] <= 6
    assert abs(portions[2] - most) <= 1
    with pytest.raises(RuntimeError, match="closed"):
        handed.put(step, 0)


def test_a_portion_ends_by_the_work_that_was_done() -> None:
    """A pause in which another thread has the interpreter does no work."""
    loop = asyncio.new_event_loop()
    handed = HandedOver(lambda: loop)
    pauses = 20
    turns: list[int] = []
    done: list[int] = []

    def other() -> None:
        turns.append(len(done))
        if len(done) < pauses:
            loop.call_soon(other)
        else:
            loop.stop()

    def pause(number: int) -> None:
        done.append(number)
        time.sleep(0.002)

    loop.call_soon(other)
    for number in range(pauses):
        handed.put(pause, number)
    loop.run_forever()
    loop.close()
    assert turns == [0, pauses]

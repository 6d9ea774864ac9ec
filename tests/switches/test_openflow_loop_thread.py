"""The os-ken application: its one thread, and how it starts and stops."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

import pytest
from os_ken.base import app_manager

from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_common.errors import SettingError
from lark_controller.switches.openflow.loop_thread import LarkSwitches, OpenFlow
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


def test_an_address_in_use_is_a_setting_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        openflow = OpenFlow(type(OPTIONS)(listen=(("127.0.0.1", port),)), Recorder())
        with pytest.raises(SettingError, match=str(port)):
            openflow.start()
        assert not openflow.running

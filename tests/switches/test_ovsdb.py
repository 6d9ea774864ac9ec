"""The driver against real databases: over TLS, through restarts, beside one that does not answer."""

from __future__ import annotations

import json
import queue
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.namespaces import Net
from lab.openvswitch import OpenVSwitch
from lab.run import free_port
from lark_controller.qos.queues import PortQueues, Queue
from lark_controller.switches.ovsdb import switch_database
from lark_controller.switches.ovsdb.driver import Ovsdb, OvsdbOptions
from lark_controller.switches.ovsdb.reports import Report
from tests.fixtures.openflow import make_authority, make_certificate

pytestmark = pytest.mark.ovs

WANTED = PortQueues(10**9, {0: Queue(9 * 10**8, 10**9), 5: Queue(10**8, 10**8)})
DATAPATH = 0xD1


class Told:
    """A driver, and the last that it said of each switch."""

    def __init__(self, options: OvsdbOptions) -> None:
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self.last: dict[int, Report] = {}
        self.driver = Ovsdb(options, self._reports.put)

    def until(self, true: Callable[[Report], object], datapath: int = DATAPATH, limit: float = 60.0) -> Report:
        """Wait for a report; the limit only ends a test that has failed already."""
        end = time.monotonic() + limit
        while datapath not in self.last or not true(self.last[datapath]):
            report = self._reports.get(timeout=max(0.01, end - time.monotonic()))
            self.last[report.datapath] = report
        return self.last[datapath]


@contextmanager
def driving(options: OvsdbOptions | None = None) -> Iterator[Told]:
    told = Told(options or OvsdbOptions())
    told.driver.start()
    try:
        yield told
    finally:
        told.driver.stop()


@pytest.fixture
def port(own_ovs: OpenVSwitch) -> Iterator[str]:
    with Net() as net:
        name, _ = net.link("up", "out")
        own_ovs.add_bridge(net.name("br"), DATAPATH)
        own_ovs.add_port(net.name("br"), name)
        yield name


def stands(port: str) -> Callable[[Report], bool]:
    return lambda report: report.ports == {port: WANTED}


def count(ovs: OpenVSwitch, table: str) -> int:
    return len(json.loads(ovs.vsctl("--format=json", "list", table))["data"])


def test_over_tls_and_only_with_the_sites_own_authority(own_ovs: OpenVSwitch, port: str, tmp_path: Path) -> None:
    authority, other = make_authority(tmp_path, "authority"), make_authority(tmp_path, "other")
    ours, key = make_certificate(tmp_path, "authority", "controller")
    switch, switch_key = make_certificate(tmp_path, "authority", "switch")
    number = free_port()
    own_ovs.set_tls(switch_key, switch, authority)
    own_ovs.vsctl("set-manager", f"pssl:{number}:127.0.0.1")
    options = OvsdbOptions("ssl:{host}:" + str(number), key, ours, other)
    with driving(options) as told:
        told.driver.set_queues(DATAPATH, 1, options.of("127.0.0.1"), {port: WANTED})
        report = told.until(lambda report: "cannot be reached" in report.reason)
        assert report.ports is None
        assert count(own_ovs, "qos") == 0
    options = OvsdbOptions("ssl:{host}:" + str(number), key, ours, authority)
    with driving(options) as told:
        told.driver.set_queues(DATAPATH, 1, options.of("127.0.0.1"), {port: WANTED})
        assert not told.until(stands(port)).reason


def test_a_restart_of_the_switch_and_what_was_wanted_meanwhile(own_ovs: OpenVSwitch, port: str) -> None:
    address = f"unix:{own_ovs.database_socket}"
    with driving() as told:
        told.driver.set_queues(DATAPATH, 1, address, {port: WANTED})
        told.until(stands(port))
        own_ovs.stop()
        away = told.until(lambda report: "cannot be reached" in report.reason)
        assert away.ports == {port: WANTED}, "what stood goes on standing: the rows are in the database's file"
        told.driver.set_queues(DATAPATH, 2, address, {})
        own_ovs.start()
        told.until(lambda report: report.revision == 2 and not report.reason)
        assert (count(own_ovs, "qos"), count(own_ovs, "queue")) == (0, 0)


def test_what_somebody_takes_away_is_made_again(own_ovs: OpenVSwitch, port: str) -> None:
    with driving() as told:
        told.driver.set_queues(DATAPATH, 1, f"unix:{own_ovs.database_socket}", {port: WANTED})
        told.until(stands(port))
        own_ovs.vsctl("clear", "port", port, "qos")
        told.until(lambda report: report.ports != {port: WANTED} or count(own_ovs, "qos") == 1)
        told.until(stands(port))
        assert (count(own_ovs, "qos"), count(own_ovs, "queue")) == (1, 2)


def test_one_that_does_not_answer_holds_up_no_other(own_ovs: OpenVSwitch, port: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, driving() as told:
        for datapath in range(1, 51):
            told.driver.set_queues(datapath, 1, f"tcp:127.0.0.1:{silent.getsockname()[1]}", {"p": WANTED})
        told.driver.set_queues(DATAPATH, 1, f"unix:{own_ovs.database_socket}", {port: WANTED})
        told.until(stands(port))
        assert told.until(lambda report: report.reason, 1).ports is None


def test_one_that_hangs_is_said_not_to_answer(own_ovs: OpenVSwitch, port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The library closes a connection in which nothing has come for two of these, and makes another, which is taken.
    monkeypatch.setattr(switch_database, "PROBE", 4000)
    monkeypatch.setattr(switch_database, "SILENT", 1.0)
    other = PortQueues(10**9, {**WANTED.queues, 5: Queue(2 * 10**8, 2 * 10**8)})
    address = f"unix:{own_ovs.database_socket}"
    with driving() as told:
        told.driver.set_queues(DATAPATH, 1, address, {port: WANTED})
        told.until(stands(port))
        with own_ovs.database_hangs():
            began = time.monotonic()
            told.driver.set_queues(DATAPATH, 2, address, {port: other})
            silent = told.until(lambda report: "does not answer" in report.reason)
            assert (silent.revision, silent.ports) == (1, {port: WANTED})
            assert time.monotonic() - began < 3, "it is not looked at anew by the next probe alone"
            # So it is as long as it lasts.
            with pytest.raises(queue.Empty):
                told.until(lambda report: report != silent, limit=14)
        told.until(lambda report: report.ports == {port: other} and not report.reason)


def test_the_wrong_database_and_a_port_that_is_not_there_are_said(own_ovs: OpenVSwitch, port: str) -> None:
    address = f"unix:{own_ovs.database_socket}"
    with driving() as told:
        told.driver.set_queues(0xD2, 1, address, {port: WANTED})
        told.until(lambda report: "no bridge with this datapath id" in report.reason, 0xD2)
        told.driver.set_queues(DATAPATH, 1, address, {port: WANTED, "nowhere": WANTED})
        report = told.until(lambda report: report.problems and report.ports)
        assert report.ports == {port: WANTED}
        assert "no port nowhere" in report.problems["nowhere"]
        assert (count(own_ovs, "qos"), count(own_ovs, "queue")) == (1, 2)

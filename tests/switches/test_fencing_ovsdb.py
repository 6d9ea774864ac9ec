"""The generation in a switch's database: whoever has an earlier one changes no queue there."""

from __future__ import annotations

import json
import queue
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.namespaces import Net
from lab.openvswitch import OpenVSwitch
from lark_controller.qos.queues import PortQueues, Queue
from lark_controller.switches.fence import FENCED, Fence
from lark_controller.switches.ovsdb.driver import Ovsdb, OvsdbOptions
from lark_controller.switches.ovsdb.reports import Report
from lark_controller.switches.ovsdb.term import GENERATION, generation_in, guard

DATAPATH = 0xD1
WANTED = PortQueues(10**9, {0: Queue(9 * 10**8, 10**9)})
OTHER = PortQueues(10**9, {0: Queue(10**8, 10**9)})
OVERTAKEN = f"the database of switch {DATAPATH:016x} has generation 2, and this instance has 1"


@pytest.mark.parametrize(
    ("text", "generation"), [("7", 7), ("", 0), ("-1", 0), ("seven", 0), ("9" * 19, 0), ("٧", 0), ("1e3", 0)]
)
def test_what_others_wrote_as_a_generation_is_one_or_none(text: str, generation: int) -> None:
    assert generation_in({GENERATION: text}) == generation
    assert generation_in({}) == 0


@given(st.dictionaries(st.sampled_from([GENERATION, "other"]), st.sampled_from(["1", "2", "x"])), st.integers(1, 3))
def test_every_transaction_begins_with_a_condition(ids: dict[str, str], generation: int) -> None:
    first, *more = guard("11111111-2222-3333-4444-555555555555", ids, generation)
    assert (first["op"], first["timeout"]) == ("wait", 0)
    assert bool(more) == (ids.get(GENERATION) != str(generation))


class Driver:
    """An instance's driver, and the last that it said of the switch."""

    def __init__(self, generation: int, shown: Callable[[str], None] | None = None) -> None:
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self.said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.fence = Fence(self.said.put, shown)
        self.driver = Ovsdb(OvsdbOptions(generation=generation), self._reports.put, self.fence)

    def __enter__(self) -> Self:
        self.driver.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.driver.stop()

    def set_queues(self, revision: int, address: str, port: str, wanted: PortQueues) -> None:
        self.driver.set_queues(DATAPATH, revision, address, {port: wanted})

    def until(self, true: Callable[[Report], object], limit: float = 60.0) -> Report:
        """Wait for a report; the limit only ends a test that has failed already."""
        end = time.monotonic() + limit
        while not true(report := self._reports.get(timeout=max(0.01, end - time.monotonic()))):
            pass
        return report


@pytest.fixture
def port(own_ovs: OpenVSwitch) -> Iterator[str]:
    with Net() as net:
        name, _ = net.link("up", "out")
        own_ovs.add_bridge(net.name("br"), DATAPATH)
        own_ovs.add_port(net.name("br"), name)
        yield name


def address_of(ovs: OpenVSwitch) -> str:
    return f"unix:{ovs.database_socket}"


def rates(ovs: OpenVSwitch) -> list[int]:
    """The least rates of all queues."""
    found = json.loads(ovs.vsctl("--format=json", "--columns=other_config", "list", "queue"))["data"]
    return [int(dict(row[0][1])["min-rate"]) for row in found]


def generation(ovs: OpenVSwitch) -> str:
    return ovs.vsctl("--if-exists", "get", "bridge", ovs.bridges()[0], f"external_ids:{GENERATION}").strip().strip('"')


class Slow:
    """A way to a database, from which nothing comes back after ``hold``: as for a process that stands still."""

    def __init__(self, database: Path, own: Path) -> None:
        self.address = f"unix:{own}"
        self._free = threading.Event()
        self._free.set()
        self._database = database
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(own))
        self._listener.listen()
        self.sent: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        self._free.clear()

    def release(self) -> None:
        self._free.set()

    def close(self) -> None:
        self.release()
        for end in (self._listener, *self._ends):
            with closing(end):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        try:
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(str(self._database))
                self._ends += [near, far]
                threading.Thread(target=self._forth, args=(near, far), daemon=True).start()
                threading.Thread(target=self._back, args=(far, near), daemon=True).start()
        except OSError:
            return

    def _forth(self, near: socket.socket, far: socket.socket) -> None:
        try:
            while data := near.recv(65536):
                far.sendall(data)
                self.sent.put(data)
        except OSError:
            return

    def _back(self, far: socket.socket, near: socket.socket) -> None:
        try:
            while data := far.recv(65536):
                self._free.wait()
                near.sendall(data)
        except OSError:
            return


@contextmanager
def slowly(ovs: OpenVSwitch) -> Iterator[Slow]:
    slow = Slow(ovs.database_socket, ovs.directory / "slow.sock")
    try:
        yield slow
    finally:
        slow.close()


@pytest.mark.ovs
def test_the_generation_is_set_even_where_there_is_nothing_to_change(own_ovs: OpenVSwitch, port: str) -> None:
    own_ovs.vsctl("set", "bridge", own_ovs.bridges()[0], "external_ids:site=cern")
    with Driver(1) as one:
        one.set_queues(1, address_of(own_ovs), port, WANTED)
        one.until(lambda report: report.ports == {port: WANTED})
    assert generation(own_ovs) == "1"
    before = own_ovs.vsctl("get", "open_vswitch", ".", "next_cfg")
    with Driver(2) as two:
        two.set_queues(1, address_of(own_ovs), port, WANTED)
        two.until(lambda report: report.ports == {port: WANTED})
    assert generation(own_ovs) == "2"
    assert own_ovs.vsctl("get", "open_vswitch", ".", "next_cfg") == before, "the switch has nothing to put into force"
    with Driver(0) as nobody:
        nobody.set_queues(1, address_of(own_ovs), port, OTHER)
        nobody.until(lambda report: report.ports == {port: OTHER})
    assert own_ovs.vsctl("get", "bridge", own_ovs.bridges()[0], "external_ids").strip() == (
        f'{{{GENERATION}="2", site=cern}}'
    )


@pytest.mark.ovs
def test_an_earlier_generation_changes_nothing_and_is_fenced(own_ovs: OpenVSwitch, port: str) -> None:
    with Driver(1) as one, Driver(2) as two:
        one.set_queues(1, address_of(own_ovs), port, WANTED)
        one.until(lambda report: report.ports == {port: WANTED})
        two.set_queues(1, address_of(own_ovs), port, WANTED)
        assert one.said.get(timeout=20) == OVERTAKEN
        one.until(lambda report: report.reason == FENCED)
        one.set_queues(2, address_of(own_ovs), port, OTHER)
        two.until(lambda report: report.ports == {port: WANTED})
        # Whatever one did would come before what the other does now.
        two.set_queues(2, address_of(own_ovs), port, WANTED)
        two.until(lambda report: report.revision == 2)
        assert rates(own_ovs) == [9 * 10**8]
        assert two.said.empty()


@pytest.mark.ovs
def test_a_transaction_of_one_that_stood_still_is_refused_by_the_database(own_ovs: OpenVSwitch, port: str) -> None:
    with slowly(own_ovs) as slow, Driver(1) as one:
        one.set_queues(1, slow.address, port, WANTED)
        one.until(lambda report: report.ports == {port: WANTED})
        slow.hold()
        # It ends, so that it sets nothing right.
        with Driver(2) as two:
            two.set_queues(1, address_of(own_ovs), port, WANTED)
            two.until(lambda report: report.ports == {port: WANTED})
        while not slow.sent.empty():
            slow.sent.get()
        # It does not know of the other yet.
        one.set_queues(2, slow.address, port, OTHER)
        while b'"transact"' not in slow.sent.get(timeout=20):
            pass
        assert one.said.empty()
        slow.release()
        assert one.said.get(timeout=20) == OVERTAKEN
        assert rates(own_ovs) == [9 * 10**8]
        assert generation(own_ovs) == "2"


@pytest.mark.ovs
def test_a_database_that_claims_a_later_generation_stops_its_own_queues_alone(own_ovs: OpenVSwitch, port: str) -> None:
    shown: queue.SimpleQueue[str] = queue.SimpleQueue()
    own_ovs.vsctl("set", "bridge", own_ovs.bridges()[0], f"external_ids:{GENERATION}=2")
    with Driver(1, shown.put) as one:
        one.set_queues(1, address_of(own_ovs), port, WANTED)
        one.until(lambda report: report.reason == OVERTAKEN)
        assert shown.get(timeout=20) == OVERTAKEN
        assert (one.fence.is_shut, rates(own_ovs)) == (False, [])
        own_ovs.vsctl("remove", "bridge", own_ovs.bridges()[0], "external_ids", GENERATION)
        one.until(lambda report: report.ports == {port: WANTED})
        assert generation(own_ovs) == "1"
        assert shown.empty()


def transact(ovs: OpenVSwitch, *operations: dict[str, Any]) -> list[Any]:
    told = subprocess.run(
        ["ovsdb-client", "transact", address_of(ovs), json.dumps(["Open_vSwitch", *operations])],
        check=True, capture_output=True, text=True, env=ovs.environment,
    )  # fmt: skip
    found: list[Any] = json.loads(told.stdout)
    return found


@pytest.mark.ovs
@pytest.mark.parametrize(
    ("stands", "seen", "own", "taken"),
    [
        (None, None, 1, True),
        (None, None, 2, True),
        ("1", "1", 1, True),
        ("1", "1", 2, True),
        ("x", "x", 1, True),
        ("2", "1", 1, False),
        ("2", None, 1, False),
        ("2", "1", 3, False),
        (None, "1", 1, False),
    ],
)
def test_a_real_database_refuses_what_was_made_for_another_generation(
    ovs: OpenVSwitch, stands: str | None, seen: str | None, own: int, taken: bool
) -> None:
    with Net() as net:
        bridge = net.name("br")
        ovs.add_bridge(bridge, 0xD3)
        try:
            base = {"site": "cern"}
            now = base if stands is None else {**base, GENERATION: stands}
            for key, value in now.items():
                ovs.vsctl("set", "bridge", bridge, f"external_ids:{key}={value}")
            uuid = ovs.vsctl("get", "bridge", bridge, "_uuid").strip()
            ids = base if seen is None else {**base, GENERATION: seen}
            write = {"op": "insert", "table": "Queue", "row": {"external_ids": ["map", [["test", bridge]]]}}
            answers = transact(ovs, *guard(uuid, ids, own), write)
            assert ("timed out" in [each.get("error") for each in answers if each]) == (not taken)
            made = ovs.vsctl("--columns=_uuid", "--bare", "find", "queue", f"external_ids:test={bridge}").split()
            assert len(made) == taken
            expected = str(own) if taken else stands
            left = ovs.vsctl("--if-exists", "get", "bridge", bridge, f"external_ids:{GENERATION}").strip().strip('"')
            assert left == (expected or "")
            for each in made:
                ovs.vsctl("destroy", "queue", each)
        finally:
            ovs.vsctl("--if-exists", "del-br", bridge)

"""A switch's database that has no end of things to say: it is read as far as its budget of time goes."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from lark_common.log import LOGGER
from lark_controller.qos.queues import PortQueues, Queue
from lark_controller.switches.fence import Fence
from lark_controller.switches.ovsdb import bounds, driver, json_stream, replica, switch_database
from lark_controller.switches.ovsdb.json_stream import Parser
from lark_controller.switches.ovsdb.transactions import MOST_WORDS, outcome


def database(
    datapath: int,
    selector: selectors.BaseSelector,
    listener: socket.socket | None = None,
    room: bounds.RowRoom | None = None,
) -> switch_database.SwitchDatabase:
    """A database at a listener's address, or one that is not there."""
    port = 1 if listener is None else listener.getsockname()[1]
    address = f"tcp:127.0.0.1:{port}"
    return switch_database.SwitchDatabase(datapath, address, selector, 0, Fence(), room or bounds.RowRoom())


def test_a_database_beyond_its_time_is_not_read_and_later_it_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, selectors.DefaultSelector() as selector:
        switch = database(7, selector, listener)
        while not selector.get_map():  # it connects
            switch.step()
        switch.paid(switch_database.TIME_AT_ONCE / 2)
        assert len(selector.get_map()) == 1
        now = time.monotonic()
        switch.paid(switch_database.TIME_AT_ONCE)
        assert len(selector.get_map()) == 0
        assert switch.deadline - now > 0.4 * switch_database.TIME_AT_ONCE / switch_database.TIME_SHARE
        # When it is due, or has to be told something.
        switch.step()
        assert len(selector.get_map()) == 1
        switch.close()


def test_a_database_that_asks_and_takes_no_answers_is_left() -> None:
    question = json.dumps({"method": "echo", "params": ["x" * 50_000], "id": 1}).encode()
    with socket.create_server(("127.0.0.1", 0)) as listener, selectors.DefaultSelector() as selector:
        switch = database(7, selector, listener)
        switch.step()
        peer = listener.accept()[0]

        def ask() -> None:
            with peer, contextlib.suppress(OSError):
                for _ in range(1_000):
                    peer.sendall(question)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        most, end = 0, time.monotonic() + 60
        while asking.is_alive() and time.monotonic() < end:
            switch.step()
            most = max(most, switch._replica.backlog)
        asking.join(20)
        assert not asking.is_alive()
        assert most < 2 * bounds.MOST_OWED
        # It is not asked again at once.
        switch.step()
        assert not selector.get_map()
        switch.close()


def text(length: int) -> dict[str, Any]:
    """A row of Queue with a text of that length."""
    return {"external_ids": ["map", [["a", "x" * length]]]}


def references(count: int) -> dict[str, Any]:
    """A row of QoS with so many references to rows that are not there."""
    return {"queues": ["map", [[number, ["uuid", str(UUID(int=number))]] for number in range(count)]]}


def serve(listener: socket.socket, rows: int, new: dict[str, Any], turns: int = 1_000) -> None:
    """A database that inserts rows, so many at a time, and then waits."""
    peer = listener.accept()[0]
    with peer, contextlib.suppress(OSError):
        asked = json.loads(peer.recv(65_536))
        monitor, table = asked["params"][1], "Queue" if "external_ids" in new else "QoS"
        answer: dict[str, Any] = {"Open_vSwitch": {str(UUID(int=1)): {"initial": {}}}}
        peer.sendall(json.dumps({"id": asked["id"], "error": None, "result": answer}).encode())
        for first in range(0, turns * rows, rows):
            some = {str(UUID(int=number + 2)): {"insert": new} for number in range(first, first + rows)}
            update = {"id": None, "method": "update2", "params": [monitor, {table: some}]}
            peer.sendall(json.dumps(update).encode())
        while peer.recv(65_536):
            pass


@pytest.mark.parametrize(
    ("rows", "new"), [(100, text(1)), (1, text(5_000)), (1, references(100))], ids=["many", "long", "references"]
)
def test_a_database_of_rows_without_end_is_left(
    rows: int, new: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MOST_ROWS", 2_000)
    monkeypatch.setattr(bounds, "MOST_CHARACTERS", 100_000)
    monkeypatch.setattr(replica, "AT_ONCE", 1)
    with socket.create_server(("127.0.0.1", 0)) as listener, selectors.DefaultSelector() as selector:
        serving = threading.Thread(target=serve, args=(listener, rows, new), daemon=True)
        serving.start()
        switch = database(7, selector, listener)
        reasons: list[str] = []
        most, end = 0, time.monotonic() + 60
        while serving.is_alive() and time.monotonic() < end:
            report = switch.step()
            reasons += [] if report is None else [report.reason]
            most = max(most, switch._replica.count)
        serving.join(20)
        assert reasons[-1] == bounds.TOO_LARGE
        assert 0 < most <= 2_000
        assert not switch._replica.count
        switch.close()


def test_a_row_that_grows_without_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change of a row takes as long as it is."""
    monkeypatch.setattr(replica, "MOST_ROW", 2_000)
    with socket.create_server(("127.0.0.1", 0)) as listener, selectors.DefaultSelector() as selector:

        def grow() -> None:
            peer = listener.accept()[0]
            with peer, contextlib.suppress(OSError):
                asked = json.loads(peer.recv(65_536))
                answer: dict[str, Any] = {"Queue": {str(UUID(int=1)): {"initial": {}}}}
                peer.sendall(json.dumps({"id": asked["id"], "error": None, "result": answer}).encode())
                for number in range(10_000):
                    row = {"modify": {"external_ids": ["map", [[f"key{number}", ""]]]}}
                    params = [asked["params"][1], {"Queue": {str(UUID(int=1)): row}}]
                    peer.sendall(json.dumps({"id": None, "method": "update2", "params": params}).encode())
                while peer.recv(65_536):
                    pass

        growing = threading.Thread(target=grow, daemon=True)
        growing.start()
        switch = database(7, selector, listener)
        reasons: list[str] = []
        most, end = 0, time.monotonic() + 60
        while growing.is_alive() and time.monotonic() < end:
            most = max(most, switch._replica.characters - switch._replica.waiting)
            try:
                report = switch.step()
            except ValueError:  # it has no row of Open_vSwitch
                continue
            reasons += [] if report is None else [report.reason]
        growing.join(20)
        assert reasons[-1] == bounds.TOO_LARGE
        assert 0 < most < 2_100
        switch.close()


def test_a_database_that_is_of_use_by_turns_has_few_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with selectors.DefaultSelector() as selector, caplog.at_level("INFO", LOGGER):
        switch = database(7, selector)
        for _ in range(1_000):
            switch._log_reason("its bridge is gone")
            switch._log_reason("")
    assert 0 < len(caplog.records) <= switch_database.LINES_AT_ONCE + 2


def test_databases_that_are_each_within_their_bounds_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that holds what is expected of it goes on meanwhile."""
    monkeypatch.setattr(bounds, "MOST_TOGETHER", 1_000_000)
    room, wanted = bounds.RowRoom(), {"p": PortQueues(1, dict.fromkeys(range(150), Queue(1, 1)))}
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        switches, serving, reasons = [], [], dict[int, str]()
        for datapath in range(9):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            turns = 3 if datapath == 0 else 1_000
            serving.append(threading.Thread(target=serve, args=(listener, 100, text(10), turns), daemon=True))
            serving[-1].start()
            switches.append(database(datapath, selector, listener, room))
            switches[-1].set_queues(1, wanted if datapath == 0 else {})
        most, end = 0, time.monotonic() + 60

        def held() -> int:
            return switches[0]._replica.count - 1

        while (any(each.is_alive() for each in serving[1:]) or held() < 300) and time.monotonic() < end:
            for datapath, switch in enumerate(switches):
                report = switch.step()
                reasons |= {} if report is None else {datapath: report.reason}
            most = max(most, sum(each._replica.count for each in switches))
        assert {reasons[datapath] for datapath in range(1, 9)} == {bounds.TOO_MUCH_TOGETHER}
        assert "no bridge" in reasons[0]
        assert held() == 300
        assert most < 3 * bounds.MOST_TOGETHER / bounds.ROW
        for each in switches:
            each.close()
        assert not room._total


def test_messages_without_an_end_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MOST_TOGETHER", 1_000_000)
    room = bounds.RowRoom()
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        switches = [database(number, selector, listener, room) for number in range(4)]
        reasons, most = dict[int, str](), 0
        peers = list[socket.socket]()
        for switch in switches:
            while not selector.get_map() or len(peers) == len(selector.get_map()):
                switch.step()
            peers.append(stack.enter_context(listener.accept()[0]))
        for peer in peers:
            peer.setblocking(False)
            peer.send(b'["')
        end = time.monotonic() + 60
        while len(reasons) < len(switches) and time.monotonic() < end:
            for number, (switch, peer) in enumerate(zip(switches, peers, strict=True)):
                with contextlib.suppress(OSError):
                    peer.send(b"a" * 20_000)
                report = switch.step()
                if report is not None and report.reason == bounds.TOO_MUCH_TOGETHER:
                    reasons[number] = report.reason
                most = max(most, sum(each._replica.waiting for each in switches))
        assert len(reasons) == 4
        assert most < 2 * bounds.MOST_TOGETHER
        for each in switches:
            each.close()


def test_databases_beyond_their_time_have_no_more_of_it_together_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have theirs."""
    now = 0.0
    for module in (driver, switch_database):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    databases, room = driver.Ovsdb(driver.OvsdbOptions(), lambda _: None), bounds.RowRoom()
    with selectors.DefaultSelector() as selector:
        *busy, quiet = (database(number, selector, room=room) for number in range(1, 12))
        spent = 0.0
        for tick in range(20_000):
            now = tick * 0.01
            for number, each in enumerate(busy):
                if each.deadline <= now:
                    databases._charge(number, each, 0.01)
                    spent += 0.01 if tick >= 10_000 else 0.0
            databases._charge(99, quiet, 0.0005)
            assert quiet.deadline == 0.0
    assert 0.5 * switch_database.TIME_SHARE * 100 < spent < 1.5 * switch_database.TIME_SHARE * 100


def test_what_many_databases_took_at_once_is_not_counted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a start of the controller: each has its own time again."""
    now = 0.0
    for module in (driver, switch_database):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    databases, room = driver.Ovsdb(driver.OvsdbOptions(), lambda _: None), bounds.RowRoom()
    with selectors.DefaultSelector() as selector:
        switches = [database(number, selector, room=room) for number in range(100)]
        for number, each in enumerate(switches):
            databases._charge(number, each, switch_database.TIME_AT_ONCE + 0.001)
            assert each.deadline > now
        now = 10_000.0
        for number, each in enumerate(switches):
            databases._charge(number, each, 0.1)
            assert each.deadline < now


def test_a_database_whose_messages_fail_has_few_lines_of_the_log_and_short_reasons(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with selectors.DefaultSelector() as selector, caplog.at_level("INFO", LOGGER):
        switch = database(7, selector)
        reasons = [switch.failed(KeyError("x" * 10_000)).reason for _ in range(100)]
        switch._replica._outcome = outcome(None, "x" * 1_000_000)
        switch._finished()
        switch.close()
    assert 0 < len(caplog.records) <= switch_database.LINES_AT_ONCE + 1
    assert max(len(each) for each in (*reasons, switch._error)) < 2 * MOST_WORDS


@pytest.mark.parametrize("value", ["0", '"x"', "null"])
def test_a_value_of_too_many_values_is_not_made(value: str) -> None:
    parser = Parser()
    parser.feed("[0")
    for _ in range(1000):
        if parser.is_done():
            break
        parser.feed(f",{value}" * 10_000)
    assert parser.finish() == f"more than {json_stream._MOST_VALUES} values in one value"

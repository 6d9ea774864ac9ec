"""Databases are connected and brought up to date so many at a time, and none waits for one that never answers."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_controller.switches.ovsdb import beginnings, switch_database
from lark_controller.switches.ovsdb.beginnings import AT_A_TIME, LONGEST, Beginnings
from lark_controller.switches.ovsdb.driver import Ovsdb, OvsdbOptions
from lark_controller.switches.ovsdb.reports import Report


@given(st.lists(st.tuples(st.sampled_from(["begins", "over", "hurry", "forget"]), st.integers(0, 99)), max_size=300))
def test_no_more_than_so_many_have_a_place_and_each_that_waits_gets_one(steps: list[tuple[str, int]]) -> None:
    decided, now = Beginnings(), 0.0
    for what, datapath in steps:
        now += 0.01
        if what == "begins":
            decided.begins(datapath, now)
        else:
            getattr(decided, what)(datapath)
        assert len(decided._begun) <= AT_A_TIME
    waiting = {*decided._waiting, *decided._first}
    assert not waiting & decided._begun.keys()
    assert (decided.due() is None) == (not waiting)
    turns = 0
    while waiting:
        turns += 1
        now += LONGEST
        chosen = decided.take(now)
        assert len(chosen) == min(len(waiting), AT_A_TIME)
        assert all(decided.begins(each, now) for each in chosen)
        waiting -= set(chosen)
    assert turns <= 2
    assert decided.due() is None


def test_those_for_which_somebody_waits_go_first() -> None:
    decided = Beginnings()
    for datapath in range(AT_A_TIME + 3):
        assert decided.begins(datapath, 1.0) == (datapath < AT_A_TIME)
    decided.hurry(AT_A_TIME + 1)
    assert not decided.begins(AT_A_TIME + 1, 1.0)
    assert decided.take(2.0) == []
    assert decided.due() == 1.0 + LONGEST
    decided.over(7)
    assert decided.due() == 0.0, "there is room, whoever else has a place"
    assert decided.take(2.0) == [AT_A_TIME + 1]
    assert decided.begins(AT_A_TIME + 1, 2.0)
    decided.forget(AT_A_TIME)
    assert len(decided.take(1.0 + LONGEST)) == 1


def serve(listener: socket.socket, reached: list[int], datapath: int, free: threading.Event) -> None:
    """A database with a bridge, which answers once it may."""
    with contextlib.suppress(OSError, ValueError):
        peer = listener.accept()[0]
        with peer:
            reached.append(datapath)
            asked = json.loads(peer.recv(65_536))
            free.wait(60)
            here = {"initial": {"datapath_id": f"{datapath:016x}"}}
            rows = {"Open_vSwitch": {str(UUID(int=1)): {"initial": {}}}, "Bridge": {str(UUID(int=2)): here}}
            peer.sendall(json.dumps({"id": asked["id"], "error": None, "result": rows}).encode())
            while peer.recv(65_536):
                pass


def test_no_more_are_connected_than_can_be_answered_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginnings, "AT_A_TIME", 3)
    monkeypatch.setattr(beginnings, "LONGEST", 3600.0)
    monkeypatch.setattr(switch_database, "PATIENCE", 0.1)
    free, reached, done = threading.Event(), list[int](), dict[int, Report]()
    said = set[str]()
    with contextlib.ExitStack() as stack:
        addresses = {}
        for datapath in range(1, 11):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            addresses[datapath] = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
            threading.Thread(target=serve, args=(listener, reached, datapath, free), daemon=True).start()

        def report(found: Report) -> None:
            said.add(found.reason)
            if found.ports is not None:
                done[found.datapath] = found

        databases = Ovsdb(OvsdbOptions(), report)
        databases.start()
        stack.callback(databases.stop)
        for datapath, address in addresses.items():
            databases.set_queues(datapath, 1, address, {})
        end = time.monotonic() + 60
        while len(reached) < 3 and time.monotonic() < end:
            time.sleep(0.01)
        # Nine are in line, and one of them is in a hurry.
        databases.set_queues(10, 2, addresses[10], {})
        time.sleep(0.3)
        assert len(reached) == 3
        free.set()
        while len(done) < 10 and time.monotonic() < end:
            time.sleep(0.01)
        assert sorted(done) == sorted(reached) == list(range(1, 11))
        assert reached.index(10) < 6
        assert done[10].revision == 2
        assert not any("cannot be reached" in each for each in said), "nobody asked those in line"


def test_one_that_never_answers_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginnings, "AT_A_TIME", 1)
    monkeypatch.setattr(beginnings, "LONGEST", 0.1)
    free, never = threading.Event(), threading.Event()
    free.set()
    done, reached = threading.Event(), list[int]()
    with contextlib.ExitStack() as stack:
        stack.callback(never.set)
        addresses = {}
        for datapath in (1, 2):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            addresses[datapath] = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
            gate = never if datapath == 1 else free
            threading.Thread(target=serve, args=(listener, reached, datapath, gate), daemon=True).start()
        databases = Ovsdb(
            OvsdbOptions(), lambda found: done.set() if found.datapath == 2 and found.ports is not None else None
        )
        databases.start()
        stack.callback(databases.stop)
        for datapath, address in addresses.items():
            databases.set_queues(datapath, 1, address, {})
        assert done.wait(60)

"""Connections that are many, slow or idle, with and without tokens, against the real server."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from lark_controller.rest.server import admission
from lark_controller.rest.server.admission import (
    PARKED_SECONDS,
    STRANGERS,
    Admission,
    ClientConnection,
    ConnectionLimits,
    Parking,
    Peer,
)
from lark_controller.rest.server.waitress_server import ACCEPT_SECONDS
from tests.fixtures.descriptors import no_descriptors
from tests.fixtures.fake_controls import bearer
from tests.rest.test_server import Running

FEW = {Peer.LOCAL: ConnectionLimits(8, 8), Peer.KNOWN: ConnectionLimits(8, 4), Peer.STRANGER: ConnectionLimits(6, 2)}


@dataclass(eq=False)
class Connection:
    """A connection as the admission sees it."""

    last_activity: float = 0.0
    answering: bool = False
    authenticated: bool = False
    since: float | None = None
    in_head: bool = False
    total_outbufs_len: int = 0

    def handle_close(self) -> None:
        raise AssertionError("whoever serves connections closes them")


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(admission, "_LEAST", 40)
    made = Running(tmp_path, waiting_posts="1", rest_threads="9", waiting_workers="4")
    yield made
    made.server.stop()


def closed(connection: socket.socket) -> bool:
    connection.settimeout(20)
    with contextlib.suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


def test_many_connections_without_a_request_take_nobodys_answer(running: Running) -> None:
    with contextlib.ExitStack() as opened:
        idle = []
        for number in range(200):
            idle.append(opened.enter_context(running.connect()))
            if number % 20 == 0:
                assert running.get("/v1/switches")[0] == 200
        # The places are for the newest; the oldest have been closed for them.
        assert closed(idle[0])
        assert running.get("/v1/switches")[0] == 200


def test_many_unfinished_requests_take_nobodys_answer(running: Running) -> None:
    with contextlib.ExitStack() as opened:
        for _ in range(200):
            slow = opened.enter_context(running.connect())
            slow.sendall(b"POST /v1/jobs HTTP/1.1\r\nContent-Length: 100\r\n\r\nhalf")
        assert running.get("/v1/switches")[0] == 200


def test_a_connection_that_has_shown_a_token_outlives_those_that_have_not(running: Running) -> None:
    with contextlib.ExitStack() as opened:
        kept = http.client.HTTPConnection(running.tcp.host, running.tcp.port, timeout=20)
        opened.callback(kept.close)
        kept.connect()
        first = kept.sock
        for _ in range(5):
            kept.request("GET", "/v1/switches", headers=bearer("read"))
            answer = kept.getresponse()
            assert (answer.status, bool(answer.read())) == (200, True)
            assert kept.sock is first
            for _ in range(60):
                opened.enter_context(running.connect())


def test_a_stranger_that_goes_as_it_loses_its_place_stops_nobody(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "peer_of", lambda host: "" if host is None else host)
    to_park = Admission.to_park

    def and_gone(door: Admission) -> list[ClientConnection]:
        chosen = to_park(door)
        for channel in chosen:
            channel.handle_close()
        return chosen

    monkeypatch.setattr(Admission, "to_park", and_gone)
    with contextlib.ExitStack() as opened:
        first = opened.enter_context(running.connect())
        for _ in range(STRANGERS.address + 20):
            opened.enter_context(running.connect())
        assert closed(first)
        assert running.get("/v1/switches")[0] == 200


def test_an_unexpected_error_of_the_connections_thread_ends_no_service(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    due = Admission.due
    failed: list[float] = []

    def fails_once(door: Admission, now: float) -> list[ClientConnection]:
        if not failed:
            failed.append(now)
            raise RuntimeError("out of order")
        return due(door, now)

    monkeypatch.setattr(Admission, "due", fails_once)
    assert running.get("/v1/switches")[0] == 200
    assert running.get("/v1/switches")[0] == 200
    assert failed
    assert "out of order" in str([record.__dict__ for record in caplog.records])


@pytest.mark.parametrize("begun", [b"", b"GET /healthz HT", b"POST /v1/jobs HTTP/1.1\r\nContent-Length: 100\r\n\r\nha"])
def test_who_sends_nothing_more_is_closed(running: Running, monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    for name in ("HEAD_SECONDS", "REQUEST_SECONDS", "STRANGER_SECONDS"):
        monkeypatch.setattr(admission, name, 0.5)
    with running.connect() as slow:
        slow.sendall(begun)
        assert closed(slow)


def test_each_kind_of_peer_has_places_of_its_own() -> None:
    door = Admission(FEW)
    strangers = [Connection(float(number)) for number in range(20)]
    assert all(door.admit(each, f"192.0.2.{number}") for number, each in enumerate(strangers))
    assert door.to_park() == strangers[:14]
    local = [Connection() for _ in range(8)]
    assert all(door.admit(each, host) for each, host in zip(local, (None, "127.0.0.1", "::1", None) * 2, strict=True))
    assert door.due(0.0) == []
    worker = Connection()
    assert door.admit(worker, "198.51.100.7")
    door.authenticated(worker)
    assert door.to_park() == [strangers[14]]
    # What comes from that address later is no stranger's.
    others = [Connection(answering=True) for _ in range(3)]
    assert all(door.admit(each, "198.51.100.7") for each in others)
    assert door.due(0.0) == []


def test_one_address_takes_its_own_places_alone() -> None:
    door = Admission(FEW)
    quiet = Connection(0.0)
    assert door.admit(quiet, "192.0.2.1")
    many = [Connection(1.0 + number) for number in range(10)]
    assert all(door.admit(each, f"2001:db8::{number:x}") for number, each in enumerate(many))
    assert (door.to_park(), door.due(0.0)) == (many[:8], [])


def test_requests_that_are_answered_are_not_cut_off_for_others() -> None:
    door = Admission(FEW)
    busy = [Connection(answering=True) for _ in range(2)]
    assert all(door.admit(each, "192.0.2.1") for each in busy)
    assert not door.admit(Connection(), "192.0.2.1")
    door.gone(busy[0])
    assert door.admit(Connection(), "192.0.2.1")
    assert door.due(0.0) == []


def test_without_descriptors_nothing_is_accepted_and_little_is_logged(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listener = running.server._listeners[0]
    accept = listener.accept
    tries: list[float] = []

    def tried() -> object:
        tries.append(time.monotonic())
        return accept()

    monkeypatch.setattr(listener, "accept", tried)
    with caplog.at_level("ERROR"), socket.socket() as waiting:
        waiting.settimeout(20)
        with no_descriptors():
            waiting.connect((running.tcp.host, running.tcp.port))
            waiting.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            end = time.monotonic() + 20
            while len(tries) < 3:
                assert time.monotonic() < end
                time.sleep(0.01)
        assert waiting.recv(100).startswith(b"HTTP/1.1 200")
    assert min(later - sooner for sooner, later in pairwise(tries[:3])) >= 0.9 * ACCEPT_SECONDS
    told = [record.getMessage() for record in caplog.records]
    assert told == ["no connection can be accepted"]


def test_a_server_has_places_for_what_it_answers_at_a_time() -> None:
    assert admission.places(5000)[Peer.KNOWN].total == 10_000


def test_connections_without_a_place_wait_a_moment_before_they_are_closed() -> None:
    parking = Parking(3, spread=lambda: 0.5)
    four: list[ClientConnection] = [Connection() for _ in range(4)]
    for number, each in enumerate(four):
        parking.add(each, number / 100)
    # So many at most, the oldest go first.
    assert parking.over(0.04) == four[:1]
    assert parking.over(PARKED_SECONDS) == []
    assert parking.over(PARKED_SECONDS + 0.01) == four[1:2]
    assert parking.all() == four[2:]
    assert parking.over(1000.0) == []


def test_a_stranger_that_connects_again_and_again_is_not_told_at_once(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "peer_of", lambda host: "" if host is None else host)
    monkeypatch.setattr(admission, "PARKED_SECONDS", 3600.0)
    running.server._parking = Parking(60, spread=lambda: 0.5)
    with contextlib.ExitStack() as opened:
        many = [opened.enter_context(running.connect()) for _ in range(STRANGERS.address + 40)]
        # The newest is answered, which is in a place of an older one.
        many[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert many[-1].recv(12) == b"HTTP/1.1 200"
        # Those without a place are neither closed nor read.
        many[0].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        many[0].settimeout(0.2)
        with pytest.raises(TimeoutError):
            many[0].recv(1)
        # There is a bound on them as well.
        for _ in range(40):
            opened.enter_context(running.connect())
        assert closed(many[0])


def test_answers_that_nobody_takes_do_not_fill_the_memory() -> None:
    door = Admission(admission.places(100))
    each = admission.MOST_UNSENT // 50
    slow = [Connection(last_activity=1000.0 + number, total_outbufs_len=each) for number in range(200)]
    reading = Connection(last_activity=2000.0, total_outbufs_len=each)
    idle = Connection(last_activity=1990.0)
    for connection in (*slow, reading, idle):
        assert door.admit(connection, None)
    # Those that have taken nothing for longest, and no more than need be.
    assert [each for each in door.due(1005.0) if each in slow] == slow[:151]
    assert {reading, idle}.isdisjoint(door.due(1005.0))

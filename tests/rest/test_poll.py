"""Turns over waitress's connections: the work of a turn does not grow with the connections that wait for nothing."""

from __future__ import annotations

import http.client
import math
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waitress import wasyncore
from waitress.adjustments import Adjustments

from lark_common.sending import MOST
from lark_controller.rest.server import waitress_server
from lark_controller.rest.server.poll import Poll
from tests.fixtures.fake_controls import bearer
from tests.rest.test_server import Running


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path)
    yield made
    made.server.stop()


def asked(connection: http.client.HTTPConnection, path: str = "/healthz") -> int:
    connection.request("GET", path, headers=bearer("read"))
    answer = connection.getresponse()
    answer.read()
    return answer.status


def test_connections_that_are_idle_cost_nothing(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    readable = waitress_server._Channel.readable

    def counted(channel: Any) -> Any:
        nonlocal looks
        looks += 1
        return readable(channel)

    monkeypatch.setattr(waitress_server._Channel, "readable", counted)
    kept = [http.client.HTTPConnection(running.tcp.host, running.tcp.port, timeout=30) for _ in range(100)]
    assert {asked(each, "/v1/switches") for each in kept} == {200}
    before = looks
    for _ in range(20):
        assert asked(kept[0]) == 200
    # Some looks a request; each turn at each connection would be thousands.
    assert looks - before < 20 * 12
    # None of them is forgotten meanwhile.
    assert {asked(each) for each in kept} == {200}
    for each in kept:
        each.close()


def test_connections_whose_requests_wait_cost_nothing(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Posts wait for their switches by the dozen."""
    looks = 0
    readable, service = waitress_server._Channel.readable, waitress_server._Channel.service
    may_go, waiting = threading.Event(), threading.Semaphore(0)

    def counted(channel: Any) -> Any:
        nonlocal looks
        looks += 1
        return readable(channel)

    def held(channel: Any) -> None:
        if channel.requests[0].path == "/v1/switches":
            waiting.release()
            may_go.wait()
        service(channel)

    monkeypatch.setattr(waitress_server._Channel, "readable", counted)
    monkeypatch.setattr(waitress_server._Channel, "service", held)
    # Looked at by the thread's clock, too, which is not of the measure.
    monkeypatch.setattr("lark_controller.rest.server.poll._SWEEP", math.inf)
    # Of one token few are answered at a time.
    held_back = [http.client.HTTPConnection(running.tcp.host, running.tcp.port, timeout=30) for _ in range(40)]
    for each in held_back:
        each.request("GET", "/v1/switches", headers=bearer("read"))
    waiting.acquire()
    other = http.client.HTTPConnection(running.tcp.host, running.tcp.port, timeout=30)
    asked(other)
    before = looks
    for _ in range(20):
        assert asked(other) == 200
    assert looks - before < 20 * 12
    # Each of them gets its answer, and is read again afterwards.
    may_go.set()
    for each in held_back:
        answer = each.getresponse()
        answer.read()
        assert answer.status == 200
    assert {asked(each) for each in held_back} == {200}
    for each in (*held_back, other):
        each.close()


def test_each_of_many_connections_gets_its_answers(running: Running) -> None:
    statuses: list[int] = []

    def ask() -> None:
        connection = http.client.HTTPConnection(running.tcp.host, running.tcp.port, timeout=30)
        for number in range(25):
            statuses.append(asked(connection, "/v1/switches" if number % 3 else "/healthz"))
            if number % 5 == 4:
                # The next request opens a connection anew: descriptors are used again and again.
                connection.close()
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 16 * 25


def test_an_answer_is_sent_in_one_piece(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each system call lets others have the interpreter, and wakes the client."""
    sent: list[int] = []
    send = waitress_server._Channel.send

    def counted(channel: Any, data: bytes, do_close: bool = True) -> int:
        sent.append(len(data))
        return send(channel, data, do_close)

    monkeypatch.setattr(waitress_server._Channel, "send", counted)
    connection = http.client.HTTPConnection(running.tcp.host, running.tcp.port, timeout=30)
    for path in ("/healthz", "/v1/switches", "/v1/nothing"):
        asked(connection, path)
    assert len(sent) == 3
    # An answer without a body is its head.
    connection.request("HEAD", "/v1/switches", headers=bearer("read"))
    assert connection.getresponse().read() == b""
    assert len(sent) == 4
    connection.close()


def a_channel(connection: socket.socket) -> Any:
    """A connection of the server by itself."""
    adjustments = Adjustments(channel_request_lookahead=1)
    server = SimpleNamespace(active_channels={}, pull_trigger=lambda: None)
    made = type("Channel", (waitress_server._Channel,), {"admission": SimpleNamespace(gone=lambda _: None)})
    return made(server, connection, ("127.0.0.1", 1), adjustments, map={})


class Paused(socket.socket):
    """A socket whose descriptor, asked for by another thread than its maker's, is used only later."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(fileno=descriptor)
        self.maker = threading.current_thread()
        self.asked, self.closed = threading.Event(), threading.Event()

    def fileno(self) -> int:
        found = super().fileno()
        if threading.current_thread() is not self.maker:
            self.asked.set()
            # Whoever closes it may have to wait for who sends.
            self.closed.wait(0.5)
        return found


@pytest.mark.parametrize("connected", [True, False])
def test_what_is_sent_while_its_connection_is_closed_goes_to_no_other(connected: bool) -> None:
    here, there = socket.socketpair()
    paused = Paused(here.detach())
    channel = a_channel(paused)

    def send() -> None:
        with suppress(OSError), channel.outbuf_lock:
            # As behind a request that waits to be told to go on, which was connected when that was looked at.
            channel.connected = connected
            channel.send(b"the answer")
        paused.asked.set()

    sender = threading.Thread(target=send)
    sender.start()
    assert paused.asked.wait(10)
    if connected:
        channel.close()
    else:
        # handle_close() has had the lock already.
        wasyncore.dispatcher.close(channel)
    others = [end for _ in range(4) for end in socket.socketpair()]
    paused.closed.set()
    sender.join()
    assert select.select(others, [], [], 0.0)[0] == []
    for each in (*others, there):
        each.close()


def test_a_long_answer_is_not_sent_by_small_parts() -> None:
    """Before each of them all that is left would be copied."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        there = socket.create_connection(listening.getsockname())
        here, _ = listening.accept()
    channel = a_channel(here)
    assert channel.send(b"x" * (2 * MOST)) > MOST
    channel.close()
    there.close()


class End:
    """One end of a pair of sockets, as waitress has its connections."""

    accepting = False
    under_way = False
    connected = True

    def __init__(self, poll: Poll) -> None:
        self.here, self.there = socket.socketpair()
        self.got = b""
        self.wants_to_write = False
        self.looks = 0
        poll.map[self.here.fileno()] = self

    def readable(self) -> bool:
        self.looks += 1
        return True

    def writable(self) -> bool:
        return self.wants_to_write

    def handle_read_event(self) -> None:
        self.got += self.here.recv(100)

    def handle_write_event(self) -> None:
        self.here.send(b"written")
        self.wants_to_write = False


def test_what_another_thread_changes_is_looked_at_when_it_tells_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lark_controller.rest.server.poll._SWEEP", math.inf)
    poll = Poll()
    end, idle = End(poll), End(poll)
    end.under_way = True
    for _ in range(3):
        poll.turn(0.0)
    assert (end.looks, idle.looks) == (1, 1)
    end.wants_to_write = True
    poll.again(end.here.fileno())
    poll.turn(0.0)
    assert end.there.recv(100) == b"written"
    end.under_way = False
    poll.again(end.here.fileno())
    # Of one that is closed meanwhile there is nothing to look at.
    poll.again(None)
    for _ in range(3):
        poll.turn(0.0)
    assert end.looks < 5
    for each in (end, idle):
        each.there.send(b"more")
    poll.turn(1.0)
    assert (end.got, idle.got) == (b"more", b"more")


def test_what_another_thread_changes_is_looked_at_at_times_whatever_it_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    poll = Poll()
    end = End(poll)
    end.under_way = True
    poll.turn(0.0)
    end.wants_to_write = True
    monkeypatch.setattr("lark_controller.rest.server.poll._SWEEP", 0.0)
    poll.turn(0.0)
    assert end.there.recv(100) == b"written"


def test_a_descriptor_that_is_used_again_is_the_new_connections() -> None:
    poll = Poll()
    end = End(poll)
    poll.turn(0.0)
    descriptor = end.here.fileno()
    del poll.map[descriptor]
    end.here.close()
    again = End(poll)
    assert again.here.fileno() == descriptor
    again.there.send(b"for the new one")
    poll.turn(0.0)
    assert (end.got, again.got) == (b"", b"for the new one")
    # One that is taken out while it is open is read no more.
    del poll.map[descriptor]
    again.there.send(b"nobody reads this")
    poll.turn(0.0)
    assert again.got == b"for the new one"

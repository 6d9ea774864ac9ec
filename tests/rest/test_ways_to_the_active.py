"""The connections by which a controller that stands by asks the active one."""

from __future__ import annotations

import http.client
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lark_controller.api.instances import Standing
from lark_controller.rest.forwarding import active as active_module
from lark_controller.rest.forwarding.active import ActiveController, NoAnswerError, NotReachedError, Request
from lark_controller.rest.forwarding.origin import Head, Origin
from tests.rest.test_handed_on import GENERATION, KEY, Controller, active

__all__ = ["active"]


def standing(url: str, generation: int = GENERATION) -> Standing:
    return Standing(False, generation, 0.0, "a", url, "stands by", KEY)


def wish(seconds: float = 30.0) -> Request:
    return Request(Head("GET", "/v1/jobs", ""), {}, b"", Origin(""), seconds)


def test_a_connection_serves_many_requests(active: Controller) -> None:
    way = ActiveController()
    before = active.server._admission._by_kind.total()
    for _ in range(5):
        reply = way.ask(standing(active.url), wish())
        while reply.piece():
            pass
        reply.close()
        reply.close()
    assert active.server._admission._by_kind.total() == before + 1
    way.hang_up()


def test_a_connection_that_the_other_end_has_closed_is_not_used(active: Controller) -> None:
    way = ActiveController()

    def ask() -> int:
        reply = way.ask(standing(active.url), wish())
        while reply.piece():
            pass
        reply.close()
        return reply.status

    assert ask() == 401
    for channel in list(active.server._admission._open):
        active.server._admission._evicted.append(channel)
    deadline = time.monotonic() + 60
    while active.server._admission._open:
        active.server._listeners[0].pull_trigger()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert ask() == 401
    way.hang_up()


def test_one_that_is_away_is_not_tried_by_each_request() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    now = [0.0]
    way = ActiveController(clock=lambda: now[0])
    with pytest.raises(NotReachedError):
        way.ask(standing(f"http://127.0.0.1:{port}"), wish())
    with socket.create_server(("127.0.0.1", port)) as listening:
        listening.settimeout(0.2)
        with pytest.raises(NotReachedError):
            way.ask(standing(f"http://127.0.0.1:{port}"), wish())
        with pytest.raises(TimeoutError):
            listening.accept()
        now[0] = 2.0
        with ThreadPoolExecutor(1) as executor:
            asked = executor.submit(way.ask, standing(f"http://127.0.0.1:{port}"), wish(1.0))
            listening.settimeout(60)
            listening.accept()[0].close()
            with pytest.raises(NotReachedError):
                asked.result()


def test_one_that_takes_connections_and_answers_nothing_holds_up_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active_module, "CONNECT_SECONDS", 0.5)
    way = ActiveController(clock=lambda: 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(8) as executor:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        for each in [executor.submit(way.ask, standing(url), wish()) for _ in range(8)]:
            with pytest.raises(NotReachedError):
                each.result()
        # Each connection is in the listener's queue by now.
        listening.setblocking(False)
        listening.accept()[0].close()
        with pytest.raises(BlockingIOError):
            listening.accept()


ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 12\r\nETag: x\r\n\r\n{"jobs": []}'


@pytest.mark.parametrize("length", [*range(9, len(ANSWER), 7), len(ANSWER) - 1])
def test_an_answer_that_breaks_off_is_none_wherever_it_does(length: int) -> None:
    """Also in the midst of its headers, where it would look like one without a body."""
    way = ActiveController()
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as executor:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"

        def serve() -> None:
            connection, _ = listening.accept()
            for answer in (ANSWER, ANSWER[:length]):
                connection.recv(65536)
                connection.sendall(answer)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
            connection.close()

        served = executor.submit(serve)
        with pytest.raises(NoAnswerError):
            way.ask(standing(url), wish()).whole(1000)
        way.hang_up()
        served.result()


def test_the_end_of_a_greeting_to_the_one_before_concerns_no_other(active: Controller) -> None:
    way = ActiveController(clock=lambda: 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as executor:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        asked = executor.submit(way.ask, standing(url, GENERATION - 1), wish())
        with listening.accept()[0] as line:
            assert line.recv(1)
            # Another has taken over; what waits for the one before ends after that was noticed.
            way.hang_up()
            with pytest.raises(NotReachedError):
                asked.result()
        reply = way.ask(standing(active.url), wish())
        # The request has no token.
        assert reply.status == 401
        reply.close()
    way.hang_up()


def test_a_line_that_is_not_open_has_nothing_to_end() -> None:
    """The connection is made anew after it has ended; the term may end in between."""
    active_module._Line(("http://a", 1), http.client.HTTPConnection("192.0.2.1")).hang_up()

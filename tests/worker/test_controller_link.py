"""Answers of a controller that is broken, or of whatever stands in its place."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lark_common.runs import EndedBy
from lark_common.worker_rules import UNTOLD
from lark_worker.controller_link import MAX_REASON, Applied, ControllerLink, Headroom
from lark_worker.errors import AwayError, RefusedError
from lark_worker.settings import load
from tests.fixtures.hook import reply
from tests.fixtures.peak_memory import forget_peak, peak
from tests.fixtures.several import controllers, listed

SAID = {"state": "enforced", "reason": "", "addresses": [], "lease_until": "2030-01-01T00:00:00+00:00"}
DEEP = b"[" * 1_000_000
# Every call that the service makes.
CALLS: dict[str, Callable[[ControllerLink], object]] = {
    "register": lambda link: link.register("ad"),
    "renew": lambda link: link.renew("host", ["0" * 16]),
    "end": lambda link: link.end("0" * 16, "", EndedBy.HOOK),
    "wan": lambda link: link.wan("host", ["0" * 16]),
    "advice": lambda link: link.advice("0" * 16, fresh=True),
    "headroom": lambda link: link.headroom(),
    "external_headroom": lambda link: link.external_headroom(),
    "rules": lambda link: link.rules("host", "", 0.0),
    "confirmed": lambda link: link.rules_confirmed("host", "1", Applied({}, frozenset(), UNTOLD)),
    "counters": lambda link: link.counters("0" * 16, {}),
    "reservation": lambda link: link.passed(lambda client: client.reservation("1")),
    "links": lambda link: link.passed(lambda client: client.watch_links("")),
    "paths": lambda link: link.passed(lambda client: client.watch_paths("host")),
}


class Liar(ThreadingHTTPServer):
    """Answers every request with the same."""

    daemon_threads = True

    def __init__(self) -> None:
        self.status, self.headers, self.body = 200, {"Date": "Mon, 01 Jan 2024 00:00:00 GMT"}, b"{}"
        self.write: Callable[[BaseHTTPRequestHandler], None] = self.write_body
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", "0")))
                with suppress(OSError):
                    outer.write(self)

            def do_GET(self) -> None:
                self.handle_any()

            def do_POST(self) -> None:
                self.handle_any()

            def do_PUT(self) -> None:
                self.handle_any()

            def do_DELETE(self) -> None:
                self.handle_any()

            def log_message(self, *_: object) -> None:
                """Tests print nothing."""

        super().__init__(("127.0.0.1", 0), Handler)

    def write_body(self, asked: BaseHTTPRequestHandler) -> None:
        asked.send_response_only(self.status)
        for name, value in self.headers.items():
            asked.send_header(name, value)
        asked.send_header("Content-Length", str(len(self.body)))
        asked.end_headers()
        asked.wfile.write(self.body)


@pytest.fixture
def liar() -> Iterator[Liar]:
    with Liar() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def link_to(liar: Liar, timeout: float = 5) -> ControllerLink:
    return ControllerLink(
        load({"LARK_WORKER_URL": f"http://127.0.0.1:{liar.server_address[1]}", "LARK_WORKER_TIMEOUT": f"{timeout:g}"})
    )


@pytest.mark.parametrize("call", CALLS)
def test_nesting_without_end_is_no_answer(liar: Liar, call: str) -> None:
    liar.body = DEEP
    with pytest.raises(AwayError):
        CALLS[call](link_to(liar))
    liar.status = 422
    with suppress(RefusedError):
        CALLS[call](link_to(liar))


@pytest.mark.parametrize("call", CALLS)
def test_who_is_sent_elsewhere_has_no_answer(liar: Liar, call: str) -> None:
    liar.status, liar.headers, liar.body = 302, {"Location": "file:///etc/passwd"}, json.dumps(SAID).encode()
    with pytest.raises(AwayError, match="status 302"):
        CALLS[call](link_to(liar))


def test_a_date_that_is_none_changes_nothing(liar: Liar) -> None:
    liar.body = json.dumps(SAID).encode()
    for date in ("Mon, 01 Jan 99999999999 00:00:00 GMT", "never", "Mon, 01 Jan 2024 00:00:00 +9999"):
        liar.headers = {"Date": date}
        assert link_to(liar).register("ad").state == "enforced"


@pytest.mark.parametrize(
    "said",
    [
        {"state": ["enforced"]},
        {"state": "enforced\nOwner = root"},
        {"reason": None},
        {"addresses": [{"address": None}]},
        {"addresses": [{"address": "10.64.0.1"}] * 100},
        {"addresses": 7},
        {"lease_until": "2030-01-01T00:00:00"},
    ],
)
def test_a_job_that_is_none_is_no_answer(liar: Liar, said: dict[str, object]) -> None:
    liar.body = json.dumps(SAID | said).encode()
    with pytest.raises(AwayError, match="does not answer as a Lark controller does"):
        link_to(liar).register("ad")


def test_numbers_beyond_all_bounds_are_none(liar: Liar) -> None:
    liar.body = b'{"jobs": [{"job": "1", "wan_bytes_in": 1e400, "wan_bytes_out": 1}]}'
    assert link_to(liar).wan("host", ["1"]) == {}
    liar.body = b'{"sentence": "x", "advised": 1, "wan_bytes_in": 1e400, "wan_bytes_out": 1}'
    assert link_to(liar).advice("1") is None
    said = '{"sentence": "x", "advised": null, "wan_bytes_in": null, "wan_bytes_out": null%s}'
    for pairs, shown in (
        ("", ("", None)),
        (', "pairs": null', ("", None)),
        (', "pairs": {"sentence": "2 pairs", "advised": null}', ("2 pairs", None)),
        (', "pairs": {"sentence": "2 pairs", "advised": 40}', ("2 pairs", 40)),
    ):
        liar.body = (said % pairs).encode()
        found = link_to(liar).advice("1")
        assert found is not None
        assert (found.pairs, found.pairs_megabits) == shown
    for pairs in (', "pairs": 7', ', "pairs": {"sentence": "x"}', ', "pairs": {"sentence": "x", "advised": 1e400}'):
        liar.body = (said % pairs).encode()
        assert link_to(liar).advice("1") is None
    rate = '{"wan_inward": 1.0, "wan_outward": 1.0}'
    liar.body = f'{{"groups": [{{"name": "a", "ceiling": {"9" * 400}, "rate": {rate}}}]}}'.encode()
    assert link_to(liar).headroom() == Headroom()
    assert link_to(liar).external_headroom() == {}


def test_headroom_is_what_the_busier_direction_leaves(liar: Liar) -> None:
    rate = {"wan_inward": 1.0, "wan_outward": 30.0, "transfer_inward": 50.0, "transfer_outward": 2.0}
    groups = [
        {"name": "a.b", "ceiling": 100.0, "transfer_capacity": 80.0, "rate": rate},
        {"name": "c", "ceiling": None, "transfer_capacity": 40.0, "rate": rate},
        {"name": "d", "ceiling": None, "transfer_capacity": None, "rate": rate},
    ]
    points = [{"name": "ap-1.example.org", "transfer_capacity": 60.0, "rate": rate}]
    liar.body = json.dumps({"groups": groups, "access_points": points}).encode()
    assert link_to(liar).headroom() == Headroom({"a.b": 70.0}, {"a.b": 30.0, "c": 0.0}, {"ap-1.example.org": 10.0})
    # A controller of an earlier release has no capacities.
    liar.body = json.dumps({"groups": [{"name": "a", "ceiling": 9.0, "rate": rate}]}).encode()
    assert link_to(liar).headroom() == Headroom({"a": 0.0})
    for wrong in ([{"name": "a"}], 5, [{"name": "a", "transfer_capacity": 1, "rate": 7}], ["a"]):
        liar.body = json.dumps({"groups": [], "access_points": wrong}).encode()
        assert link_to(liar).headroom() == Headroom()


def test_of_a_long_refusal_the_beginning_is_taken(liar: Liar) -> None:
    liar.status, liar.body = 422, json.dumps({"detail": "no " * 100_000}).encode()
    with pytest.raises(RefusedError) as refused:
        link_to(liar).register("ad")
    assert len(str(refused.value)) <= MAX_REASON


def test_an_answer_without_end_is_given_up(liar: Liar) -> None:
    def endless(asked: BaseHTTPRequestHandler) -> None:
        asked.send_response_only(200)
        asked.send_header("Transfer-Encoding", "chunked")
        asked.end_headers()
        for _ in range(512):
            asked.wfile.write(b"100000\r\n" + b" " * (1 << 20) + b"\r\n")

    liar.write = endless
    before = forget_peak()
    with pytest.raises(AwayError, match="answers with more than"):
        link_to(liar).renew("host", [])
    assert peak() < before + (128 << 20)


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"])
def test_an_answer_that_comes_a_byte_at_a_time_is_given_up(liar: Liar, begun: bytes) -> None:
    over = threading.Event()

    def drip(asked: BaseHTTPRequestHandler) -> None:
        asked.wfile.write(begun)
        while not over.wait(0.1):
            asked.wfile.write(b"H")

    liar.write = drip
    # Without a deadline it would go on for ever: after a while it ends, and that shows.
    late = threading.Timer(60, over.set)
    late.start()
    with pytest.raises(AwayError, match="cannot be reached"):
        link_to(liar, 1).renew("host", [])
    assert not over.is_set()
    late.cancel()
    over.set()


def test_an_answer_that_is_cut_off_is_none(liar: Liar) -> None:
    def cut(asked: BaseHTTPRequestHandler) -> None:
        asked.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{}")

    liar.write = cut
    with pytest.raises(AwayError, match="cannot be reached"):
        link_to(liar).end("0" * 16, "", EndedBy.HOOK)


@pytest.mark.parametrize("state", ["standby", "refused", "dies", "database"])
@pytest.mark.parametrize("call", CALLS)
def test_of_two_controllers_the_one_that_answers_is_asked(call: str, state: str) -> None:
    said: dict[str, object] = SAID | {
        "missing": [],
        "revision": "1",
        "rules": None,
        "groups": [],
        "links": [],
        "usage": None,
    }
    with controllers(reply(200, json.dumps(said)), state, "answers") as found:
        link = ControllerLink(load({"LARK_WORKER_URL": listed(found), "LARK_WORKER_TIMEOUT": "4"}))
        CALLS[call](link)
        CALLS[call](link)
        assert (len(found[1].asked), link.failures) == (2, 0)


@pytest.mark.parametrize("state", ["standby", "hangs", "refused"])
def test_while_no_controller_is_active_a_start_fails_within_its_time(state: str) -> None:
    with controllers(reply(200, "{}"), state, "standby") as found:
        link = ControllerLink(load({"LARK_WORKER_URL": listed(found), "LARK_WORKER_TIMEOUT": "1"}))
        began = time.monotonic()
        with pytest.raises(AwayError, match="stands by"):
            link.register("ad", 0.5)
        # A bound for a busy machine: the one that hangs hangs for ever.
        assert time.monotonic() - began < 60


def test_the_controllers_that_do_not_answer_are_named() -> None:
    with controllers(reply(200, '{"status": "ok"}'), "refused", "answers", "TLS", "dies") as found:
        link = ControllerLink(load({"LARK_WORKER_URL": listed(found)}))
        assert list(link.silent()) == [found[0].url, found[2].url, found[3].url]

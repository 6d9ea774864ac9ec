"""Requests that a controller which stands by hands on to the active one."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lark_controller import settings as table
from lark_controller.api.instances import Standing
from lark_controller.api.metrics import Metrics
from lark_controller.rest.app import create_app
from lark_controller.rest.auth import CERTIFICATE
from lark_controller.rest.forwarding.active import ActiveController, NotReachedError, Request
from lark_controller.rest.forwarding.origin import HANDED_ON, HEADER, Head, Origin, opened, sealed
from lark_controller.rest.identities.identities import known_callers
from lark_controller.rest.server.dispatcher import MOST
from lark_controller.rest.server.waitress_server import Server, _names_of
from lark_controller.rest.tokens import Tokens
from tests.fixtures.fake_controls import FakeControls, bearer, post_body, write_tokens
from tests.fixtures.hook import StandIn, serve

KEY, OTHER = "ab" * 32, "cd" * 32
GENERATION = 8
AWAY = "http://127.0.0.1:1"


class Controller:
    """A controller's REST server on fake controls, in a term that a test chooses."""

    def __init__(self, directory: Path, **overrides: str) -> None:
        directory.mkdir(exist_ok=True)
        self.controls, self.metrics = FakeControls(), Metrics()
        given = {"rest_listen": f"127.0.0.1:0,unix:{directory}/rest.sock", **overrides}
        settings = table.load({}, given)
        tokens = Tokens(write_tokens(directory / "tokens.yaml"))
        self.way = ActiveController()
        app = create_app(self.controls, settings, tokens, self.metrics, active=self.way)
        self.server = Server(app, settings, known_callers(tokens, None), self._origin)
        self.server.start()
        self.tcp = self.server.addresses[0]
        self.be_active()

    @property
    def url(self) -> str:
        return f"http://{self.tcp}"

    def be_active(self, key: str = KEY) -> None:
        self.controls.instances.place = Standing(True, GENERATION, 0.0, "a", self.url, key=key)

    def stand_by(self, url: str, key: str = KEY) -> None:
        self.controls.instances.place = Standing(False, GENERATION, 0.0, "a", url, "stands by", key)

    def _origin(self, header: str, head: Head) -> Origin | None:
        standing = self.controls.instances.place
        return opened(standing.key, standing.generation, header, head) if standing.active else None

    def ask(
        self, method: str, target: str, body: str | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.tcp.host, self.tcp.port, timeout=60)
        try:
            connection.request(method, target, body, {**bearer("operate"), **(headers or {})})
            found = connection.getresponse()
            return found.status, {name.lower(): value for name, value in found.getheaders()}, found.read()
        finally:
            connection.close()

    def counted(self, result: str) -> float:
        return float(self.metrics.registry.get_sample_value("lark_requests_handed_on_total", {"result": result}) or 0)


@pytest.fixture
def active(tmp_path: Path) -> Iterator[Controller]:
    made = Controller(tmp_path / "active")
    yield made
    made.server.stop()


@pytest.fixture
def standby(tmp_path: Path, active: Controller) -> Iterator[Controller]:
    made = Controller(tmp_path / "standby")
    made.stand_by(active.url)
    yield made
    made.way.hang_up()
    made.server.stop()


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    """An active controller that a test plays."""
    made = StandIn()
    with contextlib.contextmanager(serve)(made, None):
        yield made


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/v1/jobs?limit=5"),
        ("GET", "/v1/jobs?owner=a%20b&nothing=1"),
        ("HEAD", "/v1/jobs"),
        ("GET", "/v1/policy"),
        ("GET", "/v1/groups"),
        ("GET", "/v1/nothing"),
        ("GET", "/v1/jobs/%C3%A9"),
        ("DELETE", "/v1/jobs/0000000000000009"),
        ("PATCH", "/v1/overview"),
        ("GET", "/"),
        ("GET", "/pages/"),
        ("GET", "/pages/main.js"),
    ],
)
def test_an_answer_is_the_active_ones(active: Controller, standby: Controller, method: str, target: str) -> None:
    own, handed_on = active.ask(method, target), standby.ask(method, target)
    for _, headers, _ in (own, handed_on):
        headers.pop("date")
    assert handed_on == own
    assert standby.counted("answered") == 1


def test_a_post_is_the_active_ones(active: Controller, standby: Controller) -> None:
    text = {"Content-Type": "text/plain", **bearer("hook")}
    status, headers, body = standby.ask("POST", "/v1/jobs?wait=1", post_body(1), text)
    assert (status, headers["location"]) == (201, f"/v1/jobs/{json.loads(body)['id']}")
    assert len(active.controls.jobs.known) == 1
    assert not standby.controls.jobs.known
    # Sent in chunks, and over a connection that is there already.
    connection = http.client.HTTPConnection(standby.tcp.host, standby.tcp.port, timeout=60)
    for number in (2, 3):
        ads = post_body(number).encode()
        connection.request("POST", "/v1/jobs", iter((ads[:50], ads[50:])), text)
        answer = connection.getresponse()
        assert answer.status == 201, answer.read()
        answer.read()
    connection.close()
    assert len(active.controls.jobs.known) == 3


def test_an_answer_may_be_not_modified(standby: Controller) -> None:
    _, headers, _ = standby.ask("GET", "/pages/main.js")
    status, _, body = standby.ask("GET", "/pages/main.js", headers={"If-None-Match": headers["etag"]})
    assert (status, body) == (304, b"")


def test_who_is_refused_is_refused_by_the_active_one(active: Controller, standby: Controller) -> None:
    for headers, expected in (({"Authorization": "Bearer of-nobody"}, 401), (bearer("hook"), 403)):
        status, found, _ = standby.ask("GET", "/v1/audit", headers=headers)
        assert status == expected
        assert "www-authenticate" in found
    assert standby.ask("PUT", "/v1/policy", "x" * ((4 << 20) + 1))[0] == 413


def test_each_instance_answers_some_routes_itself(active: Controller, standby: Controller) -> None:
    active.server.stop()
    for target in ("/healthz", "/metrics", "/openapi.json", "/v1/instances"):
        assert standby.ask("GET", target)[0] == 200
    assert standby.ask("GET", "/readyz")[0] in (200, 503)
    assert "lark_requests_handed_on_total" in standby.ask("GET", "/metrics")[2].decode()


def test_the_metrics_of_the_active_one_are_to_be_had_from_each(active: Controller, standby: Controller) -> None:
    active.metrics.policy_changes.labels("accepted").inc(7)
    expected = 'lark_policy_changes_total{result="accepted"} 7.0'
    for instance in (active, standby):
        status, _, body = instance.ask("GET", "/metrics?of=active")
        assert status == 200
        assert expected in body.decode()
    assert expected not in standby.ask("GET", "/metrics")[2].decode()
    assert expected not in standby.ask("GET", "/metrics?of=this")[2].decode()
    assert standby.ask("GET", "/metrics?of=all")[0] == 422
    active.server.stop()
    assert standby.ask("GET", "/metrics?of=active")[0] == 503


@pytest.mark.parametrize("token", ["operate", None])
def test_without_the_active_one_the_answer_names_it(standby: Controller, token: str | None) -> None:
    standby.stand_by(AWAY)
    headers = {} if token else {"Authorization": "Bearer of-nobody"}
    for _ in range(2):
        status, found, body = standby.ask("GET", "/v1/jobs", headers=headers)
        problem = json.loads(body)
        assert (status, problem["type"], problem["active"]) == (503, "urn:lark:problem:standby", AWAY)
        assert found["retry-after"] == "1"
        assert f"at {AWAY}, the last that was active, is not reached" in problem["detail"]
    status, _, body = standby.ask("GET", "/pages/")
    assert (status, f'href="{AWAY}"' in body.decode()) == (503, True)
    assert standby.counted("unreachable") == 3


def test_without_a_key_nothing_is_handed_on(active: Controller, standby: Controller) -> None:
    standby.stand_by(active.url, key="")
    assert standby.ask("GET", "/v1/jobs")[0] == 503
    assert standby.counted("answered") == 0


def test_nothing_is_handed_on_twice(active: Controller, standby: Controller) -> None:
    # Each takes the other for the active one, and then itself.
    active.stand_by(standby.url)
    for url in (active.url, standby.url):
        standby.stand_by(url)
        status, _, body = standby.ask("GET", "/v1/jobs")
        assert (status, json.loads(body)["type"]) == (503, "urn:lark:problem:standby")
    assert active.counted("answered") == 0
    assert standby.counted("answered") == 2


def test_a_controller_of_an_earlier_term_is_refused(active: Controller, standby: Controller) -> None:
    standby.stand_by(active.url, OTHER)
    status, _, body = standby.ask("POST", "/v1/jobs", post_body(1), {"Content-Type": "text/plain"})
    assert (status, json.loads(body)["type"]) == (503, "urn:lark:problem:standby")
    assert not active.controls.jobs.known


def test_a_header_that_anybody_sends_is_refused(active: Controller, standby: Controller) -> None:
    made = sealed(OTHER, GENERATION, Origin("192.0.2.7"), Head("GET", "/v1/jobs", bearer("operate")["Authorization"]))
    for each in (active, standby):
        for header in ("x", made):
            status, _, body = each.ask("GET", "/v1/jobs", headers={HEADER: header})
            assert (status, json.loads(body)["type"]) == (503, "urn:lark:problem:standby")
    assert standby.counted("answered") == 0


def test_limits_and_the_trail_see_the_callers_address(active: Controller, caplog: pytest.LogCaptureFixture) -> None:
    wrong = "Bearer of-nobody"

    def ask(address: str) -> int:
        header = sealed(KEY, GENERATION, Origin(address), Head("GET", "/v1/jobs", wrong))
        return active.ask("GET", "/v1/jobs", headers={"Authorization": wrong, HEADER: header})[0]

    while ask("192.0.2.7") == 401:
        pass
    # The one address has used up its attempts, another and the controller's own have not.
    assert ask("192.0.2.7") == 429
    assert ask("192.0.2.8") == 401
    assert ask("") == 401
    peers = {record.__dict__.get("lark_fields", {}).get("peer") for record in caplog.records}
    assert {"192.0.2.7", "192.0.2.8", "127.0.0.1"} <= peers


@pytest.mark.parametrize(
    ("origin", "own", "found"),
    [
        (Origin("192.0.2.7", ("w1",)), ("lark2",), ("w1",)),
        (Origin("192.0.2.7", ()), ("lark2",), ()),
        # Asked for none there, though it would have been asked here: it has shown none.
        (Origin("192.0.2.7"), ("lark2",), ()),
        (Origin("192.0.2.7"), None, None),
        # A Unix socket asks for none at either.
        (Origin("", unix=True), ("lark2",), None),
    ],
)
def test_the_hosts_of_a_certificate_are_the_callers(
    origin: Origin, own: tuple[str, ...] | None, found: tuple[str, ...] | None
) -> None:
    assert _names_of(origin, own) == found


class Kept:
    """The way to the active one, which keeps what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[Request] = []

    def ask(self, _standing: Standing, request: Request) -> Any:
        self.asked.append(request)
        raise NotReachedError("it is away")


@pytest.mark.parametrize(
    ("peer", "names", "origin"),
    [
        ("192.0.2.7", ("w1",), Origin("192.0.2.7", ("w1",))),
        ("2001:db8::7", None, Origin("2001:db8::7")),
        # Of a caller on this machine the active one sees this machine.
        ("127.0.0.1", (), Origin("", ())),
        ("::1", None, Origin("")),
        ("localhost", None, Origin("", None, unix=True)),
    ],
)
def test_the_origin_is_the_connections(
    tmp_path: Path, peer: str, names: tuple[str, ...] | None, origin: Origin
) -> None:
    controls, way = FakeControls(), Kept()
    controls.instances.place = Standing(False, 8, 0.0, "b", AWAY, "stands by", KEY)
    tokens = Tokens(write_tokens(tmp_path / "tokens.yaml"))
    app = create_app(controls, table.load({}), tokens, active=way)  # type: ignore[arg-type]
    given = {"REMOTE_ADDR": peer} | ({} if names is None else {CERTIFICATE: names})
    headers = {
        **bearer("hook"),
        "Connection": "close",
        "TE": "trailers",
        "X-Own": "kept",
        "X-Forwarded-For": "10.0.0.1",
    }
    answer = app.test_client().post("/v1/jobs?wait=5", data="x", headers=headers, environ_overrides=given)
    assert answer.status_code == 503
    (asked,) = way.asked
    assert asked.origin == origin
    assert asked.head == Head("POST", "/v1/jobs?wait=5", bearer("hook")["Authorization"])
    assert asked.body == b"x"
    assert asked.headers["X-Own"] == "kept"
    assert not {"Connection", "Te", "Host", "Content-Length"} & set(asked.headers)
    assert asked.seconds == 65.0


def test_who_is_handed_on_is_not_handed_on_again(tmp_path: Path) -> None:
    controls, way = FakeControls(), Kept()
    controls.instances.place = Standing(False, 8, 0.0, "b", AWAY, "stands by", KEY)
    tokens = Tokens(write_tokens(tmp_path / "tokens.yaml"))
    app = create_app(controls, table.load({}), tokens, active=way)  # type: ignore[arg-type]
    for value in (True, False):
        answer = app.test_client().get("/v1/jobs", headers=bearer("read"), environ_overrides={HANDED_ON: value})
        assert answer.status_code == 503
    assert not way.asked


def reply_of(status: int, body: bytes, announced: int | None = None) -> Any:
    def answer(handler: Any) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body) if announced is None else announced))
        handler.end_headers()
        handler.wfile.write(body)
        handler.close_connection = True

    return answer


def greeted(*answers: Any) -> list[Any]:
    """The answers of an active one after that to the greeting."""
    return [reply_of(200, b"{}"), *answers]


def test_a_long_answer_comes_whole(standby: Controller, stand_in: StandIn) -> None:
    body = bytes(range(256)) * 8192
    stand_in.answers = greeted(reply_of(200, body))
    standby.stand_by(stand_in.url)
    assert standby.ask("GET", "/v1/jobs")[2] == body


@pytest.mark.parametrize(("length", "announced"), [(10, 100), (1 << 20, 2 << 20)])
def test_an_answer_that_breaks_off_is_none(standby: Controller, stand_in: StandIn, length: int, announced: int) -> None:
    stand_in.answers = greeted(reply_of(200, bytes(length), announced))
    standby.stand_by(stand_in.url)
    if announced > length + (1 << 18):
        with pytest.raises(http.client.IncompleteRead):
            standby.ask("GET", "/v1/jobs")
        return
    status, _, body = standby.ask("GET", "/v1/jobs")
    assert (status, "may have been carried out" in json.loads(body)["detail"]) == (502, True)


def test_an_active_one_that_dies_has_perhaps_done_it(standby: Controller, stand_in: StandIn) -> None:
    def dies(handler: Any) -> None:
        handler.close_connection = True

    stand_in.answers = greeted(dies)
    standby.stand_by(stand_in.url)
    status, headers, body = standby.ask("POST", "/v1/jobs", post_body(1), {"Content-Type": "text/plain"})
    found = json.loads(body)
    assert (status, found["type"]) == (502, "urn:lark:problem:unanswered")
    assert (found["active"], headers["retry-after"]) == (stand_in.url, "1")
    assert found["detail"] == (
        f"This controller stands by, and has handed the request on: the active one, {stand_in.url}, has not answered "
        "before the connection to it ended. It may have been carried out; ask again."
    )
    assert standby.counted("broken") == 1


def hangs(stand_in: StandIn, came: threading.Semaphore) -> Any:
    def wait(handler: Any) -> None:
        came.release()
        stand_in.released.wait()
        handler.close_connection = True

    return wait


def test_requests_that_wait_hold_no_turn_and_end_with_the_term(standby: Controller, stand_in: StandIn) -> None:
    came = threading.Semaphore(0)
    stand_in.answers = greeted(hangs(stand_in, came))
    standby.stand_by(stand_in.url)
    with ThreadPoolExecutor(2 * MOST) as executor:
        waiting = [executor.submit(standby.ask, "GET", "/v1/links?wait=60") for _ in range(2 * MOST)]
        for _ in waiting:
            assert came.acquire(timeout=60)
        assert standby.ask("GET", "/metrics")[0] == 200
        standby.way.hang_up()
        assert {each.result()[0] for each in waiting} == {502}


def test_so_many_are_handed_on_at_a_time(tmp_path: Path, stand_in: StandIn) -> None:
    few = {"rest_threads": "24", "waiting_posts": "1", "waiting_workers": "1"}
    came = threading.Semaphore(0)
    stand_in.answers = greeted(hangs(stand_in, came))
    made = Controller(tmp_path / "few", **few)
    try:
        made.stand_by(stand_in.url)
        stranger = {"Authorization": "Bearer of-nobody"}
        with ThreadPoolExecutor(16) as executor:
            # Of nine places strangers have one.
            waiting = [executor.submit(made.ask, "GET", "/v1/links", None, stranger)]
            assert came.acquire(timeout=60)
            status, _, body = made.ask("GET", "/v1/links", None, stranger)
            assert (status, json.loads(body)["type"]) == (503, "urn:lark:problem:busy")
            waiting += [executor.submit(made.ask, "GET", "/v1/links") for _ in range(9)]
            for _ in range(9):
                assert came.acquire(timeout=60)
            assert made.ask("GET", "/v1/links")[0] == 503
            assert made.counted("busy") == 2
            made.way.hang_up()
            assert {each.result()[0] for each in waiting} == {502}
        # Their places are free again.
        stand_in.answers = [reply_of(200, b"{}")]
        assert made.ask("GET", "/v1/links")[0] == 200
    finally:
        made.way.hang_up()
        made.server.stop()

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lark_common.client import Client, ProblemError, UnreachableError
from lark_common.errors import SettingError
from lark_common.runs import EndedBy
from lark_controller import settings as table
from lark_controller.rest.server.waitress_server import Server
from tests.fixtures.fake_controls import DPID, TOKENS, post_body
from tests.fixtures.rest_app import Api, make_api


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Api, str]]:
    api = make_api(tmp_path)
    server = Server(api.app, table.load({}, {"rest_listen": "127.0.0.1:0"}))
    server.start()
    yield api, f"http://{server.addresses[0]}"
    server.stop()


def test_a_job_from_begin_to_end(served: tuple[Api, str]) -> None:
    _, url = served
    hook, reader = Client(url, TOKENS["hook"]), Client(url, TOKENS["read"])
    job = hook.register(post_body(), wait=1)
    job_ad, machine_ad = post_body().split("------\n")
    assert hook.register({"job_ad": job_ad, "machine_ad": machine_ad})["id"] == job["id"]
    assert reader.job_at("10.64.0.1")["id"] == job["id"]
    assert hook.renew(job["id"])["lease_until"] > job["lease_until"]
    assert hook.end(job["id"], "ExitCode = 0", EndedBy.STARTER)["reason"] == "ended with its condor_starter"
    assert hook.end(job["id"])["state"] == "ended"
    assert [entry["action"] for entry in reader.audit(job["id"])] == ["end", "end", "register"]
    assert list(reader.jobs()) == []


def test_lists_are_followed_over_pages(served: tuple[Api, str], monkeypatch: pytest.MonkeyPatch) -> None:
    api, url = served
    for cluster in range(1, 6):
        api.register(cluster)
    whole = api.controls.jobs.page
    monkeypatch.setattr(api.controls.jobs, "page", lambda chosen, cursor, limit: whole(chosen, cursor, 2))
    found = Client(url, TOKENS["read"]).jobs(owner="alice", group=None)
    assert [job["cluster"] for job in found] == [1, 2, 3, 4, 5]


def test_what_an_operator_asks(served: tuple[Api, str]) -> None:
    api, url = served
    client = Client(url + "/", TOKENS["operate"])
    assert [switch["name"] for switch in client.switches()] == ["worker1", "core1"]
    assert client.switch("core1")["role"] == "core"
    assert [flow["packets"] for flow in client.flows(DPID)] == [7]
    assert client.groups()[0]["name"] == "group_cms"
    assert client.put_policy("version: 1\n# ü\n")["version"] == 2
    assert client.policy()["text"] == "version: 1\n# ü\n"
    assert client.check_policy("x")["valid"] is False
    assert client.plan_policy("version: 1")["jobs_changed"] == 1
    assert client.policy_schema()["type"] == "object"
    assert client.explain("10.0.0.1", "10.0.0.2")["verdict"] == "dropped"
    assert "lark_jobs" in client.metrics()
    api.controls.health.is_ready = False
    assert client.ready()["ready"] is False


def test_problems_are_raised_with_their_members(served: tuple[Api, str]) -> None:
    _, url = served
    with pytest.raises(ProblemError) as caught:
        Client(url, TOKENS["operate"]).put_policy("blok: []")
    assert caught.value.status == 422
    assert [mistake["line"] for mistake in caught.value.mistakes] == [1, 2]
    with pytest.raises(ProblemError, match="bearer token is needed"):
        Client(url).switches()
    with pytest.raises(ProblemError, match="no switch"):
        Client(url, TOKENS["read"]).switch("a?b#c")


@pytest.mark.parametrize(
    "url", ["", "localhost:8080", "ftp://x", "http://", "unix:", "http://x:port", "http://[::1", "http://[x]/"]
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(SettingError):
        Client(url)


def test_nobody_answers(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="cannot be reached"):
        Client(f"unix:{tmp_path}/none.sock").healthy()
    with pytest.raises(SettingError):
        Client("http://127.0.0.1:1", "two\nlines")


@pytest.mark.parametrize("length", [9, 17, 40, 60, 90])
def test_an_answer_that_breaks_off_is_none_wherever_it_does(length: int) -> None:
    """Also in the midst of its headers: it may have been carried out, and another controller is asked."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 40\r\nETag: x\r\n\r\n" + b"{}" * 20
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            connection.recv(65536)
            connection.sendall(answer[:length])
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(UnreachableError, match="cannot be reached"):
            Client(f"http://127.0.0.1:{listening.getsockname()[1]}", "t").overview()
        thread.join()


class _Stranger(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = (502, b"<html>") if self.path == "/readyz" else (200, b"<html>")
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_somebody_else_answers() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Stranger) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        client = Client(f"http://127.0.0.1:{server.server_address[1]}")
        try:
            with pytest.raises(UnreachableError, match="does not answer as"):
                client.healthy()
            with pytest.raises(ProblemError, match="502"):
                client.ready()
        finally:
            server.shutdown()
            thread.join()

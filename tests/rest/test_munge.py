"""MUNGE credentials of a real munged: who proves what by them, and what they are not good for."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.namespaces import temporary_directory
from lark_common import munge
from lark_common.turns import Turn, Turns
from lark_controller import settings as table
from lark_controller.cli import main as cli
from lark_controller.rest.identities.identities import RefusedTokenError
from lark_controller.rest.identities.munge import MungeUsers
from lark_controller.rest.server.waitress_server import Server
from tests.fixtures.fake_controls import bearer, post_body
from tests.fixtures.rest_app import Api, make_api
from tests.fixtures.service import wait
from tests.install.pages import Page

USER = "nobody"
PATH = "/v1/external-addresses"


@contextmanager
def munged(directory: Path) -> Iterator[str]:
    """A munged with a key of its own; yields its socket."""
    key, socket = directory / "key", directory / "socket"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    files = [f"--{name}-file={directory / name}" for name in ("key", "log", "pid", "seed")]
    daemon = subprocess.Popen(
        ["/usr/sbin/munged", "--foreground", "--force", f"--socket={socket}", *files],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait(lambda: socket.exists() or daemon.poll() is not None)
        assert daemon.poll() is None, (directory / "log").read_text()
        yield str(socket)
    finally:
        daemon.terminate()
        daemon.wait()


@pytest.fixture(scope="module")
def socket() -> Iterator[str]:
    with temporary_directory() as directory:
        Path(directory).chmod(0o755)
        with munged(Path(directory)) as path:
            yield path


@pytest.fixture
def api(tmp_path: Path, socket: str) -> Api:
    """Jobs of the user and of alice."""
    made = make_api(tmp_path, munge_socket=socket)
    for number, owner in ((1, USER), (2, "alice")):
        text = post_body(number, owner)
        answer = made.client.post("/v1/jobs", data=text, content_type="text/plain", headers=bearer("hook"))
        assert answer.status_code == 201
    return made


def credential(payload: str, socket: str) -> str:
    """A credential of the user."""
    as_user = ["setpriv", f"--reuid={USER}", "--clear-groups", "munge", f"--socket={socket}", "--string", payload]
    return subprocess.run(as_user, check=True, capture_output=True, text=True).stdout.strip()


def ask(api: Api, socket: str, method: str, path: str, body: object = None) -> Any:
    data = b"" if body is None else json.dumps(body).encode()
    shown = credential(munge.words(method, path, data), socket)
    kind = None if body is None else "application/json"
    return api.client.open(
        path, method=method, data=data, content_type=kind, headers={"Authorization": f"MUNGE {shown}"}
    )


def test_a_user_gets_and_releases_addresses_of_own_jobs(api: Api, socket: str) -> None:
    made = ask(api, socket, "POST", PATH, {"job": "1.0", "open": ["tcp/80"]})
    assert (made.status_code, made.json["owner"], made.json["actor"]) == (201, USER, f"{USER} by MUNGE")
    listed = ask(api, socket, "GET", f"{PATH}?job=1.0").json
    assert [each["id"] for each in listed["addresses"]] == [made.json["id"]]
    assert ask(api, socket, "DELETE", f"{PATH}/{made.json['id']}").json["why"] == "released"
    assert [job["owner"] for job in ask(api, socket, "GET", "/v1/jobs").json["jobs"]] == [USER]


def test_anothers_job_is_as_one_that_is_not_there(api: Api, socket: str) -> None:
    made: Any = api.client.post(PATH, json={"job": "2.0"}, headers=bearer("operate"))
    alices = made.json["id"]
    assert ask(api, socket, "POST", PATH, {"job": "2.0"}).status_code == 404
    for method in ("GET", "DELETE"):
        assert ask(api, socket, method, f"{PATH}/{alices}").status_code == 404
    assert ask(api, socket, "PUT", "/v1/policy").status_code == 403


def test_a_credential_is_for_one_request_once(api: Api, socket: str) -> None:
    def refused(shown: str, path: str = PATH, body: str = "") -> str:
        answer: Any = api.client.open(path, method="GET", data=body, headers={"Authorization": f"MUNGE {shown}"})
        assert answer.status_code == 401
        return str(answer.json["detail"])

    whole = credential(munge.words("GET", PATH, None), socket)
    assert api.client.get(PATH, headers={"Authorization": f"munge {whole}"}).status_code == 200
    assert "shown before" in refused(whole)
    for method, path, body in (("DELETE", PATH, b""), ("GET", f"{PATH}?job=1.0", b""), ("GET", PATH, b"{}")):
        assert "another request" in refused(credential(munge.words(method, path, body), socket))
    assert "no credential" in refused("MUNGE:;:")
    assert "no credential" in refused("x" * 100_000)
    with temporary_directory() as directory:
        Path(directory).chmod(0o755)
        with munged(Path(directory)) as other:
            foreign = credential(munge.words("GET", PATH, None), other)
    assert "another site" in refused(foreign)


def test_a_path_is_taken_as_the_server_sees_it(api: Api, socket: str) -> None:
    assert ask(api, socket, "GET", "/v1/jobs/1%2E0?fresh=true").status_code == 200


def test_what_is_too_long_is_not_read(api: Api, socket: str) -> None:
    assert ask(api, socket, "POST", PATH, {"job": "1" * 70_000}).status_code == 413


def test_without_a_munged_the_answer_says_so(tmp_path: Path, socket: str) -> None:
    shown = credential(munge.words("GET", PATH, None), socket)
    for overrides, words in (({"munge_socket": str(tmp_path / "none")}, "does not answer"), ({}, "bearer")):
        api = make_api(tmp_path, **overrides)
        answer: Any = api.client.get(PATH, headers={"Authorization": f"MUNGE {shown}"})
        assert (answer.status_code, words in answer.json["detail"]) == (401, True)


def test_a_user_without_an_account_here_is_nobody(api: Api, socket: str) -> None:
    made = ["setpriv", "--reuid=54321", "--clear-groups", "munge", f"--socket={socket}", "--string"]
    words = munge.words("GET", PATH, None)
    shown = subprocess.run([*made, words], check=True, capture_output=True, text=True).stdout.strip()
    answer: Any = api.client.get(PATH, headers={"Authorization": f"MUNGE {shown}"})
    assert (answer.status_code, "no account" in answer.json["detail"]) == (401, True)


def test_the_command_shows_a_credential(
    tmp_path: Path, socket: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api = make_api(tmp_path, munge_socket=socket)
    server = Server(api.app, table.load({}, {"rest_listen": f"unix:{tmp_path}/rest.sock"}))
    server.start()
    try:
        command = ["external", "list", "--munge", "--url", f"unix:{tmp_path}/rest.sock"]
        monkeypatch.setenv("LARK_TOKEN", "a token that the controller does not know")
        monkeypatch.setattr(munge, "_at", lambda given: [f"--socket={socket}"])
        assert cli.main(command) == cli.OK
        assert "ADDRESS" in capsys.readouterr().out
        monkeypatch.setattr(munge, "_at", lambda given: [f"--socket={tmp_path / 'none'}"])
        assert cli.main(command) != cli.OK
        assert "no MUNGE credential" in capsys.readouterr().err
    finally:
        server.stop()


def test_a_request_by_hand_is_as_the_page_has_it(api: Api, socket: str, tmp_path: Path) -> None:
    """As the user, with munge and curl alone."""
    server = Server(api.app, table.load({}, {"rest_listen": "127.0.0.1:0"}))
    server.start()
    here = {
        "https://lark.example:8443": f"http://{server.addresses[0]}",
        "--cacert /etc/lark/ca.pem ": "--silent ",
        "103.0": "1.0",
        "munge --string": f"munge --socket={socket} --string",
    }
    try:
        block = Page("tokens-and-tls.md", here).block("body=")
        command = ["setpriv", f"--reuid={USER}", "--clear-groups", "sh", "-ec", block]
        answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, cwd="/").stdout)
    finally:
        server.stop()
    assert (answer["owner"], answer["open"], answer["actor"]) == (USER, ["tcp/80"], f"{USER} by MUNGE")


def test_whoever_has_credentials_looked_at_pays_for_the_processes_that_do_so() -> None:
    """A stranger may send false ones without end, and the thread that answers does nothing but wait for them."""

    def verify(_credential: str, _socket: str) -> munge.Shown:
        time.sleep(0.05)
        raise munge.MungeError("it is of another site, or was changed")

    turns, begun = Turns(1, 1, ahead=Turns(1, 1)), list[Turn]()
    turns.ask("192.0.2.1", "192.0.2.1", begun.append)
    with begun[0] as turn, pytest.raises(RefusedTokenError):
        MungeUsers(Path("/nowhere"), verify).token("MUNGE:AwQFAAA=:", "GET / ")
    assert turn.shares[0].used >= 0.05

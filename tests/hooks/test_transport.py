"""The hook's ways to the controller: a Unix socket, TLS, and the controller's own API."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lark_controller import settings
from lark_controller.rest.app import create_app
from lark_controller.rest.server.waitress_server import Server
from lark_controller.rest.tokens import Tokens
from tests.fixtures.fake_controls import (
    TOKENS,
    FakeControls,
    post_body,
    write_tokens,
)
from tests.fixtures.full_queue import fill_queue
from tests.fixtures.hook import (
    ACCEPTED,
    HOOK,
    Hook,
    Outcome,
    StandIn,
    UnixServer,
    reply,
    serve,
)
from tests.fixtures.openflow import make_authority, make_certificate


def test_a_unix_socket(hook: Hook, tmp_path: Path) -> None:
    stand_in = StandIn(answers=[reply(201, ACCEPTED)])
    path = tmp_path / "s"
    with UnixServer(str(path), stand_in.handler()) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            outcome = hook.run("start", LARK_URL="-", LARK_TOKEN_FILE="-", LARK_SOCKET=str(path))
        finally:
            server.shutdown()
            thread.join()
    assert outcome.ad["LarkState"] == "enforced"
    assert "Authorization" not in stand_in.asked[0].headers


def test_a_queue_that_somebody_has_filled_is_tried_until_it_has_room(hook: Hook, tmp_path: Path) -> None:
    stand_in = StandIn(answers=[reply(201, ACCEPTED)])
    path = tmp_path / "s"
    with UnixServer(str(path), stand_in.handler()) as server, fill_queue(path) as filled:
        served = threading.Timer(0.5, server.serve_forever, kwargs={"poll_interval": 0.01})
        served.start()
        try:
            outcome = hook.run("start", LARK_URL="-", LARK_TOKEN_FILE="-", LARK_SOCKET=str(path), LARK_RETRIES="0")
        finally:
            filled.close()
            served.cancel()
            if served.is_alive():
                server.shutdown()
            served.join()
    assert outcome.ad["LarkState"] == "enforced"


def test_a_socket_on_which_nobody_listens_is_given_up_soon(hook: Hook, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))
    outcome = hook.run("start", LARK_URL="-", LARK_TOKEN_FILE="-", LARK_SOCKET=str(path), LARK_RETRIES="0")
    assert outcome.ad["LarkState"] == "unmanaged"
    assert "connect" in str(outcome.ad["LarkReason"])


def self_signed(directory: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 and its key."""
    certificate, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=lark", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


def test_tls_is_checked(hook: Hook, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    for stand_in in serve(StandIn(answers=[reply(201, ACCEPTED)]), context):
        outcome = hook.run("start", url=stand_in.url, LARK_CA_FILE=str(certificate))
        assert outcome.ad["LarkState"] == "enforced"

        outcome = hook.run("start", url=stand_in.url, LARK_RETRIES="0", LARK_ON_FAILURE="hold")
        assert "certificate" in str(outcome.ad["HookStatusMessage"])
        assert len(stand_in.asked) == 1


def test_a_hook_shows_its_workers_certificate_where_the_controller_asks_for_one(hook: Hook, tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "authority")
    server_cert, server_key = self_signed(tmp_path)
    (cert, key), other = (make_certificate(tmp_path, "authority", f"worker{n}.example") for n in (1, 2))
    files = {"rest_tls_cert": server_cert, "rest_tls_key": server_key, "rest_tls_ca": authority}
    chosen = settings.load({}, {"rest_listen": "127.0.0.1:0", **{name: str(path) for name, path in files.items()}})
    controls = FakeControls()
    server = Server(create_app(controls, chosen, Tokens(write_tokens(tmp_path / "tokens.yaml"))), chosen)
    server.start()
    job_ad, machine_ad = post_body().split("------\n")
    (tmp_path / "token").write_text(TOKENS["hook"])
    (tmp_path / "machine.ad").write_text(machine_ad)
    (tmp_path / "both.pem").write_bytes(cert.read_bytes() + key.read_bytes())

    def run(cert: Path | None = None, key: Path | None = None) -> Outcome:
        return hook.run(
            "start", url=f"https://{server.addresses[0]}", stdin=job_ad.encode(), LARK_CA_FILE=str(server_cert),
            LARK_RETRIES="0", LARK_CERT_FILE=str(cert or ""), LARK_KEY_FILE=str(key or ""),
        )  # fmt: skip

    try:
        without = run()
        assert "needs a certificate" in str(without.ad["LarkReason"])
        another = run(*other)
        assert "not of worker1.example" in str(another.ad["LarkReason"])
        assert not controls.jobs.known
        assert run(cert, key).ad["LarkState"] == "enforced"
        assert run(tmp_path / "both.pem").ad["LarkState"] == "enforced"
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ({"LARK_KEY_FILE": "/dev/null"}, "LARK_CERT_FILE is not set"),
        ({"LARK_CERT_FILE": "/dev/null", "LARK_KEY_FILE": "/nowhere"}, "/nowhere cannot be read"),
        ({"LARK_CERT_FILE": "/dev/null:secret"}, "colon"),
    ],
)
def test_a_certificate_that_cannot_be_shown_is_said(hook: Hook, shown: dict[str, str], said: str) -> None:
    outcome = hook.run("start", url="https://127.0.0.1:1", **shown)  # type: ignore[arg-type]  # all str
    assert said in str(outcome.ad["LarkReason"])


@pytest.fixture
def api(tmp_path: Path) -> Iterator[tuple[FakeControls, Server]]:
    chosen = settings.load({}, {"rest_listen": f"127.0.0.1:0,unix:{tmp_path}/rest.sock"})
    controls = FakeControls()
    server = Server(create_app(controls, chosen, Tokens(write_tokens(tmp_path / "tokens.yaml"))), chosen)
    server.start()
    yield controls, server
    server.stop()


def test_a_jobs_life_through_the_real_api(hook: Hook, api: tuple[FakeControls, Server]) -> None:
    controls, server = api
    tcp, unix = server.addresses
    job_ad, machine_ad = post_body().split("------\n")
    (hook.folder / "token").write_text(TOKENS["hook"])
    (hook.folder / "machine.ad").write_text(machine_ad)

    def run(*args: str, ad: bytes = job_ad.encode(), **where: str) -> Outcome:
        return hook.run(*args, stdin=ad, **{"LARK_URL": f"http://{tcp}", **where})  # type: ignore[arg-type]  # all str

    started = run("start")
    (job,) = controls.jobs.known.values()
    assert started.ad["LarkJobId"] == job.id
    assert started.ad["LarkState"] == "enforced"
    assert started.ad["LarkInnerAddressIPv4"] == str(job.ipv4)
    assert run("start", LARK_URL="-", LARK_SOCKET=unix.path).ad["LarkJobId"] == job.id

    assert run("update").stderr == ""
    assert run("exit", "exit", ad=job_ad.encode() + b'Title = "\xfc"\n').stdout == ""
    assert controls.jobs.ended.keys() == {job.id}

    refused = run("start", ad=b"ClusterId = 7\n")
    assert refused.ad["HookStatusCode"] == 10
    assert "GlobalJobId" in str(refused.ad["HookStatusMessage"]) or "Owner" in str(refused.ad["HookStatusMessage"])
    wrong = run("start", LARK_TOKEN_FILE="-")
    assert wrong.ad["LarkState"] == "unmanaged"
    assert run("start", LARK_WAIT="60").ad["LarkState"] == "unmanaged"
    # What is not UTF-8 holds nobody up.
    assert run("start", ad=job_ad.encode() + b'Title = "\xfc"\n').ad["LarkJobId"] == job.id


def test_shellcheck_finds_nothing() -> None:
    result = subprocess.run(["shellcheck", "--shell=sh", str(HOOK)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout

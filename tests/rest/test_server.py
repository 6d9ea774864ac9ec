from __future__ import annotations

import contextlib
import datetime
import http.client
import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lab.run import free_port
from lark_common.client import Client
from lark_common.errors import SettingError
from lark_controller import settings as table
from lark_controller.rest.app import create_app
from lark_controller.rest.identities.identities import known_callers
from lark_controller.rest.server import admission
from lark_controller.rest.server.waitress_server import PIPELINED, Server
from lark_controller.rest.tokens import Tokens
from lark_controller.settings import Settings
from tests.fixtures.fake_controls import (
    TOKENS,
    FakeControls,
    bearer,
    post_body,
    write_tokens,
)


def certificate(directory: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = directory / "cert.pem", directory / "key.pem"
    cert_file.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert_file, key_file


class Running:
    def __init__(self, directory: Path, **overrides: str) -> None:
        self.controls = FakeControls()
        given = {"rest_listen": f"127.0.0.1:0,unix:{directory}/rest.sock", **overrides}
        self.settings: Settings = table.load({}, given)
        tokens = Tokens(write_tokens(directory / "tokens.yaml"))
        self.server = Server(
            create_app(self.controls, self.settings, tokens), self.settings, known_callers(tokens, None)
        )
        self.server.start()
        self.tcp, self.unix = self.server.addresses

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.tcp.host, self.tcp.port, timeout=10)
        try:
            connection.request("GET", path, headers=bearer("read"))
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def connect(self) -> socket.socket:
        return socket.create_connection((self.tcp.host, self.tcp.port), timeout=10)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path, waiting_posts="4", rest_threads="12")
    yield made
    made.controls.gate.set()
    made.server.stop()


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[tuple[Running, Path]]:
    cert, key = certificate(tmp_path)
    made = Running(tmp_path, rest_tls_cert=str(cert), rest_tls_key=str(key))
    yield made, cert
    made.server.stop()


def test_tcp_and_unix_socket_answer(running: Running) -> None:
    assert running.get("/healthz")[0] == 200
    over_unix = Client(f"unix:{running.unix.path}", TOKENS["hook"])
    registered = over_unix.register(post_body(), wait=1)
    assert registered["state"] == "enforced"
    assert Path(running.unix.path).stat().st_mode & 0o777 == 0o660


def test_health_answers_while_as_many_posts_wait_as_may(running: Running) -> None:
    running.controls.gate.clear()
    states: list[str] = []

    def post(cluster: int) -> None:
        client = Client(f"http://{running.tcp}", TOKENS["hook"], timeout=40)
        states.append(str(client.register(post_body(cluster), wait=30)["state"]))

    threads = [threading.Thread(target=post, args=(cluster,)) for cluster in range(4)]
    for thread in threads:
        thread.start()
    with running.controls.gate.arrived:
        assert running.controls.gate.arrived.wait_for(lambda: running.controls.gate.waiting == 4, timeout=60)
    assert running.get("/healthz")[0] == 200
    assert running.get("/v1/switches")[0] == 200
    # One more than may wait is answered at once, and is not refused.
    post(99)
    assert states == ["registering"]
    status, _ = running.get("/v1/explain?src=10.0.0.1&dst=10.0.0.2")
    assert status == 503
    running.controls.gate.set()
    for thread in threads:
        thread.join(60)
    assert states == ["registering"] + ["enforced"] * 4


def test_slow_clients_hold_up_nobody(running: Running) -> None:
    slow = [running.connect() for _ in range(40)]
    try:
        for connection in slow:
            connection.sendall(b"POST /v1/jobs HTTP/1.1\r\nContent-Le")
        assert running.get("/healthz")[0] == 200
    finally:
        for connection in slow:
            connection.close()


def test_a_request_that_trickles_in_is_cut_off(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with running.connect() as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\n")
        assert running.get("/healthz")[0] == 200
        monkeypatch.setattr(admission, "HEAD_SECONDS", 0)
        slow.sendall(b"X-More: 1\r\n")
        # Bytes that the server did not read any more make the end a reset.
        with contextlib.suppress(ConnectionResetError):
            assert slow.recv(100) == b""


def test_what_is_no_request_is_answered_with_a_problem_document(running: Running) -> None:
    with running.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nContent-Length: nonsense\r\n\r\n")
        head, _, body = b"".join(iter(lambda: connection.recv(4096), b"")).partition(b"\r\n\r\n")
    assert b"400" in head.splitlines()[0]
    assert b"application/problem+json" in head
    assert json.loads(body)["status"] == 400


# Of a path with two slashes the server passes on any byte.
@pytest.mark.parametrize("path", ["/v1/jobs", "//v1/jobs", "//healthz", "//", "//v1/explain"])
def test_a_query_that_is_no_utf8_is_refused_and_no_fault_of_the_controllers(running: Running, path: str) -> None:
    with running.connect() as connection:
        request = f"GET {path}?owner=\x8e HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        token = f"Authorization: Bearer {TOKENS['read']}\r\n\r\n"
        connection.sendall((request + token).encode("latin-1"))
        head, _, body = b"".join(iter(lambda: connection.recv(4096), b"")).partition(b"\r\n\r\n")
    assert b" 400 " in head.splitlines()[0]
    assert json.loads(body)["status"] == 400


def test_a_body_over_every_limit_is_refused_while_it_arrives(running: Running) -> None:
    with running.connect() as connection:
        size = running.settings.max_body_bytes + 200000
        connection.sendall(b"PUT /v1/policy HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size)
        head = connection.recv(4096)
    assert b"413" in head.splitlines()[0]


def test_tls(encrypted: tuple[Running, Path]) -> None:
    running, cert = encrypted
    client = Client(f"https://localhost:{running.tcp.port}", TOKENS["hook"], ca=cert)
    assert client.register(post_body(), wait=1)["state"] == "enforced"
    reader = Client(f"https://localhost:{running.tcp.port}", TOKENS["operate"], ca=cert)
    # Bodies of many TLS records, in both directions.
    text = "version: 1\n" + "# a comment to make it long\n" * 100000
    assert reader.put_policy(text)["version"] == 2
    assert reader.policy()["text"] == text
    # The Unix socket needs no TLS.
    assert Client(f"unix:{running.unix.path}", TOKENS["read"]).switches()


def health(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The output of the image's own health check in an environment."""
    lines = (Path(__file__).parents[2] / "Dockerfile").read_text().split("HEALTHCHECK", 1)[1]
    program, *arguments = json.loads(lines.split("CMD", 1)[1].splitlines()[0])
    assert program == "python"
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=30)


def test_the_images_health_check_over_tls(encrypted: tuple[Running, Path]) -> None:
    running, cert = encrypted
    environment = {
        "LARK_REST_LISTEN": str(running.tcp),
        "LARK_REST_TLS_CERT": str(cert),
        "LARK_REST_TLS_KEY": str(cert),
    }
    assert health(environment).returncode == 0
    # Everywhere is here as well, and the first address is asked.
    environment["LARK_REST_LISTEN"] = f"0.0.0.0:{running.tcp.port},unix:/nowhere"
    assert health(environment).returncode == 0
    # A port that speaks TLS answers nobody who does not.
    found = health({"LARK_REST_LISTEN": str(running.tcp)})
    assert found.returncode == 1
    assert found.stderr.strip()


def test_the_images_health_check_without_tls_and_by_a_socket(running: Running) -> None:
    assert health({"LARK_REST_LISTEN": str(running.tcp)}).returncode == 0
    assert health({"LARK_REST_LISTEN": str(running.unix)}).returncode == 0
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        away = health({"LARK_REST_LISTEN": f"127.0.0.1:{taken.getsockname()[1]}"})
    assert (away.returncode, "refused" in away.stderr) == (1, True)
    assert "SettingError" in health({"LARK_REST_LISTEN": "nonsense"}).stderr


def test_tls_clients_that_say_nothing_or_rubbish_hold_up_nobody(encrypted: tuple[Running, Path]) -> None:
    running, cert = encrypted
    silent, rude = running.connect(), running.connect()
    with silent, rude:
        rude.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert Client(f"https://localhost:{running.tcp.port}", ca=cert).healthy()
        # A TLS alert, or nothing, and then the end.
        assert b"HTTP" not in b"".join(iter(lambda: rude.recv(4096), b""))


def test_tls_reads_several_requests_of_one_connection(encrypted: tuple[Running, Path]) -> None:
    running, cert = encrypted
    context = ssl.create_default_context(cafile=str(cert))
    connection = http.client.HTTPSConnection("localhost", running.tcp.port, timeout=10, context=context)
    for _ in range(3):
        connection.request("GET", "/v1/switches", headers=bearer("read"))
        answer = connection.getresponse()
        assert answer.status == 200
        assert len(json.loads(answer.read())["switches"]) == 2
    connection.close()


def test_of_many_requests_in_a_row_few_are_answered(running: Running) -> None:
    """Else a connection that reads no answer keeps a thread waiting, once its answers fill the buffer."""
    with running.connect() as many:
        many.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n" * 60)
        answered = b""
        while part := many.recv(65536):
            answered += part
    assert answered.count(b"HTTP/1.1 200") == PIPELINED
    assert answered.count(b"Connection: close") == 1
    with running.connect() as two:
        two.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
        answered = b""
        while answered.count(b"HTTP/1.1 200") < 2 and (part := two.recv(65536)):
            answered += part
        assert answered.count(b"HTTP/1.1 200") == 2
        assert b"Connection: close" not in answered


def test_an_address_in_use_and_a_bad_certificate_are_setting_errors(running: Running, tmp_path: Path) -> None:
    app = create_app(FakeControls(), running.settings, Tokens(tmp_path / "tokens.yaml"))
    for listen in (str(running.tcp), f"unix:{running.unix.path}"):
        with pytest.raises(SettingError, match="cannot listen"):
            Server(app, table.load({}, {"rest_listen": listen}))
    free = f"127.0.0.1:{free_port()}"
    with pytest.raises(SettingError, match=f"{free},{free}: cannot listen"):
        Server(app, table.load({}, {"rest_listen": f"{free},{free}"}))
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("no certificate")
    with pytest.raises(SettingError, match="LARK_REST_TLS_CERT"):
        Server(app, table.load({}, {"rest_tls_cert": str(nonsense), "rest_tls_key": str(nonsense)}))


def test_a_socket_left_behind_is_replaced(tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    left.bind(str(tmp_path / "rest.sock"))
    left.close()
    made = Running(tmp_path)
    try:
        assert Client(f"unix:{made.unix.path}").healthy()
    finally:
        made.server.stop()
    assert not Path(made.unix.path).exists()
    with pytest.raises(ConnectionRefusedError):
        made.connect()

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lark_common.errors import SettingError
from lark_controller.rest.identities import issuer_keys
from lark_controller.rest.identities.identities import Identities, RefusedTokenError
from lark_controller.rest.identities.issuer_keys import IssuerKeys
from lark_controller.rest.identities.keys import MAX_BYTES
from tests.fixtures.issuers import key, public, token, write_issuers
from tests.rest.test_server import certificate

DISCOVERY = "/.well-known/openid-configuration"


class Provider:
    """An OIDC provider on this machine; tests say what it answers."""

    def __init__(self, directory: Path) -> None:
        self.cert, private = certificate(directory)
        self.asked: list[str] = []
        self.answers: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked.append(self.path)
                provider.answers[self.path](self)

            def log_message(self, *args: Any, **kwargs: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(self.cert, private)
        self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.address = f"https://localhost:{self._server.server_address[1]}"
        self.issuer = f"{self.address}/realms/pool"
        self.describe(jwks_uri=f"{self.address}/keys")
        self.publish(public(key(), "one"))
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def describe(self, **members: object) -> None:
        self.answer(f"/realms/pool{DISCOVERY}", json.dumps({"issuer": self.issuer, **members}).encode())

    def publish(self, *keys: dict[str, Any]) -> None:
        self.answer("/keys", json.dumps({"keys": keys}).encode())

    def answer(self, path: str, body: bytes, status: int = 200, **headers: str) -> None:
        def write(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(status)
            for name, value in headers.items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(body)

        self.answers[path] = write

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Provider]:
    made = Provider(tmp_path)
    yield made
    made.stop()


def keys_of(provider: Provider, least: float = 0.05) -> IssuerKeys:
    return IssuerKeys(provider.issuer, ("RS256",), provider.cert, least)


@pytest.fixture
def started(provider: Provider) -> Iterator[IssuerKeys]:
    keys = keys_of(provider)
    keys.thread.start()
    yield keys
    keys.thread.stop()


def wait(holds: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_keys_are_read_from_the_issuer(provider: Provider, tmp_path: Path) -> None:
    entry = {
        "issuer": provider.issuer, "audience": "lark", "ca": str(provider.cert), "user": "preferred_username",
        "scopes": {"self": "everyone"},
    }  # fmt: skip
    identities = Identities.of_file(write_issuers(tmp_path / "jwt.yaml", entry))
    with pytest.raises(RefusedTokenError, match="not known, or not yet"):
        identities.token(token(iss=provider.issuer))
    identities.start()
    try:
        wait(lambda: _accepted(identities, token(iss=provider.issuer)))
        assert provider.asked == [f"/realms/pool{DISCOVERY}", "/keys"]
    finally:
        identities.stop()
    assert not any(thread.is_alive() for thread in identities.threads)


def _accepted(identities: Identities, secret: str) -> bool:
    try:
        return identities.token(secret).user == "alice"
    except RefusedTokenError:
        return False


def test_a_new_key_is_asked_for_when_a_token_names_it(provider: Provider, started: IssuerKeys) -> None:
    wait(lambda: started.find("one", "RS256"))
    provider.publish(public(key(), "one"), public(key(), "two"))
    wait(lambda: started.find("two", "RS256"))


def test_unknown_ids_do_not_make_the_controller_ask_for_each(provider: Provider) -> None:
    keys = keys_of(provider, least=0.4)
    began = time.monotonic()
    keys.thread.start()
    try:
        wait(lambda: keys.find("one", "RS256"))
        for number in range(2000):
            assert keys.find(f"random{number}", "RS256") is None

        def asked_again() -> bool:
            keys.find("another", "RS256")
            return time.monotonic() >= began + 1.0 and provider.asked.count("/keys") >= 2

        wait(asked_again)
        # Counted first: what is asked for behind it has its time as well.
        asked = provider.asked.count("/keys")
        assert asked <= (time.monotonic() - began) / 0.4 + 1
    finally:
        keys.thread.stop()


def test_the_last_keys_stay_while_the_issuer_is_away(provider: Provider, started: IssuerKeys) -> None:
    wait(lambda: started.find("one", "RS256"))
    provider.answer("/keys", b"away", 503)
    started.find("two", "RS256")
    seen = len(provider.asked)
    wait(lambda: len(provider.asked) > seen + 3)
    assert started.find("one", "RS256") is not None


@pytest.mark.parametrize("name", ["slow", "endless", "huge header"])
def test_an_issuer_that_is_slow_or_endless_holds_up_nobody(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(issuer_keys, "ANSWER_SECONDS", 6.0)
    gone = threading.Event()

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            while not gone.wait(0.05 if name == "slow" else 0):
                handler.wfile.write(b" " if name == "slow" else b" " * 65536)
        except OSError:
            gone.set()

    def header(handler: BaseHTTPRequestHandler) -> None:
        with suppress(OSError):
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_000_000)
        gone.set()

    provider.answers["/keys"] = header if name == "huge header" else trickle
    keys = keys_of(provider)
    keys.thread.start()
    try:
        wait(lambda: "/keys" in provider.asked)
        began = time.monotonic()
        assert keys.find("one", "RS256") is None
        # The slow one goes on for so long.
        assert time.monotonic() - began < 2.0
        wait(gone.is_set)
        provider.publish(public(key(), "one"))
        wait(lambda: keys.find("one", "RS256"))
    finally:
        gone.set()
        keys.thread.stop()


WRONG: list[tuple[str, Callable[[Provider], None]]] = [
    ("another issuer's", lambda p: p.describe(issuer="https://evil.example", jwks_uri=f"{p.address}/keys")),
    ("no jwks_uri", lambda p: p.describe()),
    ("a number for it", lambda p: p.describe(jwks_uri=7)),
    ("plain HTTP", lambda p: p.describe(jwks_uri=p.address.replace("https", "http") + "/keys")),
    ("a file", lambda p: p.describe(jwks_uri="file:///etc/passwd")),
    ("a bad address", lambda p: p.describe(jwks_uri="https://[")),
    ("line ends", lambda p: p.describe(jwks_uri=f"{p.address}/keys\r\nX: y")),
    ("a redirection", lambda p: p.answer("/keys", b"", 302, Location=f"{p.address}/other")),
    ("no JSON", lambda p: p.answer("/keys", b"{")),
    ("deep JSON", lambda p: p.answer("/keys", b"[" * 100_000)),
    ("a list", lambda p: p.answer("/keys", b"[]")),
    ("no keys", lambda p: p.publish()),
    ("too long", lambda p: p.publish(public(key(), "one", more="x" * MAX_BYTES))),
    ("secrets alone", lambda p: p.publish({"kty": "oct", "k": "c2VjcmV0", "kid": "one"})),
]


@pytest.mark.parametrize(("name", "change"), WRONG)
def test_answers_that_are_not_used(
    provider: Provider, capsys: pytest.CaptureFixture[str], name: str, change: Callable[[Provider], None]
) -> None:
    change(provider)
    provider.answers["/other"] = provider.answers["/keys"]
    keys = keys_of(provider, least=0.05)
    keys.thread.start()
    try:
        wait(lambda: provider.asked.count(f"/realms/pool{DISCOVERY}") >= 2)
        assert keys.find("one", "RS256") is None
        assert keys.thread.is_alive()
        assert "/other" not in provider.asked
    finally:
        keys.thread.stop()


def test_an_issuer_without_a_certificate_of_the_authority_is_not_believed(
    provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    keys = IssuerKeys(provider.issuer, ("RS256",), None, 0.05)
    keys.thread.start()
    try:
        wait(lambda: [record.getMessage() for record in caplog.records].count("keys not read") >= 2)
        assert provider.asked == []
        assert keys.find("one", "RS256") is None
    finally:
        keys.thread.stop()
    with pytest.raises(SettingError, match="ca"):
        IssuerKeys(provider.issuer, ("RS256",), "/nowhere", 0.05)

"""The reasons that a client prints when a controller cannot be reached: the fault, and the remedy."""

from __future__ import annotations

import http.server
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from lark_common.client import Client, UnreachableError
from lark_common.endpoint import reason_of
from tests.fixtures.certificates import DAY, certificate


class _Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        pass


@contextmanager
def serving(shown: tuple[Path, Path] | None, clients: Path | None = None) -> Iterator[int]:
    """The port of a server with a certificate, or without TLS; it may ask for clients' certificates of ``clients``."""
    with _Server(("127.0.0.1", 0), _Answers) as server:
        if shown is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*shown)
            if clients is not None:
                context.load_verify_locations(clients)
                context.verify_mode = ssl.CERT_OPTIONAL
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def alert(reason: str) -> ssl.SSLError:
    made = ssl.SSLError(1, reason)
    made.reason = reason
    return made


def said(url: str, ca: Path | None = None, shown: tuple[Path, Path] | None = None) -> str:
    with pytest.raises(UnreachableError) as caught:
        Client(url, None, ca, 5.0, *(shown or ())).healthy()
    return str(caught.value)


@pytest.mark.parametrize(
    ("begins", "ends", "words", "to_do"),
    [
        (-2 * DAY, -DAY, "certificate has expired", "lark setup … --renew), and restart the controller"),
        (DAY, 2 * DAY, "not yet valid", "compare this machine's clock with the controller's"),
    ],
    ids=["expired", "not yet"],
)
def test_a_certificate_that_is_out_of_date(
    begins: timedelta, ends: timedelta, words: str, to_do: str, tmp_path: Path
) -> None:
    shown = certificate(tmp_path, "controller", begins, ends)
    with serving(shown) as port:
        reason = said(f"https://127.0.0.1:{port}", shown[0])
    assert words in reason
    assert to_do in reason


def test_a_certificate_of_an_authority_that_is_not_trusted(tmp_path: Path) -> None:
    shown, other = certificate(tmp_path, "controller"), certificate(tmp_path, "other")
    with serving(shown) as port:
        for ca in (None, other[0]):
            assert "ca.pem on the controller's host, by LARK_CA" in said(f"https://127.0.0.1:{port}", ca)


def test_a_certificate_of_another_name(tmp_path: Path) -> None:
    shown = certificate(tmp_path, "controller")
    with serving(shown) as port:
        reason = said(f"https://localhost:{port}", shown[0])
    assert "not valid for 'localhost'" in reason
    assert "take a name that its certificate has" in reason


def test_the_callers_own_certificate_has_expired(tmp_path: Path) -> None:
    shown, own = certificate(tmp_path, "controller"), certificate(tmp_path, "worker", -2 * DAY, -DAY)
    with serving(shown, own[0]) as port:
        reason = said(f"https://127.0.0.1:{port}", shown[0], own)
    # The server's words arrive, or the end of the connection before them.
    assert re.search(r"this machine's own certificate(, which has expired| still good)", reason)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (alert("SSLV3_ALERT_CERTIFICATE_EXPIRED"), "this machine's own certificate, which has expired; a worker joins"),
        (alert("TLSV1_ALERT_UNKNOWN_CA"), "does not trust the authority of this machine's own certificate"),
        (ssl.SSLEOFError(8, "EOF"), "Is this machine's own certificate still good"),
    ],
)
def test_words_of_a_server_that_refuses_the_callers_certificate(error: Exception, words: str) -> None:
    assert words in reason_of(error, True, True)


def test_tls_where_none_is_spoken_and_none_where_it_is(tmp_path: Path) -> None:
    with serving(None) as port:
        assert "is it http://… instead of https://…?" in said(f"https://127.0.0.1:{port}")
    with serving(certificate(tmp_path, "controller")) as port:
        assert said(f"http://127.0.0.1:{port}").endswith("Does it speak TLS (https://…)?")


def test_a_server_without_tls_that_ends_the_connection() -> None:
    assert "is it http://… instead of https://…?" in reason_of(ssl.SSLEOFError(8, "EOF occurred"), True)


def test_nothing_listens_or_answers() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        assert "Is the controller running (on its host: systemctl status lark-controller)?" in said(
            f"http://127.0.0.1:{port}"
        )
        listening.listen()
        with pytest.raises(UnreachableError, match="does a packet filter let this machine through"):
            Client(f"http://127.0.0.1:{port}", timeout=0.2).healthy()

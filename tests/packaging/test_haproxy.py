"""HAProxy with the settings that are shipped, before stand-ins of controllers."""

from __future__ import annotations

import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from lab.run import free_port
from tests.fixtures.controllers import until

SETTINGS = Path(__file__).parents[2] / "etc/haproxy/lark.cfg"


class StandIn(BaseHTTPRequestHandler):
    """A controller that lives; ``ready`` is the one of them that is active, None while the database is away."""

    protocol_version = "HTTP/1.1"
    ready: str | None = None

    def do_GET(self) -> None:
        name = str(self.server.server_port)  # type: ignore[attr-defined]  # it is an HTTPServer
        good = self.path == "/healthz" or StandIn.ready == name
        body = name.encode()
        self.send_response(200 if good else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Nothing is logged."""


@contextmanager
def stand_ins(count: int) -> Iterator[list[int]]:
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), StandIn) for _ in range(count)]
    for server in servers:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield [server.server_address[1] for server in servers]
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def asked(port: int) -> tuple[int, str] | None:
    """Status and body of an answer through the proxy; None where the connection ends without one."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/jobs", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return None


def test_callers_come_to_the_ready_one_and_hear_why_where_none_is(tmp_path: Path) -> None:
    with stand_ins(2) as (one, other):
        front = free_port()
        text = SETTINGS.read_text().replace("bind :8090", f"bind 127.0.0.1:{front}")
        for name, port in (("controller2", other), ("controller", one)):
            text = text.replace(f"{name}:8080", f"127.0.0.1:{port}")
        (tmp_path / "lark.cfg").write_text(text)
        StandIn.ready = str(other)
        proxy = subprocess.Popen(["haproxy", "-f", tmp_path / "lark.cfg"], stdout=subprocess.DEVNULL)
        try:
            until(lambda: asked(front) == (200, str(other)))
            StandIn.ready = None
            until(lambda: (found := asked(front)) is not None and found[0] == 503)
            # While no database is there, each request has an answer.
            end = time.monotonic() + 3
            answers = []
            while time.monotonic() < end:
                answers.append(asked(front))
                time.sleep(0.1)
            assert {each[0] for each in answers if each} == {503}
            assert None not in answers[-10:]
            StandIn.ready = str(one)
            until(lambda: asked(front) == (200, str(one)))
        finally:
            proxy.kill()
            proxy.wait()
            StandIn.ready = None

"""scripts/starter_hook.sh as HTCondor runs it, in three shells, and a server that answers it well or badly."""

from __future__ import annotations

import os
import shutil
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import classad2
import pytest

from lark_controller.jobs import RunKey

HOOK = Path(__file__).parents[1] / "scripts" / "starter_hook.sh"
TOKEN = "s3cret-Token.0123456789"
JOB_AD = (
    'GlobalJobId = "schedd.example#7.0#1700000000"\nJobCurrentStartDate = 1700000001\n'
    'Owner = "alice"\nCmd = "/bin/date"\n'
)
MACHINE_AD = 'Name = "slot1_2@worker1.example"\nMachine = "worker1.example"\nNetworkType = "ovs_bridge"\n'
ID = RunKey("schedd.example#7.0#1700000000", 1700000001, "slot1_2@worker1.example").id
OTHER_ID = "0123456789abcdef"
ACCEPTED = f'LarkJobId = "{ID}"\nLarkState = "enforced"\nLarkIPv4Address = "10.64.0.7"\nLarkLease = 600\n'
PROBLEM = (
    b'{"type": "about:blank", "title": "Conflict", "status": 409,\n'
    b' "detail": "IPv4Address: \\"10.64.0.7\\" is held by job f00\\\\ba"}'
)
SHELLS = {"dash": ["dash"], "bash": ["bash", "--posix"], "busybox": ["busybox", "sh"]}


@dataclass(frozen=True)
class Asked:
    """A request that the server got."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class StandIn:
    """A stand-in for the controller: gives the scripted answers in turn, the last one for ever."""

    answers: list[Callable[[Any], None]] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    command_lines: bytes = b""
    released: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    socket: str = ""

    def handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(length)
                outer.asked.append(Asked(self.command, self.path, dict(self.headers), body))
                outer.command_lines += all_command_lines()
                turn = min(len(outer.asked), len(outer.answers)) - 1
                outer.answers[turn](self)

            def do_POST(self) -> None:
                self.handle_any()

            def do_DELETE(self) -> None:
                self.handle_any()

            def address_string(self) -> str:
                return "peer"

            def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
                """Tests print nothing."""

        return Handler


def all_command_lines() -> bytes:
    lines = b""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines += (entry / "cmdline").read_bytes() + b"\n"
            except OSError:
                continue
    return lines


def reply(status: int, body: bytes | str = b"", content_type: str = "text/plain") -> Callable[[Any], None]:
    data = body.encode() if isinstance(body, str) else body

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", content_type)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return send


def raw(data: bytes) -> Callable[[Any], None]:
    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(data)
        handler.close_connection = True

    return send


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class QuietHTTPServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A hook that gives up closes its connection: nothing to say about that."""


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    yield from serve(StandIn())


def serve(stand_in: StandIn, context: ssl.SSLContext | None = None) -> Iterator[StandIn]:
    server = QuietHTTPServer(("127.0.0.1", 0), stand_in.handler())
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    scheme = "https" if context else "http"
    stand_in.url = f"{scheme}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield stand_in
    finally:
        stand_in.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass(frozen=True)
class Outcome:
    """What a hook left: the ClassAd on stdout, what it said on stderr."""

    ad: dict[str, object]
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Hook:
    """The hook at a worker: the shell, scratch directory, machine ad, token, and how to run it there."""

    shell: list[str]
    folder: Path

    def run(
        self,
        *args: str,
        url: str = "",
        stdin: bytes = JOB_AD.encode(),
        script: Path = HOOK,
        limit: float = 60,
        **given: str,
    ) -> Outcome:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "LARK_HOOK_CONF": str(self.folder / "absent.conf"),
            "LARK_URL": url,
            "LARK_TOKEN_FILE": str(self.folder / "token"),
            "LARK_RETRIES": "2",
            "LARK_TIMEOUT": "20",
            "_CONDOR_MACHINE_AD": str(self.folder / "machine.ad"),
            "_CONDOR_SCRATCH_DIR": str(self.folder / "scratch"),
            "_CONDOR_SLOT": "slot1_2",
            **given,
        }
        environment = {name: value for name, value in environment.items() if value != "-"}
        result = subprocess.run(
            [*self.shell, str(script), *args], input=stdin, capture_output=True, env=environment, timeout=limit
        )
        assert result.returncode == 0, result
        stdout = result.stdout.decode("utf-8")
        ad = dict(classad2.parseOne(stdout)) if stdout.strip() else {}
        assert len(ad) == len(stdout.splitlines())
        return Outcome(ad, stdout, result.stderr.decode("latin-1"))


@pytest.fixture(params=list(SHELLS))
def hook(request: pytest.FixtureRequest, tmp_path: Path) -> Hook:
    shell = SHELLS[request.param]
    assert shutil.which(shell[0]), f"{shell[0]} is not installed; scripts/setup.sh installs it"
    (tmp_path / "token").write_text(TOKEN + "\n")
    (tmp_path / "machine.ad").write_text(MACHINE_AD)
    (tmp_path / "scratch").mkdir()
    return Hook(shell, tmp_path)

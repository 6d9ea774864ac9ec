#!/usr/bin/python3
"""The program of the lab's jobs with which a test looks at the network from inside a job.

Answers on TCP and UDP port 5000 of the job's network (echo), and follows commands, as the job's user, through a
Unix socket in the user's home directory on the worker: ``~/agents/CLUSTER.PROC``. HTTP, one JSON document each way:

- ``{"run": "shell command", "seconds": 10}`` → ``{"status", "stdout", "stderr"}``
- ``{"reach": [["tcp", "10.64.0.3"], …], "seconds": 2}`` → ``{"reached": ["echo", "", …]}``, in the same order;
  protocols are ``ping``, ``tcp`` and ``udp`` (port 5000) and ``http`` (port 80), whose answer is shown as it is
- ``{"end": status}`` ends the job

``job_agent.py reach SECONDS PROTOCOL/ADDRESS…`` tries the same from wherever it is run, and prints the answers as JSON.

Standard library only: HTCondor transfers this one file.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.server
import json
import os
import pwd
import re
import socket
import socketserver
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PORT = 5000
QUESTION = b"lark?"
# A job that nobody ends does not stay for ever. Seconds.
LIFETIME = 1800


def ping(address: str, seconds: float) -> str:
    """``echo`` if one of three echo requests is answered."""
    command = ["ping", "-n", "-q", "-c", "3", "-i", "0.2", "-w", str(max(1, round(seconds))), address]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    answered = re.search(r", ([1-9]\d*) received", done.stdout)
    return "echo" if answered else ""


def call(kind: socket.SocketKind, address: str, seconds: float) -> str:
    """``echo`` if port 5000 sends back what it got; UDP asks three times."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    tries = 3 if kind is socket.SOCK_DGRAM else 1
    with socket.socket(family, kind) as sock:
        sock.settimeout(seconds / tries)
        for _ in range(tries):
            with contextlib.suppress(OSError):
                sock.connect((address, PORT))
                sock.sendall(QUESTION)
                if sock.recv(64) == QUESTION:
                    return "echo"
    return ""


def fetch(address: str, seconds: float) -> str:
    """The answer of the web server there."""
    host = f"[{address}]" if ":" in address else address
    try:
        with urllib.request.urlopen(f"http://{host}/", timeout=seconds) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def reach(protocol: str, address: str, seconds: float) -> str:
    """The answer from ``address``; nothing is the empty text."""
    if protocol == "ping":
        return ping(address, seconds)
    if protocol == "http":
        return fetch(address, seconds)
    return call(socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM, address, seconds)


def reach_all(targets: Sequence[Sequence[str]], seconds: float) -> list[str]:
    """:func:`reach` for every (protocol, address), at the same time."""
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        return list(threads.map(lambda one: reach(one[0], one[1], seconds), targets))


class Agent(http.server.BaseHTTPRequestHandler):
    """One request to the job."""

    def do_POST(self) -> None:
        """Carry out the document's command."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(self.work(asked, float(asked.get("seconds", 10))))
        if "end" in asked:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            Path(str(self.server.server_address)).unlink()
            os._exit(int(asked["end"]))

    def work(self, asked: dict[str, Any], seconds: float) -> dict[str, object]:
        """The answer."""
        if "run" in asked:
            try:
                done = subprocess.run(
                    ["sh", "-c", asked["run"]], capture_output=True, text=True, check=False, timeout=seconds,
                    stdin=subprocess.DEVNULL,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return {"status": 124, "stdout": "", "stderr": f"no end within {seconds:g} s"}
            return {"status": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
        return {"reached": reach_all(asked["reach"], seconds)} if "reach" in asked else {}

    def answer(self, document: dict[str, object]) -> None:
        """Send a JSON document."""
        data = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def address_string(self) -> str:
        """A caller through a Unix socket has no address."""
        return "-"


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """HTTP on a Unix socket."""

    daemon_threads = True


def echo_stream() -> None:
    """Send back what comes, over TCP, by either address family."""
    with socket.create_server(("::", PORT), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        while True:
            peer, _ = listener.accept()
            with peer, contextlib.suppress(OSError):
                peer.settimeout(5)
                peer.sendall(peer.recv(64))


def echo_datagrams() -> None:
    """Send every datagram back; a job has one address of a family, so the answer has the one that was asked."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(("::", PORT))
        while True:
            data, sender = sock.recvfrom(2048)
            with contextlib.suppress(OSError):
                sock.sendto(data, sender)


def name() -> str:
    """``CLUSTER.PROC`` by the job ad that HTCondor leaves in the scratch directory."""
    ad = Path(os.environ["_CONDOR_JOB_AD"]).read_text()
    numbers = dict(re.findall(r"^(ClusterId|ProcId) = (\d+)$", ad, re.MULTILINE))
    return f"{numbers['ClusterId']}.{numbers['ProcId']}"


def main() -> int:
    """Run as a program."""
    if sys.argv[1:2] == ["reach"]:
        print(json.dumps(reach_all([target.split("/", 1) for target in sys.argv[3:]], float(sys.argv[2]))))
        return 0
    for serve in (echo_stream, echo_datagrams):
        threading.Thread(target=serve, daemon=True).start()
    folder = Path(pwd.getpwuid(os.getuid()).pw_dir, "agents")
    folder.mkdir(exist_ok=True)
    path = folder / name()
    path.unlink(missing_ok=True)
    with Server(str(path), Agent) as server:
        threading.Timer(LIFETIME, os._exit, [0]).start()
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())

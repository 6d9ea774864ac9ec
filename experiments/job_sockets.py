"""Sockets of jobs as a worker service has them, for programs that use ``lark_mpi`` on the cluster's nodes.

The nodes have no HTCondor, by whose processes the worker service finds the job that asks. So each job has a socket of
its own here, whose requests are passed on to the controller. One communicator asks for each flow, so a share is the
whole reservation. Inside the lab; standard library only.
"""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ANSWER_SECONDS = 90


@dataclass(frozen=True, slots=True)
class Job:
    """A registered job: its id, its host's name at the controller, and its address."""

    id: str
    host: str
    address: str


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64


@contextlib.contextmanager
def job_socket(path: Path, job: Job, url: str, token: str) -> Iterator[None]:
    """Serve a job's socket during the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            status, document = self._answered(data)
            text = json.dumps(document).encode()
            self.close_connection = True
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815  # http.server's names

        def log_message(self, *args: Any) -> None:
            pass

        def _answered(self, data: bytes) -> tuple[int, dict[str, Any]]:
            parts = urlsplit(self.path)
            if parts.path == "/v1/job":
                addresses = [job.address]
                return 200, {"id": job.id, "host": job.host, "network_type": "ovs_bridge", "addresses": addresses}
            if parts.path == "/v1/paths":
                return self._paths(f"/v1/hosts/{job.host}/paths", parts.query)
            wish = json.loads(data or b"{}")
            wish.pop("share", None)
            if self.command == "POST":
                wish["source"] = job.id
            return _passed(url, token, self.command, self.path, json.dumps(wish).encode() if wish else b"")

        def _paths(self, path: str, query: str) -> tuple[int, dict[str, Any]]:
            status, document = _passed(url, token, "GET", f"{path}?{query}", b"")
            if status == 200 and document["paths"] is None:
                # The controller leaves out what has not changed, and a worker service does not.
                status, document = _passed(url, token, "GET", path, b"")
            if status == 200:
                document["paths"] = [each for each in document["paths"] if each["job"] == job.id]
            return status, document

    path.unlink(missing_ok=True)
    with _Server(str(path), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


def _passed(url: str, token: str, method: str, path: str, data: bytes) -> tuple[int, dict[str, Any]]:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    asked = urllib.request.Request(url + path, data or None, headers, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=ANSWER_SECONDS) as answer:
            return answer.status, json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"{}")

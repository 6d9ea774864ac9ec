"""Requests at the worker's socket, from a job: answered, and never by an error of the service's own."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any, Final, cast

from lark_common.classads.ads import parse_post
from lark_common.limits import Places, WaitedPlaces
from lark_worker.errors import CallerError
from lark_worker.hook_socket import _Handler
from lark_worker.identity.processes import Peer, Process, Programs, read_process

MAX_BYTES: Final = 8192
DICTIONARY: Final = tuple(
    word.encode()
    for word in (
        "POST /v1/jobs", "POST /v1/usage", "POST /v1/reservations", "PATCH /v1/reservations/", "DELETE /v1/jobs/",
        "GET /v1/links", "GET /v1/job", "GET /v1/namespace", "GET /v1/status", "/renew", "?wait=", " HTTP/1.1\r\n",
        "Content-Length: ", "Transfer-Encoding: chunked", "Expect: 100-continue", "\r\n\r\n", "\n------\n", "Owner = ",
        "nan", "inf", "-1", "0123456789abcdef", "%00", "//", "\r\n ",
    )
)  # fmt: skip
logging.disable(logging.CRITICAL)
_ME: Final = read_process(os.getpid())


class _Worker:
    """A worker that takes everything that can be read."""

    def __getattr__(self, _name: str) -> Any:
        return self

    def register(self, _caller: Process, body: bytes, wait: float) -> str:
        assert 0 <= wait <= 600
        job, _ = parse_post(body, "text/plain")
        return job.owner

    def renew(self, _caller: Process, job: str) -> str:
        raise CallerError(f"no such job: {job}")

    def end(self, _caller: Process, job: str, text: str) -> str:
        return job + text

    def usage(self, _caller: Process) -> str:
        return ""

    def own(self, _caller: Process) -> Any:
        raise CallerError("no job")

    def namespace(self, _caller: Process) -> Any:
        raise CallerError("no job")

    def records(self) -> tuple[()]:
        return ()

    def problems(self) -> list[str]:
        return []


class _Server:
    worker = _Worker()
    programs = Programs(frozenset(), frozenset())
    places = Places(8)
    looking = WaitedPlaces(1)

    def log_refusal(self, _peer: Peer, _reason: CallerError) -> None:
        """Nothing is logged."""

    def log_failure(self, _peer: Peer, _message: str, _error: Exception, _path: str) -> None:
        """Nothing is logged."""

    class rates:  # noqa: N801  # stands for an attribute
        """Takes everybody."""

        @staticmethod
        def take(_caller: int) -> float:
            return 0.0


class _Job(_Handler):
    """A request of a job."""

    def _starter(self, _peer: Peer) -> Process:
        return _ME


def run(data: bytes) -> None:
    """Send ``data`` and hang up; the answer is whole, or there is none."""
    here, there = socket.socketpair()
    with here, there:
        there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
        there.sendall(data)
        there.shutdown(socket.SHUT_WR)
        _Job(here, "", cast(Any, _Server()))
        here.shutdown(socket.SHUT_WR)
        answer = b""
        while part := there.recv(1 << 16):
            answer += part
    if not answer:
        return
    head, blank, _ = answer.partition(b"\r\n\r\n")
    words = head.split(b"\r\n")[0].split()
    # Of HTTP/0.9 the answer is the body alone.
    assert not answer.startswith(b"HTTP/") or (blank and words[1].isdigit())
    assert b" 500 " not in head.split(b"\r\n")[0], answer

"""Requests to the worker service over its Unix socket, which identifies a caller's job by the kernel."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from typing import Any, Final, TypeGuard

from lark_mpi.errors import AwayError, ReservationError

SOCKET: Final = "/run/lark-worker/worker.sock"
# Seconds to wait for room in the service's queue and for an answer. A further try has no more time than what is left of
# the patience, but so many seconds.
SECONDS: Final = 20.0
SHORTEST_TRY: Final = 1.0
# Seconds to ask again where the service is starting, or turns a job away that asks too often; between two requests
# first so many, then twice as many each time, and no more than the last figure: of a job hundreds of ranks may ask.
PATIENCE: Final = 30.0
PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 4.0
# Bytes of an answer. The links of a large pool are some megabytes.
MAX_ANSWER: Final = 16 << 20
# Letters of a reason, which goes to a terminal or a log, and to every rank.
MAX_REASON: Final = 512
# Numbers of answers are less.
_LARGEST: Final = 1e300
BUSY: Final = 429
AWAY: Final = 503
AGAIN: Final = (BUSY, AWAY)

Answer = tuple[int, dict[str, Any]]

# The sockets at which this process was answered. A service that starts anew has none for a moment.
_answered: Final[set[str]] = set()


def path() -> str:
    """The path of the worker service's socket: LARK_SOCKET, else the usual one."""
    return os.environ.get("LARK_SOCKET") or SOCKET


def ask(
    method: str,
    target: str,
    body: object = None,
    wait: float = 0.0,
    patience: float = PATIENCE,
    seconds: float = SECONDS,
) -> Answer:
    """Status and document of a request; one that the service has no time for is repeated for ``patience`` seconds.

    The answer may take ``seconds``, and ``wait`` on top, for which the service itself waits. Raises AwayError where
    none comes, ReservationError where no service was ever there.
    """
    deadline, pause, left = time.monotonic() + patience, PAUSE, seconds
    while True:
        try:
            status, document = _once(method, target, body, left + wait)
            problem = None
            _answered.add(path())
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            if missing and path() not in _answered:
                raise ReservationError(f"{path()}: no worker service of Lark is here") from None
            status, document = 0, {}
            problem = f"{path()} is not there" if missing else error.strerror or str(error)
        if problem is None and status not in AGAIN:
            return status, document
        if time.monotonic() + pause > deadline:
            if problem is None:
                return status, document
            raise AwayError(f"the worker service cannot be asked: {problem}")
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
        left = min(max(deadline - time.monotonic(), SHORTEST_TRY), seconds)


def reason(answer: Answer) -> str:
    """The sentence of a problem."""
    status, document = answer
    return printable(document.get("detail")) or f"the worker service answered {status}"


def number(value: object) -> float | None:
    """A number of an answer; whole ones of hundreds of digits are none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        return None
    return float(value)


def printable(text: object) -> str:
    """A text of an answer as a line for a terminal; "" for anything else."""
    if not isinstance(text, str):
        return ""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:MAX_REASON])


def is_id(value: object) -> TypeGuard[str]:
    """True for an id: ids become parts of requests, so letters and digits alone."""
    return isinstance(value, str) and value.isascii() and value.isalnum()


def _once(method: str, target: str, body: object, seconds: float) -> Answer:
    """One request. Raises OSError, also for an answer that is none."""
    data = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    found, deadline = bytearray(), time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX) as service:
        # Somebody may have filled the service's queue. The kernel waits for room there, but not for a socket with
        # Python's own timeout.
        service.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(min(seconds, SECONDS)))
        service.connect(path())
        # 0 would be no waiting at all.
        service.settimeout(max(deadline - time.monotonic(), 0.001))
        service.sendall(head.encode() + data)
        while part := service.recv(1 << 16):
            found += part
            left = deadline - time.monotonic()
            if len(found) > MAX_ANSWER or left <= 0:
                raise OSError("its answer is too long")
            service.settimeout(left)
    return _read(bytes(found))


def _timeval(seconds: float) -> bytes:
    return struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))


def _read(answer: bytes) -> Answer:
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(b"\r\n")[0].split(b" ")
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not (len(words[1]) == 3 and words[1].isdigit()):
        raise OSError("it gave no answer")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise OSError("its answer is no JSON") from None
    if not isinstance(document, dict):
        raise OSError("its answer is no JSON object")
    return int(words[1]), document

"""The two ends of measured connections, ``python -m experiments.ends serve PORT… | ACTION …``.

The server answers by a connection's first byte: ``S`` takes what comes, ``G`` and a size sends as much, ``E`` echoes.
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

# The port that is open at external addresses, and one for jobs' own: what leaves from an open port is translated.
OPEN, OWN = 5001, 5002
_CHUNK: Final = bytes(1 << 18)
_PAGE: Final = 1 << 16
_PATIENCE: Final = 10.0


def serve(ports: list[int]) -> None:
    """Serve every address of this host at two ports until the program is ended."""
    servers = [socket.create_server(("", port), backlog=1024) for port in ports]
    print("ready", flush=True)
    threading.Thread(target=_accept, args=(servers[0],), daemon=True).start()
    _accept(servers[1])


def _accept(server: socket.socket) -> None:
    while True:
        threading.Thread(target=_attend, args=(server.accept()[0],), daemon=True).start()


def _attend(called: socket.socket) -> None:
    with called, suppress(OSError):
        kind = called.recv(1)
        if kind == b"S":
            while called.recv(1 << 18):
                pass
        elif kind == b"G":
            size = int.from_bytes(called.recv(8))
            while size > 0:
                size -= called.send(_CHUNK[:size])
        elif kind == b"E":
            called.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while got := called.recv(64):
                called.send(got)


def _connected(address: str, greeting: bytes) -> socket.socket:
    host, _, port = address.partition(":")
    made = socket.create_connection((host, int(port)), _PATIENCE)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.sendall(greeting)
    return made


def _together(addresses: list[str], seconds: float, work: Callable[[str, float], int]) -> float:
    """The sum of what ``work`` does a second at each address, all on threads of their own until the same time."""
    began = time.monotonic()
    done = [0] * len(addresses)

    def one(place: int, address: str) -> None:
        done[place] = work(address, began + seconds)

    threads = [threading.Thread(target=one, args=each) for each in enumerate(addresses)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.monotonic() - began)


def _send(address: str, end: float) -> int:
    with _connected(address, b"S") as made:
        return _until(end, made, lambda: made.send(_CHUNK))


def _receive(address: str, end: float) -> int:
    with _connected(address, b"G" + (1 << 50).to_bytes(8)) as made:
        return _until(end, made, lambda: len(made.recv(1 << 18)))


def _until(end: float, made: socket.socket, step: Callable[[], int]) -> int:
    """The bytes of all steps until the end: of many streams some stand still then, and have what they had."""
    count = 0
    with suppress(TimeoutError):
        while (rest := end - time.monotonic()) > 0:
            made.settimeout(rest)
            count += step()
    return count


def _pages(address: str, end: float) -> int:
    """The pages of 64 KiB that are fetched, a connection for each."""
    count = 0
    while time.monotonic() < end:
        with _connected(address, b"G" + _PAGE.to_bytes(8)) as made:
            left = _PAGE
            while left and (got := made.recv(left)):
                left -= len(got)
            count += not left
    return count


def _round_trip(address: str, seconds: float) -> float:
    """The median round trip of a byte on an open connection, in microseconds."""
    found, end = [], time.monotonic() + seconds
    with _connected(address, b"E") as made:
        while (began := time.monotonic()) < end:
            made.send(b"x")
            made.recv(1)
            found.append(time.monotonic() - began)
    return statistics.median(found) * 1e6


def main() -> None:
    """Serve, or measure: ``ACTION SECONDS ADDRESS:PORT…`` prints a number (bit/s, pages/s or microseconds)."""
    if sys.argv[1] == "serve":
        serve([int(port) for port in sys.argv[2:]])
    action, seconds, addresses = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    if action == "rtt":
        print(json.dumps(_round_trip(addresses[0], seconds)))
        return
    work = {"in": _send, "out": _receive, "web": _pages}[action]
    print(json.dumps(_together(addresses, seconds, work) * (1 if action == "web" else 8)))


if __name__ == "__main__":
    main()

"""Asks or answers over TCP or UDP: ``probe.py tcp|udp ask|answer ADDRESS PORT SECONDS``. Standard library only.

``answer`` prints ``ready`` when it listens, and sends back what it gets. ``ask`` prints ``answered`` or ``silent``.
"""

from __future__ import annotations

import socket
import sys

QUESTION = b"lark?"


def ask(kind: socket.SocketKind, address: str, port: int, seconds: float) -> str:
    """``answered`` if the question comes back within ``seconds``, else ``silent``; UDP asks three times."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, kind) as sock:
        tries = 3 if kind is socket.SOCK_DGRAM else 1
        sock.settimeout(seconds / tries)
        for _ in range(tries):
            try:
                sock.connect((address, port))
                sock.sendall(QUESTION)
                if sock.recv(64) == QUESTION:
                    return "answered"
            except OSError:
                continue
    return "silent"


def answer(kind: socket.SocketKind, address: str, port: int, seconds: float) -> None:
    """Send back what comes, until ``seconds`` pass without a question."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, kind) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.settimeout(seconds)
        if kind is socket.SOCK_STREAM:
            sock.listen()
        print("ready", flush=True)
        while True:
            if kind is socket.SOCK_STREAM:
                peer, _ = sock.accept()
                with peer:
                    peer.settimeout(seconds)
                    peer.sendall(peer.recv(64))
            else:
                data, sender = sock.recvfrom(64)
                sock.sendto(data, sender)


def main() -> int:
    """Run as a program."""
    protocol, role, address, port, seconds = sys.argv[1:]
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    if role == "ask":
        print(ask(kind, address, int(port), float(seconds)))
    else:
        answer(kind, address, int(port), float(seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())

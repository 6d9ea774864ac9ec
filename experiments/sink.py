"""A web server in the WAN that takes what jobs' outputs are uploaded to, and keeps nothing: ``python3 -m
experiments.sink PORT…``. Standard library only, since it runs inside the lab."""

from __future__ import annotations

import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

PIECE: Final = 1 << 16


class Taker(BaseHTTPRequestHandler):
    """Takes the body of each PUT."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        """Read the body to its end."""
        left = int(self.headers.get("Content-Length", 0))
        while left and (data := self.rfile.read(min(left, PIECE))):
            left -= len(data)
        self.send_response(500 if left else 201)
        self.send_header("Content-Length", "0")
        self.end_headers()


class Server(ThreadingHTTPServer):
    """One port's server, for both families."""

    address_family = socket.AF_INET6
    daemon_threads = True
    request_queue_size = 128


def main() -> int:
    """Run as a program."""
    servers = [Server(("", int(port)), Taker) for port in sys.argv[1:]]
    threads = [threading.Thread(target=each.serve_forever) for each in servers]
    for thread in threads:
        thread.start()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The servers of a host in the WAN: HTTP on port 80 answers with the client's address and its gateway, UDP on port 7
with the datagram.

The kernel marks what came in by the fast way (see ``lab.inside.services``), and a connection keeps its first packet's
mark. Standard library only.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAST_MARK = 100
ECHO_PORT = 7


class Answer(BaseHTTPRequestHandler):
    """``{"server", "client", "port", "through"}``; ``through`` is ``wan`` or ``wan-fast``, the core's ports."""

    def do_GET(self) -> None:
        """Answer any path."""
        mark = self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_MARK)
        client = str(self.client_address[0]).removeprefix("::ffff:")
        body = {
            "server": socket.gethostname().split(".")[0],
            "client": client,
            "port": self.client_address[1],
            "through": "wan-fast" if mark == FAST_MARK else "wan",
        }
        data = json.dumps(body).encode() + b"\n"
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    """IPv4 and IPv6 on one socket."""

    address_family = socket.AF_INET6
    request_queue_size = 128


def echo() -> None:
    """Send every datagram back, from the address that was asked."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        sock.bind(("::", ECHO_PORT))
        while True:
            data, ancillary, _, sender = sock.recvmsg(65536, 1024)
            sock.sendmsg([data], ancillary, 0, sender)


def main() -> int:
    """Run as a program."""
    threading.Thread(target=echo, daemon=True).start()
    Server(("::", 80), Answer).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())

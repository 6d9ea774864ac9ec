"""The pages for the machine's own browser: the controller runs in a network namespace, where no browser is.

A listening socket belongs to the namespace that it was made in, whoever holds it later. It is made before the demo goes
inside; what connects to it is passed on to the controller there.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import Final

PORT: Final = 8080
DESCRIPTOR: Final = "_DEMO_PAGES"
_PIECE: Final = 65536


def listen() -> None:
    """Listen on the loopback interface, on port 8080 or, where that is taken, on any.

    The socket stays open for what this process becomes.
    """
    try:
        listener = socket.create_server(("127.0.0.1", PORT))
    except OSError:
        listener = socket.create_server(("127.0.0.1", 0))
    os.environ[DESCRIPTOR] = str(listener.fileno())
    listener.set_inheritable(True)
    listener.detach()


class Relay:
    """Passes connections on from the socket that :func:`listen` has left, on threads of its own, until :meth:`stop`."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.socket(fileno=int(os.environ.pop(DESCRIPTOR)))
        self._listener.set_inheritable(False)
        name, number = self._listener.getsockname()[:2]
        self.url = f"http://{name}:{number}/"
        threading.Thread(target=self._serve, daemon=True).start()

    def stop(self) -> None:
        """Take no more connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target, 5.0)
        except OSError:
            # The story kills the controller; a browser tries again.
            client.close()
            return
        server.settimeout(None)
        back = threading.Thread(target=_copy, args=(server, client), daemon=True)
        back.start()
        _copy(client, server)
        back.join()
        client.close()
        server.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(_PIECE):
            target.sendall(piece)
    for end, how in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with contextlib.suppress(OSError):
            end.shutdown(how)

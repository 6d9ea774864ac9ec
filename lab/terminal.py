"""The operator's side of the lab: a shell in it on this terminal, and its controller's page on a local port."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import sys
import termios
import threading
import tty
from collections.abc import Sequence

from lab.boot import Lab, Stream
from lab.channel import Kind
from lab.run import LabError

CHUNK = 32768
BACKLOG = 16


class TerminalStream(Stream):
    """A stream whose output goes to this terminal as it comes."""

    def __init__(self) -> None:
        super().__init__()
        self._wake, self.woken = os.pipe()[::-1]

    def receive(self, kind: Kind, payload: bytes) -> None:
        """Take one frame."""
        if kind in (Kind.OUTPUT, Kind.ERROR):
            sys.stdout.buffer.write(payload)
            sys.stdout.buffer.flush()
            return
        super().receive(kind, payload)
        os.write(self._wake, b".")


class SocketStream(Stream):
    """A stream whose output goes to a connection as it comes."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._connection = connection

    def receive(self, kind: Kind, payload: bytes) -> None:
        """Take one frame."""
        if kind is Kind.OUTPUT:
            with contextlib.suppress(OSError):
                self._connection.sendall(payload)
            return
        super().receive(kind, payload)
        if kind is Kind.EXIT:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)


def shell(lab: Lab, command: Sequence[str]) -> int:
    """Run ``command`` in the lab on this terminal; its exit status. Raises LabError if it cannot be started."""
    size = shutil.get_terminal_size()
    stream = TerminalStream()
    terminal = {"rows": size.lines, "columns": size.columns}
    request = {"argv": list(command), "env": {"TERM": os.environ.get("TERM", "dumb")}, "terminal": terminal}
    number = lab.open(stream, Kind.EXEC, request)
    keyboard = sys.stdin.fileno()
    is_terminal = os.isatty(keyboard)
    before = termios.tcgetattr(keyboard) if is_terminal else None

    def resize(*_: object) -> None:
        now = shutil.get_terminal_size()
        lab.resize(number, now.lines, now.columns)

    previous = signal.signal(signal.SIGWINCH, resize)
    try:
        if is_terminal:
            tty.setraw(keyboard)
        with selectors.SelectSelector() as selector:
            selector.register(keyboard, selectors.EVENT_READ)
            selector.register(stream.woken, selectors.EVENT_READ)
            while not stream.ended.is_set():
                for key, _ in selector.select():
                    if key.fd == keyboard:
                        data = os.read(keyboard, CHUNK)
                        # The end of a file that is no terminal: the shell there sees it as Ctrl-D.
                        lab.give(number, data or b"\x04")
                        if not data:
                            selector.unregister(keyboard)
    finally:
        signal.signal(signal.SIGWINCH, previous)
        if before is not None:
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
    if "error" in stream.result:
        raise LabError(f"{command[0]}: {stream.result['error']}")
    return int(str(stream.result["status"]))


class Forward:
    """Leads connections to a local port to an address in the lab, until closed. ``port`` is the local one."""

    def __init__(self, lab: Lab, address: str, port: int, local: int = 0) -> None:
        self._lab = lab
        self._target = {"address": address, "port": port}
        try:
            self._listener = socket.create_server(("127.0.0.1", local), backlog=BACKLOG)
        except OSError as error:
            raise LabError(f"127.0.0.1:{local}: {error.strerror}") from error
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._lead, args=(connection,), daemon=True).start()

    def _lead(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, LabError):
            stream = SocketStream(connection)
            number = self._lab.open(stream, Kind.CONNECT, self._target)
            while data := connection.recv(CHUNK):
                self._lab.give(number, data)
            self._lab.give(number, b"", end=True)
            stream.ended.wait()

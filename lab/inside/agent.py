"""Serves the lab's outside over the byte stream: runs programs, with or without a terminal, and opens TCP connections.

Run by the lab's first process as ``python3 -m lab.inside.agent STREAM``; STREAM is a serial line's path or
``fd:NUMBER``. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import tty
from collections.abc import Callable
from typing import Any

from lab.channel import Channel, Kind

CHUNK = 32768
CONNECT_TIMEOUT = 10


def open_stream(name: str) -> int:
    """The file descriptor of STREAM, ready for bytes of any value."""
    if name.startswith("fd:"):
        return int(name.removeprefix("fd:"))
    fd = os.open(name, os.O_RDWR | os.O_NOCTTY)
    tty.setraw(fd)
    return fd


class Agent:
    """The streams that are open, each a program or a connection."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._inputs: dict[int, Callable[[bytes], None]] = {}
        self._kills: dict[int, Callable[[], None]] = {}
        self._terminals: dict[int, int] = {}

    def handle(self, stream: int, kind: Kind, payload: bytes) -> None:
        """Do what one frame from outside asks for. A stream may end at any time, and another thread then forgets it."""
        match kind:
            case Kind.EXEC:
                self._start(stream, self._execute, json.loads(payload))
            case Kind.CONNECT:
                self._start(stream, self._connect, json.loads(payload))
            case Kind.INPUT:
                if (give := self._inputs.get(stream)) is not None:
                    with contextlib.suppress(OSError, ValueError):
                        give(payload)
            case Kind.RESIZE:
                if (terminal := self._terminals.get(stream)) is not None:
                    size = json.loads(payload)
                    with contextlib.suppress(OSError):
                        resize(terminal, size["rows"], size["columns"])
            case Kind.KILL:
                if (kill := self._kills.get(stream)) is not None:
                    with contextlib.suppress(OSError):
                        kill()
            case Kind.POWEROFF:
                os._exit(0)

    def _start(self, stream: int, work: Callable[[int, dict[str, Any]], int], request: dict[str, Any]) -> None:
        """Let ``work`` make the stream, here, so that frames that follow find it; what it then does has its own
        threads.
        """
        try:
            work(stream, request)
        except OSError as error:
            self._end(stream, {"error": str(error)})

    def _end(self, stream: int, result: dict[str, object]) -> None:
        self._inputs.pop(stream, None)
        self._kills.pop(stream, None)
        self._terminals.pop(stream, None)
        self._channel.send(stream, Kind.EXIT, json.dumps(result).encode())

    def _execute(self, stream: int, request: dict[str, Any]) -> int:
        """``{"argv": […], "env": {…}, "terminal": {"rows", "columns"} or absent}``."""
        env = {**os.environ, **request.get("env", {})}
        size = request.get("terminal")
        if size:
            master, slave = pty.openpty()
            resize(master, size["rows"], size["columns"])
            # setsid makes the terminal the shell's own, so that job control works.
            process = subprocess.Popen(
                ["setsid", "--ctty", "--wait", *request["argv"]], stdin=slave, stdout=slave, stderr=slave, env=env
            )
            os.close(slave)
            self._terminals[stream] = master
            self._inputs[stream] = lambda data: write_all(master, data)
            readers = [self._reader(stream, Kind.OUTPUT, lambda: os.read(master, CHUNK))]
        else:
            process = subprocess.Popen(
                request["argv"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env,
                start_new_session=True, bufsize=0,
            )  # fmt: skip
            out, err, into = process.stdout, process.stderr, process.stdin
            assert out is not None
            assert err is not None
            assert into is not None
            self._inputs[stream] = lambda data: write_all(into.fileno(), data) if data else into.close()
            readers = [
                self._reader(stream, Kind.OUTPUT, lambda: os.read(out.fileno(), CHUNK)),
                self._reader(stream, Kind.ERROR, lambda: os.read(err.fileno(), CHUNK)),
            ]
        self._kills[stream] = lambda: os.killpg(process.pid, signal.SIGKILL)

        def finish() -> None:
            status = process.wait()
            for reader in readers:
                # A daemon that the program left may hold its output for ever.
                reader.join(timeout=1)
            self._end(stream, {"status": status})

        threading.Thread(target=finish, daemon=True).start()
        return process.pid

    def _connect(self, stream: int, request: dict[str, Any]) -> int:
        """``{"address", "port"}``."""
        sock = socket.create_connection((request["address"], request["port"]), timeout=CONNECT_TIMEOUT)
        sock.settimeout(None)
        self._inputs[stream] = lambda data: sock.sendall(data) if data else sock.shutdown(socket.SHUT_WR)
        self._kills[stream] = lambda: sock.shutdown(socket.SHUT_RDWR)
        reader = self._reader(stream, Kind.OUTPUT, lambda: sock.recv(CHUNK))

        def finish() -> None:
            reader.join()
            sock.close()
            self._end(stream, {"status": 0})

        threading.Thread(target=finish, daemon=True).start()
        return sock.fileno()

    def _reader(self, stream: int, kind: Kind, read: Callable[[], bytes]) -> threading.Thread:
        def copy() -> None:
            with contextlib.suppress(OSError):
                while data := read():
                    self._channel.send(stream, kind, data)

        thread = threading.Thread(target=copy, daemon=True)
        thread.start()
        return thread


def resize(fd: int, rows: int, columns: int) -> None:
    """Set a terminal's size."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def main() -> int:
    """Run as a program."""
    channel = Channel(open_stream(sys.argv[1]), gives_credit=True)
    channel.send(0, Kind.READY)
    channel.serve(Agent(channel).handle)
    return 0


if __name__ == "__main__":
    sys.exit(main())

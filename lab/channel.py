"""One byte stream between the lab and its outside, carrying many streams of frames.

A frame is a stream's number (4 bytes), a kind (1 byte) and a length (4 bytes), all big-endian, then the payload. Both
ends use this module. The stream is a serial line (User Mode Linux) or a socket pair (native); neither loses or
reorders bytes.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
from collections.abc import Callable
from enum import IntEnum

HEADER = struct.Struct(">IBI")
CREDIT = struct.Struct(">I")
PAYLOAD_LIMIT = 1 << 16
WINDOW = 2048


class Kind(IntEnum):
    """The kinds of frames."""

    READY = 1  # inside → outside: the agent serves
    EXEC = 2  # outside → inside: JSON, see lab.inside.agent
    CONNECT = 3  # outside → inside: JSON {"address", "port"}: a TCP connection
    INPUT = 4  # outside → inside: bytes for standard input or the connection; empty: end of file
    OUTPUT = 5  # inside → outside: standard output, the terminal, or the connection; empty: end of file
    ERROR = 6  # inside → outside: standard error
    RESIZE = 7  # outside → inside: JSON {"rows", "columns"}
    KILL = 8  # outside → inside: end the stream's process group
    EXIT = 9  # inside → outside: JSON {"status"} or {"error"}; the stream is over
    POWEROFF = 10  # outside → inside
    CREDIT = 11  # inside → outside: so many bytes (4, big-endian) were taken from the byte stream


Handler = Callable[[int, Kind, bytes], None]


class Decoder:
    """Turns bytes, however they are cut, into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, Kind, bytes]]:
        """Frames that are complete with ``data``. Raises ValueError for what no end sends: the stream is lost then."""
        self._buffer += data
        frames: list[tuple[int, Kind, bytes]] = []
        while len(self._buffer) >= HEADER.size:
            stream, kind, length = HEADER.unpack_from(self._buffer)
            if length > PAYLOAD_LIMIT:
                raise ValueError(f"frame of {length} bytes; at most {PAYLOAD_LIMIT} are sent")
            end = HEADER.size + length
            if len(self._buffer) < end:
                break
            frames.append((stream, Kind(kind), bytes(self._buffer[HEADER.size : end])))
            del self._buffer[:end]
        return frames


def encode(stream: int, kind: Kind, payload: bytes = b"") -> bytes:
    """One frame. Raises ValueError if ``payload`` is longer than PAYLOAD_LIMIT."""
    if len(payload) > PAYLOAD_LIMIT:
        raise ValueError(f"payload of {len(payload)} bytes; at most {PAYLOAD_LIMIT}")
    return HEADER.pack(stream, kind, len(payload)) + payload


class Channel:
    """One end of the byte stream on file descriptor ``fd``; ``send`` may be called from any thread.

    The outside has a ``window``: the bytes on their way that the other end has not yet taken. The inside
    ``gives_credit``. The serial line of User Mode Linux stops for good when its reader is slow and its buffer, 4096
    bytes, fills up.
    """

    def __init__(self, fd: int, *, window: int = 0, gives_credit: bool = False) -> None:
        self._fd = fd
        self._sending = threading.Lock()
        self._window = window
        self._gives_credit = gives_credit
        self._under_way = 0
        self._open = True
        self._change = threading.Condition()

    def send(self, stream: int, kind: Kind, payload: bytes = b"") -> None:
        """Write one frame whole. Raises OSError when the other end is gone."""
        view = memoryview(encode(stream, kind, payload))
        with self._sending:
            while view:
                written = os.write(self._fd, view[: self._room()])
                with self._change:
                    self._under_way += written
                view = view[written:]

    def _room(self) -> int | None:
        """The number of bytes that may be written now; None for any number."""
        if not self._window:
            return None
        with self._change:
            while self._open and self._under_way >= self._window:
                self._change.wait()
            if not self._open:
                raise BrokenPipeError(errno.EPIPE, "the other end is gone")
            return self._window - self._under_way

    def serve(self, handler: Handler) -> None:
        """Give every frame to ``handler`` until the other end is gone."""
        decoder = Decoder()
        try:
            while data := os.read(self._fd, PAYLOAD_LIMIT):
                if self._gives_credit:
                    self.send(0, Kind.CREDIT, CREDIT.pack(len(data)))
                for stream, kind, payload in decoder.feed(data):
                    if kind is Kind.CREDIT:
                        self._take_credit(CREDIT.unpack(payload)[0])
                    else:
                        handler(stream, kind, payload)
        except OSError:
            return
        finally:
            with self._change:
                self._open = False
                self._change.notify_all()

    def _take_credit(self, size: int) -> None:
        with self._change:
            self._under_way -= size
            self._change.notify_all()

"""One byte stream between the lab and its outside, carrying many streams of frames.

A frame is a stream's number (4 bytes), a kind (1 byte) and a length (4 bytes), all big-endian, then the payload. Both
ends use this module. The stream is a serial line (User Mode Linux) or a socket pair (native); neither loses or
reorders bytes.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable
from enum import IntEnum

HEADER = struct.Struct(">IBI")
PAYLOAD_LIMIT = 1 << 16


class Kind(IntEnum):
    """What a frame says."""

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
    """One end of the byte stream on file descriptor ``fd``; ``send`` may be called from any thread."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def send(self, stream: int, kind: Kind, payload: bytes = b"") -> None:
        """Write one frame whole. Raises OSError when the other end is gone."""
        view = memoryview(encode(stream, kind, payload))
        with self._lock:
            while view:
                view = view[os.write(self._fd, view) :]

    def serve(self, handler: Handler) -> None:
        """Give every frame to ``handler`` until the other end is gone."""
        decoder = Decoder()
        while True:
            try:
                data = os.read(self._fd, PAYLOAD_LIMIT)
            except OSError:
                return
            if not data:
                return
            for stream, kind, payload in decoder.feed(data):
                handler(stream, kind, payload)

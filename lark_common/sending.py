"""System calls to send and to receive without letting the interpreter's lock go.

``socket.send`` lets it go and takes it again, which takes as long as others calculate: with 100 posts a second beside
it the thread of the switches spent a fifth of its time so, for calls of 0.02 ms.
"""

from __future__ import annotations

import ctypes
import os
import socket
from typing import Final

# Bytes that are sent at once: all other threads wait meanwhile.
MOST: Final = 1 << 18

_SEND: Final = ctypes.PyDLL(None, use_errno=True).send
_SEND.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
_SEND.restype = ctypes.c_ssize_t
_RECEIVE: Final = ctypes.PyDLL(None, use_errno=True).recv
_RECEIVE.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
_RECEIVE.restype = ctypes.c_ssize_t
_FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


def send_at_once(descriptor: int, data: bytes) -> int:
    """Send as many of these bytes as a stream socket takes now, at most :data:`MOST`; returns their number.

    Returns 0 also where the socket has failed: whoever sends the rest finds that out.
    """
    sent: int = _SEND(descriptor, data, min(len(data), MOST), _FLAGS)
    return max(0, sent)


class AtOnce:
    """A connected stream socket that never waits and keeps the interpreter's lock; for what a library does with one."""

    def __init__(self, held: socket.socket) -> None:
        self._held = held

    def send(self, data: bytes) -> int:
        """Send as many of these bytes as it takes now. Raises BlockingIOError where it takes none, OSError."""
        return self._checked(_SEND(self.fileno(), data, min(len(data), MOST), _FLAGS))

    def recv(self, size: int) -> bytes:
        """Receive at most ``size`` bytes, none at its end. Raises BlockingIOError where none has come, OSError."""
        room = ctypes.create_string_buffer(size)
        number = self._checked(_RECEIVE(self.fileno(), room, size, _FLAGS))
        return room.raw[:number]

    def fileno(self) -> int:
        """The descriptor."""
        return self._held.fileno()

    def close(self) -> None:
        """Close it."""
        self._held.close()

    @staticmethod
    def _checked(number: int) -> int:
        if number < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return number

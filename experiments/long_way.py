"""Holds up what passes between two interfaces, in each direction: ``python -m experiments.long_way ONE OTHER MS``.

It is the way between them, for kernels that lack netem. Frames keep their order, and none is dropped but where the next
interface has no room. Inside the lab; standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import sys
import time
from collections import deque
from typing import Final

# linux/if_packet.h, linux/if_ether.h. With a header before each frame, what TCP has joined goes on joined, and what is
# left to an interface to calculate is left to the next one.
_SOL_PACKET: Final = 263
_VNET_HEADER: Final = 15
_IGNORE_OUTGOING: Final = 23
_EVERY_PROTOCOL: Final = 3
_LARGEST: Final = 1 << 17
_ROOM: Final = 1 << 24
# SO_RCVBUFFORCE, SO_SNDBUFFORCE: more than the kernel's default for all, for root.
_FORCED: Final = (33, 32)
# Frames of one direction that are read before the other's.
_AT_ONCE: Final = 64


class Direction:
    """One direction: what comes to ``source`` leaves by ``target`` after ``delay`` seconds."""

    def __init__(self, source: socket.socket, target: socket.socket, delay: float) -> None:
        self.source = source
        self._target = target
        self._delay = delay
        self._held: deque[tuple[float, bytes]] = deque()

    @property
    def due(self) -> float | None:
        """The time at which the next frame leaves, of the monotonic clock; None: nothing is on its way."""
        return self._held[0][0] if self._held else None

    def take(self, now: float) -> None:
        """Take what has come. Raises OSError."""
        try:
            for _ in range(_AT_ONCE):
                self._held.append((now + self._delay, self.source.recv(_LARGEST, socket.MSG_DONTWAIT)))
        except BlockingIOError:
            pass
        except OSError as error:
            # Reported once when the interface goes down; when it is up again, its frames come again.
            if error.errno != errno.ENETDOWN:
                raise

    def pass_on(self, now: float) -> None:
        """Send what has been on its way for long enough."""
        while self._held and self._held[0][0] <= now:
            with contextlib.suppress(OSError):  # no room, or an interface that is down: a frame is lost, as on a wire
                self._target.send(self._held.popleft()[1])


def raw(device: str) -> socket.socket:
    """A socket for all frames that come to an interface, and by which frames leave it. Raises OSError."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    for option in _FORCED:
        made.setsockopt(socket.SOL_SOCKET, option, _ROOM)
    made.setsockopt(_SOL_PACKET, _VNET_HEADER, 1)
    made.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    made.bind((device, _EVERY_PROTOCOL))
    return made


def carry(one: str, other: str, delay: float) -> None:
    """Be the way between two interfaces, which takes ``delay`` seconds, until the program is ended. Raises OSError."""
    with raw(one) as left, raw(other) as right:
        directions = (Direction(left, right, delay), Direction(right, left, delay))
        while True:
            due = [each.due for each in directions if each.due is not None]
            patience = max(0.0, min(due) - time.monotonic()) if due else None
            select.select([left, right], [], [], patience)
            now = time.monotonic()
            for each in directions:
                each.take(now)
            for each in directions:
                each.pass_on(time.monotonic())


if __name__ == "__main__":
    carry(sys.argv[1], sys.argv[2], float(sys.argv[3]) / 1000)

"""What stands on a host's wire: raw frames sent and heard, and plain sockets, in a namespace of the lab."""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from lab.namespaces import Host

_CLONE_NEWNET = 0x40000000
_SOL_PACKET, _PACKET_AUXDATA, _PACKET_OUTGOING = 263, 8, 4
_ETH_P_ALL = 3
_VLAN_VALID = 0x10
_libc = ctypes.CDLL(None, use_errno=True)


def open_socket(host: Host, family: int, kind: int, protocol: int = 0) -> socket.socket:
    """A socket of a host's namespace; it stays there whichever thread uses it."""
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def enter() -> None:
        # A namespace is a thread's, so a thread that ends afterwards enters it.
        handle = os.open(Path("/run/netns", host.namespace), os.O_RDONLY)
        try:
            if _libc.setns(handle, _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"cannot enter {host.namespace}")
            made.append(socket.socket(family, kind, protocol))
        except OSError as error:
            failed.append(error)
        finally:
            os.close(handle)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


class Wire:
    """A host's device: sends frames as they are, hears every frame that comes in (not those that the host sends)."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._socket = open_socket(host, socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self._socket.bind((host.device, _ETH_P_ALL))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, *frames: bytes) -> None:
        """Send frames, without padding or checks."""
        for frame in frames:
            self._socket.send(frame)

    def heard(self) -> list[bytes]:
        """The frames that have come in since the last call."""
        frames = []
        while select.select([self._socket], [], [], 0)[0]:
            if (frame := self._receive()) is not None:
                frames.append(frame)
        return frames

    def until(self, last: bytes, limit: float = 10.0) -> list[bytes]:
        """The frames that came in before one that holds ``last``; fails where that does not come."""
        frames: list[bytes] = []
        deadline = time.monotonic() + limit
        while (left := deadline - time.monotonic()) > 0 and select.select([self._socket], [], [], left)[0]:
            frame = self._receive()
            if frame is not None and last in frame:
                return frames
            if frame is not None:
                frames.append(frame)
        raise AssertionError(f"{self.host.name} did not hear the last frame within {limit:g} s: {frames}")

    def _receive(self) -> bytes | None:
        data, ancillary, _, address = self._socket.recvmsg(65536, 256)
        if address[2] == _PACKET_OUTGOING:
            return None
        for level, kind, value in ancillary:
            if level == _SOL_PACKET and kind == _PACKET_AUXDATA and len(value) >= 20:
                status, tag = struct.unpack_from("=I", value)[0], struct.unpack_from("=HH", value, 16)
                if status & _VLAN_VALID:
                    # The kernel takes the tag off; put it back where it was on the wire.
                    return data[:12] + struct.pack("!HH", tag[1] or 0x8100, tag[0]) + data[12:]
        return data


def vlan_of(frame: bytes) -> int | None:
    """A frame's VLAN, None where it is untagged."""
    return int.from_bytes(frame[14:16]) & 0xFFF if frame[12:14] == b"\x81\x00" else None


def passes(sender: Wire, receiver: Wire, tried: Iterable[bytes], allowed: bytes, marker: bytes) -> list[bytes]:
    """What the receiver hears when the sender sends ``tried``, in some order.

    ``allowed`` holds ``marker`` and must arrive: what has not come before it never will. It is sent once before, since
    Open vSwitch forwards what its cache knows behind what it has to look up, and each of both in order.
    """
    sender.send(allowed)
    receiver.until(marker)
    receiver.heard()
    sender.send(*tried, allowed)
    return receiver.until(marker)

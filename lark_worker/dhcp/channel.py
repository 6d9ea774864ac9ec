"""The sockets of one client inside its job's namespace, opened for as long as an answer is waited for.

A socket belongs to the namespace in which it was made (network_namespaces(7)), so the service's own threads use it. The
job has neither the right to open such sockets nor to bind to a port below 1024.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
from ipaddress import IPv4Address
from typing import Final

from lark_worker.dhcp.message import CLIENT_PORT, EVERYBODY, SERVER_PORT, Message, decode, encode, packet, payload
from lark_worker.network.commands import inside

_ETH_IP: Final = 0x0800
_BROADCAST_MAC: Final = b"\xff" * 6
_SO_ATTACH_FILTER: Final = 26
_LONGEST: Final = 2048
# Packets that are read of one client before the others get their turn.
MOST: Final = 64
# Classic BPF (packet(7)): UDP, no fragment, to the client's port; so that the job's own traffic is not copied here.
_FILTER: Final = (
    (0x30, 0, 0, 9), (0x15, 0, 6, 17),
    (0x28, 0, 0, 6), (0x45, 4, 0, 0x1FFF),
    (0xB1, 0, 0, 0), (0x48, 0, 0, 2), (0x15, 0, 1, CLIENT_PORT),
    (0x06, 0, 0, 0xFFFFFFFF), (0x06, 0, 0, 0),
)  # fmt: skip


class Channel:
    """Sends and receives DHCP on an interface of a namespace. Raises NetworkError where it cannot be opened."""

    def __init__(self, namespace: str, interface: str) -> None:
        self._interface = interface
        self._raw: socket.socket | None = None
        self._udp: socket.socket | None = None
        inside(namespace, self._open)

    def _open(self) -> None:
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, 0)
        try:
            program = b"".join(struct.pack("HBBI", *line) for line in _FILTER)
            held = ctypes.create_string_buffer(program)
            # The filter stands before the first packet can come: protocol 0 receives nothing.
            raw.setsockopt(
                socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", len(_FILTER), ctypes.addressof(held))
            )
            raw.bind((self._interface, _ETH_IP))
            udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            try:
                # Answers are read from the packet socket; this one sends, and keeps the kernel from refusing them.
                udp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                udp.bind(("0.0.0.0", CLIENT_PORT))
            except OSError:
                udp.close()
                raise
        except OSError:
            raw.close()
            raise
        self._raw, self._udp = raw, udp

    def fileno(self) -> int:
        """The descriptor that becomes readable when an answer arrives."""
        assert self._raw is not None
        return self._raw.fileno()

    def send(self, message: Message, source: IPv4Address, target: IPv4Address) -> None:
        """Send a message; a failure of the interface loses it, as the wire may."""
        assert self._raw is not None
        assert self._udp is not None
        data = encode(message)
        with contextlib.suppress(OSError):
            if target == EVERYBODY:
                self._raw.sendto(packet(source, target, data), (self._interface, _ETH_IP, 0, 0, _BROADCAST_MAC))
            else:
                self._udp.sendto(data, (str(target), SERVER_PORT))

    def receive(self) -> list[Message]:
        """The messages that have arrived, of :data:`MOST` packets at most; packets that are no DHCP messages are
        skipped."""
        assert self._raw is not None
        assert self._udp is not None
        found = []
        with contextlib.suppress(BlockingIOError, OSError):
            for _ in range(MOST):
                with contextlib.suppress(ValueError):
                    found.append(decode(payload(self._raw.recv(_LONGEST))))
        with contextlib.suppress(BlockingIOError, OSError):
            for _ in range(MOST):
                self._udp.recv(_LONGEST)
        return found

    def close(self) -> None:
        """Close the sockets; may be repeated."""
        for each in (self._raw, self._udp):
            if each is not None:
                each.close()

"""The kernel's messages about TCP connections (sock_diag(7), ``linux/inet_diag.h``, ``linux/tcp.h``): built and parsed.

Pure. The messages come from the kernel, but a parser that trusted their lengths would be one mistake from reading
nonsense: what is cut short or contradicts itself is left out.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from lark_common.runs import Address

# SOCK_DIAG_BY_FAMILY, which dumps and notices of ended connections have.
BY_FAMILY: Final = 20
DESTROY: Final = 21
DONE: Final = 3
ERROR: Final = 2
# The multicast groups with a message for each TCP connection that ends (SKNLGRP_INET_TCP_DESTROY, the same of IPv6).
DESTROY_GROUPS: Final = 1 << 0 | 1 << 2
_REQUEST_AND_DUMP: Final = 0x301
_REQUEST_AND_ANSWER: Final = 0x5
_INFO: Final = 2
# Connections that are made, established or being closed. Listening sockets and those in TIME_WAIT count nothing.
_STATES: Final = sum(1 << state for state in (1, 2, 4, 5, 8, 9, 11))
_HEADER: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=BBBBI48x")
_ASKED: Final = struct.Struct("=BBBBI")
# inet_diag_msg: family, state, two timers; ports, addresses, interface, cookie; five numbers, the last one the inode.
_MESSAGE: Final = struct.Struct("=BBBB2s2s16s16sIII5I")
_ATTRIBUTE: Final = struct.Struct("=HH")
# tcp_info: bytes_acked and bytes_received, behind 8 bytes, 24 numbers of 32 bits and two of 64 (since Linux 4.2).
_COUNTS: Final = struct.Struct("=QQ")
_COUNTS_AT: Final = 120
NOWHERE: Final = IPv4Address(0)

# A socket's cookie, both ports, and the other end.
Name = tuple[int, tuple[int, int], Address]


@dataclass(frozen=True, slots=True)
class Connection:
    """A TCP connection of this network namespace.

    ``cookie`` names its socket for all time of this boot. ``inode`` is 0 once no process holds it. ``received`` and
    ``sent`` are bytes of payload since its beginning, those sent as far as the peer has confirmed them. ``local`` is
    the worker's address; ``ports`` are those of both ends, the worker's first.
    """

    cookie: int
    inode: int
    remote: Address
    received: int
    sent: int
    local: Address = NOWHERE
    ports: tuple[int, int] = (0, 0)
    family: int = socket.AF_INET

    @property
    def name(self) -> Name:
        """The name of this connection alone: a process may connect its socket again, to another end."""
        return self.cookie, self.ports, self.remote


def dump_request(family: socket.AddressFamily, sequence: int) -> bytes:
    """A request for all TCP connections of a family, with their counts."""
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, _STATES)
    return _HEADER.pack(_HEADER.size + len(body), BY_FAMILY, _REQUEST_AND_DUMP, sequence, 0) + body


def destroy_request(connection: Connection, sequence: int) -> bytes:
    """A request to end a connection, on both sides and whatever it still has to send."""
    ends = struct.pack(">HH", *connection.ports)
    for address in (connection.local, connection.remote):
        raw = address.packed
        if connection.family == socket.AF_INET6 and address.version == 4:
            raw = IPv6Address(f"::ffff:{address}").packed
        ends += raw.ljust(16, b"\0")
    ends += struct.pack("=III", 0, connection.cookie & 0xFFFFFFFF, connection.cookie >> 32)
    body = _ASKED.pack(connection.family, socket.IPPROTO_TCP, 0, 0, _STATES) + ends
    return _HEADER.pack(_HEADER.size + len(body), DESTROY, _REQUEST_AND_ANSWER, sequence, 0) + body


def messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The netlink messages in what one read returned: type, sequence number and content."""
    at = 0
    while at + _HEADER.size <= len(data):
        size, kind, _, sequence, _ = _HEADER.unpack_from(data, at)
        if size < _HEADER.size or at + size > len(data):
            return
        yield kind, sequence, data[at + _HEADER.size : at + size]
        at += (size + 3) & ~3


def error_code(content: bytes) -> int:
    """The error (errno) in a message of type ERROR or DONE; 0 for none."""
    return max(0, -int.from_bytes(content[:4], sys.byteorder, signed=True))


def connection(content: bytes) -> Connection | None:
    """The connection of a message; None where it has no counts, or is cut short."""
    if len(content) < _MESSAGE.size:
        return None
    family, _, _, _, here, there, local, remote, _, low, high, *rest = _MESSAGE.unpack_from(content)
    counts = _counts(content)
    if counts is None or family not in (socket.AF_INET, socket.AF_INET6):
        return None
    ports = int.from_bytes(here), int.from_bytes(there)
    ends = _address(family, remote), _address(family, local)
    return Connection(low | high << 32, rest[4], ends[0], counts[1], counts[0], ends[1], ports, family)


def _address(family: int, raw: bytes) -> Address:
    if family == socket.AF_INET:
        return IPv4Address(raw[:4])
    address = IPv6Address(raw)
    return address.ipv4_mapped or address


def _counts(content: bytes) -> tuple[int, int] | None:
    """``bytes_acked`` and ``bytes_received`` of the attribute that has them."""
    at = _MESSAGE.size
    while at + _ATTRIBUTE.size <= len(content):
        size, kind = _ATTRIBUTE.unpack_from(content, at)
        if size < _ATTRIBUTE.size or at + size > len(content):
            return None
        if kind == _INFO:
            if size < _ATTRIBUTE.size + _COUNTS_AT + _COUNTS.size:
                return None
            sent, received = _COUNTS.unpack_from(content, at + _ATTRIBUTE.size + _COUNTS_AT)
            return sent, received
        at += (size + 3) & ~3
    return None

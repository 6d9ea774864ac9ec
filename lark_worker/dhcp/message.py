"""DHCP messages as bytes and as values (RFC 2131, section 2; options: RFC 2132), and the packets that carry them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from ipaddress import IPv4Address
from typing import Final

CLIENT_PORT: Final = 68
SERVER_PORT: Final = 67
NOWHERE: Final = IPv4Address(0)
EVERYBODY: Final = IPv4Address(0xFFFFFFFF)
_COOKIE: Final = b"\x63\x82\x53\x63"
_HEAD: Final = struct.Struct("!BBBBIHH4s4s4s4s16s64s128s")
_REQUEST, _REPLY, _ETHERNET, _UDP = 1, 2, 1, 17
# A server or relay may drop messages that are shorter than BOOTP's own (RFC 1542, section 2.1).
_LEAST: Final = 300


class Kind(IntEnum):
    """DHCP message types (RFC 2132, section 9.6)."""

    DISCOVER = 1
    OFFER = 2
    REQUEST = 3
    DECLINE = 4
    ACK = 5
    NAK = 6
    RELEASE = 7


class Option(IntEnum):
    """The options that this client sends or reads."""

    MASK = 1
    ROUTERS = 3
    NAMESERVERS = 6
    DOMAIN = 15
    MTU = 26
    REQUESTED = 50
    LEASE = 51
    OVERLOAD = 52
    KIND = 53
    SERVER = 54
    WANTED = 55
    MAX_SIZE = 57
    T1 = 58
    T2 = 59
    CLIENT = 61
    ROUTES = 121


@dataclass(frozen=True, slots=True)
class Message:
    """One message. ``client`` is ciaddr, ``yours`` yiaddr, ``seconds`` since the client began to ask."""

    kind: Kind
    xid: int
    mac: bytes
    client: IPv4Address = NOWHERE
    yours: IPv4Address = NOWHERE
    seconds: int = 0
    options: Mapping[int, bytes] = field(default_factory=dict)


def encode(message: Message) -> bytes:
    """A client's message as the payload of a UDP datagram."""
    head = _HEAD.pack(
        _REQUEST, _ETHERNET, len(message.mac), 0, message.xid, min(message.seconds, 0xFFFF), 0,
        message.client.packed, message.yours.packed, NOWHERE.packed, NOWHERE.packed, message.mac, b"", b"",
    )  # fmt: skip
    options = bytes((Option.KIND, 1, message.kind))
    for number, value in message.options.items():
        options += bytes((number, len(value))) + value
    return (head + _COOKIE + options + b"\xff").ljust(_LEAST, b"\0")


def decode(data: bytes) -> Message:
    """A server's message. Raises ValueError where it is none."""
    if len(data) < _HEAD.size + len(_COOKIE) or data[_HEAD.size : _HEAD.size + 4] != _COOKIE:
        raise ValueError("no DHCP message")
    op, hardware, length, _, xid, seconds, _, client, yours, _, _, address, name, file = _HEAD.unpack_from(data)
    if op != _REPLY or hardware != _ETHERNET or length != 6:
        raise ValueError("no DHCP answer over Ethernet")
    options = _options(data[_HEAD.size + 4 :])
    # Options may go on in the fields for names (RFC 2132, section 9.3), the file's first.
    overload = options.get(Option.OVERLOAD, b"\0")[:1]
    for bit, more in ((1, file), (2, name)):
        if overload and overload[0] & bit:
            for number, value in _options(more).items():
                options[number] = options.get(number, b"") + value
    kind = options.pop(Option.KIND, b"")
    if len(kind) != 1:
        raise ValueError("no message type")
    return Message(
        Kind(kind[0]), xid, address[:length], IPv4Address(client), IPv4Address(yours), seconds, options
    )  # fmt: skip


def _options(data: bytes) -> dict[int, bytes]:
    """Options by number; those that come in parts are put together (RFC 3396)."""
    found: dict[int, bytes] = {}
    at = 0
    while at < len(data) and data[at] != 0xFF:
        if data[at] == 0:
            at += 1
            continue
        if at + 1 >= len(data) or at + 2 + data[at + 1] > len(data):
            raise ValueError("an option is cut off")
        end = at + 2 + data[at + 1]
        found[data[at]] = found.get(data[at], b"") + data[at + 2 : end]
        at = end
    return found


def packet(source: IPv4Address, target: IPv4Address, payload: bytes) -> bytes:
    """An IPv4 packet from the client's port to the server's (RFC 791, RFC 768)."""
    length = 8 + len(payload)
    pseudo = source.packed + target.packed + struct.pack("!BBH", 0, _UDP, length)
    head = struct.pack("!HHHH", CLIENT_PORT, SERVER_PORT, length, 0)
    # A sum that comes out as zero is sent as all ones: zero means that there is none.
    checksum = _checksum(pseudo + head + payload) or 0xFFFF
    udp = head[:6] + struct.pack("!H", checksum) + payload
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0x10, 20 + length, 0, 0, 64, _UDP, 0, source.packed, target.packed)
    return ip[:10] + struct.pack("!H", _checksum(ip)) + ip[12:] + udp


def payload(data: bytes) -> bytes:
    """The payload of an IPv4 packet from a server's port to a client's. Raises ValueError for any other packet.

    The UDP checksum is ignored: a packet that never left the machine has none yet, and the transaction's number and
    the hardware address must agree in any case.
    """
    head = (data[0] & 0x0F) * 4 if data else 0
    if head < 20 or len(data) < head + 8 or data[0] >> 4 != 4 or data[9] != _UDP:
        raise ValueError("no UDP over IPv4")
    total, _, fragment = struct.unpack_from("!HHH", data, 2)
    source, target, length = struct.unpack_from("!HHH", data, head)
    if fragment & 0x3FFF or not head + 8 <= total <= len(data) or not 8 <= length <= total - head:
        raise ValueError("a packet in parts, or cut off")
    if (source, target) != (SERVER_PORT, CLIENT_PORT):
        raise ValueError("other ports")
    return data[head + 8 : head + length]


def _checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF

"""ICMP errors of jobs with external addresses: what set-field cannot do, on single packets. Pure.

An ICMP error quotes the packet that it is about (RFC 792), and the quoted addresses have to be translated with the
outer ones, or neither end finds its connection: path MTU discovery, traceroute and refused ports depend on them. A core
sends such errors to the controller, which gives back the translated one, or nothing. Checksums are updated, never made
anew (RFC 1624), so that a wrong one stays wrong. Needs no state: an error is translated as the packets of its opening.
"""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Final

from lark_controller.flows.build import ICMP, TCP, UDP
from lark_controller.flows.model import ETH_IPV4
from lark_controller.jobs.external import External

# Destination unreachable (with "fragmentation needed"), time exceeded, parameter problem.
ERROR_TYPES: Final = (3, 11, 12)
# An error quotes no more than makes 576 bytes of it (RFC 1812, section 4.3.2.3); hosts may quote a whole packet.
MOST_BYTES: Final = 1600

_ETH_VLAN: Final = 0x8100
_NAMES: Final = {TCP: "tcp", UDP: "udp", ICMP: "icmp"}
_ICMP_HEAD: Final = 8
# Where source and destination stand in an IPv4 header.
_SOURCE, _DESTINATION = 12, 16
# Where the checksum stands in a transport header that covers the addresses.
_CHECKSUMS: Final = {TCP: 16, UDP: 6}


def inward(frame: bytes, external: External, own: IPv4Address, mac: int) -> bytes | None:
    """An error from outside about what a job has sent from an external address, as the job must see it; None: it is
    no error about an opening of the address."""
    made = _translated(frame, external, external.address.packed, own.packed, outwards=False)
    return None if made is None else mac.to_bytes(6) + made[6:]


def outward(frame: bytes, external: External, own: IPv4Address) -> bytes | None:
    """An error of a job about what came for its external address, as the outside must see it; None: it is about
    something else."""
    return _translated(frame, external, own.packed, external.address.packed, outwards=True)


def _translated(frame: bytes, external: External, was: bytes, now: bytes, *, outwards: bool) -> bytes | None:
    """The frame with ``now`` for ``was``: outside as its source (``outwards``) or destination, and in the quoted packet
    at the other place."""
    start = _start(frame)
    if start is None or len(frame) > MOST_BYTES:
        return None
    data = bytearray(frame)
    inner = start + _header(data, start) + _ICMP_HEAD
    outer, quoted = (_SOURCE, _DESTINATION) if outwards else (_DESTINATION, _SOURCE)
    if len(data) < inner + 20 or data[inner] >> 4 != 4 or data[inner - _ICMP_HEAD] not in ERROR_TYPES:
        return None
    transport = inner + _header(data, inner)
    place, there = start + outer, inner + quoted
    if data[place : place + 4] != was or data[there : there + 4] != was or data[start + 9] != ICMP:
        return None
    if not _is_open(data, inner, transport, external, outwards=outwards):
        return None
    before = bytes(data[inner:])
    _replace(data, there, now, inner + 10)
    offset = _CHECKSUMS.get(data[inner + 9])
    first = not int.from_bytes(data[inner + 6 : inner + 8]) & 0x1FFF
    if offset is not None and first and len(data) >= transport + offset + 2:
        at = transport + offset
        # UDP without a checksum has none afterwards.
        if data[inner + 9] != UDP or any(data[at : at + 2]):
            data[at : at + 2] = _updated(data[at : at + 2], was, now)
    at = inner - _ICMP_HEAD + 2
    data[at : at + 2] = _updated(data[at : at + 2], before, bytes(data[inner:]))
    _replace(data, place, now, start + 10)
    return bytes(data)


def _start(frame: bytes) -> int | None:
    """The place of the IPv4 header; None for what is no whole unfragmented IPv4 packet."""
    start = 14
    if int.from_bytes(frame[12:14]) == _ETH_VLAN:
        start = 18
    if int.from_bytes(frame[start - 2 : start]) != ETH_IPV4 or len(frame) < start + 20 or frame[start] >> 4 != 4:
        return None
    length, fragment = (int.from_bytes(frame[start + at : start + at + 2]) for at in (2, 6))
    whole = _header(frame, start) + _ICMP_HEAD <= length <= len(frame) - start
    return start if whole and not fragment & 0x3FFF else None


def _header(data: bytes | bytearray, start: int) -> int:
    return max(20, (data[start] & 0xF) * 4)


def _is_open(data: bytearray, inner: int, transport: int, external: External, *, outwards: bool) -> bool:
    """True where an opening covers the quoted packet, by the port on the job's side."""
    name = _NAMES.get(data[inner + 9], "")
    port, first = None, not int.from_bytes(data[inner + 6 : inner + 8]) & 0x1FFF
    if name in ("tcp", "udp") and first and len(data) >= transport + 4:
        at = transport + (2 if outwards else 0)
        port = int.from_bytes(data[at : at + 2])
    return any(_covers(each.protocol, each.first, each.last, name, port) for each in external.openings)


def _covers(protocol: str, first: int, last: int, name: str, port: int | None) -> bool:
    if protocol == "any" or (protocol == name and not last):
        return True
    return protocol == name and (first <= port <= last if port is not None else (first, last) == (1, 65535))


def _replace(data: bytearray, at: int, now: bytes, checksum: int) -> None:
    was = bytes(data[at : at + 4])
    data[at : at + 4] = now
    data[checksum : checksum + 2] = _updated(data[checksum : checksum + 2], was, now)


def _updated(checksum: bytearray, was: bytes, now: bytes) -> bytes:
    """A checksum after other bytes of what it covers (RFC 1624, equation 3), at even places."""
    total = ~int.from_bytes(checksum) & 0xFFFF
    total += sum(~word & 0xFFFF for word in _words(was)) + sum(_words(now))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (~total & 0xFFFF).to_bytes(2)


def _words(data: bytes) -> list[int]:
    data += b"\0" * (len(data) % 2)
    return [int.from_bytes(data[at : at + 2]) for at in range(0, len(data), 2)]

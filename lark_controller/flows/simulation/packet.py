"""Ethernet frames, with OpenFlow's fields: header fields by OXM name, and rewriting that leaves valid frames.

What is parsed follows Open vSwitch (ovs-fields(7)): one 802.1Q tag is taken off, the next is an ethertype like any
other; fragments have no transport fields; a length below 0x600 is ethertype 0x05ff. Nothing here raises on a frame,
however short or broken: what cannot be read is absent.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from lark_controller.flows.model import ETH_ARP, ETH_IPV4, ETH_IPV6, VLAN_PRESENT

_TPIDS: Final = frozenset({0x8100, 0x88A8})
_NO_ETHERTYPE: Final = 0x05FF
_SNAP: Final = b"\xaa\xaa\x03\x00\x00\x00"
# IPv6 extension headers with a length field (RFC 8200, section 4; 135 is Mobility, 139 HIP, 140 Shim6: RFC 7045).
_IPV6_OPTIONS: Final = frozenset({0, 43, 60, 135, 139, 140})
_IPV6_FRAGMENT: Final = 44
_IPV6_AUTHENTICATION: Final = 51
ICMP: Final = 1
TCP: Final = 6
UDP: Final = 17
ICMPV6: Final = 58
ND_SOLICIT: Final = 135
ND_ADVERT: Final = 136
_ND_SLL: Final = 1
_ND_TLL: Final = 2

_ETHERNET: Final = struct.Struct("!HIHIH")
_TAGGED: Final = struct.Struct("!HH")
_ONE_32: Final = struct.Struct("!I")
_PAIR_32: Final = struct.Struct("!II")
_PAIR_128: Final = struct.Struct("!QQQQ")
_ONE_128: Final = struct.Struct("!QQ")
_ARP: Final = struct.Struct("!HHBBHHIIHII")


class Layout(NamedTuple):
    """The offsets of the headers of a frame, in bytes from its start; None where there is none that can be read.

    ``transport`` is None for fragments as well.
    """

    tagged: bool
    ethertype: int
    network: int
    transport: int | None
    protocol: int | None


def parse(frame: bytes) -> dict[str, int]:
    """The header fields of a frame by OXM name; ``vlan_vid`` is 0 for untagged frames (OFPVID_NONE)."""
    fields: dict[str, int] = {}
    if len(frame) < 14:
        return fields
    layout = locate(frame)
    fields["eth_dst"] = int.from_bytes(frame[0:6])
    fields["eth_src"] = int.from_bytes(frame[6:12])
    fields["eth_type"] = layout.ethertype
    fields["vlan_vid"] = VLAN_PRESENT | (int.from_bytes(frame[14:16]) & 0xFFF) if layout.tagged else 0
    at = layout.network
    if layout.ethertype == ETH_ARP:
        _parse_arp(frame, at, fields)
    elif layout.protocol is not None:
        fields["ip_proto"] = layout.protocol
        if layout.ethertype == ETH_IPV4:
            fields["ip_dscp"] = frame[at + 1] >> 2
            fields["ipv4_src"], fields["ipv4_dst"] = _PAIR_32.unpack_from(frame, at + 12)
        else:
            word = int.from_bytes(frame[at : at + 4])
            fields["ip_dscp"] = word >> 22 & 0x3F
            fields["ipv6_flabel"] = word & 0xFFFFF
            fields["ipv6_src"] = int.from_bytes(frame[at + 8 : at + 24])
            fields["ipv6_dst"] = int.from_bytes(frame[at + 24 : at + 40])
        if layout.transport is not None:
            _parse_transport(frame, layout, fields)
    return fields


def locate(frame: bytes) -> Layout:
    """Finds the offsets of the headers of a frame of at least 14 bytes. ``protocol`` is None unless the IP header is
    whole."""
    ethertype = int.from_bytes(frame[12:14])
    at = 14
    tagged = ethertype in _TPIDS and len(frame) >= 18
    if tagged:
        ethertype = int.from_bytes(frame[16:18])
        at = 18
    if ethertype < 0x600:
        inner = int.from_bytes(frame[at + 6 : at + 8])
        if frame[at : at + 6] == _SNAP and inner >= 0x600:
            ethertype, at = inner, at + 8
        else:
            ethertype = _NO_ETHERTYPE
    if ethertype == ETH_IPV4:
        transport, protocol = _locate_ipv4(frame, at)
    elif ethertype == ETH_IPV6:
        transport, protocol = _locate_ipv6(frame, at)
    else:
        transport, protocol = None, None
    return Layout(tagged, ethertype, at, transport, protocol)


def _locate_ipv4(frame: bytes, at: int) -> tuple[int | None, int | None]:
    if len(frame) < at + 20:
        return None, None
    length = (frame[at] & 0x0F) * 4
    total = int.from_bytes(frame[at + 2 : at + 4])
    if length < 20 or not length <= total <= len(frame) - at:
        return None, None
    fragment = int.from_bytes(frame[at + 6 : at + 8]) & 0x3FFF
    return None if fragment else at + length, frame[at + 9]


def _locate_ipv6(frame: bytes, at: int) -> tuple[int | None, int | None]:
    if len(frame) < at + 40 or int.from_bytes(frame[at + 4 : at + 6]) > len(frame) - at - 40:
        return None, None
    protocol = frame[at + 6]
    at += 40
    fragment = False
    while protocol in _IPV6_OPTIONS or protocol in (_IPV6_FRAGMENT, _IPV6_AUTHENTICATION):
        if len(frame) < at + 8:
            return None, None
        following = frame[at]
        if protocol == _IPV6_FRAGMENT:
            if int.from_bytes(frame[at + 2 : at + 4]) & 0xFFF8:
                return None, _IPV6_FRAGMENT
            fragment = fragment or bool(frame[at + 3] & 1)
            size = 8
        elif protocol == _IPV6_AUTHENTICATION:
            size = (frame[at + 1] + 2) * 4
        else:
            size = (frame[at + 1] + 1) * 8
        protocol, at = following, at + size
    return None if fragment or at > len(frame) else at, protocol


def _parse_arp(frame: bytes, at: int, fields: dict[str, int]) -> None:
    if len(frame) < at + 28:
        return
    hardware, protocol, hardware_size, protocol_size, op, sha_high, sha_low, spa, tha_high, tha_low, tpa = (
        _ARP.unpack_from(frame, at)
    )
    if (hardware, protocol, hardware_size, protocol_size) != (1, ETH_IPV4, 6, 4):
        return
    # Open vSwitch reads the low byte of the operation alone and takes larger ones for none.
    fields["arp_op"] = op if op <= 0xFF else 0
    fields["arp_sha"] = sha_high << 32 | sha_low
    fields["arp_spa"] = spa
    fields["arp_tha"] = tha_high << 32 | tha_low
    fields["arp_tpa"] = tpa


def _parse_transport(frame: bytes, layout: Layout, fields: dict[str, int]) -> None:
    at = layout.transport
    assert at is not None
    if layout.protocol == TCP and len(frame) >= at + 20:
        fields["tcp_src"], fields["tcp_dst"] = _TAGGED.unpack_from(frame, at)
        fields["tcp_flags"] = int.from_bytes(frame[at + 12 : at + 14]) & 0xFFF
    elif layout.protocol == UDP and len(frame) >= at + 8:
        fields["udp_src"], fields["udp_dst"] = _TAGGED.unpack_from(frame, at)
    elif layout.protocol == ICMP and layout.ethertype == ETH_IPV4 and len(frame) >= at + 8:
        fields["icmpv4_type"], fields["icmpv4_code"] = frame[at], frame[at + 1]
    elif layout.protocol == ICMPV6 and layout.ethertype == ETH_IPV6 and len(frame) >= at + 8:
        fields["icmpv6_type"], fields["icmpv6_code"] = frame[at], frame[at + 1]
        if frame[at] in (ND_SOLICIT, ND_ADVERT) and not frame[at + 1] and len(frame) >= at + 24:
            _parse_nd(frame, at, fields)


def _parse_nd(frame: bytes, at: int, fields: dict[str, int]) -> None:
    """Neighbor Discovery target and link-layer options (RFC 4861, section 4.6); an option given twice voids all."""
    found: dict[str, int] = {"ipv6_nd_target": int.from_bytes(frame[at + 8 : at + 24])}
    at += 24
    while len(frame) >= at + 8:
        size = frame[at + 1] * 8
        if not size:
            break
        name = {_ND_SLL: "ipv6_nd_sll", _ND_TLL: "ipv6_nd_tll"}.get(frame[at])
        if name is not None and size == 8:
            if found.get(name):
                return
            found[name] = int.from_bytes(frame[at + 2 : at + 8])
        at += size
    fields.update(found)


class Addresses(NamedTuple):
    """Source and destination of a frame: MACs, VLAN number (0: untagged), ethertype, addresses, IP version (0: no
    addresses)."""

    eth_src: int
    eth_dst: int
    vlan: int
    ethertype: int
    source: int | None
    destination: int | None
    version: int


_NOBODY: Final = Addresses(0, 0, 0, 0, None, None, 0)
_addresses = Addresses._make


def parse_fast_addresses(frame: bytes) -> Addresses:
    """Reads source and destination of a frame, for the path of every PacketIn (about 1 µs).

    ARP (version 4) gives sender and target; a Neighbor Solicitation that is sent to a group gives its target as the
    destination. A frame too short to read gives zeros and None.
    """
    if len(frame) < 14:
        return _NOBODY
    dst_high, dst_low, src_high, src_low, ethertype = _ETHERNET.unpack_from(frame)
    eth_src, eth_dst = src_high << 32 | src_low, dst_high << 32 | dst_low
    vlan, at = 0, 14
    if ethertype in _TPIDS and len(frame) >= 18:
        tag, ethertype = _TAGGED.unpack_from(frame, 14)
        vlan, at = tag & 0xFFF, 18
    size = len(frame) - at
    src: int | None = None
    dst: int | None = None
    version = 0
    if ethertype == ETH_IPV4 and size >= 20:
        src, dst = _PAIR_32.unpack_from(frame, at + 12)
        version = 4
    elif ethertype == ETH_IPV6 and size >= 40:
        a, b, c, d = _PAIR_128.unpack_from(frame, at + 8)
        if frame[at + 24] == 0xFF and frame[at + 6] == ICMPV6 and size >= 64 and frame[at + 40] == ND_SOLICIT:
            c, d = _ONE_128.unpack_from(frame, at + 48)
        src, dst, version = a << 64 | b, c << 64 | d, 6
    elif ethertype == ETH_ARP and size >= 28:
        (src,) = _ONE_32.unpack_from(frame, at + 14)
        (dst,) = _ONE_32.unpack_from(frame, at + 24)
        version = 4
    return _addresses((eth_src, eth_dst, vlan, ethertype, src, dst, version))


def is_multicast(frame: bytes) -> bool:
    """True if a frame carries IPv6 to a group."""
    at = 18 if len(frame) >= 18 and int.from_bytes(frame[12:14]) in _TPIDS else 14
    return len(frame) > at + 24 and frame[at - 2 : at] == b"\x86\xdd" and frame[at + 24] == 0xFF


def push_vlan(frame: bytes, ethertype: int) -> bytes:
    """The frame with one more 802.1Q tag, whose number is that of the tag outermost before (0 where there was none)."""
    outer = frame[14:16] if int.from_bytes(frame[12:14]) in _TPIDS and len(frame) >= 18 else b"\0\0"
    return frame[:12] + ethertype.to_bytes(2) + outer + frame[12:]


def pop_vlan(frame: bytes) -> bytes:
    """The frame without its outermost 802.1Q tag; an untagged frame as it is."""
    return frame[:12] + frame[16:] if int.from_bytes(frame[12:14]) in _TPIDS and len(frame) >= 18 else frame


def rewrite(frame: bytes, name: str, value: int) -> bytes:
    """The frame with a header field overwritten, checksums kept right (RFC 1624); unchanged if it has no such field.

    Raises ``KeyError`` for a field that cannot be overwritten.
    """
    width, checksummed = _WRITABLE[name]
    if len(frame) < 14:
        return frame
    layout = locate(frame)
    at = _offset(frame, layout, name)
    if at is None:
        return frame
    if name == "vlan_vid":
        value = int.from_bytes(frame[at : at + 2]) & 0xF000 | value & 0xFFF
    elif name == "ip_dscp" and layout.ethertype == ETH_IPV4:
        value = int.from_bytes(frame[at : at + 2]) & 0xFF03 | value << 2
    elif name == "ip_dscp":
        value = int.from_bytes(frame[at : at + 2]) & 0xF03F | value << 6
    elif name == "ipv6_flabel":
        value = int.from_bytes(frame[at : at + 4]) & 0xFFF00000 | value
    new = bytearray(frame)
    new[at : at + width] = value.to_bytes(width)
    if layout.ethertype == ETH_IPV4 and name in ("ip_dscp", "ipv4_src", "ipv4_dst"):
        _adjust(new, layout.network + 10, frame[at : at + width], bytes(new[at : at + width]))
    if checksummed and layout.transport is not None:
        place = _checksum_at(frame, layout)
        if place is not None:
            _adjust(new, place, frame[at : at + width], bytes(new[at : at + width]))
            if layout.protocol == UDP and new[place : place + 2] == b"\0\0":
                # 0 means that there is no checksum (RFC 768).
                new[place : place + 2] = b"\xff\xff"
    return bytes(new)


# Width in bytes, and whether TCP, UDP and ICMPv6 checksums cover the field.
_WRITABLE: Final[dict[str, tuple[int, bool]]] = {
    "eth_dst": (6, False),
    "eth_src": (6, False),
    "vlan_vid": (2, False),
    "ip_dscp": (2, False),
    "ipv6_flabel": (4, False),
    "ipv4_src": (4, True),
    "ipv4_dst": (4, True),
    "ipv6_src": (16, True),
    "ipv6_dst": (16, True),
    "tcp_src": (2, True),
    "tcp_dst": (2, True),
    "udp_src": (2, True),
    "udp_dst": (2, True),
    "arp_op": (2, False),
    "arp_sha": (6, False),
    "arp_spa": (4, False),
    "arp_tha": (6, False),
    "arp_tpa": (4, False),
}

_NETWORK_OFFSETS: Final[dict[tuple[int, str], int]] = {
    (ETH_IPV4, "ip_dscp"): 0,
    (ETH_IPV4, "ipv4_src"): 12,
    (ETH_IPV4, "ipv4_dst"): 16,
    (ETH_IPV6, "ip_dscp"): 0,
    (ETH_IPV6, "ipv6_flabel"): 0,
    (ETH_IPV6, "ipv6_src"): 8,
    (ETH_IPV6, "ipv6_dst"): 24,
    (ETH_ARP, "arp_op"): 6,
    (ETH_ARP, "arp_sha"): 8,
    (ETH_ARP, "arp_spa"): 14,
    (ETH_ARP, "arp_tha"): 18,
    (ETH_ARP, "arp_tpa"): 24,
}
_TRANSPORT_OFFSETS: Final[dict[tuple[int | None, str], int]] = {
    (TCP, "tcp_src"): 0,
    (TCP, "tcp_dst"): 2,
    (UDP, "udp_src"): 0,
    (UDP, "udp_dst"): 2,
}


def _offset(frame: bytes, layout: Layout, name: str) -> int | None:
    if name == "eth_dst":
        return 0
    if name == "eth_src":
        return 6
    if name == "vlan_vid":
        return 14 if layout.tagged else None
    if layout.transport is not None and (layout.protocol, name) in _TRANSPORT_OFFSETS:
        at = layout.transport + _TRANSPORT_OFFSETS[(layout.protocol, name)]
        return at if len(frame) >= layout.transport + 8 else None
    place = _NETWORK_OFFSETS.get((layout.ethertype, name))
    if place is None or (layout.protocol is None and layout.ethertype != ETH_ARP):
        return None
    if layout.ethertype == ETH_ARP and len(frame) < layout.network + 28:
        return None
    return layout.network + place


def _checksum_at(frame: bytes, layout: Layout) -> int | None:
    assert layout.transport is not None
    if layout.protocol == TCP:
        at = layout.transport + 16
    elif layout.protocol == UDP:
        at = layout.transport + 6
        if frame[at : at + 2] == b"\0\0":
            return None
    elif layout.protocol == ICMPV6 and layout.ethertype == ETH_IPV6:
        at = layout.transport + 2
    else:
        return None
    return at if len(frame) >= at + 2 else None


def _adjust(frame: bytearray, at: int, old: bytes, new: bytes) -> None:
    """Update the checksum at ``at`` for bytes that changed (RFC 1624, equation 3)."""
    total = ~int.from_bytes(frame[at : at + 2]) & 0xFFFF
    for word in range(0, len(old), 2):
        total += (~int.from_bytes(old[word : word + 2]) & 0xFFFF) + int.from_bytes(new[word : word + 2])
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    frame[at : at + 2] = (~total & 0xFFFF).to_bytes(2)

"""Builders of Ethernet frames with right checksums, for tests of what looks into packets."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address, ip_address

from lark_controller.flows.placement import mac_number

SYN, ACK, RST, FIN = 0x02, 0x10, 0x04, 0x01


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071); 0 over data that holds a right one."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ethernet(src: str, dst: str, ethertype: int, payload: bytes, vlan: int | None = None) -> bytes:
    """A frame, tagged if ``vlan`` is a number."""
    tag = b"" if vlan is None else struct.pack("!HH", 0x8100, vlan)
    head = mac_number(dst).to_bytes(6) + mac_number(src).to_bytes(6)
    return head + tag + ethertype.to_bytes(2) + payload


def ip(src: str, dst: str, protocol: int, payload: bytes, *, dscp: int = 0, fragment: int = 0) -> tuple[int, bytes]:
    """(ethertype, packet) of either version; ``fragment`` is the IPv4 flags-and-offset word."""
    one, other = ip_address(src), ip_address(dst)
    if isinstance(one, IPv6Address):
        assert isinstance(other, IPv6Address)
        head = struct.pack("!IHBB", 6 << 28 | dscp << 22, len(payload), protocol, 64)
        return 0x86DD, head + one.packed + other.packed + payload
    assert isinstance(other, IPv4Address)
    values = (0x45, dscp << 2, 20 + len(payload), 1, fragment, 64, protocol)
    head = struct.pack("!BBHHHBBH4s4s", *values, 0, one.packed, other.packed)
    return 0x0800, head[:10] + checksum(head).to_bytes(2) + head[12:] + payload


def pseudo(src: str, dst: str, protocol: int, size: int) -> bytes:
    """The pseudo-header that TCP, UDP and ICMPv6 checksums cover (RFC 768, RFC 8200 section 8.1)."""
    one, other = ip_address(src), ip_address(dst)
    tail = struct.pack("!BBH", 0, protocol, size) if one.version == 4 else struct.pack("!IHBB", size, 0, 0, protocol)
    return one.packed + other.packed + tail


def udp_payload(src: str, dst: str, sport: int, dport: int, data: bytes = b"data") -> bytes:
    """A UDP datagram."""
    head = struct.pack("!HHHH", sport, dport, 8 + len(data), 0)
    total = checksum(pseudo(src, dst, 17, 8 + len(data)) + head + data)
    return head[:6] + total.to_bytes(2) + data


def tcp_payload(src: str, dst: str, sport: int, dport: int, flags: int, data: bytes = b"") -> bytes:
    """A TCP segment."""
    head = struct.pack("!HHIIHHHH", sport, dport, 1, 1, 5 << 12 | flags, 1000, 0, 0)
    total = checksum(pseudo(src, dst, 6, 20 + len(data)) + head + data)
    return head[:16] + total.to_bytes(2) + head[18:] + data


def udp(
    smac: str, dmac: str, src: str, dst: str, sport: int = 1000, dport: int = 2000, *, vlan: int | None = None,
    dscp: int = 0,
) -> bytes:  # fmt: skip
    """A UDP frame of either IP version."""
    return ethernet(smac, dmac, *ip(src, dst, 17, udp_payload(src, dst, sport, dport), dscp=dscp), vlan)


def tcp(smac: str, dmac: str, src: str, dst: str, sport: int, dport: int, flags: int = SYN) -> bytes:
    """A TCP frame of either IP version."""
    return ethernet(smac, dmac, *ip(src, dst, 6, tcp_payload(src, dst, sport, dport, flags)))


def icmp(smac: str, dmac: str, src: str, dst: str, kind: int, code: int = 0, rest: bytes = b"\0\7\0\1") -> bytes:
    """An ICMP or ICMPv6 frame; ``rest`` is what follows the checksum (identifier and sequence number of an echo)."""
    if ip_address(src).version == 4:
        body = struct.pack("!BBH", kind, code, 0) + rest
        body = body[:2] + checksum(body).to_bytes(2) + rest
        return ethernet(smac, dmac, *ip(src, dst, 1, body))
    body = struct.pack("!BBH", kind, code, 0) + rest
    body = body[:2] + checksum(pseudo(src, dst, 58, len(body)) + body).to_bytes(2) + rest
    return ethernet(smac, dmac, *ip(src, dst, 58, body))


def arp(smac: str, sha: str, spa: str, tha: str, tpa: str, op: int = 1, dmac: str = "ff:ff:ff:ff:ff:ff") -> bytes:
    """An ARP frame; ``smac`` is the Ethernet source, ``sha`` the sender that it claims."""
    body = struct.pack("!HHBBH", 1, 0x0800, 6, 4, op)
    body += (
        mac_number(sha).to_bytes(6) + IPv4Address(spa).packed + mac_number(tha).to_bytes(6) + IPv4Address(tpa).packed
    )
    return ethernet(smac, dmac, 0x0806, body)


def nd(
    smac: str, dmac: str, src: str, dst: str, target: str, *, sll: str | None = None, tll: str | None = None
) -> bytes:
    """A Neighbor Advertisement if it has ``tll``, else a Neighbor Solicitation (RFC 4861)."""
    rest = b"\0\0\0\0" + IPv6Address(target).packed
    for kind, mac in ((1, sll), (2, tll)):
        if mac is not None:
            rest += bytes((kind, 1)) + mac_number(mac).to_bytes(6)
    return icmp(smac, dmac, src, dst, 135 if tll is None else 136, rest=rest)

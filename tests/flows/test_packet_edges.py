"""Headers at the very end of frames, with every bit set, and with lengths that lie: each field byte by byte."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable

import pytest

from lark_controller.flows.model import ETH_ARP, ETH_IPV4, ETH_IPV6, VLAN_PRESENT
from lark_controller.flows.simulation import packet
from tests.fixtures import frames

A, B = "02:00:00:00:00:0a", "02:00:00:00:00:0b"
MACS = bytes(range(0xB0, 0xB6)) + bytes(range(0xA0, 0xA6))
ETHERNET = {"eth_dst": 0xB0B1B2B3B4B5, "eth_src": 0xA0A1A2A3A4A5}
SRC6, DST6 = bytes(range(0x20, 0x30)), bytes(range(0x30, 0x40))


def four(protocol: int, body: bytes, *, options: bytes = b"", word: int = 0, total: int | None = None,
         words: int | None = None, vlan: bytes = b"") -> bytes:  # fmt: skip
    """An IPv4 frame; ``word`` holds flags and offset of a fragment."""
    first = 0x40 | (5 + len(options) // 4 if words is None else words)
    size = 20 + len(options) + len(body) if total is None else total
    head = struct.pack("!BBHHHBBH", first, 0xBB, size, 1, word, 64, protocol, 0)
    return MACS + vlan + b"\x08\0" + head + b"\x11\x12\x13\x14\x21\x22\x23\x24" + options + body


def six(protocol: int, body: bytes, *, size: int | None = None, vlan: bytes = b"") -> bytes:
    head = struct.pack("!IHBB", 0x6AAABCDE, len(body) if size is None else size, protocol, 64)
    return MACS + vlan + b"\x86\xdd" + head + SRC6 + DST6 + body


IPV4 = {**ETHERNET, "eth_type": ETH_IPV4, "ip_dscp": 0xBB >> 2, "ipv4_src": 0x11121314, "ipv4_dst": 0x21222324}
IPV6 = {
    **ETHERNET, "eth_type": ETH_IPV6, "ip_dscp": 0b101010, "ipv6_flabel": 0xABCDE,
    "ipv6_src": int.from_bytes(SRC6), "ipv6_dst": int.from_bytes(DST6),
}  # fmt: skip
BODY = bytes(range(0x50, 0x90))
PORTS = (0x5051, 0x5253)
TRANSPORTS = [
    (6, 20, {"tcp_src": PORTS[0], "tcp_dst": PORTS[1], "tcp_flags": 0xC5D}),
    (17, 8, {"udp_src": PORTS[0], "udp_dst": PORTS[1]}),
]


@pytest.mark.parametrize("vlan", [b"", b"\x81\0\xfa\xbc", b"\x88\xa8\xfa\xbc"])
@pytest.mark.parametrize(("protocol", "size", "fields"), TRANSPORTS)
def test_a_transport_header_is_read_where_it_is_whole(
    protocol: int, size: int, fields: dict[str, int], vlan: bytes
) -> None:
    tag = {"vlan_vid": VLAN_PRESENT | 0xABC if vlan else 0, "ip_proto": protocol}
    for make, head in ((four, IPV4), (six, IPV6)):
        for length in range(len(BODY)):
            found = packet.parse(make(protocol, BODY[:length], vlan=vlan))
            assert found == head | tag | (fields if length >= size else {}), length


@pytest.mark.parametrize(("make", "protocol", "name"), [(four, 1, "icmpv4"), (six, 58, "icmpv6")])
def test_icmp_is_read_where_its_first_eight_bytes_are_there(
    make: Callable[..., bytes], protocol: int, name: str
) -> None:
    for length in range(12):
        fields = packet.parse(make(protocol, b"\x80\x05" + BODY[2:length] if length > 1 else b"\x80"[:length]))
        found = {key: value for key, value in fields.items() if key.startswith("icmp")}
        assert found == ({f"{name}_type": 0x80, f"{name}_code": 5} if length >= 8 else {}), length


@pytest.mark.parametrize("kind", [134, 135, 136, 137])
@pytest.mark.parametrize("code", [0, 1])
def test_the_target_of_neighbour_discovery_is_read_where_it_is_whole(kind: int, code: int) -> None:
    for length in (8, 23, 24, 31):
        fields = packet.parse(six(58, bytes((kind, code)) + BODY[2:length]))
        is_there = kind in (135, 136) and not code and length >= 24
        assert fields.get("ipv6_nd_target") == (int.from_bytes(BODY[8:24]) if is_there else None)
        assert (fields["icmpv6_type"], fields["icmpv6_code"]) == (kind, code)


OPTIONS = b"\1\1" + bytes(range(0xC0, 0xC6)), b"\2\1" + bytes(range(0xD0, 0xD6))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (OPTIONS[0], (0xC0C1C2C3C4C5, None)),
        (OPTIONS[1], (None, 0xD0D1D2D3D4D5)),
        (OPTIONS[0] + OPTIONS[1], (0xC0C1C2C3C4C5, 0xD0D1D2D3D4D5)),
        (OPTIONS[1] + OPTIONS[0], (0xC0C1C2C3C4C5, 0xD0D1D2D3D4D5)),
        (OPTIONS[0][:7], (None, None)),
        (OPTIONS[0] + OPTIONS[1][:7], (0xC0C1C2C3C4C5, None)),
        # Another length of a known option, and other options, are passed over.
        (b"\1\2" + bytes(14) + OPTIONS[1], (None, 0xD0D1D2D3D4D5)),
        (b"\5\3" + bytes(22) + OPTIONS[0], (0xC0C1C2C3C4C5, None)),
        (b"\3\1" + b"\1\1" + bytes(4) + OPTIONS[1], (None, 0xD0D1D2D3D4D5)),
        # An option without a length, or beyond the end, ends the list.
        (OPTIONS[0] + b"\0\0" + bytes(6) + OPTIONS[1], (0xC0C1C2C3C4C5, None)),
        (b"\5\3" + bytes(6) + OPTIONS[1], (None, None)),
        # One of zeros counts as none.
        (b"\1\1" + bytes(6) + OPTIONS[0], (0xC0C1C2C3C4C5, None)),
    ],
)
def test_options_of_neighbour_discovery(options: bytes, expected: tuple[int | None, int | None]) -> None:
    for kind in (135, 136):
        fields = packet.parse(six(58, bytes((kind, 0)) + BODY[2:24] + options))
        assert (fields.get("ipv6_nd_sll"), fields.get("ipv6_nd_tll")) == expected
        assert fields["ipv6_nd_target"] == int.from_bytes(BODY[8:24])


@pytest.mark.parametrize("position", [0, 1])
def test_an_option_given_twice_voids_the_target_too(position: int) -> None:
    fields = packet.parse(six(58, b"\x87\0" + BODY[2:24] + OPTIONS[position] * 2 + OPTIONS[1 - position]))
    assert not {name for name in fields if name.startswith("ipv6_nd")}


def test_ipv4_headers_have_the_length_that_they_give() -> None:
    """RFC 791, section 3.1: the header's length in words of four bytes, and the packet's in bytes."""
    udp = BODY[:8]
    for words in range(16):
        options = bytes(4 * max(0, words - 5))
        fields = packet.parse(four(17, udp, options=options, words=words, total=20 + len(options) + 8))
        assert fields.get("udp_src") == (PORTS[0] if words >= 5 else None)
        assert ("ip_proto" in fields) == (words >= 5)
    for total in range(40):
        fields = packet.parse(four(17, udp, total=total))
        assert ("ip_proto" in fields) == (20 <= total <= 28), total
    # The frame ends within the header.
    assert "ip_proto" not in packet.parse(four(17, b"", total=20)[:-1])
    assert packet.parse(four(17, b""))["ip_proto"] == 17


@pytest.mark.parametrize("bit", range(16))
def test_any_part_but_the_only_one_of_an_ipv4_packet_has_no_ports(bit: int) -> None:
    """RFC 791: thirteen bits of an offset, and More Fragments; not Don't Fragment, and not the bit that is reserved."""
    fields = packet.parse(four(17, BODY[:8], word=1 << bit))
    assert ("udp_src" in fields) == (bit >= 14)
    assert fields["ip_proto"] == 17


def test_ipv6_packets_end_within_their_frame() -> None:
    for size in range(12):
        fields = packet.parse(six(17, BODY[:8], size=size))
        assert ("ip_proto" in fields) == (size <= 8)
    assert packet.parse(six(17, b""))["ip_proto"] == 17
    assert "ip_proto" not in packet.parse(six(17, b"")[:-1])


@pytest.mark.parametrize("bit", range(16))
def test_fragments_of_ipv6(bit: int) -> None:
    """RFC 8200, section 4.5: thirteen bits of an offset, two that are reserved, and More Fragments."""
    head = bytes((17, 0)) + (1 << bit).to_bytes(2) + bytes(4)
    fields = packet.parse(six(44, head + BODY[:8]))
    if bit >= 3:
        assert fields["ip_proto"] == 44
    else:
        assert fields["ip_proto"] == 17
        assert ("udp_src" in fields) == (bit > 0)


def test_a_header_behind_a_fragments_own_is_passed_over() -> None:
    options, more, only = bytes((17, 0)) + bytes(6), bytes((60, 0, 0, 1)) + bytes(4), bytes((60, 0)) + bytes(6)
    assert "udp_src" not in packet.parse(six(44, more + options + BODY[:8]))
    assert packet.parse(six(44, more + options + BODY[:8]))["ip_proto"] == 17
    assert packet.parse(six(44, only + options + BODY[:8]))["udp_src"] == PORTS[0]
    # Twice a fragment: the first says it.
    again = bytes((44, 0, 0, 1)) + bytes(4)
    assert "udp_src" not in packet.parse(six(44, again + bytes((17, 0)) + bytes(6) + BODY[:8]))


@pytest.mark.parametrize(
    ("header", "sizes"), [(0, {n: 8 * (n + 1) for n in range(4)}), (51, {n: 4 * (n + 2) for n in range(1, 6)})]
)
def test_extension_headers_have_the_length_that_they_give(header: int, sizes: dict[int, int]) -> None:
    for given, size in sizes.items():
        chain = bytes((17, given)) + bytes(size - 2)
        assert packet.parse(six(header, chain + BODY[:8]))["udp_src"] == PORTS[0]
        # A header that ends with the frame is whole, and one that goes on beyond has nothing behind it.
        assert packet.locate(six(header, chain)).transport == 14 + 40 + size
        beyond = packet.locate(six(header, chain[:-1])) if size > 8 else packet.locate(six(header, chain[:7]))
        assert beyond.transport is None
        assert beyond.protocol == (17 if size > 8 else None)


def arp(length: int = 28, *, head: tuple[int, int, int, int] = (1, 0x0800, 6, 4), op: int = 2) -> bytes:
    body = struct.pack("!HHBBH", *head, op) + bytes(range(0x60, 0x74))
    return MACS + b"\x08\x06" + body[:length]


ARP = {
    "arp_sha": 0x606162636465, "arp_spa": 0x66676869, "arp_tha": 0x6A6B6C6D6E6F, "arp_tpa": 0x70717273,
}  # fmt: skip


def test_arp_byte_by_byte() -> None:
    bare = {**ETHERNET, "eth_type": ETH_ARP, "vlan_vid": 0}
    assert packet.parse(arp()) == {**bare, "arp_op": 2, **ARP}
    for length in range(28):
        assert packet.parse(arp(length)) == bare
    for place, other in itertools.product(range(4), (-1, 1)):
        head = [1, 0x0800, 6, 4]
        head[place] += other
        assert packet.parse(arp(head=(head[0], head[1], head[2], head[3]))) == bare
    # As in Open vSwitch, an operation above one byte is none.
    for op, seen in ((1, 1), (0xFF, 0xFF), (0x100, 0), (0x101, 0), (0xFFFF, 0)):
        assert packet.parse(arp(op=op))["arp_op"] == seen


def test_fast_addresses_byte_by_byte() -> None:
    macs = (ETHERNET["eth_src"], ETHERNET["eth_dst"])
    source, target = int.from_bytes(SRC6), int.from_bytes(DST6)
    for vlan, number in ((b"", 0), (b"\x81\0\xfa\xbc", 0xABC), (b"\x88\xa8\xf0\x01", 1)):
        ends = (0x11121314, 0x21222324)
        assert packet.parse_fast_addresses(four(17, b"", vlan=vlan)) == (*macs, number, ETH_IPV4, *ends, 4)
        assert packet.parse_fast_addresses(six(17, b"", vlan=vlan)) == (*macs, number, ETH_IPV6, source, target, 6)
        for short in (four(17, b"", vlan=vlan)[:-1], six(17, b"", vlan=vlan)[:-1]):
            assert packet.parse_fast_addresses(short)[4:] == (None, None, 0)
    ends = (ARP["arp_spa"], ARP["arp_tpa"])
    assert packet.parse_fast_addresses(arp()) == (*macs, 0, ETH_ARP, *ends, 4)
    assert packet.parse_fast_addresses(arp(27)) == (*macs, 0, ETH_ARP, None, None, 0)
    assert packet.parse_fast_addresses(MACS + b"\x88\xcc") == (*macs, 0, 0x88CC, None, None, 0)
    assert packet.parse_fast_addresses(MACS + b"\x88") == (0, 0, 0, 0, None, None, 0)


@pytest.mark.parametrize(
    ("group", "protocol", "kind", "length", "is_target"),
    [
        (True, 58, 135, 24, True),
        (True, 58, 135, 23, False),
        (False, 58, 135, 24, False),
        (True, 17, 135, 24, False),
        (True, 58, 136, 24, False),
    ],
)
def test_the_target_of_a_solicitation_that_is_sent_to_a_group(
    group: bool, protocol: int, kind: int, length: int, is_target: bool
) -> None:
    for vlan in (b"", b"\x81\0\0\7"):
        frame = bytearray(six(protocol, bytes((kind, 0)) + BODY[2:length], vlan=vlan))
        at = 14 + len(vlan) + 24
        if group:
            frame[at] = 0xFF
        target = BODY[8:24] if is_target else bytes(frame[at : at + 16])
        found = packet.parse_fast_addresses(bytes(frame))
        assert (found.source, found.destination) == (int.from_bytes(SRC6), int.from_bytes(target))


def test_a_broken_ip_header_is_not_rewritten() -> None:
    for broken in (four(17, BODY[:8], total=60), six(17, BODY[:8], size=60)):
        for name in ("ip_dscp", "ipv4_src", "ipv6_dst", "ipv6_flabel", "udp_src"):
            assert packet.rewrite(broken, name, 1) == broken
    for length in range(28):
        for name in ("arp_op", "arp_sha", "arp_spa", "arp_tha", "arp_tpa"):
            assert packet.rewrite(arp(length), name, 1) == arp(length)


@pytest.mark.parametrize(
    ("name", "start", "width"),
    [("arp_op", 20, 2), ("arp_sha", 22, 6), ("arp_spa", 28, 4), ("arp_tha", 32, 6), ("arp_tpa", 38, 4)],
)
def test_arp_is_rewritten_in_place(name: str, start: int, width: int) -> None:
    whole = arp()
    value = (1 << 8 * width) - 2
    assert packet.rewrite(whole, name, value) == whole[:start] + value.to_bytes(width) + whole[start + width :]


def test_transport_checksums_are_those_of_the_protocol() -> None:
    """TCP, UDP and ICMPv6 cover the addresses; ICMP, and protocols that are not known, do not."""
    for protocol, place in ((6, 16), (17, 6), (1, None), (58, None), (132, None)):
        before = four(protocol, BODY[:40])
        after = packet.rewrite(before, "ipv4_src", 0x01020304)
        assert after[26:30] == b"\1\2\3\4"
        changed = {at for at in range(34, len(before)) if before[at] != after[at]}
        assert changed <= (set() if place is None else {34 + place, 35 + place})
        assert bool(changed) == (place is not None)
    for protocol, place in ((6, 16), (17, 6), (58, 2), (1, None), (132, None)):
        before = six(protocol, BODY[:40])
        after = packet.rewrite(before, "ipv6_src", 7)
        changed = {at for at in range(54, len(before)) if before[at] != after[at]}
        assert changed <= (set() if place is None else {54 + place, 55 + place})
        assert bool(changed) == (place is not None)


@pytest.mark.parametrize(("protocol", "end"), [(6, 18), (17, 8), (58, 4)])
def test_a_checksum_is_adjusted_where_it_is_whole(protocol: int, end: int) -> None:
    for length in range(1, 24):
        before = six(protocol, BODY[:length])
        after = packet.rewrite(before, "ipv6_src", 7)
        assert (before[54:] != after[54:]) == (length >= end), length


@pytest.mark.parametrize("make", [four, six])
def test_udp_without_a_checksum_stays_so(make: Callable[..., bytes]) -> None:
    body = BODY[:6] + b"\0\0" + BODY[8:20]
    before = make(17, body)
    after = packet.rewrite(before, "udp_dst", 9)
    at = len(before) - len(body)
    assert after == before[: at + 2] + b"\0\x09" + before[at + 4 :]


def test_checksums_are_right_for_any_value() -> None:
    """RFC 1071 by its definition, where carries come twice as well."""
    for value in (0, 1, 0xFFFF, 0x10000, 0xFFFF0000, 0xFFFFFFFF, 0x7FFF8000, 0xFFFEFFFF):
        for source in ("0.0.0.0", "255.255.255.255", "10.64.0.5"):
            frame = packet.rewrite(frames.tcp(A, B, source, "10.64.0.6", 0xFFFF, 0xFFFF), "ipv4_dst", value)
            assert frames.checksum(frame[14:34]) == 0
            head = frame[26:34] + (6).to_bytes(2) + (len(frame) - 34).to_bytes(2)
            assert frames.checksum(head + frame[34:]) == 0


def test_a_second_tag_has_the_number_of_the_first() -> None:
    single = four(17, BODY[:8], vlan=b"\x81\0\xa1\x23")
    assert packet.push_vlan(single, 0x88A8) == single[:12] + b"\x88\xa8\xa1\x23" + single[12:]
    plain = four(17, BODY[:8])
    assert packet.push_vlan(plain, 0x8100) == plain[:12] + b"\x81\0\0\0" + plain[12:]
    assert packet.pop_vlan(packet.push_vlan(single, 0x88A8)) == single
    assert packet.pop_vlan(plain) == plain


def test_ports_are_covered_by_the_checksum() -> None:
    for protocol, name, place in ((6, "tcp", 16), (17, "udp", 6)):
        for side, six_is_it in itertools.product(("src", "dst"), (False, True)):
            before = six(protocol, BODY[:24]) if six_is_it else four(protocol, BODY[:24])
            at = len(before) - 24
            port = at + (0 if side == "src" else 2)
            after = packet.rewrite(before, f"{name}_{side}", 0xFEDC)
            changed = {place for place in range(len(before)) if before[place] != after[place]}
            assert changed == {port, port + 1, at + place, at + place + 1}
            assert after[port : port + 2] == b"\xfe\xdc"
            assert packet.rewrite(after, f"{name}_{side}", int.from_bytes(before[port : port + 2])) == before


def test_ipv4_is_no_ipv6_group_whatever_its_bytes() -> None:
    for vlan in (b"", b"\x81\0\0\7"):
        assert not packet.is_multicast(four(17, b"\xff" * 20, vlan=vlan))
        frame = bytearray(six(17, BODY[:8], vlan=vlan))
        assert not packet.is_multicast(bytes(frame))
        frame[14 + len(vlan) + 24] = 0xFF
        assert packet.is_multicast(bytes(frame))

"""Frames as OpenFlow sees them: what is parsed, and what is rewritten, whole and broken."""

from __future__ import annotations

import pytest

from lark_controller.flows.model import (
    ETH_IPV4,
    VLAN_PRESENT,
)
from lark_controller.flows.simulation import packet
from tests.fixtures import frames

A, B = "02:00:00:00:00:0a", "02:00:00:00:00:0b"
FRAME = frames.udp(A, B, "10.64.0.5", "10.64.0.6")
FRAME6 = frames.udp(A, B, "2001:db8::5", "2001:db8::6")


def test_parse_says_what_the_frame_holds() -> None:
    fields = packet.parse(frames.udp(A, B, "10.64.0.5", "10.64.0.6", 67, 68, vlan=7, dscp=46))
    assert fields == {
        "eth_src": 0x02000000000A, "eth_dst": 0x02000000000B, "eth_type": ETH_IPV4, "vlan_vid": VLAN_PRESENT | 7,
        "ip_proto": 17, "ip_dscp": 46, "ipv4_src": 0x0A400005, "ipv4_dst": 0x0A400006, "udp_src": 67, "udp_dst": 68,
    }  # fmt: skip
    six = packet.parse(frames.udp(A, B, "2001:db8::5", "2001:db8::6", dscp=12))
    assert six["ipv6_src"] == (0x20010DB8 << 96) + 5
    assert (six["ip_dscp"], six["udp_dst"], six["vlan_vid"]) == (12, 2000, 0)
    arp = packet.parse(frames.arp(A, B, "10.64.0.5", A, "10.64.0.6", 2))
    assert (arp["arp_op"], arp["arp_sha"], arp["arp_tha"]) == (2, 0x02000000000B, 0x02000000000A)
    assert (arp["arp_spa"], arp["arp_tpa"]) == (0x0A400005, 0x0A400006)


def test_parse_reads_neighbor_discovery() -> None:
    solicit = packet.parse(frames.nd(A, "33:33:ff:00:00:06", "fe80::a", "ff02::1:ff00:6", "2001:db8::6", sll=A))
    assert solicit["ipv6_nd_target"] == (0x20010DB8 << 96) + 6
    assert solicit["ipv6_nd_sll"] == 0x02000000000A
    advert = packet.parse(frames.nd(A, B, "fe80::a", "fe80::b", "fe80::a", tll=A))
    assert (advert["icmpv6_type"], advert["ipv6_nd_tll"]) == (136, 0x02000000000A)
    bare = packet.parse(frames.nd(A, B, "fe80::a", "fe80::b", "fe80::a"))
    assert "ipv6_nd_sll" not in bare


def test_fragments_have_no_transport_fields() -> None:
    payload = frames.udp_payload("10.0.0.1", "10.0.0.2", 67, 68)
    for word in (0x2000, 0x0001):
        fields = packet.parse(frames.ethernet(A, B, *frames.ip("10.0.0.1", "10.0.0.2", 17, payload, fragment=word)))
        assert fields["ip_proto"] == 17
        assert "udp_src" not in fields
    first = bytes((17, 0, 0, 1, 0, 0, 0, 1)) + payload
    fields = packet.parse(frames.ethernet(A, B, *frames.ip("fe80::1", "fe80::2", 44, first)))
    assert fields["ip_proto"] == 17
    assert "udp_src" not in fields
    later = bytes((17, 0, 0, 8, 0, 0, 0, 1)) + payload
    assert packet.parse(frames.ethernet(A, B, *frames.ip("fe80::1", "fe80::2", 44, later)))["ip_proto"] == 44


def test_ipv6_extension_headers_are_passed_over() -> None:
    udp = frames.udp_payload("fe80::1", "fe80::2", 546, 547)
    chain = bytes((43, 0, 1, 4, 0, 0, 0, 0)) + bytes((17, 0, 0, 0, 0, 0, 0, 0)) + udp
    fields = packet.parse(frames.ethernet(A, B, *frames.ip("fe80::1", "fe80::2", 0, chain)))
    assert (fields["ip_proto"], fields["udp_src"], fields["udp_dst"]) == (17, 546, 547)


# RFC 7045, section 4: the numbers that are extension headers; 141 is none.
@pytest.mark.parametrize(("header", "protocol"), [(each, 17) for each in (0, 43, 60, 135, 139, 140)] + [(141, 141)])
def test_each_extension_header_with_a_length_is_passed_over(header: int, protocol: int) -> None:
    udp = frames.udp_payload("fe80::1", "fe80::2", 546, 547)
    options = bytes((17, 0, *bytes(6)))
    frame = frames.ethernet(A, B, *frames.ip("fe80::1", "fe80::2", header, options + udp))
    fields = packet.parse(frame)
    assert fields["ip_proto"] == protocol


def test_a_length_is_no_ethertype_unless_snap_has_one() -> None:
    """IEEE 802.3 frames say how long they are; SNAP (RFC 1042) gives the ethertype behind a header of 802.2."""
    _, packet_ip = frames.ip("10.0.0.1", "10.0.0.2", 17, frames.udp_payload("10.0.0.1", "10.0.0.2", 67, 68))
    snap = bytes.fromhex("aaaa03000000")

    def parsed(payload: bytes, vlan: int | None = None) -> dict[str, int]:
        return packet.parse(frames.ethernet(A, B, len(payload), payload, vlan))

    for vlan in (None, 7):
        fields = parsed(snap + b"\x08\x00" + packet_ip, vlan)
        assert (fields["eth_type"], fields["ipv4_src"], fields["udp_dst"]) == (ETH_IPV4, 0x0A000001, 68)
        assert parsed(snap + b"\x06\x00", vlan)["eth_type"] == 0x600
    not_snap = (b"\xaa\xaa\x03\x00\x00\x01\x08\x00" + packet_ip, snap + b"\x05\xff" + packet_ip, snap + b"\x08", b"")
    for payload in not_snap:
        assert parsed(payload)["eth_type"] == 0x5FF
        assert "ip_proto" not in parsed(payload)
    assert packet.parse(frames.ethernet(A, B, 0x600, bytes(50)))["eth_type"] == 0x600


def test_headers_may_end_where_the_frame_ends() -> None:
    """A chain of extension headers may end in none (59, RFC 8200, section 4.7); one byte less is no header."""
    for chain, last in ((bytes((59, 0, 1, 4, 0, 0, 0, 0)), 59), (bytes((59, 0, 1, 4, 0, 0, 0)), None)):
        fields = packet.parse(frames.ethernet(A, B, *frames.ip("fe80::1", "fe80::2", 0, chain)))
        assert fields.get("ip_proto") == last
        assert ("ipv6_dst" in fields) == (last is not None)


def test_what_is_sent_to_an_ipv6_group() -> None:
    for vlan in (None, 7):
        to_group = frames.udp(A, "33:33:00:00:00:01", "fe80::1", "ff02::1", vlan=vlan)
        head = 18 if vlan else 14
        assert packet.is_multicast(to_group)
        assert packet.is_multicast(to_group[: head + 25])
        assert not packet.is_multicast(to_group[: head + 24])
        assert not packet.is_multicast(frames.udp(A, B, "fe80::1", "fe80::2", vlan=vlan))
        assert not packet.is_multicast(frames.udp(A, B, "10.0.0.1", "255.255.255.255", vlan=vlan))
    assert not packet.is_multicast(b"")


def test_an_authentication_header_counts_in_fours() -> None:
    """RFC 4302, section 2.2: in 4-octet units, minus 2; all others in 8, minus 1."""
    udp = frames.udp_payload("fe80::1", "fe80::2", 546, 547)
    chain = bytes((17, 1, 0, 0)) + bytes(8) + udp
    fields = packet.parse(frames.ethernet(A, B, *frames.ip("fe80::1", "fe80::2", 51, chain)))
    assert (fields["ip_proto"], fields["udp_src"], fields["udp_dst"]) == (17, 546, 547)


def test_options_of_neighbour_discovery_that_are_broken_or_given_twice() -> None:
    def parsed(*options: bytes) -> dict[str, int]:
        rest = bytes(4) + bytes(16) + b"".join(options)
        return packet.parse(frames.icmp(A, B, "fe80::a", "fe80::b", 135, rest=rest))

    sll, other = b"\1\1\2\0\0\0\0\x0a", b"\x0e\1" + bytes(6)
    assert parsed(other, sll)["ipv6_nd_sll"] == 0x02000000000A
    assert "ipv6_nd_target" not in parsed(sll, sll)
    for broken in (b"\1\0" + bytes(6), b"\1\2" + bytes(6)):
        fields = parsed(broken, sll[:7])
        assert fields["ipv6_nd_target"] == 0
        assert "ipv6_nd_sll" not in fields
    assert "ipv6_nd_sll" not in parsed(b"\1\2" + bytes(14))


SAMPLES = [
    FRAME,
    FRAME6,
    frames.tcp(A, B, "10.0.0.1", "10.0.0.2", 1, 2),
    frames.udp(A, B, "10.0.0.1", "10.0.0.2", vlan=5),
    frames.arp(A, A, "10.0.0.1", B, "10.0.0.2"),
    frames.nd(A, B, "fe80::1", "fe80::2", "fe80::2", sll=A),
    frames.icmp(A, B, "10.0.0.1", "10.0.0.2", 8),
]


def test_fast_addresses() -> None:
    assert packet.parse_fast_addresses(FRAME)[2:] == (0, ETH_IPV4, 0x0A400005, 0x0A400006, 4)
    tagged = packet.parse_fast_addresses(frames.udp(A, B, "10.64.0.5", "10.64.0.6", vlan=9))
    assert tagged[2:] == (9, ETH_IPV4, 0x0A400005, 0x0A400006, 4)
    assert packet.parse_fast_addresses(FRAME6).source == (0x20010DB8 << 96) + 5
    arp = packet.parse_fast_addresses(frames.arp(A, A, "10.64.0.5", B, "10.64.0.6"))
    assert (arp.source, arp.destination, arp.version) == (0x0A400005, 0x0A400006, 4)
    nd = packet.parse_fast_addresses(frames.nd(A, B, "fe80::1", "ff02::1:ff00:6", "2001:db8::6"))
    assert nd.destination == (0x20010DB8 << 96) + 6
    assert packet.parse_fast_addresses(frames.ethernet(A, B, 0x88CC, b""))[3:] == (0x88CC, None, None, 0)


REWRITES = [
    ("eth_dst", 7), ("eth_src", 7), ("ip_dscp", 33), ("ipv4_src", 0x01020304), ("ipv4_dst", 0xFFFFFFFE),
    ("ipv6_src", (1 << 127) + 3), ("ipv6_dst", 9), ("ipv6_flabel", 0xABCDE), ("tcp_src", 1), ("tcp_dst", 65535),
    ("udp_src", 1), ("udp_dst", 65535), ("vlan_vid", VLAN_PRESENT | 77), ("arp_op", 2), ("arp_sha", 8),
    ("arp_spa", 5), ("arp_tha", 6), ("arp_tpa", 7),
]  # fmt: skip


@pytest.mark.parametrize("frame", SAMPLES)
def test_rewriting_changes_the_field_alone_and_keeps_checksums_right(frame: bytes) -> None:
    before = packet.parse(frame)
    for name, value in REWRITES:
        after = packet.rewrite(frame, name, value)
        present = name in before and not (name == "vlan_vid" and not before[name])
        assert packet.parse(after) == (before | {name: value} if present else before), name
        check(after)


def check(frame: bytes) -> None:
    layout = packet.locate(frame)
    if layout.protocol is None or layout.transport is None:
        return
    at = layout.network
    if layout.ethertype == ETH_IPV4:
        assert frames.checksum(frame[at : at + 20]) == 0
        addresses = frame[at + 12 : at + 20]
    else:
        addresses = frame[at + 8 : at + 40]
    body = frame[layout.transport :]
    head = addresses + len(body).to_bytes(4) + layout.protocol.to_bytes(4)
    assert frames.checksum(body if layout.protocol == packet.ICMP else head + body) == 0


def test_a_flow_label_is_twenty_bits_beside_others() -> None:
    """RFC 8200, section 3: version, traffic class and flow label share four bytes."""
    full = packet.rewrite(packet.rewrite(FRAME6, "ipv6_flabel", 0xFFFFF), "ip_dscp", 0x3F)
    assert full[14:18] == b"\x6f\xcf\xff\xff"
    for value in (0, 0xFFFFF, 0xAAAAA):
        fields = packet.parse(packet.rewrite(full, "ipv6_flabel", value))
        assert fields == {**packet.parse(full), "ipv6_flabel": value}
    for value in (0, 0x2A):
        fields = packet.parse(packet.rewrite(full, "ip_dscp", value))
        assert fields == {**packet.parse(full), "ip_dscp": value}
    four = packet.rewrite(packet.rewrite(FRAME, "ip_dscp", 0x3F), "ip_dscp", 0x15)
    assert four[15] == 0x15 << 2


def test_the_flags_of_tcp_are_twelve_bits() -> None:
    frame = bytearray(frames.tcp(A, B, "10.0.0.1", "10.0.0.2", 1, 2))
    frame[46:48] = b"\xaf\xff"
    assert packet.parse(bytes(frame))["tcp_flags"] == 0xFFF


@pytest.mark.parametrize(("protocol", "name"), [(6, "tcp_dst"), (17, "udp_dst"), (58, "ipv6_src")])
def test_a_header_that_is_cut_off_is_rewritten_as_far_as_it_is_there(protocol: int, name: str) -> None:
    for size in range(24):
        frame = frames.ethernet(A, B, *frames.ip("fe80::1", "fe80::2", protocol, bytes(range(1, size + 1))))
        new = packet.rewrite(frame, name, 7)
        assert len(new) == len(frame)
        if name == "ipv6_src" or size >= 8:
            assert new != frame
        else:
            assert new == frame


def test_a_bare_ethernet_header_can_be_rewritten_and_less_cannot() -> None:
    bare = FRAME[:14]
    assert packet.rewrite(bare, "eth_dst", 5) == bytes(5) + b"\5" + bare[6:]
    assert packet.rewrite(bare[:13], "eth_dst", 5) == bare[:13]
    assert set(packet.parse(bare)) == {"eth_dst", "eth_src", "eth_type", "vlan_vid"}
    assert packet.parse(bare[:13]) == {}


@pytest.mark.parametrize("ends", [("10.0.0.1", "10.0.0.2"), ("fe80::1", "fe80::2")])
@pytest.mark.parametrize("vlan", [None, 7])
def test_a_packet_that_is_longer_than_its_frame_is_not_read(ends: tuple[str, str], vlan: int | None) -> None:
    whole = frames.udp(A, B, *ends, vlan=vlan)
    assert "udp_dst" in packet.parse(whole)
    assert packet.parse(whole + bytes(20)) == packet.parse(whole), "frames may be padded"
    for cut in range(1, len(whole) - 14):
        fields = packet.parse(whole[:-cut])
        assert "ip_proto" not in fields
        assert not {name for name in fields if name.startswith(("ipv", "udp"))}


@pytest.mark.parametrize("protocol", [2, 132])
def test_other_protocols_have_no_transport_fields(protocol: int) -> None:
    for ends in (("10.0.0.1", "10.0.0.2"), ("fe80::1", "fe80::2")):
        fields = packet.parse(frames.ethernet(A, B, *frames.ip(*ends, protocol, bytes(64))))
        assert fields["ip_proto"] == protocol
        assert not {name for name in fields if name.startswith(("tcp", "udp", "icmp", "ipv6_nd"))}


def test_icmp_is_of_its_own_version() -> None:
    for ends, protocol in ((("10.0.0.1", "10.0.0.2"), 58), (("fe80::1", "fe80::2"), 1)):
        fields = packet.parse(frames.ethernet(A, B, *frames.ip(*ends, protocol, b"\x87\0" + bytes(62))))
        assert not {name for name in fields if name.startswith(("icmp", "ipv6_nd"))}


def test_a_udp_checksum_never_becomes_none() -> None:
    seen = set()
    for port in range(65536):
        frame = packet.rewrite(FRAME6, "udp_src", port)
        seen.add(frame[60:62])
        assert frame[62:] == FRAME6[62:]
    assert b"\0\0" not in seen
    assert b"\xff\xff" in seen


def test_a_tag_without_an_ethertype_behind_it_is_none() -> None:
    """Four bytes of a tag and two of the ethertype behind it: 18 with the addresses."""
    tagged = frames.udp(A, B, "10.0.0.1", "10.0.0.2", vlan=7)[:18]
    assert packet.parse(tagged)["vlan_vid"] == VLAN_PRESENT | 7
    assert packet.pop_vlan(tagged) == tagged[:12] + tagged[16:]
    assert packet.push_vlan(tagged, 0x8100)[14:16] == b"\0\7"
    assert packet.parse_fast_addresses(tagged).vlan == 7
    short = tagged[:17]
    assert (packet.parse(short)["vlan_vid"], packet.parse(short)["eth_type"]) == (0, 0x8100)
    assert packet.pop_vlan(short) == short
    assert packet.push_vlan(short, 0x8100)[14:16] == b"\0\0"
    assert packet.parse_fast_addresses(short).vlan == 0
    assert packet.rewrite(short, "vlan_vid", 5) == short


def test_the_number_of_a_tag_is_set_beside_its_priority() -> None:
    """IEEE 802.1Q: three bits of priority and one of eligibility stand before the number."""
    tagged = frames.udp(A, B, "10.0.0.1", "10.0.0.2", vlan=0xB123)
    new = packet.rewrite(tagged, "vlan_vid", VLAN_PRESENT | 0x456)
    assert new == tagged[:14] + b"\xb4\x56" + tagged[16:]

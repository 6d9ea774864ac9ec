"""The simulated tables: OpenFlow semantics, rewriting of real bytes, NORMAL, ct."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark_controller.flows.model import (
    CT_EST,
    CT_INV,
    CT_NEW,
    CT_REL,
    CT_RPL,
    CT_TRK,
    ETH_ARP,
    ETH_IPV4,
    ETH_IPV6,
    PORT_ALL,
    PORT_CONTROLLER,
    PORT_FLOOD,
    PORT_IN_PORT,
    PORT_LOCAL,
    PORT_NORMAL,
    PORT_TABLE,
    VLAN_PRESENT,
    Action,
    Flow,
    FlowData,
    FlowKey,
    Match,
    Output,
    PopVlan,
    Program,
    PushVlan,
    SetField,
    SetQueue,
    Track,
    match,
)
from lark_controller.flows.simulation import packet
from lark_controller.flows.simulation.classifier import covers, missing_prerequisite
from lark_controller.flows.simulation.simulate import (
    REASON_ACTION,
    REASON_NO_MATCH,
    ConnectionTable,
    PortView,
    Tables,
    run,
    run_actions,
    run_fields,
)
from tests.fixtures import frames

A, B = "02:00:00:00:00:0a", "02:00:00:00:00:0b"
FRAME = frames.udp(A, B, "10.64.0.5", "10.64.0.6")
FRAME6 = frames.udp(A, B, "2001:db8::5", "2001:db8::6")


def flow(table: int, priority: int, fields: Match = (), *actions: Action, goto: int | None = None, cookie: int = 0,
         metadata: tuple[int, int] | None = None, meter: int | None = None) -> Flow:  # fmt: skip
    return Flow(FlowKey(table, priority, fields), FlowData(cookie, actions, goto, metadata, meter))


def tables(*flows: Flow) -> Tables:
    return Tables(Program.of(flows))


def ports(*no_flood: int) -> PortView:
    return PortView.of((1, 2, 3, PORT_LOCAL), no_flood)


# -- frames -----------------------------------------------------------------------------------------------------------


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


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.binary(max_size=120), st.builds(lambda f, n, m: f[:n] + m + f[n + len(m) :],
       st.sampled_from(SAMPLES), st.integers(0, 90), st.binary(max_size=4))), st.integers(0, 90))  # fmt: skip
def test_no_frame_makes_anything_raise(frame: bytes, cut: int) -> None:
    everything = tables(
        flow(0, 1, (), SetField("ip_dscp", 9), SetField("ipv4_src", 1), SetField("ipv6_dst", 1), SetField("udp_dst", 5),
             SetField("arp_spa", 7), PushVlan(), SetField("vlan_vid", VLAN_PRESENT | 4), PopVlan(), PopVlan(),
             Track(1, 1, commit=True), Output(PORT_NORMAL)),
        flow(1, 1, (), Output(2)),
    )  # fmt: skip
    for one in (frame, frame[:cut]):
        fields = packet.parse(one)
        fast = packet.parse_fast_addresses(one)
        assert all(value >= 0 for value in fields.values())
        if "eth_src" in fields and fast.ethertype == fields["eth_type"]:
            assert (fast.eth_src, fast.eth_dst) == (fields["eth_src"], fields["eth_dst"])
            assert fast.vlan == fields["vlan_vid"] & 0xFFF
            if "ipv4_src" in fields:
                assert (fast.source, fast.destination) == (fields["ipv4_src"], fields["ipv4_dst"])
        run(everything, 1, one, ports(), ConnectionTable())


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


def test_vlan_tags() -> None:
    out = run(tables(flow(0, 1, (), PushVlan(), SetField("vlan_vid", VLAN_PRESENT | 9), Output(2))), 1, FRAME, ports())
    assert out.outputs == ((2, frames.udp(A, B, "10.64.0.5", "10.64.0.6", vlan=9)),)
    back = run(tables(flow(0, 1, (), PopVlan(), Output(2))), 1, out.outputs[0][1], ports())
    assert back.outputs == ((2, FRAME),)
    untouched = run(tables(flow(0, 1, (), SetField("vlan_vid", VLAN_PRESENT | 9), Output(2))), 1, FRAME, ports())
    assert untouched.outputs == ((2, FRAME),)


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


def test_tags_of_fields_without_a_frame() -> None:
    """The number that is there already stays: a second tag is an ethertype, not a number."""
    program = tables(
        flow(0, 1, (), PushVlan(), goto=1),
        flow(1, 1, match(vlan_vid=VLAN_PRESENT), SetField("vlan_vid", VLAN_PRESENT | 9), goto=2),
        flow(1, 1, match(vlan_vid=VLAN_PRESENT | 7), goto=2),
        flow(2, 1, match(vlan_vid=VLAN_PRESENT | 9), Output(2)),
        flow(2, 1, match(vlan_vid=VLAN_PRESENT | 7), PopVlan(), goto=3),
        flow(3, 1, match(vlan_vid=0), SetField("vlan_vid", VLAN_PRESENT | 5), Output(3)),
    )
    fields = {"in_port": 1, "eth_type": ETH_IPV4}
    assert run_fields(program, fields, ports()).ports == (2,)
    tagged = run_fields(program, {**fields, "vlan_vid": VLAN_PRESENT | 7}, ports())
    assert (tagged.ports, tagged.headers[0]["vlan_vid"]) == ((3,), 0)


# -- tables -----------------------------------------------------------------------------------------------------------


def test_priority_metadata_goto_meters_and_queue() -> None:
    program = tables(
        flow(0, 5, match(in_port=1), goto=1, metadata=(0x55, 0xFF), meter=3),
        flow(0, 1, ()),
        flow(1, 10, match(metadata=(0x05, 0x0F)), SetQueue(4), Output(2), Output(3)),
        flow(1, 20, match(metadata=(0x06, 0x0F))),
    )
    result = run(program, 1, FRAME, ports())
    assert result.ports == (2, 3)
    assert result.queues == (4, 4)
    assert result.meters == (3,)
    assert [(hit.table, hit.key.priority) for hit in result.trace if hit.key is not None] == [(0, 5), (1, 10)]
    assert result.headers[0]["metadata"] == 0x55
    assert not result.dropped
    other = run(program, 2, FRAME, ports())
    assert other.dropped
    assert other.dropped_by == FlowKey(0, 1, ())


def test_a_table_miss_drops() -> None:
    result = run(tables(flow(0, 1, match(in_port=9))), 1, FRAME, ports())
    assert result.dropped
    assert result.trace == ((0, None, None),)
    assert result.dropped_by is None


def test_actions_apply_in_order_so_an_output_sends_what_was_there_then() -> None:
    result = run(tables(flow(0, 1, (), Output(2), SetField("ip_dscp", 46), Output(3))), 1, FRAME, ports())
    assert [packet.parse(frame)["ip_dscp"] for _, frame in result.outputs] == [0, 46]
    goto = tables(
        flow(0, 1, (), SetField("ip_dscp", 46), goto=1), flow(1, 1, match(eth_type=ETH_IPV4, ip_dscp=46), Output(2))
    )
    assert run(goto, 1, FRAME, ports()).ports == (2,)


def test_reserved_ports() -> None:
    def sent(*actions: Action, view: PortView | None = None) -> tuple[int, ...]:
        return run(tables(flow(0, 1, (), *actions)), 1, FRAME, view or ports()).ports

    assert sent(Output(1)) == ()
    assert sent(Output(PORT_IN_PORT)) == (1,)
    assert sent(Output(99)) == ()
    assert sent(Output(PORT_ALL), view=ports(2)) == (2, 3, PORT_LOCAL)
    assert sent(Output(PORT_FLOOD), view=ports(2)) == (3, PORT_LOCAL)
    assert sent(Output(PORT_LOCAL)) == (PORT_LOCAL,)


def test_to_the_controller() -> None:
    miss = run(tables(flow(0, 0, (), Output(PORT_CONTROLLER, 64), cookie=9)), 1, FRAME, ports())
    assert miss.to_controller == ((REASON_NO_MATCH, 0, FRAME, 9, 64),)
    assert not miss.dropped
    chosen = run(tables(flow(0, 0, (), goto=1), flow(1, 3, (), Output(PORT_CONTROLLER))), 1, FRAME, ports())
    assert [(told.reason, told.table) for told in chosen.to_controller] == [(REASON_ACTION, 1)]


def test_packet_out() -> None:
    program = tables(flow(0, 1, match(in_port=1), Output(2)), flow(0, 1, match(in_port=PORT_CONTROLLER), Output(3)))
    assert run_actions(program, 1, FRAME, (Output(PORT_TABLE),), ports()).ports == (2,)
    assert run_actions(program, PORT_CONTROLLER, FRAME, (Output(PORT_TABLE),), ports()).ports == (3,)
    assert run_actions(program, PORT_CONTROLLER, FRAME, (Output(1), Output(3)), ports()).ports == (1, 3)
    back = run_actions(program, 1, FRAME, (Output(PORT_CONTROLLER, 99),), ports())
    assert back.to_controller == ((REASON_ACTION, 0, FRAME, (1 << 64) - 1, 99),)


def test_normal_learns_by_vlan_and_floods_only_where_it_may() -> None:
    program, view = tables(flow(0, 1, (), Output(PORT_NORMAL))), ports(3)
    first = run(program, 1, frames.udp(A, B, "10.0.0.1", "10.0.0.2"), view)
    assert (first.ports, first.flooded) == ((2, PORT_LOCAL), True)
    assert run(program, 3, frames.udp(B, A, "10.0.0.2", "10.0.0.1"), view).ports == (1,)
    assert run(program, 1, frames.udp(A, B, "10.0.0.1", "10.0.0.2"), view).ports == (3,)
    assert run(program, 1, frames.udp(A, B, "10.0.0.1", "10.0.0.2", vlan=4), view).flooded
    assert run(program, 3, frames.udp(A, B, "10.0.0.1", "10.0.0.2"), view).ports == ()
    known = dict(view.fdb)
    run(program, 2, frames.udp("02:00:00:00:00:0c", B, "10.0.0.1", "10.0.0.2"), view, learn=False)
    run(program, 2, frames.udp("03:00:00:00:00:0c", B, "10.0.0.1", "10.0.0.2"), view)
    assert view.fdb == known
    assert run(program, 1, frames.ethernet(A, "01:80:c2:00:00:00", 0x88CC, b""), view).dropped
    view.remove(3)
    assert 3 not in view.fdb.values()


def test_fields_without_bytes() -> None:
    program = tables(
        flow(0, 1, match(eth_type=ETH_IPV4, ipv4_dst=(0x0A400000, 0xFFFF0000)), SetField("ip_dscp", 7), goto=1),
        flow(1, 2, match(ct_state=(0, CT_TRK)), Track(1, 1)),
        flow(1, 5, match(ct_state=(CT_TRK | CT_NEW, CT_TRK | CT_NEW)), Output(2)),
        flow(1, 5, match(ct_state=(CT_TRK | CT_EST, CT_TRK | CT_EST)), Output(3)),
    )
    fields = {"in_port": 1, "eth_type": ETH_IPV4, "ipv4_src": 1, "ipv4_dst": 0x0A400005}
    result = run_fields(program, fields, ports())
    assert (result.ports, result.headers[0]["ip_dscp"]) == ((2,), 7)
    assert run_fields(program, fields, ports(), ct_new=False).ports == (3,)
    assert fields == {"in_port": 1, "eth_type": ETH_IPV4, "ipv4_src": 1, "ipv4_dst": 0x0A400005}


def test_incremental_changes_counters_and_cookies() -> None:
    program = tables(flow(0, 5, (), Output(2), cookie=0x11), flow(0, 1, (), Output(3), cookie=0x21))
    program.count(run(program, 1, FRAME, ports()).flows, len(FRAME))
    entry = program.entries[FlowKey(0, 5, ())]
    assert (entry.packets, entry.bytes) == (1, len(FRAME))
    assert program.set(flow(0, 5, (), Output(1), cookie=0x12)) is entry
    assert program.entries[FlowKey(0, 5, ())].packets == 0
    assert [gone.data.cookie for gone in program.remove_matching(None, (), cookie=0x10, cookie_mask=0xF0)] == [0x12]
    assert run(program, 1, FRAME, ports()).ports == (3,)
    assert program.remove(FlowKey(0, 9, ())) is None
    assert program.program() == Program.of([flow(0, 1, (), Output(3), cookie=0x21)])
    assert len(program.remove_matching(None, (), out_port=2)) == 0
    assert len(program.remove_matching(0, (), out_port=3)) == 1
    assert len(program) == 0


def test_what_a_switch_refuses() -> None:
    with pytest.raises(ValueError, match=r"a match on ipv4_src needs eth_type=0x800"):
        tables(flow(0, 1, match(ipv4_src=5)))
    with pytest.raises(ValueError, match=r"does not lead forward"):
        tables(flow(3, 1, (), goto=3))
    assert missing_prerequisite(match(eth_type=ETH_ARP, arp_spa=1)) == ""
    assert "icmpv6_type=135" in missing_prerequisite(match(eth_type=ETH_IPV6, ip_proto=58, ipv6_nd_sll=1))


PORTS_OF = {"tcp": 6, "udp": 17}
WHOLE: dict[str, dict[str, int]] = {
    "ip_dscp": {"eth_type": ETH_IPV6}, "ip_proto": {"eth_type": ETH_IPV4},
    **{f"ipv4_{side}": {"eth_type": ETH_IPV4} for side in ("src", "dst")},
    **{f"ipv6_{part}": {"eth_type": ETH_IPV6} for part in ("src", "dst", "flabel")},
    **{f"arp_{part}": {"eth_type": ETH_ARP} for part in ("op", "spa", "tpa", "sha", "tha")},
    **{f"{name}_{side}": {"eth_type": ETH_IPV6, "ip_proto": number}
       for name, number in PORTS_OF.items() for side in ("src", "dst")},
    "icmpv4_type": {"eth_type": ETH_IPV4, "ip_proto": 1},
    "icmpv6_type": {"eth_type": ETH_IPV6, "ip_proto": 58},
    "icmpv6_code": {"eth_type": ETH_IPV6, "ip_proto": 58},
    "ipv6_nd_target": {"eth_type": ETH_IPV6, "ip_proto": 58, "icmpv6_type": 136},
    "ipv6_nd_sll": {"eth_type": ETH_IPV6, "ip_proto": 58, "icmpv6_type": 135},
    "ipv6_nd_tll": {"eth_type": ETH_IPV6, "ip_proto": 58, "icmpv6_type": 136},
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_a_match_needs_all_of_its_prerequisites(name: str) -> None:
    """OpenFlow 1.3.5, table 13."""
    whole = WHOLE[name]
    assert missing_prerequisite(match(**{name: 1}, **whole)) == ""
    for needed, value in whole.items():
        others = {key: whole[key] for key in whole if key != needed}
        changed: tuple[dict[str, int], ...] = (others, {**others, needed: value + 7})
        for fields in changed:
            assert f"needs {needed}=" in missing_prerequisite(match(**{name: 1}, **fields))
    masked: dict[str, int | tuple[int, int]] = {**whole, "eth_type": (whole["eth_type"], 0xFF00)}
    assert missing_prerequisite(match(**{name: 1}, **masked))


def test_covers() -> None:
    wide = match(eth_type=ETH_IPV4, ipv4_src=(0x0A000000, 0xFF000000))
    narrow = match(eth_type=ETH_IPV4, ipv4_src=0x0A000001, in_port=2)
    assert covers(wide, narrow)
    assert covers((), narrow)
    assert not covers(narrow, wide)


POOL = [
    match(), match(in_port=1), match(in_port=2), match(metadata=(1, 1)), match(eth_type=ETH_IPV4),
    match(eth_type=ETH_IPV4, ipv4_src=(0x0A400000, 0xFFFF0000)), match(eth_type=ETH_IPV4, ipv4_src=0x0A400005),
    match(eth_dst=(0, 1 << 40)), match(eth_type=ETH_IPV4, ip_proto=17, udp_dst=2000), match(vlan_vid=0),
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from(POOL), st.integers(0, 4)), max_size=40))
def test_look_up_is_the_linear_search(history: list[tuple[bool, Match, int]]) -> None:
    one = Tables()
    for add, fields, priority in history:
        if add:
            one.set(flow(0, priority, fields))
        else:
            one.remove(FlowKey(0, priority, fields))
        for port in (1, 3):
            seen = packet.parse(FRAME) | {"in_port": port, "metadata": port}
            hits = [
                key for key in one.entries if all(seen.get(name, 0) & mask == value for name, value, mask in key.match)
            ]
            best = min(hits, key=lambda key: (-key.priority, key), default=None)
            found = one.lookup(0, seen)
            assert (None if found is None else found.key) == best
            if best is not None:
                same = {key for key in hits if key.priority == best.priority}
                assert {each.key for each in one.overlapping(0, best.priority, seen)} == same


# -- connections ------------------------------------------------------------------------------------------------------


def ct_states(ct: ConnectionTable, *sent: bytes) -> list[int]:
    return [ct.track(7, frame, commit=True) & ~CT_TRK for frame in sent]


@pytest.mark.parametrize(("one", "other"), [("10.0.0.1", "10.0.0.2"), ("2001:db8::1", "2001:db8::2")])
def test_connections_by_five_tuple(one: str, other: str) -> None:
    ct = ConnectionTable()
    syn, reply = frames.tcp(A, B, one, other, 5, 80), frames.tcp(B, A, other, one, 80, 5, frames.SYN | frames.ACK)
    assert ct_states(ct, reply, syn, syn, reply, syn) == [CT_INV, CT_NEW, CT_NEW, CT_EST | CT_RPL, CT_EST]
    assert ct.track(8, syn) == CT_TRK | CT_NEW
    assert ct.track(7, frames.tcp(A, B, one, other, 6, 80), commit=False) == CT_TRK | CT_NEW
    assert len(ct) == 1
    udp, back = frames.udp(A, B, one, other, 9, 53), frames.udp(B, A, other, one, 53, 9)
    assert ct_states(ct, udp, back, udp) == [CT_NEW, CT_EST | CT_RPL, CT_EST]
    copy = ct.copy()
    ct.flush(7)
    assert (len(ct), len(copy)) == (0, 2)


def test_connections_of_one_end_are_forgotten() -> None:
    ct = ConnectionTable()
    for mine, theirs in (("10.0.0.1", "10.0.0.2"), ("10.0.0.2", "10.0.0.1")):
        ct.track(7, frames.udp(A, B, mine, theirs, 1, 2), commit=True)
        ct.track(7, frames.tcp(A, B, mine, theirs, 1, 2), commit=True)
        ct.track(8, frames.udp(A, B, mine, theirs, 1, 2), commit=True)
    left = ct.copy()
    ct.forget(7, 17, 0x0A000001, source=True)
    assert {key for key in left.replied if key not in ct.replied} == {
        (zone, one) for zone, one in left.replied if (zone, one.protocol, one.src) == (7, 17, 0x0A000001)
    }
    assert len(ct) == len(left) - 1
    ct.forget(7, 17, 0x0A000001, source=False)
    assert len(ct) == len(left) - 2
    ct.forget(9, 17, 0x0A000001, source=False)
    assert len(ct) == len(left) - 2


@pytest.mark.parametrize(("one", "other", "ask", "answer", "error"),
                         [("10.0.0.1", "10.0.0.2", 8, 0, 3), ("2001:db8::1", "2001:db8::2", 128, 129, 1)])  # fmt: skip
def test_echo_and_errors(one: str, other: str, ask: int, answer: int, error: int) -> None:
    ct = ConnectionTable()
    ping, pong = frames.icmp(A, B, one, other, ask), frames.icmp(B, A, other, one, answer)
    about = b"\0\0\0\0" + ping[14:]
    broken = frames.icmp(B, A, other, one, error, rest=about)
    assert ct_states(ct, pong, broken, ping, pong, ping) == [CT_INV, CT_INV, CT_NEW, CT_EST | CT_RPL, CT_EST]
    assert ct_states(ct, broken) == [CT_REL | CT_RPL]
    elsewhere = frames.icmp(A, B, one, other, ask, rest=b"\0\x09\0\1")
    assert ct_states(ct, elsewhere) == [CT_NEW]


def test_what_is_no_connection_is_invalid() -> None:
    arp = frames.arp(A, A, "10.0.0.1", B, "10.0.0.2")
    assert ct_states(ConnectionTable(), arp, b"", FRAME[:30]) == [CT_INV] * 3


def test_track_recirculates_with_state_and_keeps_metadata() -> None:
    program = tables(
        flow(0, 1, (), Track(7, 1), metadata=(3, 3)),
        flow(0, 9, match(in_port=2), Track(7, 1)),
        flow(1, 1, match(in_port=1), Track(7, None, commit=True), Output(2)),
        flow(1, 5, match(in_port=2, ct_state=(CT_TRK | CT_EST, CT_TRK | CT_EST)), Output(1)),
    )
    ct = ConnectionTable()
    out, back = frames.udp(A, B, "10.0.0.1", "10.0.0.2", 1, 2), frames.udp(B, A, "10.0.0.2", "10.0.0.1", 2, 1)
    assert run(program, 2, back, ports(), ct).ports == ()
    assert run(program, 1, out, ports(), ct).ports == (2,)
    assert run(program, 2, back, ports(), ct).ports == (1,)
    assert run(program, 2, frames.udp(B, A, "10.0.0.2", "10.0.0.1", 2, 9), ports(), ct).dropped
    looping = tables(flow(0, 1, (), Track(7, 0)))
    assert run(looping, 1, out, ports(), ct).dropped


def test_fields_of_the_pipeline_outlive_a_tag() -> None:
    program = tables(
        flow(0, 1, (), Track(7, 1)),
        flow(1, 1, match(ct_state=(CT_TRK | CT_NEW, CT_TRK | CT_NEW)), PushVlan(), goto=2, metadata=(5, 7)),
        flow(2, 1, match(in_port=1, metadata=(5, 7), ct_state=(CT_TRK | CT_NEW, CT_TRK | CT_NEW)), PopVlan(), goto=3),
        flow(3, 1, match(in_port=1, metadata=5, ct_state=(CT_TRK, CT_TRK), vlan_vid=0), PushVlan(), goto=4),
        flow(4, 1, match(in_port=1, metadata=5, ct_state=(CT_TRK, CT_TRK), vlan_vid=VLAN_PRESENT), Output(2)),
    )
    assert run(program, 1, FRAME, ports(), ConnectionTable()).ports == (2,)


def test_two_thousand_flows_are_not_looked_at_one_by_one() -> None:
    source = random.Random(3)
    program = Tables()
    for number in range(2000):
        program.set(flow(0, 100, match(eth_type=ETH_IPV4, ipv4_dst=source.getrandbits(32), in_port=number % 50)))
    program.set(flow(0, 1, (), Output(2)))
    looked: list[str] = []

    class Counting(dict[str, int]):
        def get(self, name: str, default: int = 0) -> int:  # type: ignore[override]  # one signature of get is used
            looked.append(name)
            return super().get(name, default)

    seen = Counting(packet.parse(FRAME) | {"in_port": 1})
    assert program.lookup(0, seen) is not None
    assert len(looked) == 3
    # Terms that no flow has any more are not looked at.
    for bits in range(1, 30):
        program.set(flow(0, 200, match(metadata=(1, (1 << bits) - 1))))
        program.set(flow(0, 50, match(metadata=(1, (1 << bits) - 1))))
    for bits in range(1, 30):
        program.remove(FlowKey(0, 200, match(metadata=(1, (1 << bits) - 1))))
        program.remove(FlowKey(0, 50, match(metadata=(1, (1 << bits) - 1))))
    looked.clear()
    assert program.lookup(0, seen) is not None
    assert len(looked) == 3

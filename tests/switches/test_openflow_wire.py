"""The codec against os-ken's: the same bytes for the same flow, and a flow that went out comes back equal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from os_ken.ofproto import ofproto_protocol
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as parser

from fake_switch import switchside
from lark_controller.flows import model
from lark_controller.flows.model import (
    FIELD_BITS,
    VLAN_PRESENT,
    Action,
    Flow,
    FlowData,
    FlowKey,
    Meter,
    Output,
    PopVlan,
    PushVlan,
    SetField,
    SetQueue,
    Track,
)
from lark_controller.switches.openflow import columns, replies, wire
from lark_controller.switches.openflow.actions import decode_actions, decode_instructions, encode_actions
from lark_controller.switches.openflow.oxm import FIELDS, WireError

PROTOCOL = ofproto_protocol.ProtocolDesc(version=4)


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


@st.composite
def matches(draw: st.DrawFn) -> model.Match:
    names = draw(st.lists(st.sampled_from(sorted(FIELD_BITS)), max_size=6, unique=True))
    fields: dict[str, int | tuple[int, int]] = {}
    for name in names:
        bits = FIELD_BITS[name]
        exact = draw(st.booleans())
        fields[name] = draw(integers(bits)) if exact else (draw(integers(bits)), draw(integers(bits)))
    return model.match(**fields)


actions: st.SearchStrategy[Action] = st.one_of(
    st.builds(Output, integers(32), integers(16)),
    st.sampled_from(sorted(FIELD_BITS)).flatmap(
        lambda name: st.builds(SetField, st.just(name), integers(FIELD_BITS[name]))
    ),
    st.builds(PushVlan, integers(16)),
    st.just(PopVlan()),
    st.builds(SetQueue, integers(32)),
    st.builds(Track, integers(16), st.none() | st.integers(0, 254), st.booleans(), st.none()),
    st.builds(Track, integers(16), st.none() | st.integers(0, 254), st.just(True), integers(32)),
)
flow_data = st.builds(
    FlowData,
    cookie=integers(64),
    actions=st.lists(actions, max_size=5).map(tuple),
    goto=st.none() | integers(8),
    metadata=st.none() | st.tuples(integers(64), integers(64)),
    meter=st.none() | integers(32),
    idle_timeout=integers(16),
    hard_timeout=integers(16),
    flags=st.sampled_from([0, 1]),
)
flow_keys = st.builds(FlowKey, integers(8), integers(16), matches())
flows = st.builds(Flow, flow_keys, flow_data)


def os_ken_value(name: str, value: int) -> Any:
    size = FIELDS[name].size
    if (name.startswith("eth_") and size == 6) or name in ("arp_sha", "arp_tha", "ipv6_nd_sll", "ipv6_nd_tll"):
        return ":".join(f"{byte:02x}" for byte in value.to_bytes(6))
    if size == 16:
        return ":".join(f"{value >> shift & 0xFFFF:x}" for shift in range(112, -1, -16))
    if name.startswith(("ipv4", "arp_")) and size == 4:
        return ".".join(str(byte) for byte in value.to_bytes(4))
    return value


def os_ken_match(match: model.Match) -> Any:
    fields = {}
    for name, value, mask in match:
        exact = mask == (1 << FIELD_BITS[name]) - 1
        fields[name] = os_ken_value(name, value) if exact else (os_ken_value(name, value), os_ken_value(name, mask))
    return parser.OFPMatch(**fields)


def os_ken_action(action: Action) -> Any:
    match action:
        case Output(port, max_len):
            return parser.OFPActionOutput(port, max_len)
        case SetField(name, value):
            return parser.OFPActionSetField(**{name: os_ken_value(name, value)})
        case PushVlan(ethertype):
            return parser.OFPActionPushVlan(ethertype)
        case PopVlan():
            return parser.OFPActionPopVlan()
        case SetQueue(queue):
            return parser.OFPActionSetQueue(queue)
        case Track(zone, table, commit, mark):
            nested = [] if mark is None else [parser.OFPActionSetField(ct_mark=mark)]
            return parser.NXActionCT(int(commit), "", zone, 255 if table is None else table, 0, nested)


def os_ken_instructions(data: FlowData) -> Iterator[Any]:
    if data.meter is not None:
        yield parser.OFPInstructionMeter(data.meter)
    if data.actions:
        yield parser.OFPInstructionActions(ofp.OFPIT_APPLY_ACTIONS, [os_ken_action(action) for action in data.actions])
    if data.metadata is not None:
        yield parser.OFPInstructionWriteMetadata(*data.metadata)
    if data.goto is not None:
        yield parser.OFPInstructionGotoTable(data.goto)


def os_ken_bytes(message: Any, xid: int) -> bytes:
    message.set_xid(xid)
    message.serialize()
    return bytes(message.buf)


def os_ken_flow_add(flow: Flow, xid: int) -> bytes:
    key, data = flow.key, flow.data
    message = parser.OFPFlowMod(
        PROTOCOL, data.cookie, 0, key.table, ofp.OFPFC_ADD, data.idle_timeout, data.hard_timeout, key.priority,
        ofp.OFP_NO_BUFFER, ofp.OFPP_ANY, ofp.OFPG_ANY, data.flags, os_ken_match(key.match),
        list(os_ken_instructions(data)),
    )  # fmt: skip
    return os_ken_bytes(message, xid)


@settings(max_examples=300)
@given(flows, integers(32))
def test_a_flow_add_is_what_os_ken_serialises(flow: Flow, xid: int) -> None:
    assert wire.flow_add(xid, flow) == os_ken_flow_add(flow, xid)


@settings(max_examples=300)
@given(flows)
def test_a_flow_comes_back_equal_from_its_flow_mod(flow: Flow) -> None:
    decoded = switchside.decode_flow_mod(wire.flow_add(1, flow))
    assert Flow(decoded.key, decoded.data) == flow


@settings(max_examples=300)
@given(st.lists(st.builds(Flow, flow_keys, flow_data), max_size=4), integers(48), integers(48))
def test_a_flow_comes_back_equal_from_a_dump_and_os_ken_reads_the_same(
    dumped: list[Flow], packets: int, octets: int
) -> None:
    records = [replies.FlowRecord(flow.key, flow.data, packets, octets, 1.5) for flow in dumped]
    message = switchside.multipart_reply(7, ofp.OFPMP_FLOW, b"".join(map(switchside.flow_record, records)))
    assert replies.flow_stats(message) == records
    assert replies.flow_packets(message, (0, 0)) == [(flow.key, packets) for flow in dumped]
    cookie = dumped[0].data.cookie if dumped else 0
    chosen = replies.flow_stats(message, (cookie, (1 << 64) - 1))
    assert replies.flow_packets(message, (cookie, (1 << 64) - 1)) == [(each.key, each.packets) for each in chosen]
    theirs = parser.OFPMultipartReply.parser(PROTOCOL, 4, ofp.OFPT_MULTIPART_REPLY, len(message), 7, message).body
    assert len(theirs) == len(records)
    for ours, their in zip(records, theirs, strict=True):
        assert (their.table_id, their.priority, their.cookie) == (ours.key.table, ours.key.priority, ours.data.cookie)
        assert (their.packet_count, their.byte_count) == (ours.packets, ours.bytes)
        assert their.match.items() == os_ken_match(ours.key.match).items()
        assert [str(one) for one in their.instructions] == [
            str(parser.OFPInstruction.parser(bytes(buffer), 0))
            for buffer in map(serialised, os_ken_instructions(ours.data))
        ]


def serialised(instruction: Any) -> bytearray:
    buffer = bytearray()
    instruction.serialize(buffer, 0)
    return buffer


@given(flow_keys, integers(32))
def test_a_strict_delete_is_what_os_ken_serialises(key: FlowKey, xid: int) -> None:
    message = parser.OFPFlowMod(
        PROTOCOL, 0, 0, key.table, ofp.OFPFC_DELETE_STRICT, 0, 0, key.priority, ofp.OFP_NO_BUFFER, ofp.OFPP_ANY,
        ofp.OFPG_ANY, 0, os_ken_match(key.match),
    )  # fmt: skip
    assert wire.flow_delete(xid, key) == os_ken_bytes(message, xid)


# At least one action: without any, os-ken writes its fixed part over the frame (which nobody would send).
@given(integers(32), integers(32), st.lists(actions, min_size=1, max_size=4).map(tuple), st.binary(max_size=200))
def test_a_packet_out_is_what_os_ken_serialises(xid: int, port: int, out: tuple[Action, ...], data: bytes) -> None:
    message = parser.OFPPacketOut(PROTOCOL, ofp.OFP_NO_BUFFER, port, list(map(os_ken_action, out)), data)
    encoded = wire.packet_out(xid, port, out, data)
    assert encoded == os_ken_bytes(message, xid)
    assert switchside.decode_packet_out(encoded) == (port, out, data)


def test_requests_are_what_os_ken_serialises() -> None:
    requests = {
        wire.features_request(3): parser.OFPFeaturesRequest(PROTOCOL),
        wire.barrier_request(3): parser.OFPBarrierRequest(PROTOCOL),
        wire.echo_request(3): parser.OFPEchoRequest(PROTOCOL, b""),
        wire.description_request(3): parser.OFPDescStatsRequest(PROTOCOL, 0),
        wire.ports_request(3): parser.OFPPortDescStatsRequest(PROTOCOL, 0),
        wire.meter_features_request(3): parser.OFPMeterFeaturesStatsRequest(PROTOCOL, 0),
        wire.meter_config_request(3): parser.OFPMeterConfigStatsRequest(PROTOCOL, 0, ofp.OFPM_ALL),
        wire.meter_stats_request(3): parser.OFPMeterStatsRequest(PROTOCOL, 0, ofp.OFPM_ALL),
        wire.port_stats_request(3): parser.OFPPortStatsRequest(PROTOCOL, 0, ofp.OFPP_ANY),
        wire.flow_stats_request(3, 5, 6): parser.OFPFlowStatsRequest(
            PROTOCOL, 0, ofp.OFPTT_ALL, ofp.OFPP_ANY, ofp.OFPG_ANY, 5, 6, parser.OFPMatch()
        ),
    }
    for ours, theirs in requests.items():
        assert ours == os_ken_bytes(theirs, 3)


@given(integers(8), integers(64), integers(32), integers(64), st.binary(max_size=80))
def test_a_packet_in_is_read_as_os_ken_reads_it(table: int, cookie: int, port: int, metadata: int, data: bytes) -> None:
    packet = replies.PacketIn(cookie, table, 1, port, metadata, data)
    message = switchside.packet_in(4, packet)
    assert replies.packet_in(message) == packet
    theirs = parser.OFPPacketIn.parser(PROTOCOL, 4, ofp.OFPT_PACKET_IN, len(message), 4, message)
    assert (theirs.cookie, theirs.table_id, theirs.match["in_port"], theirs.data) == (cookie, table, port, data)


@given(st.builds(Meter, integers(32), st.integers(1, 2**32 - 1), integers(32)), st.booleans())
def test_a_meter_comes_back_equal(meter: Meter, new: bool) -> None:
    command, decoded = switchside.decode_meter_mod(wire.meter_set(2, meter, new=new))
    assert (command, decoded) == (ofp.OFPMC_ADD if new else ofp.OFPMC_MODIFY, meter)
    reply = switchside.multipart_reply(2, ofp.OFPMP_METER_CONFIG, switchside.meter_config(meter) * 2)
    assert replies.meter_config(reply) == [meter, meter]


def test_ports_come_back_equal() -> None:
    port = replies.PortInfo(7, "vnet7", "02:00:00:00:00:07", up=True, no_flood=False)
    down = replies.PortInfo(8, "vnet8", "02:00:00:00:00:08", up=False, no_flood=True)
    message = switchside.multipart_reply(1, ofp.OFPMP_PORT_DESC, switchside.port(port) + switchside.port(down))
    assert replies.ports(message) == [port, down]
    assert replies.port_status(switchside.port_status(1, down, ofp.OFPPR_DELETE)) == (down, False)


def test_what_the_model_has_no_word_for_differs_from_every_desired_flow_and_can_be_deleted() -> None:
    tcp_flags = (0xFFFF_54_06).to_bytes(4) + (0x4F4E4600).to_bytes(4) + b"\x00\x02"
    fields = b"\x80\x00\x0a\x02\x08\x00" + tcp_flags
    group = (22).to_bytes(2) + (8).to_bytes(2) + (1).to_bytes(4)
    match = b"\x00\x01" + (4 + len(fields)).to_bytes(2) + fields
    match += bytes(-len(match) % 8)
    instructions = b"\x00\x04\x00\x10\x00\x00\x00\x00" + group
    head = switchside.flow_record(replies.FlowRecord(FlowKey(0, 1, ()), FlowData(cookie=9), 0, 0, 0.0))[:48]
    record = (48 + len(match) + len(instructions)).to_bytes(2) + head[2:] + match + instructions
    (decoded,) = replies.flow_stats(switchside.multipart_reply(1, ofp.OFPMP_FLOW, record))
    assert decoded.data != FlowData(cookie=9)
    assert decoded.data.actions == (SetField("unknown:" + group.hex(), 0),)
    assert fields in wire.flow_delete(1, decoded.key)


def test_push_vlan_and_set_queue_of_one_number_are_not_confused() -> None:
    pair: tuple[Action, ...] = (PushVlan(0x8100), SetQueue(0x8100), SetField("vlan_vid", VLAN_PRESENT | 5))
    decoded = decode_actions(encode_actions(pair))
    assert [type(action) for action in decoded] == [PushVlan, SetQueue, SetField]


@given(st.binary(max_size=300))
def test_rubbish_is_refused_and_nothing_else_is_raised(rubbish: bytes) -> None:
    body = b"\x04\x13" + (8 + len(rubbish)).to_bytes(2) + b"\x00" * 4 + rubbish
    for decode in (
        replies.packet_in, replies.flow_stats, replies.flow_removed, replies.meter_config, replies.meter_stats,
        replies.ports, replies.port_status, replies.port_stats, replies.description, replies.meter_features,
        replies.features, replies.error, replies.speaks_1_3, switchside.decode_flow_mod, switchside.decode_meter_mod,
        switchside.decode_packet_out, decode_actions, decode_instructions, partial(replies.flow_packets, chosen=(0, 0)),
        columns.port_columns, columns.flow_columns,
    ):  # fmt: skip
        with suppress(WireError):
            decode(body)


@settings(max_examples=200)
@given(st.lists(flows, min_size=1, max_size=2), st.data())
def test_a_damaged_dump_is_refused_or_read_but_never_loops(dumped: list[Flow], data: st.DataObject) -> None:
    records = b"".join(switchside.flow_record(replies.FlowRecord(flow.key, flow.data, 1, 1, 0.0)) for flow in dumped)
    message = bytearray(switchside.multipart_reply(1, ofp.OFPMP_FLOW, records))
    message[data.draw(st.integers(16, len(message) - 1))] = data.draw(st.integers(0, 255))
    with suppress(WireError):
        replies.flow_stats(bytes(message))
    with suppress(WireError):
        replies.flow_packets(bytes(message), (0, 0))


@pytest.mark.parametrize(
    ("kind", "code", "text"),
    [
        (ofp.OFPET_BAD_ACTION, ofp.OFPBAC_BAD_OUT_PORT, "BAD_ACTION: BAD_OUT_PORT"),
        (ofp.OFPET_FLOW_MOD_FAILED, ofp.OFPFMFC_TABLE_FULL, "FLOW_MOD_FAILED: TABLE_FULL"),
        (77, 3, "error type 77 code 3"),
        (ofp.OFPET_BAD_MATCH, 99, "BAD_MATCH: code 99"),
    ],
)
def test_errors_are_named(kind: int, code: int, text: str) -> None:
    message = switchside.error(1, kind, code, b"")
    assert replies.error(message) == (kind, code, text)

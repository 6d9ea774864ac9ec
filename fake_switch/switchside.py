"""The switch's half of the codec: what a switch sends encoded, what a controller sends decoded.

For the fake switch and the load generator; the controller itself never imports it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from os_ken.ofproto import ofproto_common
from os_ken.ofproto import ofproto_v1_3 as ofp

from lark_controller.flows.model import Action, Flow, FlowData, FlowKey, Meter
from lark_controller.switches.openflow.actions import decode_actions, decode_instructions, encode_instructions
from lark_controller.switches.openflow.oxm import (
    WireError,
    decode_fields,
    encode_match,
    match_end,
)
from lark_controller.switches.openflow.replies import (
    FlowRecord,
    FlowRemoved,
    PacketIn,
    PortCounters,
    PortInfo,
    QueueCounters,
)
from lark_controller.switches.openflow.roles import ROLE, STATUS, STATUS_TYPE, Role
from lark_controller.switches.openflow.wire import (
    MAX_MESSAGE,
    NO_BUFFER,
    PORT_NO_FLOOD,
    header,
)

_FLOW_MOD: Final = struct.Struct("!QQBBHHHIIIH2x")
_BAND: Final = struct.Struct("!HHII4x")
# Reason of a change of role (OFPCRR_MASTER_REQUEST of OpenFlow 1.4).
_MASTER_REQUEST: Final = 0


class FlowMod(NamedTuple):
    """A FLOW_MOD, decoded."""

    command: int
    key: FlowKey
    data: FlowData
    cookie_mask: int


class PacketOut(NamedTuple):
    """A PACKET_OUT, decoded."""

    in_port: int
    actions: tuple[Action, ...]
    data: bytes


def decode_flow_mod(message: bytes) -> FlowMod:
    """Decode FLOW_MOD. Raises WireError."""
    if len(message) < 56:
        raise WireError("FlowMod cut short")
    cookie, mask, table, command, idle, hard, priority, _, _, _, flags = _FLOW_MOD.unpack_from(message, 8)
    fields_end, after = match_end(message, 48, len(message))
    key = FlowKey(table, priority, decode_fields(message, 52, fields_end))
    actions, goto, metadata, meter = decode_instructions(message[after:])
    return FlowMod(command, key, FlowData(cookie, actions, goto, metadata, meter, idle, hard, flags), mask)


def decode_meter_mod(message: bytes) -> tuple[int, Meter]:
    """Decode METER_MOD: the command and the meter (rate 0 without a drop band). Raises WireError."""
    if len(message) < 16:
        raise WireError("MeterMod cut short")
    command, _, number = struct.unpack_from("!HHI", message, 8)
    if len(message) < 16 + _BAND.size:
        return command, Meter(number, 0, 0)
    _, _, rate, burst = _BAND.unpack_from(message, 16)
    return command, Meter(number, rate, burst)


def decode_packet_out(message: bytes) -> PacketOut:
    """Decode PACKET_OUT. Raises WireError."""
    if len(message) < 24:
        raise WireError("PacketOut cut short")
    _, in_port, length = struct.unpack_from("!IIH", message, 8)
    if 24 + length > len(message):
        raise WireError("PacketOut whose actions do not fit")
    return PacketOut(in_port, decode_actions(message[24 : 24 + length]), message[24 + length :])


def decode_role_request(message: bytes) -> Role:
    """Decode ROLE_REQUEST. Raises WireError."""
    if len(message) != 8 + ROLE.size:
        raise WireError(f"a role request of {len(message)} bytes")
    return Role(*ROLE.unpack_from(message, 8))


def role_reply(xid: int, held: Role) -> bytes:
    """ROLE_REPLY."""
    return header(ofp.OFPT_ROLE_REPLY, xid, ROLE.pack(*held))


def role_status(xid: int, held: Role) -> bytes:
    """The notice to a connection that another has become master."""
    body = STATUS.pack(ofproto_common.ONF_EXPERIMENTER_ID, STATUS_TYPE, held.role, _MASTER_REQUEST, held.generation)
    return header(ofp.OFPT_EXPERIMENTER, xid, body)


def hello(xid: int) -> bytes:
    """HELLO with a bitmap of OpenFlow 1.3 alone."""
    return header(ofp.OFPT_HELLO, xid, struct.pack("!HHI", ofp.OFPHET_VERSIONBITMAP, 8, 1 << ofp.OFP_VERSION))


def error(xid: int, kind: int, code: int, request: bytes) -> bytes:
    """OFPT_ERROR with the first 64 bytes of the request at fault."""
    return header(ofp.OFPT_ERROR, xid, struct.pack("!HH", kind, code) + request[:64])


def features_reply(xid: int, datapath: int, n_tables: int) -> bytes:
    """FEATURES_REPLY with flow, table, port and queue statistics as capabilities."""
    capabilities = ofp.OFPC_FLOW_STATS | ofp.OFPC_TABLE_STATS | ofp.OFPC_PORT_STATS | ofp.OFPC_QUEUE_STATS
    return header(ofp.OFPT_FEATURES_REPLY, xid, struct.pack("!QIBB2xII", datapath, 0, n_tables, 0, capabilities, 0))


def multipart_reply(xid: int, kind: int, body: bytes = b"", *, more: bool = False) -> bytes:
    """One part of a MULTIPART_REPLY."""
    flags = ofp.OFPMPF_REPLY_MORE if more else 0
    return header(ofp.OFPT_MULTIPART_REPLY, xid, struct.pack("!HH4x", kind, flags) + body)


def multipart_replies(xid: int, kind: int, records: Iterable[bytes]) -> bytes:
    """A complete multipart reply in as many parts as the records need."""
    parts: list[list[bytes]] = [[]]
    size = 16
    for record in records:
        if size + len(record) > MAX_MESSAGE:
            parts.append([])
            size = 16
        parts[-1].append(record)
        size += len(record)
    last = len(parts) - 1
    return b"".join(multipart_reply(xid, kind, b"".join(part), more=index < last) for index, part in enumerate(parts))


def port(info: PortInfo) -> bytes:
    """``struct ofp_port``."""
    config = (PORT_NO_FLOOD if info.no_flood else 0) | (0 if info.up else ofp.OFPPC_PORT_DOWN)
    state = (ofp.OFPPS_LIVE if info.live else 0) | (0 if info.up else ofp.OFPPS_LINK_DOWN)
    mac = bytes.fromhex(info.mac.replace(":", ""))
    return struct.pack(ofp.OFP_PORT_PACK_STR, info.number, mac, info.name.encode(), config, state, 0, 0, 0, 0, 0, 0)


def port_status(xid: int, info: PortInfo, reason: int) -> bytes:
    """PORT_STATUS."""
    return header(ofp.OFPT_PORT_STATUS, xid, struct.pack("!B7x", reason) + port(info))


def port_counters(counters: PortCounters) -> bytes:
    """A record of an OFPMP_PORT_STATS reply."""
    age = counters.age
    seconds, nanoseconds = (0xFFFFFFFF, 0xFFFFFFFF) if age is None else (int(age), int(age % 1 * 1e9))
    return struct.pack("!I4xQQQQQQ48xII", *counters[:7], seconds, nanoseconds)


def queue_counters(counters: QueueCounters) -> bytes:
    """A record of an OFPMP_QUEUE reply."""
    age = counters.age
    seconds, nanoseconds = (0xFFFFFFFF, 0xFFFFFFFF) if age is None else (int(age), int(age % 1 * 1e9))
    return struct.pack(ofp.OFP_QUEUE_STATS_PACK_STR, *counters[:5], seconds, nanoseconds)


def description(texts: tuple[str, str, str, str, str]) -> bytes:
    """``struct ofp_desc``: manufacturer, hardware, software, serial number, datapath."""
    return struct.pack(ofp.OFP_DESC_PACK_STR, *(text.encode() for text in texts))


def meter_config(meter: Meter) -> bytes:
    """One record of an OFPMP_METER_CONFIG reply."""
    flags = ofp.OFPMF_KBPS | ofp.OFPMF_STATS | (ofp.OFPMF_BURST if meter.burst else 0)
    return struct.pack("!HHI", 24, flags, meter.number) + _BAND.pack(ofp.OFPMBT_DROP, 16, meter.rate, meter.burst)


def meter_features(max_meter: int) -> bytes:
    """``struct ofp_meter_features`` of a switch with the drop band in kb/s, with burst and statistics."""
    flags = ofp.OFPMF_KBPS | ofp.OFPMF_BURST | ofp.OFPMF_STATS
    return struct.pack("!IIIBB2x", max_meter, 1 << ofp.OFPMBT_DROP, flags, 1, 1)


def flow_record(record: FlowRecord) -> bytes:
    """One record of an OFPMP_FLOW reply."""
    key, data = record.key, record.data
    tail = encode_match(key.match) + encode_instructions(data)
    seconds = int(record.duration)
    nanoseconds = int((record.duration - seconds) * 1e9)
    return struct.pack(
        "!HBxIIHHHH4xQQQ", 48 + len(tail), key.table, seconds, nanoseconds, key.priority, data.idle_timeout,
        data.hard_timeout, data.flags, data.cookie, record.packets, record.bytes,
    ) + tail  # fmt: skip


def packet_in(xid: int, packet: PacketIn) -> bytes:
    """PACKET_IN without a buffer; metadata is left out where it is 0."""
    fields = b"\x80\x00\x00\x04" + packet.in_port.to_bytes(4)
    if packet.metadata:
        fields += b"\x80\x00\x04\x08" + packet.metadata.to_bytes(8)
    length = 4 + len(fields)
    body = struct.pack("!IHBBQHH", NO_BUFFER, len(packet.data), packet.reason, packet.table, packet.cookie, 1, length)
    return header(ofp.OFPT_PACKET_IN, xid, body + fields + bytes(-length % 8 + 2) + packet.data)


def flow_removed(xid: int, removed: FlowRemoved, flow: Flow) -> bytes:
    """FLOW_REMOVED."""
    seconds = int(removed.duration)
    body = struct.pack(
        "!QHBBIIHHQQ", removed.cookie, removed.key.priority, removed.reason, removed.key.table, seconds, 0,
        flow.data.idle_timeout, flow.data.hard_timeout, removed.packets, removed.bytes,
    )  # fmt: skip
    return header(ofp.OFPT_FLOW_REMOVED, xid, body + encode_match(removed.key.match))

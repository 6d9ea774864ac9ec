"""Messages to a switch as bytes (OpenFlow 1.3.5, section 7).

Flow-mods and packet-outs are packed directly, since they are what a busy controller sends; a test holds them to
os-ken's own serialisation byte for byte. Everything else is serialised by os-ken. Decoding stands in :mod:`.replies`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from os_ken.ofproto import ofproto_protocol
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as parser

from lark_controller.flows.model import PORT_ANY, Action, Flow, FlowKey, Meter
from lark_controller.switches.openflow.actions import encode_actions, encode_instructions
from lark_controller.switches.openflow.oxm import encode_fields

VERSION: Final = 4
NO_BUFFER: Final = ofp.OFP_NO_BUFFER
HEADER: Final = struct.Struct("!BBHI")
# Not in OpenFlow 1.3's ofp_port_config, but what OpenFlow 1.0 gave the bit, and some switches keep.
PORT_NO_FLOOD: Final = 1 << 4
MAX_MESSAGE: Final = 0xFFFF
_EMPTY_MATCH: Final = b"\x00\x01\x00\x04\x00\x00\x00\x00"
_ALL_TABLES: Final = ofp.OFPTT_ALL

# header; cookie, cookie_mask, table, command, idle, hard, priority, buffer, out_port, out_group, flags; match header
_FLOW_MOD: Final = struct.Struct("!BBHIQQBBHHHIIIH2xHH")
_PACKET_OUT: Final = struct.Struct("!BBHIIIH6x")
_PADDING: Final = tuple(bytes(count) for count in range(8))

_PROTOCOL: Final = ofproto_protocol.ProtocolDesc(version=VERSION)


def _serialised(message: parser.MsgBase, xid: int) -> bytes:
    message.set_xid(xid)
    message.serialize()
    return bytes(message.buf)


def header(kind: int, xid: int, body: bytes = b"") -> bytes:
    """A message of the given type around a ready body."""
    return HEADER.pack(VERSION, kind, 8 + len(body), xid) + body


def with_xids(message: bytes) -> Callable[[int], bytes]:
    """A message that is encoded already, with another transaction id each time."""
    before, after = message[:4], message[8:]
    return lambda xid: before + xid.to_bytes(4) + after


def hello(xid: int) -> bytes:
    """HELLO that offers OpenFlow 1.3 alone, as version bitmap too (section 7.5.1)."""
    element = parser.OFPHelloElemVersionBitmap(versions=[VERSION])
    return _serialised(parser.OFPHello(_PROTOCOL, elements=[element]), xid)


def hello_failed(xid: int) -> bytes:
    """The error that answers a HELLO without a common version."""
    text = b"this controller speaks OpenFlow 1.3"
    body = struct.pack("!HH", ofp.OFPET_HELLO_FAILED, ofp.OFPHFC_INCOMPATIBLE) + text
    return header(ofp.OFPT_ERROR, xid, body)


def features_request(xid: int) -> bytes:
    """FEATURES_REQUEST."""
    return header(ofp.OFPT_FEATURES_REQUEST, xid)


def echo_request(xid: int) -> bytes:
    """ECHO_REQUEST without data."""
    return header(ofp.OFPT_ECHO_REQUEST, xid)


def echo_reply(xid: int, data: bytes) -> bytes:
    """ECHO_REPLY with the data of the request."""
    return header(ofp.OFPT_ECHO_REPLY, xid, data)


def barrier_request(xid: int) -> bytes:
    """BARRIER_REQUEST (section 7.3.8): its reply confirms that all before it was processed."""
    return header(ofp.OFPT_BARRIER_REQUEST, xid)


def set_config(xid: int) -> bytes:
    """SET_CONFIG: fragments as they are, PacketIns whole and unbuffered (OFPCML_NO_BUFFER)."""
    return _serialised(parser.OFPSetConfig(_PROTOCOL, ofp.OFPC_FRAG_NORMAL, ofp.OFPCML_NO_BUFFER), xid)


def _flow_mod(xid: int, command: int, flow_cookie: int, cookie_mask: int, key: FlowKey, times: tuple[int, int, int],
              instructions: bytes) -> bytes:  # fmt: skip
    fields = encode_fields(key.match)
    match_length = 4 + len(fields)
    padding = -match_length % 8
    idle, hard, flags = times
    return (
        _FLOW_MOD.pack(
            VERSION, ofp.OFPT_FLOW_MOD, 48 + match_length + padding + len(instructions), xid, flow_cookie, cookie_mask,
            key.table, command, idle, hard, key.priority, NO_BUFFER, PORT_ANY, ofp.OFPG_ANY, flags, 1, match_length,
        )
        + fields + _PADDING[padding] + instructions
    )  # fmt: skip


def flow_add(xid: int, flow: Flow) -> bytes:
    """FLOW_MOD that adds or overwrites a flow. Raises KeyError or OverflowError for what no switch could take."""
    data = flow.data
    times = (data.idle_timeout, data.hard_timeout, data.flags)
    return _flow_mod(xid, ofp.OFPFC_ADD, data.cookie, 0, flow.key, times, encode_instructions(data))


def flow_delete(xid: int, key: FlowKey) -> bytes:
    """FLOW_MOD that deletes exactly one flow (OFPFC_DELETE_STRICT)."""
    return _flow_mod(xid, ofp.OFPFC_DELETE_STRICT, 0, 0, key, (0, 0, 0), b"")


def flows_delete(xid: int, cookie: int, mask: int) -> bytes:
    """FLOW_MOD that deletes the flows of all tables whose cookie agrees with ``cookie`` in the bits of ``mask``
    (OFPFC_DELETE)."""
    return _flow_mod(xid, ofp.OFPFC_DELETE, cookie, mask, FlowKey(ofp.OFPTT_ALL, 0, ()), (0, 0, 0), b"")


def packet_out(xid: int, in_port: int, actions: tuple[Action, ...], data: bytes) -> bytes:
    """PACKET_OUT with the frame in it (no buffer); ``in_port`` PORT_CONTROLLER where it came in nowhere."""
    encoded = encode_actions(actions)
    total = 24 + len(encoded) + len(data)
    return _PACKET_OUT.pack(VERSION, ofp.OFPT_PACKET_OUT, total, xid, NO_BUFFER, in_port, len(encoded)) + encoded + data


def meter_set(xid: int, meter: Meter, *, new: bool) -> bytes:
    """METER_MOD that adds or modifies a meter with one drop band; rates in kb/s, burst in kb."""
    flags = ofp.OFPMF_KBPS | ofp.OFPMF_STATS | (ofp.OFPMF_BURST if meter.burst else 0)
    bands = [parser.OFPMeterBandDrop(meter.rate, meter.burst)]
    command = ofp.OFPMC_ADD if new else ofp.OFPMC_MODIFY
    return _serialised(parser.OFPMeterMod(_PROTOCOL, command, flags, meter.number, bands), xid)


def meter_delete(xid: int, number: int) -> bytes:
    """METER_MOD that deletes a meter."""
    return _serialised(parser.OFPMeterMod(_PROTOCOL, ofp.OFPMC_DELETE, 0, number, []), xid)


def multipart_request(xid: int, kind: int, body: bytes = b"") -> bytes:
    """MULTIPART_REQUEST of any type around a ready body."""
    return header(ofp.OFPT_MULTIPART_REQUEST, xid, struct.pack("!HH4x", kind, 0) + body)


def description_request(xid: int) -> bytes:
    """OFPMP_DESC."""
    return multipart_request(xid, ofp.OFPMP_DESC)


def ports_request(xid: int) -> bytes:
    """OFPMP_PORT_DESC."""
    return multipart_request(xid, ofp.OFPMP_PORT_DESC)


def meter_features_request(xid: int) -> bytes:
    """OFPMP_METER_FEATURES."""
    return multipart_request(xid, ofp.OFPMP_METER_FEATURES)


def meter_config_request(xid: int) -> bytes:
    """OFPMP_METER_CONFIG of all meters."""
    return multipart_request(xid, ofp.OFPMP_METER_CONFIG, struct.pack("!I4x", ofp.OFPM_ALL))


def meter_stats_request(xid: int) -> bytes:
    """OFPMP_METER of all meters."""
    return multipart_request(xid, ofp.OFPMP_METER, struct.pack("!I4x", ofp.OFPM_ALL))


def port_stats_request(xid: int, port: int = PORT_ANY) -> bytes:
    """OFPMP_PORT_STATS of one port, or of all."""
    return multipart_request(xid, ofp.OFPMP_PORT_STATS, struct.pack("!I4x", port))


def queue_stats_request(xid: int) -> bytes:
    """OFPMP_QUEUE of all queues of all ports."""
    return multipart_request(xid, ofp.OFPMP_QUEUE, struct.pack("!II", PORT_ANY, ofp.OFPQ_ALL))


def flow_stats_request(xid: int, cookie: int = 0, mask: int = 0) -> bytes:
    """OFPMP_FLOW of all tables, of the flows whose cookie agrees with ``cookie`` in the bits of ``mask``."""
    body = struct.pack("!B3xII4xQQ", _ALL_TABLES, PORT_ANY, ofp.OFPG_ANY, cookie, mask)
    return multipart_request(xid, ofp.OFPMP_FLOW, body + _EMPTY_MATCH)

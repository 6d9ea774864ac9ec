"""Messages from a switch, decoded (OpenFlow 1.3.5, section 7).

Every decoder checks lengths before it looks, and raises :class:`.oxm.WireError` for bytes that do not fit: os-ken's own
readers of variable-length records loop for ever on a length of 0, so those are read here; records of a fixed size
(ports, descriptions, features) are read by os-ken.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as parser

from lark_common.shared_texts import shared
from lark_controller.flows.model import FlowData, FlowKey, Match, Meter
from lark_controller.switches.openflow.actions import decode_instructions
from lark_controller.switches.openflow.oxm import WireError, decode_fields, match_end
from lark_controller.switches.openflow.wire import PORT_NO_FLOOD, VERSION

_PACKET_IN: Final = struct.Struct("!IHBBQHH")
_FLOW_STATS: Final = struct.Struct("!HBxIIHHHH4xQQQ")
_FLOW_REMOVED: Final = struct.Struct("!QHBBIIHHQQ")
# struct ofp_port (section 7.2.1): number, MAC, name, configuration, state, speed now in kb/s.
_PORT: Final = struct.Struct("!I4x6s2x16sII16xI4x")
_PORT_STATS: Final = struct.Struct("!I4xQQQQQQ48xII")
_FLOW_COUNT: Final = struct.Struct("!H22xQQQ")
_DURATION: Final = struct.Struct("!4xII")
_NO_COUNTER: Final = (1 << 64) - 1
_ALL_ONES: Final = b"\xff" * 8
_NO_DURATION: Final = (1 << 32) - 1
_SECOND: Final = 1_000_000_000
_METER_CONFIG: Final = struct.Struct("!HHI")
_METER_STATS: Final = struct.Struct("!IH6xIQQII")
_BAND: Final = struct.Struct("!HHII4x")
_IN_PORT_HEADER: Final = b"\x80\x00\x00\x04"
_METADATA_HEADER: Final = b"\x80\x00\x04\x08"
MULTIPART_BODY: Final = 16
# Bytes of the match of a PacketIn, which has the fields of the pipeline alone.
_LONGEST_MATCH: Final = 1024
# The longest fields of a match that are kept decoded.
_KNOWN_BYTES: Final = 64


class PacketIn(NamedTuple):
    """A packet that a flow sent to the controller. ``metadata`` is 0 where the pipeline wrote none."""

    cookie: int
    table: int
    reason: int
    in_port: int
    metadata: int
    data: bytes


class FlowRecord(NamedTuple):
    """One flow of a dump with its counters; ``duration`` in seconds."""

    key: FlowKey
    data: FlowData
    packets: int
    bytes: int
    duration: float


class FlowRemoved(NamedTuple):
    """A flow that the switch took away; ``reason``: 0 idle timeout, 1 hard timeout, 2 deleted, 3 its group deleted."""

    key: FlowKey
    cookie: int
    reason: int
    packets: int
    bytes: int
    duration: float


class MeterFeatures(NamedTuple):
    """The meter features of a switch. ``max_meter`` 0 is none."""

    max_meter: int
    drop: bool


class MeterCounters(NamedTuple):
    """A meter's counters: packets and bytes that came to it, and those that its first band dropped. ``age`` is for how
    long (seconds) the switch has had it, None where it does not say."""

    number: int
    packets: int
    bytes: int
    band_packets: int
    band_bytes: int
    age: float | None = None


class PortCounters(NamedTuple):
    """A port's counters. ``age`` is for how long (seconds) the switch has had the port, None where it does not say; a
    counter that the switch does not have is 0."""

    number: int
    rx_packets: int
    tx_packets: int
    rx_bytes: int
    tx_bytes: int
    rx_dropped: int
    tx_dropped: int
    age: float | None = None


# A port's number, and as PortCounters its counters, then the seconds and nanoseconds for which the switch has had it.
# Hundreds come with each switch, and few of them are a job's.
PortRecord: TypeAlias = tuple[int, ...]
# The cookie of a flow, its packets and its bytes. Hundreds come with each switch, and tuples without names take half of
# the time.
FlowCount: TypeAlias = tuple[int, int, int]


class QueueCounters(NamedTuple):
    """A queue's counters: bytes and packets that left it, and packets dropped before it. ``age`` is for how long
    (seconds) the switch has had it, None where it does not say."""

    port: int
    queue: int
    bytes: int
    packets: int
    errors: int
    age: float | None = None


@dataclass(frozen=True, slots=True)
class PortInfo:
    """A port: ``up`` is both administratively up and with link; ``no_flood`` as the switch shows it. ``speed`` is the
    current bit rate in kb/s, 0 where the switch does not know it. ``live`` is what the switch marks so (OFPPS_LIVE):
    Open vSwitch takes the mark from a port whose BFD or CFM session fails; others never set it."""

    number: int
    name: str
    mac: str
    up: bool
    no_flood: bool
    speed: int = 0
    live: bool = False


class Description(NamedTuple):
    """The switch's description of itself (OFPMP_DESC)."""

    manufacturer: str
    hardware: str
    software: str
    serial: str
    datapath: str


class Features(NamedTuple):
    """FEATURES_REPLY; ``capabilities`` is the bitmap ofp_capabilities."""

    datapath: int
    n_tables: int
    auxiliary: int
    capabilities: int


class ErrorMessage(NamedTuple):
    """OFPT_ERROR: the two numbers and their names, e.g. ``BAD_ACTION: BAD_OUT_PORT``."""

    type: int
    code: int
    text: str


@lru_cache(maxsize=4096)
def error_text(kind: int, code: int) -> str:
    """The names of an error's type and code, in the words of the specification."""
    type_name = ofp.ofp_error_type_to_str(kind).split("(")[0]
    code_name = ofp.ofp_error_code_to_str(kind, code).split("(")[0]
    if type_name == "Unknown":
        return f"error type {kind} code {code}"
    type_name = type_name.removeprefix("OFPET_")
    return f"{type_name}: code {code}" if code_name == "Unknown" else f"{type_name}: {code_name.partition('_')[2]}"


def error(message: bytes) -> ErrorMessage:
    """Decode OFPT_ERROR."""
    if len(message) < 12:
        raise WireError(f"error message of {len(message)} bytes")
    kind, code = struct.unpack_from("!HH", message, 8)
    return ErrorMessage(kind, code, error_text(kind, code))


def packet_in(message: bytes) -> PacketIn:
    """Decode PACKET_IN without an object for every match field."""
    try:
        _, _, reason, table, cookie, _, match_length = _PACKET_IN.unpack_from(message, 8)
    except struct.error as failure:
        raise WireError("PacketIn cut short") from failure
    if match_length > _LONGEST_MATCH:
        raise WireError(f"PacketIn with a match of {match_length} bytes")
    end = 24 + match_length
    body = end + -match_length % 8 + 2
    if match_length < 4 or body > len(message):
        raise WireError("PacketIn whose match does not fit")
    in_port = metadata = 0
    position = 28
    while end - position >= 4:
        header = message[position : position + 4]
        after = position + 4 + header[3]
        if header == _IN_PORT_HEADER:
            in_port = int.from_bytes(message[position + 4 : after])
        elif header == _METADATA_HEADER:
            metadata = int.from_bytes(message[position + 4 : after])
        position = after
    return PacketIn(cookie, table, reason, in_port, metadata, message[body:])


def known_fields(buffer: bytes, start: int, end: int) -> Match:
    """As :func:`.oxm.decode_fields`, for flows that come again and again, on all switches alike."""
    return decode_fields(buffer, start, end) if end - start > _KNOWN_BYTES else _known_fields(buffer[start:end])


@lru_cache(maxsize=4096)
def _known_fields(fields: bytes) -> Match:
    return decode_fields(fields, 0, len(fields))


def flow_stats(message: bytes, chosen: tuple[int, int] = (0, 0)) -> list[FlowRecord]:
    """Decode one part of an OFPMP_FLOW reply: the flows whose cookie agrees with the first of ``chosen`` in the bits of
    the second. A switch may send others although it was not asked for them; these are not looked at."""
    value, mask = chosen
    records = []
    position = MULTIPART_BODY
    size = len(message)
    while position < size:
        if size - position < 56:
            raise WireError("flow statistics cut short")
        length, table, seconds, nanoseconds, priority, idle, hard, flags, cookie, packets, octets = (
            _FLOW_STATS.unpack_from(message, position)
        )
        after = position + length
        if length < 56 or after > size:
            raise WireError(f"flow statistics record of {length} bytes in {size - position}")
        if cookie & mask != value:
            position = after
            continue
        fields_end, match_after = match_end(message, position + 48, after)
        match = decode_fields(message, position + 52, fields_end)
        actions, goto, metadata, meter = decode_instructions(message[match_after:after])
        data = FlowData(cookie, actions, goto, metadata, meter, idle, hard, flags)
        records.append(FlowRecord(FlowKey(table, priority, match), data, packets, octets, seconds + nanoseconds / 1e9))
        position = after
    return records


def flow_counts(message: bytes) -> list[FlowCount]:
    """Decode of one part of an OFPMP_FLOW reply the cookies and counters alone, which takes a tenth of the time."""
    found: list[FlowCount] = []
    position, size, unpack = MULTIPART_BODY, len(message), _FLOW_COUNT.unpack_from
    while position < size:
        if size - position < _FLOW_COUNT.size:
            raise WireError("flow statistics cut short")
        length, cookie, packets, octets = unpack(message, position)
        if length < 56 or position + length > size:
            raise WireError(f"flow statistics record of {length} bytes in {size - position}")
        found.append((cookie, packets, octets))
        position += length
    return found


def flow_packets(message: bytes, chosen: tuple[int, int]) -> list[tuple[FlowKey, int]]:
    """Decode of one part of an OFPMP_FLOW reply the keys and packets of the flows whose cookie is ``chosen``, as
    :func:`flow_stats`: for flows that come again and again."""
    value, mask = chosen
    found = []
    position, size = MULTIPART_BODY, len(message)
    while position < size:
        if size - position < 56:
            raise WireError("flow statistics cut short")
        length, table, _, _, priority, _, _, _, cookie, packets, _ = _FLOW_STATS.unpack_from(message, position)
        after = position + length
        if length < 56 or after > size:
            raise WireError(f"flow statistics record of {length} bytes in {size - position}")
        if cookie & mask == value:
            fields_end, _ = match_end(message, position + 48, after)
            key = FlowKey(table, priority, known_fields(message, position + 52, fields_end))
            found.append((key, packets))
        position = after
    return found


def flow_ages(message: bytes) -> list[tuple[int, int, int, float]]:
    """Decode of one part of an OFPMP_FLOW reply the cookies and counters, and the seconds that each flow has been
    there: 0 where the switch does not say."""
    found: list[tuple[int, int, int, float]] = []
    for (cookie, packets, octets), position in zip(flow_counts(message), _positions(message), strict=True):
        age = age_of(*_DURATION.unpack_from(message, position))
        found.append((cookie, packets, octets, 0.0 if age is None else age))
    return found


def age_of(seconds: int, nanoseconds: int) -> float | None:
    """A duration in seconds; all ones are none, and more nanoseconds than a second has are no part of one."""
    if seconds == _NO_DURATION:
        return None
    return seconds + nanoseconds / 1e9 if nanoseconds < _SECOND else float(seconds)


def _positions(message: bytes) -> Iterator[int]:
    """The beginnings of the records, whose lengths were looked at."""
    position = MULTIPART_BODY
    while position < len(message):
        yield position
        position += int.from_bytes(message[position : position + 2])


def flow_removed(message: bytes) -> FlowRemoved:
    """Decode FLOW_REMOVED."""
    if len(message) < 56:
        raise WireError("FlowRemoved cut short")
    cookie, priority, reason, table, seconds, nanoseconds, _, _, packets, octets = _FLOW_REMOVED.unpack_from(message, 8)
    fields_end, _ = match_end(message, 48, len(message))
    key = FlowKey(table, priority, decode_fields(message, 52, fields_end))
    return FlowRemoved(key, cookie, reason, packets, octets, seconds + nanoseconds / 1e9)


def meter_config(message: bytes) -> list[Meter]:
    """Decode one part of an OFPMP_METER_CONFIG reply.

    A meter that is not one drop band in kb/s becomes one of rate 0, which no desired meter equals.
    """
    meters = []
    position = MULTIPART_BODY
    while position < len(message):
        if len(message) - position < 8:
            raise WireError("meter configuration cut short")
        length, flags, number = _METER_CONFIG.unpack_from(message, position)
        if length < 8 or position + length > len(message):
            raise WireError(f"meter configuration record of {length} bytes")
        rate = burst = 0
        if length == 8 + _BAND.size and flags & ofp.OFPMF_KBPS:
            kind, _, band_rate, band_burst = _BAND.unpack_from(message, position + 8)
            if kind == ofp.OFPMBT_DROP:
                rate, burst = band_rate, band_burst
        meters.append(Meter(number, rate, burst))
        position += length
    return meters


def meter_stats(message: bytes) -> list[MeterCounters]:
    """Decode one part of an OFPMP_METER reply."""
    counters = []
    position = MULTIPART_BODY
    while position < len(message):
        if len(message) - position < _METER_STATS.size:
            raise WireError("meter statistics cut short")
        number, length, _, packets, octets, seconds, nanoseconds = _METER_STATS.unpack_from(message, position)
        if length < _METER_STATS.size or position + length > len(message):
            raise WireError(f"meter statistics record of {length} bytes")
        dropped = (0, 0)
        if length >= _METER_STATS.size + 16:
            dropped = struct.unpack_from("!QQ", message, position + _METER_STATS.size)
        counters.append(MeterCounters(number, packets, octets, *dropped, age_of(seconds, nanoseconds)))
        position += length
    return counters


def _by_os_ken(read: Callable[[bytes, int], Any], message: bytes, start: int, size: int, what: str) -> list[Any]:
    if (len(message) - start) % size:
        raise WireError(f"{what} is not a multiple of {size} bytes")
    try:
        return [read(message, position) for position in range(start, len(message), size)]
    except (ValueError, struct.error, AssertionError) as failure:
        raise WireError(f"{what} is malformed: {failure}") from failure


def _port(record: tuple[int, bytes, bytes, int, int, int]) -> PortInfo:
    number, mac, name, config, state, speed = record
    up = not (config & ofp.OFPPC_PORT_DOWN or state & ofp.OFPPS_LINK_DOWN)
    text = shared(name.rstrip(b"\x00").decode("utf-8", "replace"))
    return PortInfo(number, text, mac.hex(":"), up, bool(config & PORT_NO_FLOOD), speed, bool(state & ofp.OFPPS_LIVE))


def ports(message: bytes) -> list[PortInfo]:
    """Decode one part of an OFPMP_PORT_DESC reply."""
    if (len(message) - MULTIPART_BODY) % _PORT.size:
        raise WireError(f"port description is not a multiple of {_PORT.size} bytes")
    return [_port(record) for record in _PORT.iter_unpack(message[MULTIPART_BODY:])]


def port_status(message: bytes) -> tuple[PortInfo, bool]:
    """Decode PORT_STATUS: the port, and whether it is there (False: it was removed)."""
    if len(message) != 16 + _PORT.size:
        raise WireError(f"PortStatus of {len(message)} bytes")
    return _port(_PORT.unpack_from(message, 16)), message[8] != ofp.OFPPR_DELETE


def port_records(message: bytes) -> list[PortRecord]:
    """Decode one part of an OFPMP_PORT_STATS reply into plain records; a counter that the switch does not have is 0."""
    if (len(message) - MULTIPART_BODY) % _PORT_STATS.size:
        raise WireError(f"port statistics are not a multiple of {_PORT_STATS.size} bytes")
    records = list(_PORT_STATS.iter_unpack(memoryview(message)[MULTIPART_BODY:]))
    # All ones is a counter that the switch does not have (section 7.3.5.6).
    return [_complete(*record) for record in records] if _ALL_ONES in message else records


def _complete(number: int, *rest: int) -> PortRecord:
    return number, *(0 if value == _NO_COUNTER else value for value in rest)


def port_stats(message: bytes) -> list[PortCounters]:
    """Decode one part of an OFPMP_PORT_STATS reply."""
    return [PortCounters._make((*record[:7], port_age(record))) for record in port_records(message)]


def port_age(record: PortRecord) -> float | None:
    """The seconds for which the switch has had the port; None where it does not say."""
    return age_of(record[7], record[8])


def queue_stats(message: bytes) -> list[QueueCounters]:
    """Decode one part of an OFPMP_QUEUE reply."""
    read = parser.OFPQueueStats.parser
    found = _by_os_ken(read, message, MULTIPART_BODY, ofp.OFP_QUEUE_STATS_SIZE, "queue statistics")
    return [
        QueueCounters(
            stats.port_no,
            stats.queue_id,
            stats.tx_bytes,
            stats.tx_packets,
            stats.tx_errors,
            age_of(stats.duration_sec, stats.duration_nsec),
        )
        for stats in found
    ]


def description(message: bytes) -> list[Description]:
    """Decode an OFPMP_DESC reply."""
    found = _by_os_ken(parser.OFPDescStats.parser, message, MULTIPART_BODY, ofp.OFP_DESC_SIZE, "switch description")
    # Open vSwitch has "None" where no serial number or description was set.
    return [
        Description(
            *("" if text.rstrip(b"\x00") == b"None" else text.rstrip(b"\x00").decode("utf-8", "replace") for text in
              (desc.mfr_desc, desc.hw_desc, desc.sw_desc, desc.serial_num, desc.dp_desc))
        )
        for desc in found
    ]  # fmt: skip


def meter_features(message: bytes) -> list[MeterFeatures]:
    """Decode an OFPMP_METER_FEATURES reply."""
    found = _by_os_ken(
        parser.OFPMeterFeaturesStats.parser, message, MULTIPART_BODY, ofp.OFP_METER_FEATURES_SIZE, "meter features"
    )
    return [MeterFeatures(stats.max_meter, bool(stats.band_types & 1 << ofp.OFPMBT_DROP)) for stats in found]


def features(message: bytes) -> Features:
    """Decode FEATURES_REPLY."""
    if len(message) != ofp.OFP_SWITCH_FEATURES_SIZE:
        raise WireError(f"features reply of {len(message)} bytes")
    datapath, _, n_tables, auxiliary, capabilities, _ = struct.unpack_from(ofp.OFP_SWITCH_FEATURES_PACK_STR, message, 8)
    return Features(datapath, n_tables, auxiliary, capabilities)


def speaks_1_3(message: bytes) -> bool:
    """True if a HELLO offers OpenFlow 1.3: by its version bitmap if it has one, else by its version (section 6.3.1)."""
    position = 8
    while len(message) - position >= 8:
        kind, length = struct.unpack_from("!HH", message, position)
        if kind == ofp.OFPHET_VERSIONBITMAP and length >= 8:
            return bool(int.from_bytes(message[position + 4 : position + 8]) & 1 << VERSION)
        if length < 4:
            break
        position += length + -length % 8
    return message[0] >= VERSION

"""Open vSwitch's connection table: forgetting the connections of an address (ovs-ofctl(8), ct-flush).

Nicira extensions of OpenFlow, which os-ken lacks: NXT_CT_FLUSH (32, Open vSwitch 3.1 and newer) with the
protocol, the original tuple's source or destination and the zone, and NXT_CT_FLUSH_ZONE (29) where the switch is
older. Connections that would outlive a job would let its former peers talk to the next job with the same address.

Open vSwitch 3.1.0 aborts when a flush without a protocol finds an ICMP connection, and finds none when ICMP is asked
for. So flushes name TCP or UDP, and connections of other protocols have a zone of their own that is flushed whole.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from os_ken.ofproto import ofproto_common
from os_ken.ofproto import ofproto_v1_3 as ofp

from lark_common.runs import Address
from lark_controller.switches.openflow.wire import header

_CT_FLUSH: Final = 32
_CT_FLUSH_ZONE: Final = 29
_ORIGINAL_TUPLE: Final = 0
_ZONE: Final = 2
_SOURCE: Final = 0
_DESTINATION: Final = 1
# An IPv4 address as one of IPv6 (RFC 4291, section 2.5.5.2) begins so.
_MAPPED: Final = bytes(10) + b"\xff\xff"


class Flush(NamedTuple):
    """The connections to delete, in the switch's encoding; without ``address`` (an integer) all of the zone."""

    zone: int
    protocol: int = 0
    address: int | None = None
    source: bool = False


def flush(xid: int, zone: int, address: Address, protocol: int, *, source: bool) -> bytes:
    """Forget a zone's connections of a protocol whose first packet came from (``source``), or went to, an address."""
    mapped = address.packed if address.version == 6 else _MAPPED + address.packed
    inner = struct.pack("!HH16s4x", _SOURCE if source else _DESTINATION, 20, mapped)
    body = struct.pack("!B7x", protocol) + struct.pack("!HH4x", _ORIGINAL_TUPLE, 8 + len(inner)) + inner
    return _experimenter(xid, _CT_FLUSH, body + struct.pack("!HHH2x", _ZONE, 8, zone))


def flush_zone(xid: int, zone: int) -> bytes:
    """Forget all connections of a zone."""
    return _experimenter(xid, _CT_FLUSH_ZONE, struct.pack("!6xH", zone))


def read(message: bytes) -> Flush | None:
    """A message of this module as a switch reads it; None for any other of an experimenter."""
    vendor, kind = struct.unpack_from("!II", message, 8)
    if vendor != ofproto_common.NX_EXPERIMENTER_ID or kind not in (_CT_FLUSH, _CT_FLUSH_ZONE):
        return None
    if kind == _CT_FLUSH_ZONE:
        return Flush(*struct.unpack_from("!H", message, 22))
    end, _, packed = struct.unpack_from("!HH16s", message, 32)
    mapped = packed[:12] == _MAPPED
    address = int.from_bytes(packed[12:] if mapped else packed)
    return Flush(struct.unpack_from("!H", message, 60)[0], message[16], address, end == _SOURCE)


def _experimenter(xid: int, kind: int, body: bytes) -> bytes:
    return header(ofp.OFPT_EXPERIMENTER, xid, struct.pack("!II", ofproto_common.NX_EXPERIMENTER_ID, kind) + body)

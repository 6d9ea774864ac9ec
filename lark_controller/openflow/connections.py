"""Open vSwitch's connection table: forgetting the connections of an address (ovs-ofctl(8), ct-flush).

Nicira extensions of OpenFlow, which os-ken does not know: NXT_CT_FLUSH (32, Open vSwitch 3.1 and newer) with the
protocol, the original tuple's source or destination and the zone, and NXT_CT_FLUSH_ZONE (29) where the switch is
older. Connections that would outlive a job would let its former peers talk to the next job with the same address.

Open vSwitch 3.1.0 aborts when a flush without a protocol finds an ICMP connection, and finds none when ICMP is asked
for. So flushes name TCP or UDP, and connections of other protocols have a zone of their own that is flushed whole.
"""

from __future__ import annotations

import struct
from typing import Final

from os_ken.ofproto import ofproto_common
from os_ken.ofproto import ofproto_v1_3 as ofp

from lark_controller.jobs import Address
from lark_controller.openflow.wire import header

_CT_FLUSH: Final = 32
_CT_FLUSH_ZONE: Final = 29
_ORIGINAL_TUPLE: Final = 0
_ZONE: Final = 2
_SOURCE: Final = 0
_DESTINATION: Final = 1


def flush(xid: int, zone: int, address: Address, protocol: int, *, source: bool) -> bytes:
    """Forget a zone's connections of a protocol whose first packet came from (``source``), or went to, an address."""
    mapped = address.packed if address.version == 6 else bytes(10) + b"\xff\xff" + address.packed
    inner = struct.pack("!HH16s4x", _SOURCE if source else _DESTINATION, 20, mapped)
    body = struct.pack("!B7x", protocol) + struct.pack("!HH4x", _ORIGINAL_TUPLE, 8 + len(inner)) + inner
    return _experimenter(xid, _CT_FLUSH, body + struct.pack("!HHH2x", _ZONE, 8, zone))


def flush_zone(xid: int, zone: int) -> bytes:
    """Forget all connections of a zone."""
    return _experimenter(xid, _CT_FLUSH_ZONE, struct.pack("!6xH", zone))


def _experimenter(xid: int, kind: int, body: bytes) -> bytes:
    return header(ofp.OFPT_EXPERIMENTER, xid, struct.pack("!II", ofproto_common.NX_EXPERIMENTER_ID, kind) + body)

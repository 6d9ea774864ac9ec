"""A connection table as Open vSwitch's ``ct`` action sees it (ovs-actions(7)): which packets belong to a connection.

A connection is one zone and 5-tuple, an ICMP echo one zone and identifier. It is established once a packet has come
back. ICMP errors about a tracked connection are related to it. There are no timeouts: a connection stays until
:meth:`ConnectionTable.flush`. Fragments are not put together, so they are invalid here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lark_controller.flows.model import CT_EST, CT_INV, CT_NEW, CT_REL, CT_RPL, CT_TRK, ETH_IPV4
from lark_controller.flows.simulation import packet

_FIN, _SYN, _RST, _ACK = 0x01, 0x02, 0x04, 0x10
# Types of ICMP (RFC 792) and ICMPv6 (RFC 4443) that carry the packet they are about.
_ICMP_ERRORS: Final = frozenset({3, 4, 5, 11, 12})
_ICMPV6_ERRORS: Final = frozenset({1, 2, 3, 4})
_ECHO: Final = {packet.ICMP: (8, 0), packet.ICMPV6: (128, 129)}


class Connection(NamedTuple):
    """One direction of a connection; ports are the identifier for ICMP echo."""

    protocol: int
    src: int
    src_port: int
    dst: int
    dst_port: int

    @property
    def reverse(self) -> Connection:
        """The same connection seen from the other end."""
        return Connection(self.protocol, self.dst, self.dst_port, self.src, self.src_port)


@dataclass(slots=True)
class ConnectionTable:
    """The connections that were committed: zone and opening direction, with whether a packet has come back, and the
    mark of those that have one. Mutable."""

    replied: dict[tuple[int, Connection], bool] = field(default_factory=dict)
    marks: dict[tuple[int, Connection], int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.replied)

    def __iter__(self) -> Iterator[tuple[int, Connection]]:
        return iter(list(self.replied))

    def mark(self, zone: int, frame: bytes) -> int:
        """The ct_mark of a frame in a zone: that of its connection, 0 where it has none."""
        found = _connection(frame)
        if found is None:
            return 0
        return self.marks.get((zone, found[0]), 0) or self.marks.get((zone, found[0].reverse), 0)

    def track(self, zone: int, frame: bytes, *, commit: bool = False, mark: int | None = None) -> int:
        """The ct_state of a frame in a zone (always with CT_TRK); ``commit`` remembers a new connection, and gives
        the connection the ``mark``."""
        state = self._track(zone, frame, commit=commit)
        found = _connection(frame)
        if commit and mark is not None and found is not None and not state & CT_INV:
            held = (zone, found[0]) if (zone, found[0]) in self.replied else (zone, found[0].reverse)
            self.marks[held] = mark
        return state

    def _track(self, zone: int, frame: bytes, *, commit: bool) -> int:
        found = _connection(frame)
        if found is None:
            return CT_TRK | CT_INV
        connection, opens, error = found
        if error:
            known = (zone, connection) in self.replied or (zone, connection.reverse) in self.replied
            # An error runs against the packet it is about, which shows which way it goes.
            reply = CT_RPL if (zone, connection) in self.replied else 0
            return CT_TRK | CT_REL | reply if known else CT_TRK | CT_INV
        if (zone, connection) in self.replied:
            return CT_TRK | (CT_EST if self.replied[(zone, connection)] else CT_NEW)
        if (zone, connection.reverse) in self.replied:
            self.replied[(zone, connection.reverse)] = True
            return CT_TRK | CT_EST | CT_RPL
        if not opens:
            return CT_TRK | CT_INV
        if commit:
            self.replied[(zone, connection)] = False
        return CT_TRK | CT_NEW

    def flush(self, zone: int | None = None) -> None:
        """Forget the connections of a zone, or all (``ovs-appctl dpctl/flush-conntrack``)."""
        for key in [key for key in self.replied if zone is None or key[0] == zone]:
            del self.replied[key]
            self.marks.pop(key, None)

    def forget(self, zone: int, protocol: int, address: int, *, source: bool) -> None:
        """Forget a zone's connections of a protocol that were opened from (``source``) or to an address
        (``ovs-ofctl ct-flush``)."""
        for key in list(self.replied):
            at, connection = key
            end = connection.src if source else connection.dst
            if (at, connection.protocol, end) == (zone, protocol, address):
                del self.replied[key]
                self.marks.pop(key, None)

    def copy(self) -> ConnectionTable:
        """An independent table with the same connections."""
        return ConnectionTable(dict(self.replied), dict(self.marks))


def _connection(frame: bytes) -> tuple[Connection, bool, bool] | None:
    """(connection, whether this packet may open one, whether it is an error about one), None if not trackable."""
    if len(frame) < 14:
        return None
    layout = packet.locate(frame)
    at, protocol = layout.transport, layout.protocol
    if at is None or protocol is None:
        return None
    if protocol in (packet.ICMP, packet.ICMPV6):
        return _icmp(frame, layout, at)
    opened = _transport(frame, layout.ethertype, layout.network, at, protocol)
    if opened is None:
        return None
    if protocol == packet.TCP:
        flags = frame[at + 13] if len(frame) > at + 13 else 0
        # Open vSwitch takes a connection up in the middle, but not by a SYN and ACK, and no impossible flags.
        valid = not (flags & _SYN and flags & (_ACK | _FIN | _RST))
        return opened, valid, False
    return opened, True, False


def _addresses(frame: bytes, ethertype: int, at: int) -> tuple[int, int]:
    if ethertype == ETH_IPV4:
        return int.from_bytes(frame[at + 12 : at + 16]), int.from_bytes(frame[at + 16 : at + 20])
    return int.from_bytes(frame[at + 8 : at + 24]), int.from_bytes(frame[at + 24 : at + 40])


def _transport(frame: bytes, ethertype: int, network: int, at: int, protocol: int) -> Connection | None:
    src, dst = _addresses(frame, ethertype, network)
    if protocol in (packet.TCP, packet.UDP):
        if len(frame) < at + 4:
            return None
        return Connection(
            protocol, src, int.from_bytes(frame[at : at + 2]), dst, int.from_bytes(frame[at + 2 : at + 4])
        )
    if protocol in _ECHO and len(frame) >= at + 6 and frame[at] in _ECHO[protocol]:
        identifier = int.from_bytes(frame[at + 4 : at + 6])
        return Connection(protocol, src, identifier, dst, identifier)
    return None if protocol in _ECHO else Connection(protocol, src, 0, dst, 0)


def _icmp(frame: bytes, layout: packet.Layout, at: int) -> tuple[Connection, bool, bool] | None:
    assert layout.protocol is not None
    icmp = packet.ICMP if layout.ethertype == ETH_IPV4 else packet.ICMPV6
    if layout.protocol != icmp or len(frame) < at + 8:
        return None
    errors = _ICMP_ERRORS if icmp == packet.ICMP else _ICMPV6_ERRORS
    if frame[at] in errors:
        about = _inner(frame, layout.ethertype, at + 8)
        return None if about is None else (about, False, True)
    echo = _transport(frame, layout.ethertype, layout.network, at, icmp)
    return None if echo is None else (echo, frame[at] == _ECHO[icmp][0], False)


def _inner(frame: bytes, ethertype: int, at: int) -> Connection | None:
    """The connection of the packet inside an ICMP error, of which only the first bytes need be there."""
    if ethertype == ETH_IPV4:
        if len(frame) < at + 28:
            return None
        transport, protocol = at + (frame[at] & 0x0F) * 4, frame[at + 9]
    else:
        if len(frame) < at + 48:
            return None
        transport, protocol = at + 40, frame[at + 6]
    return _transport(frame, ethertype, at, transport, protocol)

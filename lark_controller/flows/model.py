"""The values that make a flow: a key (table, priority, match) and data (cookie, instructions, timeouts).

A flow is the same flow on the switch if its key is the same (OpenFlow 1.3.5, section 6.4: an add with an identical
match and priority overwrites); everything else is its data. Values are integers throughout (an address is its integer,
a MAC is its integer), because that is what a dump gives back and what hashes cheaply; :mod:`lark_controller.flows.text`
turns them into words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, NamedTuple

# Widths in bits of the match fields that Lark uses, by OXM name (OpenFlow 1.3.5, table 11; ``ct_state`` is Open
# vSwitch's NXM_NX_CT_STATE).
FIELD_BITS: Final[dict[str, int]] = {
    "in_port": 32,
    "metadata": 64,
    "eth_dst": 48,
    "eth_src": 48,
    "eth_type": 16,
    "vlan_vid": 13,
    "ip_dscp": 6,
    "ip_proto": 8,
    "ipv4_src": 32,
    "ipv4_dst": 32,
    "tcp_src": 16,
    "tcp_dst": 16,
    "udp_src": 16,
    "udp_dst": 16,
    "arp_op": 16,
    "arp_spa": 32,
    "arp_tpa": 32,
    "arp_sha": 48,
    "arp_tha": 48,
    "ipv6_src": 128,
    "ipv6_dst": 128,
    "ipv6_flabel": 20,
    "icmpv4_type": 8,
    "icmpv6_type": 8,
    "icmpv6_code": 8,
    "ipv6_nd_target": 128,
    "ipv6_nd_sll": 48,
    "ipv6_nd_tll": 48,
    "ct_state": 32,
    "ct_mark": 32,
}

ETH_IPV4: Final = 0x0800
ETH_ARP: Final = 0x0806
ETH_IPV6: Final = 0x86DD
# OFPVID_PRESENT (OpenFlow 1.3.5, section 7.2.3.7): set in vlan_vid for every tagged frame.
VLAN_PRESENT: Final = 0x1000

# Reserved ports (OpenFlow 1.3.5, section 7.2.1).
PORT_MAX: Final = 0xFFFFFF00
PORT_IN_PORT: Final = 0xFFFFFFF8
PORT_TABLE: Final = 0xFFFFFFF9
PORT_NORMAL: Final = 0xFFFFFFFA
PORT_FLOOD: Final = 0xFFFFFFFB
PORT_ALL: Final = 0xFFFFFFFC
PORT_CONTROLLER: Final = 0xFFFFFFFD
PORT_LOCAL: Final = 0xFFFFFFFE
PORT_ANY: Final = 0xFFFFFFFF

# Open vSwitch connection-tracking state bits (ovs-fields(7), ct_state).
CT_NEW: Final = 0x01
CT_EST: Final = 0x02
CT_REL: Final = 0x04
CT_RPL: Final = 0x08
CT_INV: Final = 0x10
CT_TRK: Final = 0x20

FLAG_SEND_FLOW_REM: Final = 0x0001


class Term(NamedTuple):
    """One match field. ``mask`` is all ones for an exact match; bits of ``value`` outside ``mask`` are zero."""

    name: str
    value: int
    mask: int


Match = tuple[Term, ...]

_FULL: Final = {name: (1 << bits) - 1 for name, bits in FIELD_BITS.items()}
# Cheaper than ``Term(...)``: a large pool's flows have tens of millions of terms.
_new_term: Final[Callable[[tuple[str, int, int]], Term]] = partial(tuple.__new__, Term)


def match(**fields: int | tuple[int, int]) -> Match:
    """A canonical match: terms sorted by name, masked values, no all-zero masks.

    ``match(eth_type=0x800, ipv4_dst=(0x0A400000, 0xFFFF0000))``. Raises ``KeyError`` for a field not in
    :data:`FIELD_BITS`.
    """
    return match_of(fields)


def match_of(fields: Mapping[str, int | tuple[int, int]]) -> Match:
    """:func:`match` of a mapping."""
    terms = []
    for name, given in fields.items():
        full = _FULL[name]
        if isinstance(given, tuple):
            mask = given[1] & full
            if mask:
                terms.append(_new_term((name, given[0] & mask, mask)))
        else:
            terms.append(_new_term((name, given & full, full)))
    terms.sort()
    return tuple(terms)


class Output(NamedTuple):
    """Send to a port number (or a reserved port); ``max_len`` bytes go along for PORT_CONTROLLER."""

    port: int
    max_len: int = 0xFFFF


class SetField(NamedTuple):
    """Overwrite a header field, by OXM name."""

    name: str
    value: int


class PushVlan(NamedTuple):
    """Push an 802.1Q tag (set its number with ``SetField("vlan_vid", VLAN_PRESENT | vid)``)."""

    ethertype: int = 0x8100
    kind: Literal["push_vlan"] = "push_vlan"


class PopVlan(NamedTuple):
    """Pop the outermost 802.1Q tag."""

    kind: Literal["pop_vlan"] = "pop_vlan"


class SetQueue(NamedTuple):
    """Choose the egress queue for the outputs that follow."""

    queue: int
    kind: Literal["set_queue"] = "set_queue"


class Track(NamedTuple):
    """Open vSwitch ``ct``: look the packet up in a zone, go on in ``table``; ``commit`` remembers the connection.

    ``table`` is None for a commit that does not recirculate (the flow's own ``goto`` goes on). A commit gives the
    connection the ``mark`` (``ct_mark``), where there is one.
    """

    zone: int
    table: int | None
    commit: bool = False
    mark: int | None = None


# Named tuples of equal values are equal whatever their class, so the kinds that could be taken for one another say
# which they are.
Action = Output | SetField | PushVlan | PopVlan | SetQueue | Track


class FlowKey(NamedTuple):
    """The identity of a flow on a switch."""

    table: int
    priority: int
    match: Match


class FlowData(NamedTuple):
    """The contents of a flow, apart from its key.

    ``metadata`` is (value, mask) to write; ``meter`` and ``goto`` are instructions; ``actions`` are applied in order
    (apply-actions). No actions and no goto is a drop. Timeouts in seconds, 0 is none.
    """

    cookie: int
    actions: tuple[Action, ...] = ()
    goto: int | None = None
    metadata: tuple[int, int] | None = None
    meter: int | None = None
    idle_timeout: int = 0
    hard_timeout: int = 0
    flags: int = 0


class Flow(NamedTuple):
    """A flow: key and data."""

    key: FlowKey
    data: FlowData


# As with terms, at a third of the cost of ``FlowKey(...)``, ``FlowData(...)`` and ``Flow(...)``.
_new_key: Final[Callable[[tuple[int, int, Match]], FlowKey]] = partial(tuple.__new__, FlowKey)
_new_data: Final[Callable[[tuple[object, ...]], FlowData]] = partial(tuple.__new__, FlowData)
_new_flow: Final[Callable[[tuple[FlowKey, FlowData]], Flow]] = partial(tuple.__new__, Flow)


def flow_of(
    table: int,
    priority: int,
    fields: Mapping[str, int | tuple[int, int]],
    cookie: int,
    *,
    actions: tuple[Action, ...] = (),
    goto: int | None = None,
    metadata: tuple[int, int] | None = None,
    flags: int = 0,
) -> Flow:
    """A flow without meter and timeouts, of the fields of its match."""
    data = _new_data((cookie, actions, goto, metadata, None, 0, 0, flags))
    return _new_flow((_new_key((table, priority, match_of(fields))), data))


@dataclass(frozen=True, slots=True)
class Meter:
    """An OpenFlow 1.3 meter with one drop band (OpenFlow 1.3.5, section 5.7).

    ``rate`` in kb/s of L2 frame bytes, ``burst`` in kb.
    """

    number: int
    rate: int
    burst: int


@dataclass(frozen=True, slots=True)
class Program:
    """The whole program of a switch, desired or installed: flows by key and meters by number."""

    flows: dict[FlowKey, FlowData] = field(default_factory=dict)
    meters: dict[int, Meter] = field(default_factory=dict)

    @staticmethod
    def of(flows: Iterable[Flow], meters: Iterable[Meter] = ()) -> Program:
        """A program from flows and meters; of two flows with one key the later wins."""
        return Program({flow.key: flow.data for flow in flows}, {meter.number: meter for meter in meters})


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes from one program to another, in the order in which they must be sent.

    Meters are added and changed before flows, flows are deleted before meters, a barrier between (a flow may not name
    a meter that is not there: OpenFlow 1.3.5, section 6.4).
    """

    meters_set: tuple[Meter, ...] = ()
    meters_new: frozenset[int] = frozenset()
    flows_set: tuple[Flow, ...] = ()
    flows_gone: tuple[FlowKey, ...] = ()
    meters_gone: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.meters_set or self.flows_set or self.flows_gone or self.meters_gone)

    def __len__(self) -> int:
        return len(self.meters_set) + len(self.flows_set) + len(self.flows_gone) + len(self.meters_gone)

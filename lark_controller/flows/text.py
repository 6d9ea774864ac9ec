"""Flows in the words of ``ovs-ofctl`` (ovs-ofctl(8), ovs-fields(7), ovs-actions(7)), and addresses as text.

``ovs-ofctl -O OpenFlow13 add-flow`` takes what :func:`flow_text` gives, and ``dump-flows`` prints it nearly so.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address
from typing import Final

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
    FIELD_BITS,
    FLAG_SEND_FLOW_REM,
    PORT_ALL,
    PORT_ANY,
    PORT_CONTROLLER,
    PORT_FLOOD,
    PORT_IN_PORT,
    PORT_LOCAL,
    PORT_NORMAL,
    PORT_TABLE,
    VLAN_PRESENT,
    Action,
    FlowData,
    FlowKey,
    Match,
    Output,
    PopVlan,
    PushVlan,
    SetField,
    SetQueue,
    Term,
)

PORT_NAMES: Final = {
    PORT_IN_PORT: "IN_PORT",
    PORT_TABLE: "TABLE",
    PORT_NORMAL: "NORMAL",
    PORT_FLOOD: "FLOOD",
    PORT_ALL: "ALL",
    PORT_CONTROLLER: "CONTROLLER",
    PORT_LOCAL: "LOCAL",
    PORT_ANY: "ANY",
}
_CT_BITS: Final = (
    (CT_NEW, "new"),
    (CT_EST, "est"),
    (CT_REL, "rel"),
    (CT_RPL, "rpl"),
    (CT_INV, "inv"),
    (CT_TRK, "trk"),
)
_PROTOCOLS: Final = {
    (ETH_IPV4, 1): "icmp",
    (ETH_IPV4, 6): "tcp",
    (ETH_IPV4, 17): "udp",
    (ETH_IPV6, 58): "icmp6",
    (ETH_IPV6, 6): "tcp6",
    (ETH_IPV6, 17): "udp6",
}
_ETHERTYPES: Final = {ETH_IPV4: "ip", ETH_ARP: "arp", ETH_IPV6: "ipv6"}
# ovs-ofctl's names of OXM fields, in its order of printing.
_NAMES: Final[dict[str, str]] = {
    "ct_state": "ct_state",
    "metadata": "metadata",
    "in_port": "in_port",
    "vlan_vid": "vlan_vid",
    "eth_src": "dl_src",
    "eth_dst": "dl_dst",
    "eth_type": "dl_type",
    "ipv4_src": "nw_src",
    "ipv4_dst": "nw_dst",
    "ipv6_src": "ipv6_src",
    "ipv6_dst": "ipv6_dst",
    "ipv6_flabel": "ipv6_label",
    "arp_spa": "arp_spa",
    "arp_tpa": "arp_tpa",
    "ip_proto": "nw_proto",
    "ip_dscp": "ip_dscp",
    "arp_op": "arp_op",
    "arp_sha": "arp_sha",
    "arp_tha": "arp_tha",
    "tcp_src": "tp_src",
    "tcp_dst": "tp_dst",
    "udp_src": "tp_src",
    "udp_dst": "tp_dst",
    "icmpv4_type": "icmp_type",
    "icmpv6_type": "icmp_type",
    "icmpv6_code": "icmp_code",
    "ipv6_nd_target": "nd_target",
    "ipv6_nd_sll": "nd_sll",
    "ipv6_nd_tll": "nd_tll",
}
# An action names its field by what ovs-fields(7) calls it, which differs from the names in a match.
_SET_NAMES: Final[dict[str, str]] = {"ipv4_src": "ip_src", "ipv4_dst": "ip_dst", "ipv6_flabel": "ipv6_label"}
_DECIMAL: Final = frozenset(
    {"in_port", "ip_dscp", "ip_proto", "arp_op", "udp_src", "udp_dst", "tcp_src", "tcp_dst", "icmpv6_type"}
    | {"icmpv6_code", "icmpv4_type"}
)
_MAC_FIELDS: Final = frozenset(name for name, bits in FIELD_BITS.items() if bits == 48)
_IPV6_FIELDS: Final = frozenset(name for name, bits in FIELD_BITS.items() if bits == 128)
_IPV4_FIELDS: Final = frozenset({"ipv4_src", "ipv4_dst", "arp_spa", "arp_tpa"})


def mac_text(value: int) -> str:
    """``02:00:00:00:00:05`` for an integer; raises OverflowError if it has more than 48 bits."""
    return value.to_bytes(6).hex(":")


def port_text(port: int) -> str:
    """A port number, or the name of a reserved port."""
    return PORT_NAMES.get(port, str(port))


def value_text(name: str, value: int) -> str:
    """A field's value as ovs-ofctl writes it: an address as an address, a number as a number."""
    if name in _MAC_FIELDS:
        return mac_text(value)
    if name in _IPV4_FIELDS:
        return str(IPv4Address(value))
    if name in _IPV6_FIELDS:
        return str(IPv6Address(value))
    if name == "in_port":
        return port_text(value)
    return str(value) if name in _DECIMAL else f"{value:#x}"


def match_text(match: Match) -> str:
    """A match as ``ovs-ofctl dump-flows`` writes it: ``ip,in_port=3,nw_src=10.64.0.5``; ``""`` matches everything."""
    terms = {term.name: term for term in match}
    words: list[str] = []
    done: set[str] = set()
    kind = terms.get("eth_type")
    protocol = terms.get("ip_proto")
    if kind is not None and _exact(kind):
        both = (kind.value, protocol.value) if protocol is not None and _exact(protocol) else None
        if both in _PROTOCOLS:
            words.append(_PROTOCOLS[both])
            done |= {"eth_type", "ip_proto"}
        elif kind.value in _ETHERTYPES:
            words.append(_ETHERTYPES[kind.value])
            done.add("eth_type")
    front = ("ct_state", "metadata")
    head = [_term_text(terms[name]) for name in front if name in terms]
    order = [name for name in _NAMES if name in terms] + sorted(name for name in terms if name not in _NAMES)
    tail = [_term_text(terms[name]) for name in order if name not in done and name not in front]
    return ",".join([*head, *words, *tail])


def _exact(term: Term) -> bool:
    return term.mask == (1 << FIELD_BITS.get(term.name, term.mask.bit_length())) - 1


def _term_text(term: Term) -> str:
    name = _NAMES.get(term.name, term.name)
    if term.name == "ct_state":
        return f"{name}={_ct_text(term)}"
    if term.name == "vlan_vid" and term.mask == VLAN_PRESENT | 0xFFF and term.value & VLAN_PRESENT:
        return f"dl_vlan={term.value & 0xFFF}"
    if term.name == "vlan_vid":
        return f"vlan_tci={term.value:#06x}/{term.mask:#06x}"
    if _exact(term):
        return f"{name}={value_text(term.name, term.value)}"
    if term.name in _DECIMAL:
        return f"{name}={term.value:#x}/{term.mask:#x}"
    return f"{name}={value_text(term.name, term.value)}/{_mask_text(term)}"


def _mask_text(term: Term) -> str:
    bits = FIELD_BITS.get(term.name, 0)
    if term.name in _IPV4_FIELDS or term.name in _IPV6_FIELDS:
        length = term.mask.bit_count()
        if term.mask == ((1 << length) - 1) << (bits - length):
            return str(length)
    return value_text(term.name, term.mask)


def _ct_text(term: Term) -> str:
    known = sum(bit for bit, _ in _CT_BITS)
    if term.mask & ~known:
        return f"{term.value:#x}/{term.mask:#x}"
    return "".join(("+" if term.value & bit else "-") + word for bit, word in _CT_BITS if term.mask & bit)


def actions_text(data: FlowData) -> str:
    """The actions of a flow, as ``ovs-ofctl dump-flows`` writes them after ``actions=``; ``drop`` if nothing."""
    words: list[str] = []
    if data.meter is not None:
        words.append(f"meter:{data.meter}")
    words.extend(action_text(action) for action in data.actions)
    if data.metadata is not None:
        value, mask = data.metadata
        words.append(f"write_metadata:{value:#x}" + ("" if mask == (1 << 64) - 1 else f"/{mask:#x}"))
    if data.goto is not None:
        words.append(f"goto_table:{data.goto}")
    return ",".join(words) or "drop"


def action_text(action: Action) -> str:
    """One action, as ovs-actions(7) writes it."""
    if isinstance(action, Output):
        if action.port == PORT_CONTROLLER:
            return f"CONTROLLER:{action.max_len}"
        return PORT_NAMES.get(action.port, f"output:{action.port}")
    if isinstance(action, SetField):
        name = _SET_NAMES.get(action.name, action.name)
        value = str(action.value) if action.name == "vlan_vid" else value_text(action.name, action.value)
        return f"set_field:{value}->{name}"
    if isinstance(action, PushVlan):
        return f"push_vlan:{action.ethertype:#06x}"
    if isinstance(action, PopVlan):
        return "pop_vlan"
    if isinstance(action, SetQueue):
        return f"set_queue:{action.queue}"
    parts = ["commit"] if action.commit else []
    if action.table is not None:
        parts.append(f"table={action.table}")
    parts.append(f"zone={action.zone}")
    if action.mark is not None:
        parts.append(f"exec(set_field:{action.mark:#x}->ct_mark)")
    return f"ct({','.join(parts)})"


def key_text(key: FlowKey) -> str:
    """A flow's key: ``table=3,priority=100,ip,nw_src=10.64.0.5``."""
    return ",".join(_nonempty(f"table={key.table}", f"priority={key.priority}", match_text(key.match)))


def flow_text(key: FlowKey, data: FlowData) -> str:
    """A whole flow, as ``ovs-ofctl -O OpenFlow13 add-flow`` takes it."""
    words = _nonempty(
        f"cookie={data.cookie:#x}",
        f"table={key.table}",
        f"idle_timeout={data.idle_timeout}" if data.idle_timeout else "",
        f"hard_timeout={data.hard_timeout}" if data.hard_timeout else "",
        "send_flow_rem" if data.flags & FLAG_SEND_FLOW_REM else "",
        f"priority={key.priority}",
        match_text(key.match),
        f"actions={actions_text(data)}",
    )
    return ",".join(words)


def _nonempty(*words: str) -> Iterator[str]:
    return filter(None, words)

"""The flow tables of one switch, indexed for look-up: what :mod:`simulate` runs packets through.

Flows of a table are grouped by which bits they match (tuple space search: Srinivasan, Suri, Varghese, "Packet
classification using tuple space search", SIGCOMM 1999), so that a look-up costs a hash per group and not a comparison
per flow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from lark_controller.flows.model import (
    ETH_ARP,
    ETH_IPV4,
    ETH_IPV6,
    FIELD_BITS,
    PORT_ANY,
    Action,
    Flow,
    FlowData,
    FlowKey,
    Match,
    Meter,
    Output,
    Program,
)

Signature = tuple[tuple[str, int], ...]

_IP: Final = ("eth_type", frozenset({ETH_IPV4, ETH_IPV6}))
_IPV4: Final = ("eth_type", frozenset({ETH_IPV4}))
_IPV6: Final = ("eth_type", frozenset({ETH_IPV6}))
_ARP: Final = ("eth_type", frozenset({ETH_ARP}))
_PREREQUISITES: Final[dict[str, tuple[tuple[str, frozenset[int]], ...]]] = {
    "ip_dscp": (_IP,),
    "ip_proto": (_IP,),
    "ipv4_src": (_IPV4,),
    "ipv4_dst": (_IPV4,),
    "ipv6_src": (_IPV6,),
    "ipv6_dst": (_IPV6,),
    "ipv6_flabel": (_IPV6,),
    "tcp_src": (_IP, ("ip_proto", frozenset({6}))),
    "tcp_dst": (_IP, ("ip_proto", frozenset({6}))),
    "udp_src": (_IP, ("ip_proto", frozenset({17}))),
    "udp_dst": (_IP, ("ip_proto", frozenset({17}))),
    "arp_op": (_ARP,),
    "arp_spa": (_ARP,),
    "arp_tpa": (_ARP,),
    "arp_sha": (_ARP,),
    "arp_tha": (_ARP,),
    "icmpv4_type": (_IPV4, ("ip_proto", frozenset({1}))),
    "icmpv6_type": (_IPV6, ("ip_proto", frozenset({58}))),
    "icmpv6_code": (_IPV6, ("ip_proto", frozenset({58}))),
    "ipv6_nd_target": (_IPV6, ("ip_proto", frozenset({58})), ("icmpv6_type", frozenset({135, 136}))),
    "ipv6_nd_sll": (_IPV6, ("ip_proto", frozenset({58})), ("icmpv6_type", frozenset({135}))),
    "ipv6_nd_tll": (_IPV6, ("ip_proto", frozenset({58})), ("icmpv6_type", frozenset({136}))),
}


def missing_prerequisite(match: Match) -> str:
    """The prerequisite that a match lacks by OpenFlow 1.3.5, section 7.2.3.6, in words (``""``: nothing); switches
    refuse it."""
    # Of fields that Lark has no name for nothing is known, and no packet here has one.
    exact = {term.name: term.value for term in match if term.mask == (1 << FIELD_BITS.get(term.name, 0)) - 1}
    for term in match:
        for name, accepted in _PREREQUISITES.get(term.name, ()):
            if exact.get(name) not in accepted:
                values = " or ".join(f"{value:#x}" if name == "eth_type" else str(value) for value in sorted(accepted))
                return f"a match on {term.name} needs {name}={values}"
    return ""


@dataclass(slots=True)
class FlowEntry:
    """A flow in a table, with its counters (packets, and bytes of whole frames)."""

    key: FlowKey
    data: FlowData
    packets: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _Group:
    """The flows of one table that match the same bits: by their values, then by priority."""

    signature: Signature
    entries: dict[tuple[int, ...], dict[int, FlowEntry]] = field(default_factory=dict)
    priorities: dict[int, int] = field(default_factory=dict)
    highest: int = -1


class Tables:
    """The tables of a switch; an add with the key of a flow that is there replaces it (OpenFlow 1.3.5, section 6.4).

    Mutable, for one thread. ``entries`` may be read, and is changed by the methods alone.
    """

    __slots__ = ("_groups", "entries", "meters")

    def __init__(self, program: Program | None = None) -> None:
        self.entries: dict[FlowKey, FlowEntry] = {}
        self.meters: dict[int, Meter] = dict(program.meters) if program is not None else {}
        self._groups: dict[int, dict[Signature, _Group]] = {}
        if program is not None:
            for key, data in program.flows.items():
                self.set(Flow(key, data))

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[FlowEntry]:
        return iter(list(self.entries.values()))

    def program(self) -> Program:
        """The contents of the tables, as a value."""
        return Program({key: entry.data for key, entry in self.entries.items()}, dict(self.meters))

    def set(self, flow: Flow) -> FlowEntry | None:
        """Add a flow, or replace the one of the same key (its counters start again); returns what was replaced.

        Raises ValueError for a match without its prerequisites, or a goto that does not lead to a later table.
        """
        lacks = missing_prerequisite(flow.key.match)
        if lacks:
            raise ValueError(lacks)
        if flow.data.goto is not None and flow.data.goto <= flow.key.table:
            raise ValueError(f"goto table {flow.data.goto} from table {flow.key.table} does not lead forward")
        old = self.entries.get(flow.key)
        entry = FlowEntry(flow.key, flow.data)
        self.entries[flow.key] = entry
        signature = tuple((term.name, term.mask) for term in flow.key.match)
        groups = self._groups.setdefault(flow.key.table, {})
        group = groups.get(signature)
        if group is None:
            group = groups[signature] = _Group(signature)
        values = tuple(term.value for term in flow.key.match)
        group.entries.setdefault(values, {})[flow.key.priority] = entry
        if old is None:
            priority = flow.key.priority
            group.priorities[priority] = group.priorities.get(priority, 0) + 1
            if priority > group.highest:
                group.highest = priority
                self._order(flow.key.table)
        return old

    def remove(self, key: FlowKey) -> FlowEntry | None:
        """Take a flow out; returns it, or None if it was not there."""
        entry = self.entries.pop(key, None)
        if entry is None:
            return None
        groups = self._groups[key.table]
        signature = tuple((term.name, term.mask) for term in key.match)
        group = groups[signature]
        values = tuple(term.value for term in key.match)
        del group.entries[values][key.priority]
        if not group.entries[values]:
            del group.entries[values]
        group.priorities[key.priority] -= 1
        if not group.priorities[key.priority]:
            del group.priorities[key.priority]
            if not group.priorities:
                del groups[signature]
            elif key.priority == group.highest:
                group.highest = max(group.priorities)
                self._order(key.table)
        return entry

    def remove_matching(
        self,
        table: int | None,
        match: Match,
        *,
        cookie: int = 0,
        cookie_mask: int = 0,
        out_port: int = PORT_ANY,
    ) -> tuple[FlowEntry, ...]:
        """A non-strict delete (OpenFlow 1.3.5, section 6.4): flows of ``table`` (None: all) that are as narrow as
        ``match`` or narrower, have the cookie, and output to ``out_port`` (PORT_ANY: wherever)."""
        gone = [
            key
            for key, entry in self.entries.items()
            if (table is None or key.table == table)
            and not (entry.data.cookie ^ cookie) & cookie_mask
            and covers(match, key.match)
            and (out_port == PORT_ANY or _outputs_to(entry.data.actions, out_port))
        ]
        return tuple(entry for key in gone if (entry := self.remove(key)) is not None)

    def lookup(self, table: int, fields: Mapping[str, int]) -> FlowEntry | None:
        """The flow of highest priority that the fields match. A field that is absent counts as 0, as in Open vSwitch.

        Of overlapping flows of one priority OpenFlow leaves the choice open; here the smaller key decides, so that the
        result does not depend on the order in which flows were added.
        """
        best: FlowEntry | None = None
        for signature, group in self._groups.get(table, {}).items():
            if best is not None and group.highest < best.key.priority:
                break
            found = group.entries.get(tuple([fields.get(name, 0) & mask for name, mask in signature]))
            if found is None:
                continue
            entry = found[max(found)] if len(found) > 1 else next(iter(found.values()))
            if best is None or (-entry.key.priority, entry.key) < (-best.key.priority, best.key):
                best = entry
        return best

    def overlapping(self, table: int, priority: int, fields: Mapping[str, int]) -> tuple[FlowEntry, ...]:
        """All flows of that priority that the fields match: more than one is an ambiguity in the program."""
        found = []
        for signature, group in self._groups.get(table, {}).items():
            values = tuple([fields.get(name, 0) & mask for name, mask in signature])
            entry = group.entries.get(values, {}).get(priority)
            if entry is not None:
                found.append(entry)
        return tuple(found)

    def count(self, keys: Iterable[FlowKey | None], length: int) -> None:
        """Count a packet of ``length`` bytes for each of the flows it met (None, a miss, counts nowhere)."""
        for key in keys:
            entry = self.entries.get(key) if key is not None else None
            if entry is not None:
                entry.packets += 1
                entry.bytes += length

    def _order(self, table: int) -> None:
        groups = self._groups[table]
        self._groups[table] = dict(sorted(groups.items(), key=lambda item: -item[1].highest))


def covers(wide: Match, narrow: Match) -> bool:
    """True where every packet that ``narrow`` matches is matched by ``wide`` term by term."""
    terms = {term.name: term for term in narrow}
    for term in wide:
        other = terms.get(term.name)
        if other is None or other.mask & term.mask != term.mask or other.value & term.mask != term.value:
            return False
    return True


def _outputs_to(actions: tuple[Action, ...], port: int) -> bool:
    return any(isinstance(action, Output) and action.port == port for action in actions)

"""The section ``topology``: which links the site's network has, and how much each carries.

Admission control counts reservations on these links. A name that begins with ``wan`` is the world outside; the name of
an edge switch that has a ``host`` stands for that host; any other name is a switch or a host. Names are compared
without regard to case, as HTCondor compares those of machines, and are kept in lower case.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from lark_common.runs import Network
from lark_controller.policies.model import (
    Duplex,
    HostSpec,
    LinkSpec,
    Refused,
    Reserves,
    SwitchRole,
    SwitchSpec,
    TopologySpec,
)
from lark_controller.policies.switches import WAN
from lark_controller.policies.yaml_nodes import FileEntry, some

KEYS: Final = ("duplex", "reserves", "refused", "links", "hosts")
LINK_KEYS: Final = ("between", "capacity", "duplex")
HOST_KEYS: Final = ("switch", "capacity", "duplex", "addresses")
DEFAULT: Final = "default"
# Prefix of the names of access links; no other link may have it.
ACCESS: Final = "access:"

NAME: Final = r"[!-9;-~]{1,255}"
DUPLEXES: Final = tuple(each.value for each in Duplex)
RESERVES: Final = tuple(each.value for each in Reserves)
REFUSED: Final = tuple(each.value for each in Refused)


def parse(entry: FileEntry, switches: dict[int, SwitchSpec]) -> TopologySpec | None:
    """The topology out of its mapping; None where it is no mapping."""
    fields = entry.mapping(KEYS)
    if not entry.is_mapping:
        return None
    duplex = _duplex(fields, Duplex.FULL)
    aliases = {
        switch.name.lower(): switch.host.lower()
        for switch in switches.values()
        if switch.role is SwitchRole.EDGE and switch.host is not None
    }
    links = _links(fields["links"], duplex, aliases) if "links" in fields else ()
    ends = frozenset(end for link in links for end in link.ends)
    known = ends | {switch.name.lower() for switch in switches.values()}
    hosts: dict[str, HostSpec] = {}
    default = None
    if "hosts" in fields:
        for name, member in fields["hosts"].mapping(None).items():
            spec = _host(name, member, duplex, known if links else None)
            if spec is None:
                continue
            if name == DEFAULT:
                default = spec
                continue
            node = aliases.get(name.lower(), name.lower())
            if node in ends:
                member.mistake(f"host {name} is an end of a link already", "each host in links or in hosts")
            elif node in hosts:
                member.mistake(f"host {name} stands twice", "each host once, in any case")
            hosts[node] = spec
    return TopologySpec(
        links=links,
        hosts=MappingProxyType(hosts),
        default=default,
        reserves=Reserves(_choice(fields, "reserves", RESERVES) or Reserves.HOST),
        refused=Refused(_choice(fields, "refused", REFUSED) or Refused.HOLD),
    )


def is_wan(node: str) -> bool:
    """True if a node of the topology is a WAN."""
    return node.startswith(WAN)


def _choice(fields: dict[str, FileEntry], key: str, choices: tuple[str, ...]) -> str | None:
    return fields[key].choice(choices) if key in fields else None


def _duplex(fields: dict[str, FileEntry], default: Duplex) -> Duplex:
    return Duplex(_choice(fields, "duplex", DUPLEXES) or default)


def _links(entry: FileEntry, duplex: Duplex, aliases: dict[str, str]) -> tuple[LinkSpec, ...]:
    links: list[LinkSpec] = []
    for name, member in entry.mapping(None).items():
        if name.startswith(ACCESS):
            member.mistake(f"a link with the name {name}", f"names that do not begin with {ACCESS}")
        fields = member.mapping(LINK_KEYS, required=("between", "capacity"))
        ends = _ends(fields["between"], aliases) if "between" in fields else None
        capacity = fields["capacity"].megabits() if "capacity" in fields else None
        if ends is not None and capacity is not None:
            links.append(LinkSpec(name, ends, capacity, _duplex(fields, duplex)))
    return tuple(links)


def _ends(entry: FileEntry, aliases: dict[str, str]) -> tuple[str, str] | None:
    accepted = "two different ends, as in [rack1, core1]: switches, hosts, or a name that begins with wan"
    items = entry.items()
    ends = [text for item in items if (text := item.text(accepted, NAME)) is not None]
    if len(ends) != len(items):
        return None
    named = [aliases.get(end.lower(), end.lower()) for end in ends]
    if len(named) != 2 or named[0] == named[1] or all(is_wan(end) for end in named):
        entry.mistake(f"between {', '.join(ends) or 'nothing'}", accepted)
        return None
    return named[0], named[1]


def _host(name: str, entry: FileEntry, duplex: Duplex, known: frozenset[str] | None) -> HostSpec | None:
    fields = entry.mapping(HOST_KEYS, required=("switch",))
    switch = fields["switch"].text("the switch that the host hangs on", NAME) if "switch" in fields else None
    if switch is not None and known is not None and switch.lower() not in known:
        fields["switch"].mistake(f"{switch} is an end of no link", f"one of {some(sorted(known))}")
        switch = None
    capacity = fields["capacity"].megabits() if "capacity" in fields else None
    addresses: tuple[Network, ...] = ()
    if "addresses" in fields:
        if name == DEFAULT:
            fields["addresses"].mistake("addresses of every host", "addresses of a host that is named")
        found = [item.network(hosts=True) for item in fields["addresses"].items()]
        addresses = tuple(network for network in found if network is not None)
    if switch is None:
        return None
    return HostSpec(name, switch.lower(), capacity, _duplex(fields, duplex), addresses)

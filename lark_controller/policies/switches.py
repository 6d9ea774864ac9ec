"""The switches that a policy file names, and the patterns of uplinks on those that it does not name."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Final

from lark_controller.policies.model import GroupControl, PortSpec, SwitchRole, SwitchSpec
from lark_controller.policies.yaml_nodes import MAC, FileEntry

KEYS: Final = ("datapath", "role", "host", "ports", "max_rules", "normal", "ovsdb", "groups_by")
PORT_KEYS: Final = ("port", "next_hop", "speed", "backup")
DEFAULT_UPLINKS: Final = ("uplink*", "eth*", "en*", "bond*")
WAN: Final = "wan"
LAN: Final = "lan"
UPLINK: Final = "uplink"

NAME: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
DATAPATH: Final = r"[0-9a-fA-F]{16}|[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){7}"
# Linux's IFNAMSIZ leaves 15 bytes for an interface's name.
INTERFACE: Final = r"[!-.0-~]{1,15}"
# Address of an OVSDB server: a Unix socket, or an address (of IPv6 in brackets) and a port.
OVSDB: Final = r"unix:/\S+|(tcp|ssl):(\[[0-9a-fA-F:]+\]|[^\s:\[\]]+):[0-9]{1,5}"
# OFPP_MAX (OpenFlow 1.3.5, section 7.2.1).
MAX_PORT: Final = 0xFFFFFF00
# Each is compared with each port of each switch.
MAX_UPLINKS: Final = 64
MAX_RULES: Final = 10_000_000
# A datapath id, as it is given on a command line, and the subjects of the audit trail that are neither job nor switch.
IDENTITY: Final = re.compile(r"(0x)?[0-9a-fA-F]{16}")
RESERVED: Final = frozenset({"controller", "joins", "policy"})


def parse(entry: FileEntry, *, stored: bool = False) -> dict[int, SwitchSpec]:
    """The declared switches by datapath id. Those of a ``stored`` policy may have any name: it was accepted before some
    were refused, and what is looked up by such a word is found before a switch of that name."""
    switches: dict[int, SwitchSpec] = {}
    for name, member in entry.mapping(None).items():
        spec = _switch(name, member)
        if not stored and (IDENTITY.fullmatch(name) or name.lower() in RESERVED):
            member.mistake(
                f"a switch cannot be called {name}",
                f"a name that is no datapath id and none of {', '.join(sorted(RESERVED))}",
            )
        if spec is None:
            continue
        if spec.datapath in switches:
            member.mistake(
                f"datapath {spec.datapath:016x} is that of switch {switches[spec.datapath].name} already",
                "a datapath of its own for each switch",
            )
        else:
            switches[spec.datapath] = spec
    return switches


def words(switches: dict[int, SwitchSpec]) -> frozenset[str]:
    """The words that mean declared switches, in lower case: their names, datapath ids, and hosts with and without the
    domain."""
    hosts = [spec.host.lower() for spec in switches.values() if spec.host]
    names = [spec.name.lower() for spec in switches.values()]
    ids = [f"{datapath:016x}" for datapath in switches]
    return frozenset((*names, *ids, *hosts, *(host.partition(".")[0] for host in hosts)))


def wan_ports(switches: dict[int, SwitchSpec]) -> frozenset[str]:
    """The names of the WAN ports of all core switches."""
    return frozenset(
        name
        for switch in switches.values()
        if switch.role is SwitchRole.CORE
        for name in switch.ports
        if name.startswith(WAN)
    )


def uplinks(entry: FileEntry) -> tuple[str, ...]:
    """The patterns of uplinks: glob patterns of interface names, or port numbers."""
    patterns = []
    for item in entry.items(MAX_UPLINKS):
        accepted = "a glob pattern of interface names such as eth*, or a port number in quotes"
        pattern = item.text(accepted, INTERFACE)
        if pattern is not None:
            patterns.append(pattern)
    return tuple(patterns)


def _switch(name: str, entry: FileEntry) -> SwitchSpec | None:
    fields = entry.mapping(KEYS, required=("datapath", "role"))
    datapath = role = None
    if "datapath" in fields:
        datapath = fields["datapath"].text("16 hexadecimal digits in quotes, with or without colons", DATAPATH)
        if datapath is not None and not int(datapath.replace(":", ""), 16):
            fields["datapath"].mistake("a datapath of zeros", "the switch's datapath id, 16 hexadecimal digits")
            datapath = None
    if "role" in fields:
        role = fields["role"].choice(tuple(each.value for each in SwitchRole))
    ports = _ports(fields["ports"], role) if "ports" in fields else {}
    if role == SwitchRole.CORE and not any(port.startswith(LAN) for port in ports):
        fields.get("ports", entry).mistake("a core switch without a LAN port", "ports with lan, as in {lan: 1, wan: 2}")
    host = (
        fields["host"].text("the worker's name, as in its machine ad's Machine", r"\S+") if "host" in fields else None
    )
    if host is not None and role in (SwitchRole.CORE, SwitchRole.ACCESS_POINT):
        fields["host"].mistake(f"a host beside role: {role}", "host beside role: edge only")
    if "max_rules" in fields and role == SwitchRole.ACCESS_POINT:
        fields["max_rules"].mistake(f"max_rules beside role: {role}", "max_rules on edges and cores")
    max_rules = fields["max_rules"].integer(0, MAX_RULES) if "max_rules" in fields else 0
    normal = _normal(fields["normal"]) if "normal" in fields else None
    ovsdb = (
        fields["ovsdb"].text("tcp:ADDRESS:PORT, ssl:ADDRESS:PORT or unix:/PATH", OVSDB) if "ovsdb" in fields else None
    )
    by = _group_control(fields["groups_by"], role) if "groups_by" in fields else GroupControl.METERS
    if datapath is None or role is None:
        return None
    return SwitchSpec(
        name=name,
        datapath=int(datapath.replace(":", ""), 16),
        role=SwitchRole(role),
        ports=MappingProxyType(ports),
        host=host,
        max_rules=max_rules or 0,
        normal=normal,
        ovsdb=ovsdb,
        group_control=by,
    )


def _group_control(entry: FileEntry, role: str | None) -> GroupControl:
    if role == SwitchRole.EDGE:
        entry.mistake(
            "groups_by on an edge, which marks groups and does not limit them", "groups_by on cores, access points"
        )
    return GroupControl(entry.choice(tuple(each.value for each in GroupControl)) or GroupControl.METERS)


def _normal(entry: FileEntry) -> bool | None:
    if entry.is_text:
        if entry.node.value != "auto":
            entry.mistake(f"{entry.node.value} is not accepted", "auto, true, false")
        return None
    return entry.boolean()


def _ports(entry: FileEntry, role: str | None) -> dict[str, PortSpec]:
    prefixes = {SwitchRole.CORE: (LAN, WAN)}.get(SwitchRole(role), (UPLINK,)) if role else None
    ports: dict[str, PortSpec] = {}
    names_of: dict[int | str, str] = {}
    for name, member in entry.mapping(None).items():
        if prefixes is not None and not name.startswith(prefixes):
            names = " or ".join(prefixes)
            member.mistake(f"port {name} of a switch with role {role}", f"names that begin with {names}")
        spec = _port(name, member)
        if spec is None:
            continue
        first = names_of.setdefault(spec.port, name)
        if first != name:
            member.mistake(f"port {spec.port} is {first} already", "each port once")
        ports[name] = spec
    _check_backups(ports, entry)
    return ports


def _check_backups(ports: dict[str, PortSpec], entry: FileEntry) -> None:
    """Checks that each backup is another WAN port of the switch."""
    for name, spec in ports.items():
        if spec.backup is None:
            continue
        others = [other for other in ports if other.startswith(WAN) and other != name]
        if not name.startswith(WAN) or spec.backup not in others:
            entry.mistake(
                f"port {name} has the backup {spec.backup}",
                f"backup on ports whose names begin with wan; for {name}: {', '.join(others) or 'none'}",
            )


def _port(name: str, entry: FileEntry) -> PortSpec | None:
    if not entry.is_mapping:
        port = _number_or_name(entry)
        return PortSpec(port) if port is not None else None
    fields = entry.mapping(PORT_KEYS, required=("port",))
    port = _number_or_name(fields["port"]) if "port" in fields else None
    next_hop = None
    if "next_hop" in fields:
        next_hop = fields["next_hop"].text("the next hop's unicast MAC address in quotes", MAC)
        if next_hop is not None and int(next_hop[:2], 16) & 1:
            fields["next_hop"].mistake(f"{next_hop} is a multicast address", "the next hop's unicast MAC address")
            next_hop = None
        if not name.startswith(WAN):
            fields["next_hop"].mistake(f"a next hop on {name}", "next_hop on ports whose names begin with wan")
    speed = fields["speed"].megabits() if "speed" in fields else None
    backup = fields["backup"].text("the name of another WAN port of the switch", NAME) if "backup" in fields else None
    if port is None:
        return None
    return PortSpec(port, next_hop.lower() if next_hop else None, speed, backup)


def _number_or_name(entry: FileEntry) -> int | str | None:
    if entry.is_text:
        return entry.text("a port number, or an interface's name of at most 15 characters", INTERFACE)
    return entry.integer(1, MAX_PORT)

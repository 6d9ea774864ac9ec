"""Nat jobs in nftables' inet family: admission, the decision, and masquerading out of the external interface. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import ip_network
from typing import Final

from lark_common.runs import Address, Network
from lark_common.worker_rules import WorkerRules
from lark_worker.rules import render
from lark_worker.rules.render import Port
from lark_worker.rules.table import Chain, Set, Table

FAMILY: Final = "inet"
# Addresses that a router must not forward, or that are nobody's (RFC 1122, 3927, 1112; 4291).
NOWHERE: Final = {
    "ip": "{ 0.0.0.0/8, 127.0.0.0/8, 169.254.0.0/16, 224.0.0.0/3 }",
    "ip6": "{ ::/127, fe80::/10, ff00::/8 }",
}


def table(
    name: str,
    prefix: str,
    rules: WorkerRules,
    ports: Iterable[Port],
    *,
    networks: Iterable[Network],
    gateways: Iterable[Address],
    external: str,
    routes: bool,
    connections: int = 0,
) -> Table:
    """The table ``name`` of the inet family for these jobs.

    ``networks`` are the worker's networks behind NAT and ``gateways`` its addresses there; packets from them leave by
    ``external`` alone. ``routes`` False: the worker forwards no other packets, and must not begin to. A job may have
    ``connections`` open at a time (0: any number).
    """
    ports, networks = list(ports), list(networks)
    maps, chains = render.gates(prefix, ports, ("prerouting", "postrouting"))
    for port in ports:
        if port.rules.isolated:
            chains |= render.isolated(port)
            continue
        chains[port.chain("f")] = Chain(tuple(_admit(port)))
        out = (
            *(f"{family} daddr {nowhere} {port.count('out_dropped')} drop" for family, nowhere in NOWHERE.items()),
            *render.decision(port, out=True, arp=False),
            *([f"ct state new jump {port.chain('n')}"] if connections else []),
            *render.set_dscp(port),
            *render.count_and_accept(port, out=True),
        )
        chains[port.chain("o")] = Chain(out)
        if connections:
            # A chain of its own, which no change of the job's rules touches: the kernel's count stands in its rule.
            chains[port.chain("n")] = Chain(render.limited(connections, port.count("out_limited")))
        chains[port.chain("t")] = Chain(
            (*(f"{_ip(a)} daddr {a} goto {port.chain('i')}" for a in _addresses(port)), "drop")
        )
        # Packets to the job carry its group's DSCP as well: nothing behind could tell the group by an address.
        come = (
            *render.decision(port, out=False, arp=False),
            *render.set_dscp(port),
            *render.count_and_accept(port, out=False),
        )
        chains[port.chain("i")] = Chain(come)
    # Where a packet is routed its priority is set anew, from its TOS; so it is chosen behind that.
    classes = render.with_class(ports)
    chains |= {port.chain("q"): chain for port, chain in classes}
    maps["classes"] = Set(
        "type ifname : verdict;",
        tuple(f'"{port.device}" : goto {port.chain("q")}' for port, _ in classes),
        keyed=True,
    )
    chains["classed"] = Chain((f'oifname != "{prefix}*" iifname vmap @classes',), _hook("filter", "postrouting", "0"))
    chains["forwarded"] = Chain(tuple(_forwarded(prefix, external, routes)), _hook("filter", "forward", "0"))
    masquerade = (
        f'{_ip(network.network_address)} saddr {network} oifname "{external}" masquerade' for network in networks
    )
    chains["translated"] = Chain(tuple(masquerade), _hook("nat", "postrouting", "100"))
    sets = render.shared_sets(rules, ports, networks, [ip_network(str(gateway)) for gateway in gateways])
    return Table(FAMILY, name, render.counters(ports), sets | maps, chains)


def _admit(port: Port) -> Iterator[str]:
    """The job's own MAC and addresses; neighbour discovery is needless, since both ends have static entries."""
    spoofed = f"{port.count('spoofed')} drop"
    yield f"ether saddr != {port.rules.mac} {spoofed}"
    yield f"udp sport {{ 67, 547 }} {spoofed}"
    yield f"icmpv6 type {{ 133, 134, 135, 136, 137 }} {spoofed}"
    for address in _addresses(port):
        yield f"{_ip(address)} saddr {address} goto {port.chain('o')}"
    yield spoofed


def _forwarded(prefix: str, external: str, routes: bool) -> Iterator[str]:
    jobs = f'"{prefix}*"'
    yield f"iifname {jobs} oifname {jobs} accept"
    yield f'iifname {jobs} oifname != "{external}" drop'
    # Behind NAT no connection is opened from outside, even where there is a route to the addresses.
    yield f'iifname "{external}" oifname {jobs} ct state established,related accept'
    yield f"oifname {jobs} drop"
    if not routes:
        yield f'iifname "{external}" drop'


def _addresses(port: Port) -> list[Address]:
    return [*port.ipv4, *port.ipv6]


def _ip(address: Address) -> str:
    return "ip" if address.version == 4 else "ip6"


def _hook(kind: str, hook: str, priority: str) -> str:
    return f"type {kind} hook {hook} priority {priority}; policy accept;"

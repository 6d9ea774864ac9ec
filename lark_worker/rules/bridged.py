"""Bridge jobs in nftables' bridge family: the edge tables' admission and delivery at a port of a Linux bridge. Pure.

Compare :mod:`lark_controller.flows.edge.program`: the same frames pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv6Address, IPv6Network, collapse_addresses
from typing import Final

from lark_common.runs import link_local
from lark_common.worker_rules import WorkerRules
from lark_worker.rules import render
from lark_worker.rules.render import Port
from lark_worker.rules.table import Chain, Set, Table, braces

FAMILY: Final = "bridge"
NS, NA = 135, 136
TARGET: Final = "@th,64,128"
# A packet's protocol is the one behind a VLAN tag that the device has taken off; this is the tag itself.
TAGGED: Final = "@ll,96,16 { 0x8100, 0x88a8 }"
_ALL_NODES: Final = "33:33:00:00:00:01"
_BROADCAST: Final = "ff:ff:ff:ff:ff:ff"
# RFC 4291, RFC 3810 and RFC 8415.
_ALL_ROUTERS: Final = "ff02::2"
_ALL_MLD2_ROUTERS: Final = "ff02::16"
_ALL_DHCP_SERVERS: Final = "ff02::1:2"
# Global and unique local addresses (RFC 4291, RFC 4193).
_GLOBAL: Final = "{ 2000::/3, fc00::/7 }"


def table(name: str, prefix: str, rules: WorkerRules, ports: Iterable[Port]) -> Table:
    """The table ``name`` of the bridge family for these jobs; ``prefix`` begins the names of all job devices."""
    ports = list(ports)
    maps, chains = render.gates(prefix, ports, ("prerouting", "postrouting"))
    for port in ports:
        if port.rules.isolated:
            chains |= render.isolated(port)
            continue
        chains[port.chain("f")] = Chain(tuple(_admit(port)))
        sent = (*_solicited(port), *render.decision(port, out=True, arp=True))
        out = (*sent, *render.set_dscp(port), *render.count_and_accept(port, out=True))
        chains[port.chain("o")] = Chain(out)
        chains[port.chain("t")] = Chain((*_deliver(port), "drop"))
        given = (*_solicits(port), *render.decision(port, out=False, arp=True))
        chains[port.chain("i")] = Chain((*given, *render.count_and_accept(port, out=False)))
    classes, chosen = _classed(prefix, ports)
    chains |= chosen
    sets = render.shared_sets(rules, ports, (), ()) | _targets(rules, ports) | _sliced(ports)
    return Table(FAMILY, name, render.counters(ports), sets | maps | classes, chains)


def _classed(prefix: str, ports: Iterable[Port]) -> tuple[dict[str, Set], dict[str, Chain]]:
    """The maps and chains that choose packets' classes, by source, as they leave the bridge.

    Chosen as they come in, it would be lost where this worker is the job's router: the kernel sets the priority of
    what it routes anew (ip-sysctl, ``ip_forward_update_priority``), and no device of the job is known behind that.
    """
    chosen = render.with_class(ports)
    # One chain an address: a map that has two of one is refused, with all that stands beside it.
    four = {address: port.chain("q") for port, _ in chosen for address in port.ipv4}
    six = {a: port.chain("q") for port, _ in chosen for a in (*port.ipv6, link_local(port.rules.mac))}
    maps = {
        "classes4": Set("type ipv4_addr : verdict;", tuple(f"{a} : goto {q}" for a, q in four.items()), keyed=True),
        "classes6": Set("type ipv6_addr : verdict;", tuple(f"{a} : goto {q}" for a, q in six.items()), keyed=True),
    }
    here = f'oifname != "{prefix}*"'
    chains = {port.chain("q"): chain for port, chain in chosen}
    chains["classed"] = Chain(
        (f"{here} ip saddr vmap @classes4", f"{here} ip6 saddr vmap @classes6"),
        "type filter hook postrouting priority 0; policy accept;",
    )
    return maps, chains


def _admit(port: Port) -> Iterator[str]:
    """Anti-spoofing: the job sends with its own MAC and addresses, untagged, and nothing else."""
    mac, spoofed = port.rules.mac, f"{port.count('spoofed')} drop"
    go = f"goto {port.chain('o')}"
    yield f"ether saddr != {mac} {spoofed}"
    yield f"{TAGGED} {spoofed}"
    # A job is no DHCP server, and below no router.
    yield f"ether type ip udp sport 67 {spoofed}"
    for address in port.ipv4:
        yield f"ether type arp arp saddr ether {mac} arp saddr ip {address} {go}"
        # An address probe (RFC 5227, section 1.1) has no sender address.
        yield f"ether type arp arp saddr ether {mac} arp saddr ip 0.0.0.0 arp daddr ip {address} {go}"
        yield f"ip saddr {address} {go}"
    if port.rules.dhcp:
        yield f"ip saddr 0.0.0.0 ip daddr 255.255.255.255 udp sport 68 udp dport 67 {go}"
    if port.ipv6 or port.rules.dhcp:
        yield from _admit_ipv6(port, go, spoofed)
    yield spoofed


def _admit_ipv6(port: Port, go: str, spoofed: str) -> Iterator[str]:
    """IPv6 with the job's own source; neighbour discovery only about the job's own addresses (RFC 4861, 4862)."""
    local = link_local(port.rules.mac)
    yield f"ether type ip6 udp sport 547 {spoofed}"
    yield f"icmpv6 type {{ 134, 137 }} {spoofed}"
    if port.rules.slice and not port.rules.dhcp:
        # As on an edge: nobody else resolves a job's link-local address and is answered there.
        yield f"icmpv6 type {NA} ip6 saddr fe80::/10 ip6 daddr fe80::/10 {spoofed}"
    yield f"icmpv6 type {NA} ip6 saddr fe80::/10 ip6 daddr {_GLOBAL} {spoofed}"
    for address in (*port.ipv6, local):
        for kind, option, about in ((NS, 1, ""), (NA, 2, f"{_target(address)} ")):
            advertisement = f"icmpv6 type {kind} ip6 saddr {address} {about}"
            # A link-layer option that names another MAC would poison the receiver's cache; none is nothing to believe.
            yield f"{advertisement}ip6 length 24 {go}"
            yield f"{advertisement}ip6 length 32 @th,192,8 {option} @th,208,48 {_hexadecimal(port.rules.mac)} {go}"
        # Duplicate address detection asks from the unspecified address.
        yield f"icmpv6 type {NS} ip6 saddr :: {_target(address)} {go}"
    # To all routers alone: sent to a job, nothing would tell from whom it is.
    for kind, group in ((133, _ALL_ROUTERS), (143, _ALL_MLD2_ROUTERS)):
        yield f"icmpv6 type {kind} ip6 saddr {{ ::, {local} }} ip6 daddr {group} {go}"
    yield f"icmpv6 type {{ {NS}, {NA} }} {spoofed}"
    for address in port.ipv6:
        yield f"ip6 saddr {address} {go}"
    if port.rules.dhcp:
        yield f"ip6 saddr {local} ip6 daddr {_ALL_DHCP_SERVERS} udp sport 546 udp dport 547 {go}"


def _deliver(port: Port) -> Iterator[str]:
    """Exact delivery: the job gets frames for its addresses alone, of flooded ones too."""
    mac, go = port.rules.mac, f"goto {port.chain('i')}"
    yield f"{TAGGED} drop"
    local = link_local(mac)
    for address in port.ipv4:
        yield f"ether daddr {mac} ip daddr {address} {go}"
        yield f"ether type arp arp daddr ip {address} {go}"
    if port.rules.dhcp:
        # No job sends this, so no slice is asked: a server may have an address of the jobs' networks.
        taken = f"{port.count('in_local')} accept"
        yield f"ether daddr {braces((mac, _BROADCAST))} ether type ip udp sport 67 udp dport 68 {taken}"
        yield f"ether daddr {mac} ip6 daddr {local} udp sport 547 udp dport 546 {taken}"
    if port.ipv6 or port.rules.dhcp:
        for address in (*port.ipv6, local):
            yield f"icmpv6 type {NS} ip6 daddr ff00::/8 {_target(address)} {go}"
        yield f"ether daddr {mac} ip6 daddr {local} icmpv6 type {{ 134, {NS}, {NA} }} {go}"
        yield f"ether daddr {_ALL_NODES} icmpv6 type 134 {go}"
        for address in port.ipv6:
            yield f"ether daddr {mac} ip6 daddr {address} {go}"


def _solicited(port: Port) -> Iterator[str]:
    """Rules for the addresses that a sliced job may ask for by multicast: as for those that it may send to, and no
    link-local one from its own (compare :mod:`lark_controller.flows.edge.slices`). A job without a slice sends nothing
    to the worker's sliced jobs, from its link-local address neither."""
    job = port.rules
    drop = f"{port.count('out_dropped')} drop"
    if not job.slice:
        yield f"ip6 daddr @sliced6 {drop}"
        yield f"icmpv6 type {NS} ip6 daddr ff00::/8 {TARGET} @sliced_t {drop}"
    if job.slice:
        solicitation = f"icmpv6 type {NS} ip6 daddr ff00::/8"
        yield f"{solicitation} {TARGET} @jobs_t {TARGET} != @hosts_t {TARGET} != @s{job.slice}_t {drop}"
        yield f"{solicitation} ip6 saddr fe80::/10 @th,64,10 0x3fa {drop}"


def _solicits(port: Port) -> Iterator[str]:
    """Drop requests for a sliced job's link-local address from others without multicast, and answers to it."""
    if port.rules.slice:
        # Not counted: a router that has the job's address asks so first, and then by multicast.
        yield f"icmpv6 type {{ {NS}, {NA} }} ip6 saddr fe80::/10 ip6 daddr fe80::/10 drop"


def _targets(rules: WorkerRules, ports: Iterable[Port]) -> dict[str, Set]:
    """The networks that sliced jobs may or may not ask for, as what nft 1.0.6 compares a solicitation's target with."""
    slices = sorted({port.rules.slice for port in ports} - {0})
    if not slices:
        return {}
    networks = {"jobs": rules.job_networks, "hosts": rules.hosts}
    networks |= {f"s{number}_": rules.slices.get(number, ()) for number in slices}
    found = {}
    for name, members in networks.items():
        six = collapse_addresses(each for each in members if isinstance(each, IPv6Network))
        spans = tuple(f"0x{int(each[0]):032x}-0x{int(each[-1]):032x}" for each in six)
        found[f"{name.removesuffix('_')}_t"] = Set(f"typeof {TARGET}; flags interval;", spans)
    return found


def _sliced(ports: Iterable[Port]) -> dict[str, Set]:
    """The IPv6 addresses of the worker's sliced jobs, as destinations and as targets of solicitations."""
    own = [each for port in ports if port.rules.slice for each in (*port.ipv6, link_local(port.rules.mac))]
    return {
        "sliced6": Set("type ipv6_addr;", tuple(str(each) for each in own)),
        "sliced_t": Set(f"typeof {TARGET};", tuple(f"0x{int(each):032x}" for each in own)),
    }


def _target(address: object) -> str:
    """An address as the target of a solicitation or advertisement, for which nft 1.0.6 has no keyword."""
    return f"{TARGET} 0x{int(IPv6Address(str(address))):032x}"


def _hexadecimal(mac: str) -> str:
    return f"0x{mac.replace(':', '')}"

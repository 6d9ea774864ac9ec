"""Rules as tables of the kernel's packet filter: what is common to bridge and nat jobs, and the decision itself. Pure.

A job has four chains: ``f_ID`` admits packets that the job may send at all to ``o_ID``, which decides; ``t_ID`` takes
those for the job to ``i_ID``, which decides. Both use sets that jobs share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, collapse_addresses
from types import MappingProxyType
from typing import Final

from lark_common.runs import Address, Network
from lark_common.worker_rules import JobRules, WorkerRules
from lark_worker.rules.table import Chain, Set, Table

# Before the kernel's own filtering (0), after its connection tracking (-200); see nft(8), "priority".
PRIORITY: Final = -150
# The counters of a job, for both directions apart: beyond the local networks or within; dropped by policy; dropped
# because the job has too many connections, or because no job may send it.
COUNTED: Final = ("out_wan", "out_local", "out_dropped", "out_limited", "in_wan", "in_local", "in_dropped", "spoofed")
# Inside the namespace of a one-way job.
COUNTED_INSIDE: Final = ("out_dropped", "in_dropped")

# A packet of a connection that is not in the kernel's table yet: those that follow a first one without an answer are
# new to it as well.
UNTRACKED: Final = "ct status & confirmed == 0"
# As many connections as may be open at a time may be opened within so many seconds, again and again.
_SECONDS: Final = 16


@dataclass(frozen=True, slots=True)
class Port:
    """A job at its device: ``mac`` as the worker gave it.

    ``classes`` are those at the uplinks that what it sends goes through, by the key of its share.
    """

    rules: JobRules
    device: str
    classes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def ipv4(self) -> list[Address]:
        """Its IPv4 addresses."""
        return [address for address in self.rules.addresses if address.version == 4]

    @property
    def ipv6(self) -> list[Address]:
        """Its IPv6 addresses."""
        return [address for address in self.rules.addresses if address.version == 6]

    def chain(self, letter: str) -> str:
        """The name of one of its chains."""
        return f"{letter}_{self.rules.id}"

    def count(self, what: str) -> str:
        """The statement that counts a packet."""
        return f"counter name {counter(self.rules.id, what)}"


def counter(job_id: str, what: str) -> str:
    """The name of a job's counter."""
    return f"c_{job_id}_{what}"


def counters(ports: Iterable[Port]) -> frozenset[str]:
    """The names of all counters of jobs."""
    return frozenset(counter(port.rules.id, what) for port in ports for what in COUNTED)


def shared_sets(
    rules: WorkerRules, ports: Iterable[Port], own: Iterable[Network], hosts: Iterable[Network]
) -> dict[str, Set]:
    """The sets that jobs' chains refer to. ``own`` are the networks behind NAT, ``hosts`` the worker there."""
    used = [port.rules for port in ports]
    networks: dict[str, Iterable[Network]] = {
        "jobs": [*rules.job_networks, *own],
        "hosts": [*rules.hosts, *hosts],
        "local": [*rules.local_networks, *own],
    }
    networks |= {f"w{number}_": rules.exceptions.get(number, ()) for number in sorted({job.wan for job in used} - {0})}
    networks |= {f"s{number}_": rules.slices.get(number, ()) for number in sorted({job.slice for job in used} - {0})}
    found = {}
    for name, members in networks.items():
        four = collapse_addresses(each for each in members if isinstance(each, IPv4Network))
        six = collapse_addresses(each for each in members if isinstance(each, IPv6Network))
        found[f"{name}4"] = Set("type ipv4_addr; flags interval;", tuple(map(str, four)))
        found[f"{name}6"] = Set("type ipv6_addr; flags interval;", tuple(map(str, six)))
    return found


def decision(port: Port, *, out: bool, arp: bool) -> Iterator[str]:
    """The rules of ``o_ID`` (``out``) or ``i_ID`` but for their end: slice and WAN, as edges have them; ``arp`` too."""
    job, side = port.rules, "daddr" if out else "saddr"
    drop = f"{port.count('out_dropped' if out else 'in_dropped')} drop"
    if job.slice:
        for protocol, version in (("ip", 4), ("ip6", 6), *([("arp", 4)] if arp else [])):
            field = f"arp {side} ip" if protocol == "arp" else f"{protocol} {side}"
            yield f"{field} @jobs{version} {field} != @hosts{version} {field} != @s{job.slice}_{version} {drop}"
    if job.wan:
        for protocol, version in (("ip", 4), ("ip6", 6)):
            field = f"{protocol} {side}"
            yield f"{field} != @local{version} {field} != @w{job.wan}_{version} {drop}"


def set_dscp(port: Port) -> Iterator[str]:
    """Set the group's DSCP (RFC 2474) in every packet, whatever the job set."""
    if port.rules.dscp is not None:
        yield f"ip dscp set {port.rules.dscp}"
        yield f"ip6 dscp set {port.rules.dscp}"


def classed(port: Port) -> Iterator[str]:
    """Rules that choose a packet's class at the uplinks (tc-htb(8)): the job's own, or that of a flow that it has
    reserved; a longer prefix wins."""
    own = port.classes.get(port.rules.id)
    if own is not None:
        yield f"meta priority set {own}"
    reserved = [(each, chosen) for each in port.rules.reserved if (chosen := port.classes.get(each.key)) is not None]
    for each, chosen in reserved:
        if not each.target:
            for protocol, version in (("ip", 4), ("ip6", 6)):
                yield f"{protocol} daddr != @local{version} meta priority set {chosen}"
    flows = [(network, chosen) for each, chosen in reserved for network in each.target]
    for network, chosen in sorted(flows, key=lambda flow: flow[0].prefixlen):
        yield f"{'ip' if network.version == 4 else 'ip6'} daddr {network} meta priority set {chosen}"


def with_class(ports: Iterable[Port]) -> list[tuple[Port, Chain]]:
    """The jobs that have a class at an uplink, each with the chain that chooses it."""
    found = ((port, tuple(classed(port))) for port in ports if not port.rules.isolated)
    return [(port, Chain(rules)) for port, rules in found if rules]


def count_and_accept(port: Port, *, out: bool) -> Iterator[str]:
    """The end of ``o_ID`` and ``i_ID``: count and accept."""
    way, side = ("out", "daddr") if out else ("in", "saddr")
    for protocol, version in (("ip", 4), ("ip6", 6)):
        yield f"{protocol} {side} != @local{version} {port.count(f'{way}_wan')} accept"
    yield f"{port.count(f'{way}_local')} accept"


def isolated(port: Port) -> dict[str, Chain]:
    """The chains of an isolated job."""
    return {
        port.chain("f"): Chain((f"{port.count('out_dropped')} drop",)),
        port.chain("t"): Chain((f"{port.count('in_dropped')} drop",)),
    }


def gates(prefix: str, ports: Iterable[Port], hooks: tuple[str, str]) -> tuple[dict[str, Set], dict[str, Chain]]:
    """The maps from a device to its job's chains, and the base chains that use them, at these two hooks.

    A device with the prefix of job devices that has no rules passes nothing.
    """
    ports = list(ports)
    senders = Set("type ifname : verdict;", tuple(f'"{p.device}" : goto {p.chain("f")}' for p in ports), keyed=True)
    receivers = Set("type ifname : verdict;", tuple(f'"{p.device}" : goto {p.chain("t")}' for p in ports), keyed=True)
    first, last = hooks
    chains = {
        "from_jobs": Chain(
            ("iifname vmap @senders", f'iifname "{prefix}*" drop'),
            f"type filter hook {first} priority {PRIORITY}; policy accept;",
        ),
        "to_jobs": Chain(
            ("oifname vmap @receivers", f'oifname "{prefix}*" drop'),
            f"type filter hook {last} priority {PRIORITY}; policy accept;",
        ),
    }
    return {"senders": senders, "receivers": receivers}, chains


def limited(most: int, counted: str) -> tuple[str, ...]:
    """The rules for a packet that opens a connection, where ``most`` may be open at a time (0: any number).

    The kernel counts no connection that is closed, but keeps it for up to two minutes: so many may be opened at once
    as may be open, and then a sixteenth of that a second. The rate stands first: for each packet that comes to be
    counted the kernel looks through what is open, or adds to that and forgets few at a time what was dropped
    (nf_conncount in Linux 5.19 and later), so that a flood would take time or memory without end.
    """
    if not most:
        return ()
    return (
        f"{UNTRACKED} limit rate over {opened_a_second(most)}/second burst {most} packets {counted} drop",
        f"{UNTRACKED} ct count over {most} {counted} drop",
    )


def opened_a_second(most: int) -> int:
    """The number of connections that may be opened a second, for ever, where ``most`` may be open at a time."""
    return max(1, most // _SECONDS)


def is_one_way(job: JobRules) -> bool:
    """True if a job may call or be called, but not both."""
    return not job.isolated and job.inbound != job.outbound


def one_way(name: str, job: JobRules, most: int) -> Table | None:
    """The table inside the namespace of a one-way job, None for any other; ``most`` connections are open at a time.

    Connections are tracked there: they end with the namespace, and a later job with the same address inherits none.
    """
    if not is_one_way(job):
        return None

    def chain(side: str, what: str, exchanges: tuple[tuple[int, int], ...], *, opens: bool) -> tuple[str, ...]:
        return (
            f'{side} "lo" accept',
            # Neighbour discovery, multicast listeners and DHCP have no connection to belong to.
            "icmpv6 type { 133, 134, 135, 136, 143 } accept",
            *(f"udp sport {source} udp dport {target} accept" for source, target in exchanges),
            "ct state established,related accept",
            *(["ct state new goto opened"] if opens else []),
            f"counter name {what} drop",
        )

    way = "out_dropped" if job.outbound else "in_dropped"

    return Table(
        "inet",
        name,
        frozenset(COUNTED_INSIDE),
        {},
        {
            "opened": Chain((*limited(most, f"counter name {way}"), "accept")),
            "sent": Chain(
                chain("oifname", "out_dropped", ((68, 67), (546, 547)), opens=job.outbound),
                f"type filter hook output priority {PRIORITY}; policy accept;",
            ),
            "taken": Chain(
                chain("iifname", "in_dropped", ((67, 68), (547, 546)), opens=job.inbound),
                f"type filter hook input priority {PRIORITY}; policy accept;",
            ),
        },
    )

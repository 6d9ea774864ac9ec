"""Warnings about valid policies: which of them refuse every job of a kind, such as those that ask for bandwidth, and
why; which book bandwidth that nothing enforces; which rates of groups no switch keeps; and the addresses that no job
can have. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_network
from itertools import chain, islice
from typing import Final, NamedTuple

from lark_common.errors import PathError
from lark_controller.jobs.addresses import never_given
from lark_controller.policies.backups import backup_warnings
from lark_controller.policies.cover import Cover
from lark_controller.policies.model import MAX_GROUPS, HostSpec, Policy, Reserves, SwitchRole, TopologySpec, WanAction
from lark_controller.policies.predicate import always
from lark_controller.policies.topology import ACCESS, is_wan
from lark_controller.qos.admission import NOTHING, shortages
from lark_controller.qos.groups import has_queue, notices, shortcomings, told
from lark_controller.qos.topology import KILO, MAX_RATE, Topology, requested_rate

# Limit on the warnings of one kind, for readability.
MOST: Final = 20


def policy_warnings(policy: Policy, *, refused: bool = False) -> tuple[str, ...]:
    """The reasons why every job that is to have an address, has no port on a switch, or asks for bandwidth, is refused,
    anywhere or at the hosts concerned, as far as the policy alone decides; the want of a rule that enforces what jobs
    have booked; the rates of groups that its switches do not keep; what of external addresses no job can have; and the
    backups of WAN ports that are not used as they seem to be. ``refused``: all workers of the pool refuse who asks for
    bandwidth."""
    return (
        *_address_warnings(policy),
        *_worker_rule_warnings(policy),
        *_bandwidth_warnings(policy, refused),
        *islice(_ceiling_warnings(policy), MOST),
        *islice(_group_warnings(policy), MOST),
        *islice(_external_warnings(policy), MOST),
        *islice(backup_warnings(policy), MOST),
    )


def _address_warnings(policy: Policy) -> Iterator[str]:
    """The want of any address that the controller may give."""
    whose = "every job that is to have one is refused (NetworkType ovs_bridge or bridge, AddressType controller)"
    if not policy.job_networks:
        yield f"networks.jobs names no network, so the controller has no address to give: {whose}"
    for version in (4, 6):
        networks = [each for each in policy.job_networks if each.version == version]
        given, kept = Cover(), Cover()
        for network in policy.hosts:
            given.add(network)
            kept.add(network)
        for address in chain.from_iterable(map(never_given, networks)):
            kept.add(ip_network(address))
        # A job has an address of each version that the networks have, or is refused.
        but = None
        if networks and all(map(given.holds_all, networks)):
            but = ""
        elif networks and all(map(kept.holds_all, networks)):
            but = f" but those that no host may have (the first{' and last' if version == 4 else ''} of a network)"
        if but is not None:
            yield (
                f"networks.hosts has every IPv{version} address of networks.jobs{but}, so the controller has none to"
                f" give: {whose}"
            )


def _worker_rule_warnings(policy: Policy) -> Iterator[str]:
    """The rules that no worker can enforce for jobs without a port on a switch, where they are for every such job, and
    slices that have no networks to hold in."""
    if policy.slices and not policy.job_networks:
        yield (
            "networks.jobs names no network, so no worker can ask whose an address is: every job of NetworkType bridge"
            " or nat that a slice rule takes is refused, and one of nat that none takes reaches jobs of slices"
        )
        lacking = [v for v in (4, 6) if not any(each.version == v for each in policy.local_networks)]
        if lacking:
            named = " or ".join(f"IPv{version}" for version in lacking)
            yield (
                f"networks.local names no {named} network, and slices need one where networks.jobs names none, since"
                f" switches ask about local addresses alone whose they are: every job with an address of {named} is"
                " refused (AddressType static or dhcp)"
            )
    last = next((rule for rule in policy.wans if always(rule.when)), None)
    if last is not None and last.action is WanAction.STEER:
        yield (
            f"wan rule in line {last.line} steers every job that no wan rule before it takes to {last.port}: those of"
            " NetworkType nat are refused, since no core can distinguish their packets"
        )


def _group_warnings(policy: Policy) -> Iterator[str]:
    """The rates of groups that the declared switches do not keep, by the means that the policy gives them alone."""
    if any(map(has_queue, policy.groups)) and not any(
        spec.role is SwitchRole.CORE for spec in policy.switches.values()
    ):
        yield "groups: no switch is declared as a core, so nothing keeps the rates of what jobs send and receive"
    for spec in policy.switches.values():
        if spec.role is not SwitchRole.EDGE:
            control = spec.group_control
            # How many meters a switch has is known once it has connected.
            remarks = (*shortcomings(policy, MAX_GROUPS, control), *notices(policy, control))
            yield from (f"switch {spec.name}: {sentence}" for sentence in told(remarks))


def _external_warnings(policy: Policy) -> Iterator[str]:
    """Rules that no job comes to, and pools and zones of no rule."""
    spec = policy.external
    if spec is None:
        return
    for family in (4, 6):
        rules = [rule for rule in spec.rules if rule.family == family]
        position = next((at for at, rule in enumerate(rules, 1) if always(rule.when)), len(rules))
        for rule in rules[position:]:
            line = rules[position - 1].line
            yield f"external.rules: no job comes to the rule in line {rule.line}: that in line {line} is for every job"
    used = {name for rule in spec.rules for name in (rule.pool, *rule.more_pools)}
    for name in sorted(spec.pools.keys() - used):
        yield f"external.pools.{name}: no rule gives addresses of this pool"
    named = {rule.names.zone for rule in spec.rules if rule.names is not None}
    for zone in sorted(spec.zones.keys() - named):
        yield f"external.zones: no rule gives names in {zone}"


def _bandwidth_warnings(policy: Policy, refused: bool) -> tuple[str, ...]:
    spec = policy.topology
    if spec is None:
        return ()
    whose, topology = _whose(policy), Topology(spec, {})
    found = []
    if spec.reserves is Reserves.WAN and not topology.wans:
        found.append(
            f"topology.reserves is wan, and no link of topology.links leads to a WAN: {whose} is refused everywhere"
        )
    elif spec.reserves is Reserves.WAN and (why := _pathless(topology)):
        found.append(f"{why}: {whose} is refused there")
    if spec.default is None:
        found.append(
            f"topology.hosts has no default: {whose} is refused at every host that neither topology.hosts names nor a"
            " link ends at"
        )
    learning = sorted(host.name for host in _workers(spec) if host.capacity is None)
    if learning:
        found.append(
            f"topology.hosts.{learning[0]}{f' (and {len(learning) - 1} more)' if len(learning) > 1 else ''} has no"
            f" capacity, so each machine ad must have AvailBandwidth (etc/condor/50-lark.conf sets it): where it has"
            f" none, {whose} is refused"
        )
    if not policy.bandwidths and not refused and _books(policy, spec):
        found.append(
            "policies has no bandwidth rule: what a job asks for (RequestBandwidth) is kept free on the links of"
            " topology, and not enforced; a bandwidth rule enforces it"
        )
    return (*found, *_too_much(policy, spec))


def _books(policy: Policy, spec: TopologySpec) -> bool:
    """True where the links of some host have room for a job's request, however little it asks for."""
    topology = _with_wide_links(spec)
    to_wan = spec.reserves is Reserves.WAN
    cores = {each.name.lower() for each in policy.switches.values() if each.role is not SwitchRole.EDGE}
    switches = cores | {each.switch for each in (*spec.hosts.values(), spec.default) if each is not None}
    ends = Counter(end for link in spec.links for end in link.ends if not is_wan(end))
    # The end of a single link may be a host, where nothing says that it is a switch.
    nodes = {host.name.lower(): host.switch for host in _workers(spec)}
    nodes |= {end: end for end, links in ends.items() if links == 1 and end not in switches}
    if to_wan:
        near = topology.connected(topology.wans)
        nodes = {node: at for node, at in nodes.items() if at in near}
    # Each of these mostly has room: a few are looked at, since finding a way costs as much as there are links.
    return any(
        _has_room(topology, node, way) for node in islice(nodes, MOST) for way in (topology.wans if to_wan else [node])
    )


def _has_room(topology: Topology, node: str, way: str) -> bool:
    try:
        demand = topology.host(node, 1) if way == node else topology.both_ways(node, way, 1)
    except PathError:
        return False
    return not shortages(NOTHING, demand)


def _ceiling_warnings(policy: Policy) -> Iterator[str]:
    """The rules whose jobs may ask for more than is guaranteed: what a rule gives by itself is within its ceiling."""
    for rule in policy.bandwidths:
        if rule.ceiling is not None and rule.maximum is None:
            yield (
                f"bandwidth rule in line {rule.line} has a ceiling of {rule.ceiling:g} Mb/s and no maximum: of a job"
                f" that asks for a guarantee of more, {rule.ceiling:g} Mb/s are guaranteed and booked"
            )


def worker_warnings(policy: Policy, capacities: Mapping[str, float], hosts: Iterable[str]) -> tuple[str, ...]:
    """The ``hosts`` of the pool that refuse every job that asks for bandwidth under a policy, and those that refuse one
    with the default. ``capacities`` are what machine ads have of access links (Mb/s, by host in lower case)."""
    if policy.topology is None:
        return ()
    topology, known = Topology(policy.topology, capacities), sorted({host.lower() for host in hosts})
    refusing = _refusing(topology, known)
    narrow: dict[str, str] = {}
    # Where no rule before it decides, and a job requests nothing.
    least = next((rule.default for rule in policy.bandwidths if always(rule.when)), None) or 0.0
    for host in known:
        # Other hosts are the policy's own matter.
        if host in refusing or not least or not (topology.learns_from(host) or topology.is_end(host)):
            continue
        if short := _narrow(topology, host, least, host):
            narrow[host] = short
    whose = {_whose(policy): refusing, f"a job with the default bandwidth of {least:g} Mb/s": narrow}
    return tuple(
        f"{each} is refused at {len(found)} of {len(known)} workers of this pool; at {first}: {found[first]}"
        for each, found in whose.items()
        if (first := next(iter(found), ""))
    )


def refuse_all(policy: Policy, capacities: Mapping[str, float], hosts: Iterable[str]) -> bool:
    """True where the ``hosts`` of the pool, some at least, all refuse every job that asks for bandwidth."""
    if policy.topology is None:
        return False
    known = {host.lower() for host in hosts}
    return bool(known) and len(_refusing(Topology(policy.topology, capacities), known)) == len(known)


def _refusing(topology: Topology, hosts: Iterable[str]) -> dict[str, str]:
    """Those of these hosts without an access link whose capacity is known, each with the reason."""
    found: dict[str, str] = {}
    for host in hosts:
        try:
            topology.host(host, 1)
        except PathError as error:
            found[host] = str(error)
    return found


class QueueMaker(NamedTuple):
    """A connected switch: its name and role, whether groups have queues there, and the reason why it makes none
    (``""``: it makes them)."""

    name: str
    role: SwitchRole
    for_groups: bool
    obstacle: str


def queue_warnings(policy: Policy, switches: Iterable[QueueMaker]) -> tuple[str, ...]:
    """The connected switches that make none of the queues that a policy needs."""
    workers, at = 0, dict[str, list[str]]()
    found = []
    for switch in switches:
        workers += switch.role is SwitchRole.EDGE
        if not switch.obstacle:
            continue
        if switch.role is SwitchRole.EDGE:
            at.setdefault(switch.obstacle, []).append(switch.name)
        elif switch.for_groups and any(map(has_queue, policy.groups)):
            found.append(f"switch {switch.name}: no group has a queue: {switch.obstacle}")
    for why, names in at.items() if policy.bandwidths else ():
        found.append(
            f"{_whose(policy)} stays pending with the network type ovs_bridge at {len(names)} of {workers} switches of"
            f" workers, which can make no queues; at {names[0]}: {why}"
        )
    return tuple(found[:MOST])


def _whose(policy: Policy) -> str:
    if next((rule.default for rule in policy.bandwidths if always(rule.when)), None) is not None:
        return "every job, since bandwidth has a default,"
    return "every job that asks for bandwidth"


def _workers(spec: TopologySpec) -> list[HostSpec]:
    """The hosts that may run jobs: those with addresses are none."""
    hosts = [*spec.hosts.values(), *([] if spec.default is None else [spec.default])]
    return [host for host in hosts if not host.addresses]


def _pathless(topology: Topology) -> str:
    """The first host whose switch has no path to any WAN, as a clause."""
    spec = topology.spec
    connected = topology.connected(topology.wans)
    for host in _workers(spec):
        # A switch that is an end of no link counts as one with hosts that are not named.
        by = host.switch if topology.is_end(host.switch) or spec.default is None else spec.default.switch
        if by not in connected:
            return f"topology.hosts.{host.name}: no path leads from {host.switch} to a WAN"
    return ""


def _too_much(policy: Policy, spec: TopologySpec) -> list[str]:
    """Defaults of bandwidth, and the least request in whole Mb/s, that the links of a worker's jobs cannot hold even
    once; some of them, by line."""
    hosts, topology = _workers(spec), _with_wide_links(spec)
    defaults = [(rule.default, rule.line) for rule in policy.bandwidths if rule.default is not None]
    # Where one has room, smaller ones have it, too: of many hosts and many rules few are looked at.
    defaults.sort(reverse=True)
    return [
        *_tight(topology, hosts),
        *_large_defaults(topology, hosts, defaults),
    ]


def _with_wide_links(spec: TopologySpec) -> Topology:
    """A topology in which an access link whose capacity is in machine ads is as wide as any."""
    return Topology(spec, {host.name.lower(): MAX_RATE / KILO for host in _workers(spec) if host.capacity is None})


def _tight(topology: Topology, hosts: Iterable[HostSpec]) -> Iterator[str]:
    """Hosts whose jobs can have no request of 1 Mb/s or more. On the way to a WAN the first host of a switch stands for
    those with as wide an access link, and few are looked at: finding a way costs as much as there are links."""
    for host in islice(_perhaps_tight(topology, hosts), MOST):
        if clause := _narrow(topology, host.name, 1, f"topology.hosts.{host.name}"):
            yield f"{clause}: every job that asks for 1 Mb/s or more is refused there"


def _perhaps_tight(topology: Topology, hosts: Iterable[HostSpec]) -> Iterator[HostSpec]:
    seen: set[str] = set()
    narrow = topology.spec.reserves is Reserves.WAN and any(each.capacity < 2 for each in topology.spec.links)
    for host in hosts:
        # Half duplex takes it twice.
        wide = host.capacity is None or host.capacity >= 2
        if wide and (not narrow or host.switch in seen):
            continue
        seen.add(host.switch)
        yield host


def _large_defaults(topology: Topology, hosts: Iterable[HostSpec], defaults: Sequence[tuple[float, int]]) -> list[str]:
    return [
        f"bandwidth rule in line {line} gives every job {said}: such a job is refused there"
        for line, said in sorted(islice(_short(topology, hosts, defaults), MOST))
    ]


def _short(
    topology: Topology, hosts: Iterable[HostSpec], defaults: Sequence[tuple[float, int]]
) -> Iterator[tuple[int, str]]:
    for host in hosts:
        for default, line in defaults:
            narrow = _narrow(topology, host.name, default, f"topology.hosts.{host.name}")
            if not narrow:
                break
            yield line, f"{default:g} Mb/s, and {narrow}"


def _narrow(topology: Topology, host: str, megabits: float, named: str) -> str:
    """The link that cannot hold a job of a host even once, as a clause; ``""`` where all can, or there is no path.
    Raises PathError where the access link's capacity is not known."""
    spec, kbps = topology.spec, requested_rate(megabits)
    ways = topology.wans if spec.reserves is Reserves.WAN else [host]
    found = []
    for way in ways:
        try:
            demand = topology.host(host, kbps) if way == host else topology.both_ways(host, way, kbps)
        except PathError:
            continue
        if not (short := shortages(NOTHING, demand)):
            return ""
        found.append(short[0])
    if not found:
        return ""
    link = found[0]
    both = "" if link.source else " in both directions together"
    if spec.reserves is Reserves.HOST or link.link.startswith(ACCESS):
        return f"the access link of {named} carries {link.capacity:g}{both}"
    return f"link {link.link} between {named} and the WAN carries {link.capacity:g}{both}"

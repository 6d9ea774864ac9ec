"""``/v1/map``: the network in one picture, of a size that does not grow with the pool."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import reduce
from typing import Annotated, Final, NamedTuple

from marshmallow import fields

from lark_controller.accounting.rates import Flowing
from lark_controller.accounting.usage import IDLE, Rate
from lark_controller.api.described import Dpid
from lark_controller.api.drops import UNREAD
from lark_controller.api.reservations import LinkStatus
from lark_controller.api.switches import AWAY, IN_SYNC, OUT_OF_SYNC, STATES, PortLoad, SwitchStatus, state_of
from lark_controller.api.usage import UsageControls
from lark_controller.api.workers import RuledWorker
from lark_controller.policies.reach import Party
from lark_controller.policies.topology import ACCESS, is_wan
from lark_controller.rest.api import operation, resource
from lark_controller.rest.context import current
from lark_controller.rest.schemas.described import schema_of
from lark_controller.rest.schemas.members import a_number, meta
from lark_controller.rest.schemas.times import Time
from lark_controller.rest.schemas.written import Rows, Written
from lark_controller.rest.tokens import Scope

blueprint = resource("map", "The network in one picture.")

# Switches of workers that are drawn one by one; of more, those with problems and those that carry most.
DRAWN: Final = 12
# Core switches that are drawn, and links of the topology.
CORES: Final = 8
LINKS: Final = 30
# Hosts whose rates are asked for: all of them.
_ALL: Final = 1_000_000
# The links to a host by its name in lower case, one direction of each.
Access = Mapping[str, Sequence[LinkStatus]]


@dataclass(frozen=True, slots=True)
class MapCore:
    """A core switch in the picture, with its links to the WAN and to the site."""

    datapath: Annotated[Dpid, "Datapath id"]
    name: Annotated[str, "Its name"]
    connected: Annotated[bool, "Connected now"]
    in_sync: Annotated[bool, "It holds exactly the desired flows"]
    state: Annotated[str, STATES]
    ports: Annotated[tuple[PortLoad, ...], "Its ports to the WAN, then those to the site; none while it is away"]


@dataclass(frozen=True, slots=True)
class MapSwitch:
    """A worker in the picture, with its switch if it has one. ``capacity`` is that of its access link, or of the links
    that the topology declares at its host, Mb/s."""

    datapath: Annotated[Dpid | None, "Datapath id of its switch; null where its jobs are at none (bridge, nat)"]
    name: Annotated[str, "The switch's name, or the host"]
    connected: Annotated[bool, "Its switch is connected now; true where it has none"]
    in_sync: Annotated[bool, "Its switch holds exactly the desired flows; true where it has none"]
    waiting: Annotated[int, "Its jobs at no switch (bridge, nat) whose rules it has not confirmed"]
    state: Annotated[str, STATES]
    jobs: Annotated[int, "Its jobs, those at no switch among them"]
    rate: Annotated[Rate, "Present rate of its jobs; of those at a switch that is away none is known"]
    capacity: Annotated[float | None, "Capacity of its host's access link or declared links, Mb/s; null: not known"]
    shared: Annotated[bool, "Both directions share that capacity"]


@dataclass(frozen=True, slots=True)
class MapRest:
    """The workers that are not drawn one by one, summed up by state."""

    connected: Annotated[bool, "Connected now"]
    in_sync: Annotated[bool, "They hold exactly the desired flows"]
    state: Annotated[str, STATES]
    switches: Annotated[int, "Number of workers"]
    jobs: Annotated[int, "Jobs attached to them"]
    rate: Annotated[Rate, "Present rate of these jobs"]


@dataclass(frozen=True, slots=True)
class MapWan:
    """The way out of the site. ``capacity`` is that of the topology's links to the WAN, else of the cores' WAN ports
    that are up, Mb/s."""

    rate: Annotated[Rate, "Present rate of all jobs"]
    capacity: Annotated[float | None, "Capacity of the links to the WAN, Mb/s; null where one is not known"]
    shared: Annotated[bool, "Both directions share that capacity, as all of these links are half-duplex"]
    reserved: Annotated[float, "Its reserved part towards the WAN (of half-duplex links in both directions), Mb/s"]


@dataclass(frozen=True, slots=True)
class MapLink:
    """A direction of a link of the declared topology, other than hosts' access links."""

    name: Annotated[str, "Its name"]
    source: Annotated[str, "From; empty where both directions share the link"]
    target: Annotated[str, "To"]
    capacity: Annotated[float, "Its capacity, Mb/s"]
    reserved: Annotated[float, "Its reserved part, Mb/s"]
    ends: Annotated[tuple[str, ...], "Its two ends, also where both directions share the link"]


PortLoadSchema = schema_of(PortLoad, "PortLoadSchema")
MapCoreSchema = schema_of(MapCore, "MapCoreSchema")
MapSwitchSchema = schema_of(MapSwitch, "MapSwitchSchema")
MapRestSchema = schema_of(MapRest, "MapRestSchema")
MapWanSchema = schema_of(MapWan, "MapWanSchema")
MapLinkSchema = schema_of(MapLink, "MapLinkSchema")
PartySchema = schema_of(Party, "PartySchema")


class MapSchema(Written):
    """The network in one picture."""

    at = Time("Time of these values")
    wan = fields.Nested(MapWanSchema, required=True, metadata=meta("The way out of the site"))
    cores = Rows(MapCoreSchema, f"The first {CORES} core switches")
    edges = Rows(
        MapSwitchSchema, f"At most {DRAWN} workers: half of them or more by rate, before them some with problems"
    )
    rest = Rows(MapRestSchema, "The other workers")
    links = Rows(MapLinkSchema, f"The first {LINKS} links")
    parties = Rows(PartySchema, "Users with the most live jobs")
    other_owners = a_number("Number of other users")
    other_jobs = a_number("Their live jobs")
    uncounted = a_number("Live jobs whose rates the policy's `accounting` does not count: they are in none of these")
    unread = a_number(UNREAD)


@operation(blueprint, "GET", "/map", name="show_map", scopes=(Scope.READ,), answers={200: MapSchema})
def show() -> dict[str, object]:
    """Show switches with their load, the way to the WAN, and which users reach each other."""
    controls = current().controls
    switches = controls.switches.all()
    rates = _by_host(controls.usage.flowing("host", _ALL))
    links = controls.reservations.links().items
    trunks = [link for link in links if not link.name.startswith(ACCESS)]
    access = {link.name.removeprefix(ACCESS): [link] for link in links if link.name.startswith(ACCESS)}
    # Where a host has declared links, it has no other.
    access |= _by_end(trunks)
    loads = controls.switches.core_ports()
    cores = [
        MapCore(each.datapath, each.name, each.connected, each.in_sync, each.state, loads.get(each.datapath, ()))
        for each in switches
        if each.role == "core"
    ]
    ruled = _merged(controls.workers.ruled())
    edges = []
    at_edges = [each for each in switches if each.role == "edge"]
    shown = _split(at_edges, controls.switches.hosts_of_jobs(), rates, controls.usage)
    # The first of a host's switches stands for its jobs at none, too.
    for each in at_edges:
        there = ruled.pop(each.host.lower(), None)
        edges.append(_drawn(each, there, shown.at[each.datapath], access))
    edges += [_without_switch(each, shown.elsewhere, access) for each in ruled.values()]
    drawn, others = _chosen(edges)
    reach = controls.policy.reach()
    return {
        "at": time.time(),
        "wan": _wan(rates.values(), trunks, [port for each in cores for port in each.ports if port.wan and port.up]),
        "cores": cores[:CORES],
        "edges": drawn,
        "rest": _summed(others),
        "links": [
            MapLink(each.name, each.source, each.target, each.capacity, each.reserved, each.ends)
            for each in trunks[:LINKS]
        ],
        "parties": reach.parties,
        "other_owners": reach.other_owners,
        "other_jobs": reach.other_jobs,
        "uncounted": controls.drops.uncounted(),
        "unread": controls.drops.unread(),
    }


def _by_host(flowing: Iterable[Flowing]) -> dict[str, Rate]:
    """The rates by host in lower case: the policy, or another slot, may write a name in another case."""
    rates: dict[str, Rate] = {}
    for each in flowing:
        rates[each.name.lower()] = rates.get(each.name.lower(), IDLE).plus(each.rate)
    return rates


def _merged(ruled: Iterable[RuledWorker]) -> dict[str, RuledWorker]:
    """The workers with jobs at no switch, by host in lower case."""
    found: dict[str, RuledWorker] = {}
    for each in ruled:
        name = each.host.lower()
        other = found.get(name)
        found[name] = (
            each if other is None else replace(other, jobs=other.jobs + each.jobs, waiting=other.waiting + each.waiting)
        )
    return found


class _Split(NamedTuple):
    """The rates of workers: ``at`` each switch, by datapath id, and ``elsewhere`` those of jobs at none, by host in
    lower case, where they are told apart from those at a switch."""

    at: dict[str, Rate]
    elsewhere: dict[str, Rate]


def _split(
    switches: Sequence[SwitchStatus],
    hosts_of_jobs: Mapping[str, Set[str]],
    rates: Mapping[str, Rate],
    usage: UsageControls,
) -> _Split:
    """The rate at each switch: its host's. Where a host has several switches, or jobs are at a switch that has another
    host's name, it is that of the jobs at each; a host's first has that of its jobs at none as well."""
    there: dict[str, list[str]] = {}
    for each in switches:
        there.setdefault(each.host.lower(), []).append(each.datapath)
    apart = {host for host, found in there.items() if host and len(found) > 1}
    own = {datapath: {host} for host, found in there.items() for datapath in found}
    for datapath, hosts in hosts_of_jobs.items():
        if hosts != (named := own.get(datapath, set())):
            apart |= named | hosts
    # Jobs are looked at one by one only where the sums of hosts do not do.
    of_jobs = usage.at_switches(apart) if apart else {}
    shown = _Split({}, {**rates, **{host: of_jobs.get(host, IDLE) for host in apart}})
    for host, (first, *others) in there.items():
        shown.at.update({other: of_jobs.get(other, IDLE) for other in others})
        shown.at[first] = (
            rates.get(host, IDLE) if host not in apart else of_jobs.get(first, IDLE).plus(of_jobs.get(host, IDLE))
        )
    return shown


def _by_end(links: Iterable[LinkStatus]) -> dict[str, list[LinkStatus]]:
    """One direction of each link, by its ends in lower case."""
    found: dict[str, dict[str, LinkStatus]] = {}
    for link in links:
        for end in link.ends:
            found.setdefault(end.lower(), {}).setdefault(link.name, link)
    return {end: list(each.values()) for end, each in found.items()}


def _drawn(switch: SwitchStatus, ruled: RuledWorker | None, rate: Rate, access: Access) -> MapSwitch:
    """A worker with a switch, which may have jobs at none as well."""
    # Those at none wait at one of a host's switches, not at each of them.
    waiting = 0 if ruled is None else switch.waiting
    return MapSwitch(
        switch.datapath,
        # One that nobody has named is better known by its host.
        switch.host if switch.host and switch.name == switch.datapath else switch.name,
        switch.connected,
        switch.in_sync,
        waiting,
        state_of(connected=switch.connected, in_sync=switch.in_sync, waiting=waiting),
        switch.jobs + (0 if ruled is None else ruled.jobs),
        rate,
        *_of(switch.host, access),
    )


def _without_switch(ruled: RuledWorker, rates: Mapping[str, Rate], access: Access) -> MapSwitch:
    """A worker whose jobs are all at no switch."""
    state = state_of(connected=True, in_sync=True, waiting=ruled.waiting)
    rate, link = rates.get(ruled.host.lower(), IDLE), _of(ruled.host, access)
    return MapSwitch(None, ruled.host, True, True, ruled.waiting, state, ruled.jobs, rate, *link)


def _of(host: str, access: Access) -> tuple[float | None, bool]:
    """The capacity of a host's links, and whether both directions share it."""
    links = access.get(host.lower())
    return (sum(each.capacity for each in links), all(each.shared for each in links)) if links else (None, False)


def _chosen(edges: Iterable[MapSwitch]) -> tuple[list[MapSwitch], list[MapSwitch]]:
    """The switches to be drawn, and the others. Many with problems leave room for those that carry most."""
    ranked = sorted(edges, key=_rank)
    well = next((at for at, each in enumerate(ranked) if each.state == IN_SYNC), len(ranked))
    troubled = min(well, max(DRAWN // 2, DRAWN - (len(ranked) - well)))
    end = well + DRAWN - troubled
    # Those that are well stand by their names: by their rates they would change places all the time.
    named = sorted(ranked[well:end], key=lambda each: each.name)
    return ranked[:troubled] + named, ranked[troubled:well] + ranked[end:]


def _rank(switch: MapSwitch) -> tuple[bool, bool, bool, float, int, str]:
    return (
        switch.state == IN_SYNC,
        # A problem that concerns jobs comes before one that concerns none yet.
        not switch.jobs,
        switch.connected,
        -(switch.rate.inward + switch.rate.outward),
        -switch.jobs,
        switch.name,
    )


def _summed(switches: Iterable[MapSwitch]) -> list[MapRest]:
    alike: dict[str, list[MapSwitch]] = {}
    for each in switches:
        alike.setdefault(each.state, []).append(each)
    return [
        MapRest(
            state != AWAY,
            state not in (AWAY, OUT_OF_SYNC),
            state,
            len(same),
            sum(each.jobs for each in same),
            _sum(each.rate for each in same),
        )
        for state, same in alike.items()
    ]


def _wan(rates: Iterable[Rate], trunks: Sequence[LinkStatus], ports: Sequence[PortLoad]) -> MapWan:
    out = [link for link in trunks if is_wan(link.target) or (link.shared and any(map(is_wan, link.ends)))]
    known: list[float | None] = [link.capacity for link in out] if out else [port.capacity for port in ports]
    capacity = sum(each or 0.0 for each in known) if known and None not in known else None
    shared = bool(out) and all(link.shared for link in out)
    return MapWan(_sum(rates), capacity, shared, sum(link.reserved for link in out))


def _sum(rates: Iterable[Rate]) -> Rate:
    return reduce(Rate.plus, rates, IDLE)

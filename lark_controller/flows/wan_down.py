"""The WAN ports that are down with nothing in their place, or of which nothing is known since their core has not
connected yet, and the jobs whose packets would leave by them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from lark_common.runs import NetworkType
from lark_controller.flows.placement import Switch, WanPort
from lark_controller.policies.model import Policy, SwitchSpec, WanAction, WanRule
from lark_controller.policies.topology import is_wan


class DownWay(NamedTuple):
    """A WAN port that is down, with no backup that is up, at each of these cores; as text a sentence on it."""

    port: str
    switches: tuple[str, ...]

    def __str__(self) -> str:
        return are_down((self.port,), self.switches)


def are_down(ports: Collection[str], switches: Iterable[str]) -> str:
    """A sentence on WAN ports of cores that are down."""
    names, at = ", ".join(ports), ", ".join(switches)
    if len(ports) > 1:
        return f"WAN ports {names} of {at} are down, and nothing takes their place"
    return f"WAN port {names} of {at} is down, and nothing takes its place"


def are_unseen(names: Sequence[str]) -> str:
    """A sentence on declared switches that have not connected since the start."""
    return f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} not connected yet"


class DownWays:
    """The WAN ports that are down by the jobs that would leave by them, under a policy and at the cores that are known.

    A job that no rule steers leaves by the first WAN port that a core's declaration names: its gateway is taken to be
    there. Where several cores have the port, one that has it up may be on the way, so all of theirs have to be down.
    """

    def __init__(self, policy: Policy, switches: Iterable[Switch]) -> None:
        self._cores = sorted((each for each in switches if each.is_core and each.wan), key=lambda each: each.name)
        self._steering = frozenset(rule.position for rule in policy.wans if rule.action is WanAction.STEER)
        # By the position of a WAN rule, 0 for none. Nothing of a rule without exceptions is to leave.
        rules = {0: None, **{rule.position: rule for rule in policy.wans if not _drops_all(rule)}}
        ways = {position: self._of(rule) for position, rule in rules.items()}
        self._by_rule = {position: way for position, way in ways.items() if isinstance(way, DownWay)}
        self._unsure = {position: way for position, way in ways.items() if isinstance(way, str)}

    def __bool__(self) -> bool:
        return bool(self._by_rule)

    def of(self, wan: int, network: NetworkType) -> DownWay | None:
        """The port by which nothing leaves of a job of this WAN class and network; None where something does, or the
        class is dropped."""
        if network is NetworkType.NONE:
            return None
        return self._by_rule.get(self._class(wan, network))

    def unsure(self, wan: int, network: NetworkType) -> str:
        """The reason why it is not known whether anything leaves of a job of this WAN class and network (``""``: it
        is): its router is taken to be at a port that is down, and the switch itself would have to find another way."""
        return "" if network is NetworkType.NONE else self._unsure.get(self._class(wan, network), "")

    def _class(self, wan: int, network: NetworkType) -> int:
        # A worker's address is of no class at cores.
        return 0 if network is NetworkType.NAT and wan in self._steering else wan

    def _of(self, rule: WanRule | None) -> DownWay | str | None:
        """The way that is down, as a sentence where that is not sure; None where one is up."""
        steered = None if rule is None or rule.action is not WanAction.STEER else rule.port
        there = [] if steered is None else [(core, core.wan_or_backup(steered)) for core in self._cores]
        ways = [(core.name, port) for core, port in there if port is not None]
        # Where no core has a rule's port, what comes under it leaves as the rest does.
        unsure = [] if ways else [sentence for core in self._cores if (sentence := router_unsure(core))]
        ways = ways or [(core.name, default_way(core)) for core in self._cores]
        # Of each core where it is not sure some port is up.
        if not ways or sum(port.up for _, port in ways) > len(unsure):
            return None
        return unsure[0] if unsure else DownWay(ways[0][1].name, tuple(name for name, _ in ways))


class UnseenWays:
    """The cores that have not connected since the start, by the jobs that would leave by them: those of which no core
    that is known has the WAN port up."""

    def __init__(self, policy: Policy, switches: Iterable[Switch], unseen: Iterable[SwitchSpec]) -> None:
        self._known = [each for each in switches if each.is_core and each.wan]
        self._unseen = {each.name: {port.lower() for port in each.ports if is_wan(port)} for each in unseen}
        self._steering = {rule.position: rule for rule in policy.wans if rule.action is WanAction.STEER}

    def __bool__(self) -> bool:
        return any(self._unseen.values())

    def of(self, wan: int, network: NetworkType) -> tuple[str, ...]:
        """The cores by which it depends whether anything leaves of a job of this WAN class and network; empty where
        one that is known decides that."""
        rule = None if network is NetworkType.NAT else self._steering.get(wan)
        if rule is not None and rule.port is not None:
            there = [port for core in self._known if (port := core.wan_or_backup(rule.port)) is not None]
            lacking = [name for name, ports in self._unseen.items() if rule.port.lower() in ports]
            if there or lacking:
                return () if any(port.up for port in there) else tuple(sorted(lacking))
        if any(default_way(core).up for core in self._known):
            return ()
        return tuple(sorted(name for name, ports in self._unseen.items() if ports))


def router_unsure(core: Switch) -> str:
    """A sentence where a core's first WAN port, at which the jobs' router is taken to be, is down and has no next hop:
    the core itself sends on what no rule steers, by whichever port it finds the router's MAC address (``""``: it is up,
    or no port is)."""
    first, others = core.wan[0], [port.name for port in core.wan[1:] if port.up]
    if first.up or first.next_hop is not None or not others:
        return ""
    return (
        f"WAN port {first.name} of {core.name} is down, and it is not known whether its router is found by"
        f" {' or '.join(others)}"
    )


def default_way(core: Switch) -> WanPort:
    """The WAN port by which a core sends what no rule steers: the first, or its backup. Without a next hop its packets
    are for a station that is known nowhere, and leave by any port that is up."""
    first = core.wan[0]
    if first.next_hop is None:
        return next((port for port in core.wan if port.up), first)
    return core.wan_or_backup(first.name) or first


def _drops_all(rule: WanRule) -> bool:
    return rule.action is WanAction.DROP and not rule.exceptions

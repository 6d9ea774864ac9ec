"""The places of ports, jobs and switches: a switch as the flow builder sees it, and a job placed at a switch's port.
Frozen values."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from lark_common.runs import Network, link_local_number
from lark_controller.flows.model import PORT_LOCAL, PORT_MAX
from lark_controller.jobs.external import External
from lark_controller.jobs.job import Job
from lark_controller.policies.backups import handed_over
from lark_controller.policies.model import Decision, GroupControl, Policy, SwitchRole, SwitchSpec
from lark_controller.policies.switches import IDENTITY

LINK_LOCAL_PREFIX: Final = 0xFE80 << 112


class WanPort(NamedTuple):
    """A port that leads to the WAN: its name in the policy, its number, its next hop's MAC if it has one, and whether
    it is up."""

    name: str
    number: int
    next_hop: int | None
    up: bool = True


# Names of uplinks in a sentence.
_NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class Switch:
    """The properties of a connected switch that flows depend on.

    ``ports`` is every port's name -> number; ``speeds`` is Mb/s by number of the ports whose speed is known.
    ``uplinks`` (edge, access point) lead away from the machine; ``lan`` and ``wan`` (core) are as the policy declares
    them. ``normal`` is true where NORMAL works; ``max_meter`` 0 means no meters. ``group_control`` is how a core or an
    access point's switch limits groups.
    ``backups`` name for WAN ports, also for those that the switch lacks now, the one that takes its place;
    ``handed_over`` are the WAN ports that have flows by which that happens.
    """

    datapath: int
    name: str
    role: SwitchRole
    ports: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    uplinks: tuple[int, ...] = ()
    lan: tuple[int, ...] = ()
    wan: tuple[WanPort, ...] = ()
    normal: bool = True
    tracks: bool = True
    max_meter: int = 0
    max_rules: int = 0
    local_mac: int | None = None
    speeds: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    group_control: GroupControl = GroupControl.METERS
    backups: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    handed_over: frozenset[str] = frozenset()

    def wan_or_backup(self, name: str) -> WanPort | None:
        """The WAN port that traffic for the one of that name leaves by now: itself, or while it is down the first of
        its backups that is up. Where none is up it is itself; None where the switch has no such port and no backup."""
        by_name = {port.name: port for port in self.wan}
        tried: list[str] = []
        chosen: str | None = name
        while chosen is not None and chosen not in tried:
            tried.append(chosen)
            port = by_name.get(chosen)
            if port is not None and port.up:
                return port
            chosen = self.backups.get(chosen)
        return by_name.get(name)

    def instead(self, name: str) -> WanPort | None:
        """The WAN port that is used now in place of the one of that name, which is down; None where none is."""
        port = self.wan_or_backup(name) if name in self.handed_over else None
        return port if port is not None and port.up and port.name != name else None

    @property
    def is_edge(self) -> bool:
        """True for a worker's switch."""
        return self.role is SwitchRole.EDGE

    @property
    def is_core(self) -> bool:
        """True for a switch between the site and the WAN."""
        return self.role is SwitchRole.CORE

    def job_port(self, name: str | None) -> int | None:
        """The number of the port of that name if a job may be there: on an edge alone, and neither at an uplink nor at
        the host's own port, which a job's flows would close for everybody else."""
        number = None if name is None else self.ports.get(name)
        return None if number in (None, PORT_LOCAL, *self.uplinks) or not self.is_edge else number

    def why_no_job_port(self, name: str | None) -> str:
        """The reason why ``job_port`` finds no port of that name, as one clause about the switch."""
        if name is None:
            return "the machine ad names no port (ExternalInterface)"
        if not self.is_edge:
            whose = "a core switch" if self.is_core else "an access point's switch"
            return f"it is {whose}, and jobs are at edges"
        if name not in self.ports:
            return f"it has no port {name}"
        whose = "an uplink" if self.ports[name] in self.uplinks else "the host itself"
        return f"its port {name} is {whose}, not a job's"


def cut_off(switch: Switch, policy: Policy) -> str:
    """The reason why nothing leaves a worker's switch, nor comes there from elsewhere; ``""`` where an uplink is one of
    its ports."""
    if not switch.is_edge or switch.uplinks:
        return ""
    spec = policy.switches.get(switch.datapath)
    named = [] if spec is None else [str(port.port) for name, port in spec.ports.items() if name.startswith("uplink")]
    named = [*policy.edge_uplinks, *named]
    lacking = ", ".join(named[:_NAMED]) + (f" and {len(named) - _NAMED} more" if len(named) > _NAMED else "")
    return (
        f"none of its ports is an uplink as the policy describes them ({lacking}): what its jobs and the worker itself"
        " send to others is dropped, and so is what others send to them"
    )


@dataclass(frozen=True, slots=True)
class Placed:
    """A job, what was decided for it, and where it is attached (None: at no port of a connected edge).

    ``queue`` is the number of its own queue at the uplinks, None as long as none stands there. ``reserved`` are the
    queues of its reserved flows that stand there: the addresses that a flow goes to (empty: the WAN), and the number.
    ``closed`` is the reason why its edge does not open the job's own IPv6 address, where that was asked for.
    """

    job: Job
    decision: Decision
    datapath: int | None = None
    port: int | None = None
    queue: int | None = None
    reserved: tuple[tuple[tuple[Network, ...], int], ...] = ()
    closed: str = ""

    @property
    def mac(self) -> int | None:
        """The MAC inside the job as an integer."""
        return None if self.job.mac is None else mac_number(self.job.mac)

    @property
    def opened(self) -> External | None:
        """The job's own IPv6 address as its edge opens it to the WAN; None where it does not."""
        return None if self.closed else self.job.opened

    @property
    def tracked(self) -> bool:
        """True where answers to the job must be kept apart from calls: one direction is open, or some ports only."""
        return self.decision.one_way or (self.opened is not None and not self.decision.isolated)

    @property
    def link_local(self) -> int | None:
        """The job's IPv6 link-local address as an integer."""
        return None if self.job.mac is None else link_local_number(mac_number(self.job.mac))


def same_for_switches(old: Job, new: Job) -> bool:
    """True where two values of a job have the same flows and workers' rules."""
    return old is new or replace(old, facts=new.facts, lease_until=new.lease_until) == new


def same_frame(one: Switch, other: Switch) -> bool:
    """True where two values of a switch differ at most in ports that concern no frame flow."""
    return (one.normal or one.is_edge) and replace(one, ports=other.ports, speeds=other.speeds) == other


def mac_number(text: str) -> int:
    """``02:00:00:00:00:05`` as an integer."""
    return int(text.replace(":", ""), 16)


def _own_name(policy: Policy, description: str) -> str:
    """The name that an undeclared switch gives itself; empty where that is another's."""
    return "" if description.lower() in policy.switch_words or IDENTITY.fullmatch(description) else description


def place_switch(
    policy: Policy,
    datapath: int,
    ports: Mapping[str, int],
    *,
    normal: bool,
    tracks: bool,
    max_meter: int,
    local_mac: int | None = None,
    description: str = "",
    speeds: Mapping[int, float] = MappingProxyType({}),
    down: Container[int] = frozenset(),
) -> Switch:
    """A connected switch with the roles that the policy gives it; undeclared switches are edges.

    ``ports``, ``speeds`` (Mb/s by number) and the ports that are ``down`` are the switch's own; a speed that the policy
    gives wins. Declared ports that it lacks are left out (they come with a port status message when they appear).
    """
    spec = policy.switches.get(datapath)
    uplinks: tuple[int, ...]
    if spec is None:
        uplinks = _matching(policy.edge_uplinks, ports)
        return Switch(
            datapath,
            _own_name(policy, description) or f"{datapath:016x}",
            SwitchRole.EDGE,
            MappingProxyType(dict(ports)),
            uplinks=uplinks,
            normal=normal,
            tracks=tracks,
            max_meter=max_meter,
            local_mac=local_mac,
            speeds=_speeds(policy, speeds, uplinks, {}),
        )
    named = _declared(spec, ports)
    uplinks = ()
    if spec.role is not SwitchRole.CORE:
        declared = tuple(sorted(number for name, number in named.items() if name.startswith("uplink")))
        uplinks = declared or _matching(policy.edge_uplinks, ports)
    return Switch(
        datapath,
        spec.name,
        spec.role,
        MappingProxyType(dict(ports)),
        uplinks=uplinks,
        lan=tuple(sorted(number for name, number in named.items() if name.startswith("lan"))),
        wan=tuple(
            WanPort(
                name,
                number,
                mac_number(hop) if (hop := spec.ports[name].next_hop) else None,
                number not in down,
            )
            for name, number in named.items()
            if name.startswith("wan")
        ),
        normal=normal if spec.normal is None else spec.normal,
        tracks=tracks,
        max_meter=max_meter,
        max_rules=spec.max_rules,
        local_mac=local_mac,
        group_control=spec.group_control,
        backups=MappingProxyType({name: port.backup for name, port in spec.ports.items() if port.backup is not None}),
        handed_over=handed_over(policy, spec),
        speeds=_speeds(
            policy,
            speeds,
            uplinks if spec.role is SwitchRole.EDGE else (),
            {n: speed for p, n in named.items() if (speed := spec.ports[p].speed)},
        ),
    )


def _speeds(
    policy: Policy, reported: Mapping[int, float], uplinks: Iterable[int], declared: Mapping[int, float]
) -> Mapping[int, float]:
    edges = {} if policy.edge_speed is None else dict.fromkeys(uplinks, policy.edge_speed)
    return MappingProxyType({**reported, **edges, **declared})


def _declared(spec: SwitchSpec, ports: Mapping[str, int]) -> dict[str, int]:
    numbers = set(ports.values())
    found: dict[str, int] = {}
    for name, port in spec.ports.items():
        number = port.port if isinstance(port.port, int) else ports.get(port.port)
        if number is not None and number in numbers:
            found[name] = number
    return found


def _matching(patterns: tuple[str, ...], ports: Mapping[str, int]) -> tuple[int, ...]:
    matches, numbers = _one_pattern(patterns).match, frozenset(patterns)
    chosen = {
        number for name, number in ports.items() if number <= PORT_MAX and (matches(name) or str(number) in numbers)
    }
    return tuple(sorted(chosen))


@lru_cache(maxsize=8)
def _one_pattern(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """A regular expression for the union of these glob patterns; nothing where there is none."""
    return re.compile("|".join(map(translate, patterns)) or r"(?!)")

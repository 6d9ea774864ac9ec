"""The users whose jobs reach each other's, and the WAN, as the policy's decisions say."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final, NamedTuple, TypeAlias

from lark_common.runs import NetworkType
from lark_controller.policies.model import Decision, Policy, SliceKey, WanAction

# IP versions.
Versions: TypeAlias = frozenset[int]
# WAN rules that drop, by position, each with the IP version of an address that is the WAN to it.
Closed: TypeAlias = frozenset[tuple[int, int]]


class Extent(StrEnum):
    """The part of a user's jobs of which something is true; unknown: it is known of none of them."""

    ALL = "all"
    SOME = "some"
    NONE = "none"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Party:
    """A user with live jobs; ``reaches`` has the extent for each party of the list, in its order."""

    owner: Annotated[str, "Owner"]
    jobs: Annotated[int, "Live jobs"]
    wan: Annotated[
        str,
        "Jobs that may open connections to the WAN and whose WAN port is up: all, some (or to some addresses), none, "
        "unknown (no core with such a port has connected since the start, or the port by which a core would have to "
        "find the router by itself is down)",
    ]
    reaches: Annotated[tuple[str, ...], "For each party in order: its jobs that these may call: all, some, none"]
    wan_reason: Annotated[
        str,
        "The WAN ports that are down, or cores that have not connected yet, for which it is not more; empty for none",
    ] = ""


@dataclass(frozen=True, slots=True)
class Reach:
    """The users with the most live jobs, and how many jobs others have."""

    parties: tuple[Party, ...] = ()
    other_owners: int = 0
    other_jobs: int = 0


class Deciding(NamedTuple):
    """A live job: its owner, the policy's decision, and the kind of its network; ``host`` is its worker, ``vlan`` its
    VLAN, and ``versions`` are the IP versions of its addresses (none: not known yet, so any). ``closed`` are the WAN
    rules that drop what jobs under them exchange with its addresses, as others see them: these are not local."""

    owner: str
    decision: Decision
    network: NetworkType = NetworkType.OVS_BRIDGE
    host: str = ""
    vlan: int | None = None
    versions: Versions = frozenset()
    closed: Closed = frozenset()


class _Kind(NamedTuple):
    """The properties of a job on which it depends whom it reaches where no slice keeps it off."""

    versions: Versions
    wan: int = 0
    closed: Closed = frozenset()

    def reaches(self, other: _Kind) -> bool:
        """True where packets pass by one of the IP versions; either job may be the other's WAN."""
        return any(
            (self.wan, version) not in other.closed and (other.wan, version) not in self.closed
            for version in self.versions & other.versions
        )


# A slice; of jobs behind NAT their worker, since nobody else reaches them, "" for all others; and the VLAN: switches
# pass nothing from one to another.
_Place = tuple[SliceKey | None, str, int | None]
_BOTH: Final = frozenset({4, 6})


@dataclass(slots=True)
class _Jobs:
    """The live jobs of one user: by place and kind those that may call and those that may be called; how many would
    call themselves, since they may do both; those that may call whatever is not behind NAT (``anywhere``), and those
    that are not (``open``) and may be called; and all."""

    total: int = 0
    calling: defaultdict[_Place, Counter[_Kind]] = field(default_factory=lambda: defaultdict(Counter))
    called: defaultdict[_Place, Counter[_Kind]] = field(default_factory=lambda: defaultdict(Counter))
    both: int = 0
    anywhere: Counter[_Kind] = field(default_factory=Counter)
    open: Counter[_Kind] = field(default_factory=Counter)
    wan_open: int = 0
    wan_partly: int = 0
    wan_unknown: int = 0
    # The reasons why it is not more of them.
    wan_why: dict[str, None] = field(default_factory=dict)


def _nothing(_: Deciding) -> str:
    return ""


def reach(
    decided: Iterable[Deciding],
    policy: Policy,
    most: int,
    why_down: Callable[[Deciding], str] = _nothing,
    why_unknown: Callable[[Deciding], str] = _nothing,
) -> Reach:
    """The reach of the ``most`` users with the most jobs; ``why_down`` is the reason why nothing of a job's leaves by
    its WAN port now (``""``: it does), and ``why_unknown`` why that is not known (``""``: it is)."""
    dropped = {rule.position: bool(rule.exceptions) for rule in policy.wans if rule.action is WanAction.DROP}
    owners: dict[str, _Jobs] = {}
    for each in decided:
        owner, decision, network, host, vlan, known, closed = each
        jobs = owners.setdefault(owner, _Jobs())
        jobs.total += 1
        if decision.isolated or network is NetworkType.NONE:
            continue
        behind = host if network is NetworkType.NAT else ""
        place, kind = (decision.slice, behind, vlan), _Kind(known or _BOTH, decision.wan, closed)
        # To each other those behind one NAT are local.
        here = _Kind(kind.versions) if behind else kind
        if decision.inbound:
            jobs.called[place][here] += 1
            if not behind and vlan is None:
                jobs.open[kind] += 1
        if decision.outbound:
            jobs.calling[place][here] += 1
            # A job behind NAT calls those of its own worker behind NAT, and all others of its slice. Without one, and
            # where its worker cannot know whose an address is, all others, since they meet its worker's address.
            if behind and decision.slice is None and not policy.job_networks:
                jobs.anywhere[kind] += 1
            elif behind:
                jobs.calling[decision.slice, "", vlan][kind] += 1
            jobs.both += decision.inbound and here.reaches(here)
            may = decision.wan not in dropped or dropped[decision.wan]
            if may and (unknown := why_unknown(each)):
                jobs.wan_why[unknown] = None
                jobs.wan_unknown += 1
                continue
            if may and (down := why_down(each)):
                jobs.wan_why[down] = None
                continue
            jobs.wan_open += decision.wan not in dropped
            jobs.wan_partly += dropped.get(decision.wan, False)
    ranked = sorted(owners.items(), key=lambda item: (-item[1].total, item[0]))
    shown, others = ranked[:most], ranked[most:]
    parties = tuple(
        Party(
            owner,
            jobs.total,
            _wan(jobs),
            tuple(_extent(jobs, other) for _, other in shown),
            "; ".join(jobs.wan_why),
        )
        for owner, jobs in shown
    )
    return Reach(parties, len(others), sum(jobs.total for _, jobs in others))


def _wan(jobs: _Jobs) -> Extent:
    if jobs.wan_open == jobs.total:
        return Extent.ALL
    if jobs.wan_open or jobs.wan_partly:
        return Extent.SOME
    return Extent.UNKNOWN if jobs.wan_unknown else Extent.NONE


def _extent(one: _Jobs, other: _Jobs) -> Extent:
    """The jobs of another that the jobs of one may call; where both are one user, a job does not count as another."""
    same = one is other
    passing = sum(_pairs(kinds, other.called[place]) for place, kinds in one.calling.items() if place in other.called)
    passing += _pairs(one.anywhere, other.open)
    passing -= one.both if same else 0
    if not passing:
        return Extent.NONE
    return Extent.ALL if passing == one.total * (other.total - same) else Extent.SOME


def _pairs(calling: Counter[_Kind], called: Counter[_Kind]) -> int:
    """The number of pairs in which the first reaches the second."""
    return sum(a * b for one, a in calling.items() for other, b in called.items() if one.reaches(other))

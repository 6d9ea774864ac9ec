"""The users whose jobs reach each other's, and the WAN, as the policy's decisions say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final, NamedTuple, TypeAlias

from lark_common.runs import NetworkType
from lark_controller.policies.model import Decision, Policy, SliceKey, WanAction

# IP versions.
Versions: TypeAlias = frozenset[int]


class Extent(StrEnum):
    """The part of a user's jobs of which something is true."""

    ALL = "all"
    SOME = "some"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Party:
    """A user with live jobs; ``reaches`` has the extent for each party of the list, in its order."""

    owner: Annotated[str, "Owner"]
    jobs: Annotated[int, "Live jobs"]
    wan: Annotated[
        str,
        "Jobs that may open connections to the WAN and whose WAN port is up: all, some (or to some addresses), none",
    ]
    reaches: Annotated[tuple[str, ...], "For each party in order: its jobs that these may call: all, some, none"]
    wan_reason: Annotated[str, "The WAN ports that are down, for which it is not more of them; empty for none"] = ""


@dataclass(frozen=True, slots=True)
class Reach:
    """The users with the most live jobs, and how many jobs others have."""

    parties: tuple[Party, ...] = ()
    other_owners: int = 0
    other_jobs: int = 0


class Deciding(NamedTuple):
    """A live job: its owner, the policy's decision, and the kind of its network; ``host`` is its worker, ``vlan`` its
    VLAN, and ``versions`` are the IP versions of its addresses (none: not known yet, so any)."""

    owner: str
    decision: Decision
    network: NetworkType = NetworkType.OVS_BRIDGE
    host: str = ""
    vlan: int | None = None
    versions: Versions = frozenset()


# A slice; of jobs behind NAT their worker, since nobody else reaches them, "" for all others; and the VLAN: switches
# pass nothing from one to another.
_Place = tuple[SliceKey | None, str, int | None]
_BOTH: Final = frozenset({4, 6})
_ANY: Final = (frozenset({4}), frozenset({6}), _BOTH)


@dataclass(slots=True)
class _Jobs:
    """The live jobs of one user: by place and IP versions those that may call and those that may be called; how many
    may do both, and so would call themselves; those that may call whatever is not behind NAT (``anywhere``), and those
    that are not (``open``) and may be called; and all."""

    total: int = 0
    calling: Counter[tuple[_Place, Versions]] = field(default_factory=Counter)
    called: Counter[tuple[_Place, Versions]] = field(default_factory=Counter)
    both: int = 0
    anywhere: Counter[Versions] = field(default_factory=Counter)
    open: Counter[Versions] = field(default_factory=Counter)
    wan_open: int = 0
    wan_partly: int = 0
    wan_down: dict[str, None] = field(default_factory=dict)


def _up(_: Deciding) -> str:
    return ""


def reach(decided: Iterable[Deciding], policy: Policy, most: int, why_down: Callable[[Deciding], str] = _up) -> Reach:
    """The reach of the ``most`` users with the most jobs; ``why_down`` is the reason why nothing of a job's leaves by
    its WAN port now (``""``: it does)."""
    dropped = {rule.position: bool(rule.exceptions) for rule in policy.wans if rule.action is WanAction.DROP}
    owners: dict[str, _Jobs] = {}
    for each in decided:
        owner, decision, network, host, vlan, known = each
        jobs = owners.setdefault(owner, _Jobs())
        jobs.total += 1
        if decision.isolated or network is NetworkType.NONE:
            continue
        behind = host if network is NetworkType.NAT else ""
        called_at, versions = (decision.slice, behind, vlan), known or _BOTH
        if decision.inbound:
            jobs.called[called_at, versions] += 1
            jobs.open[versions] += not behind and vlan is None
        if decision.outbound:
            jobs.calling[called_at, versions] += 1
            # A job behind NAT calls those of its own worker behind NAT, and all others of its slice. Without one, and
            # where its worker cannot know whose an address is, all others, since they meet its worker's address.
            if behind and decision.slice is None and not policy.job_networks:
                jobs.anywhere[versions] += 1
            elif behind:
                jobs.calling[(decision.slice, "", vlan), versions] += 1
            jobs.both += decision.inbound
            may = decision.wan not in dropped or dropped[decision.wan]
            if may and (down := why_down(each)):
                jobs.wan_down[down] = None
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
            "; ".join(jobs.wan_down),
        )
        for owner, jobs in shown
    )
    return Reach(parties, len(others), sum(jobs.total for _, jobs in others))


def _wan(jobs: _Jobs) -> Extent:
    if jobs.wan_open == jobs.total:
        return Extent.ALL
    return Extent.SOME if jobs.wan_open or jobs.wan_partly else Extent.NONE


def _extent(one: _Jobs, other: _Jobs) -> Extent:
    """The jobs of another that the jobs of one may call; where both are one user, a job does not count as another."""
    same = one is other
    passing = sum(
        count * other.called[place, versions]
        for (place, mine), count in one.calling.items()
        for versions in _ANY
        if mine & versions
    )
    passing += sum(a * b for mine, a in one.anywhere.items() for theirs, b in other.open.items() if mine & theirs)
    passing -= one.both if same else 0
    if not passing:
        return Extent.NONE
    return Extent.ALL if passing == one.total * (other.total - same) else Extent.SOME

"""The users whose jobs reach each other's, and the WAN, as the policy's decisions say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from lark_controller.policies.model import Decision, Policy, SliceKey, WanAction


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
    wan: Annotated[str, "The jobs that may open connections to the WAN: all, some (or to some addresses), none"]
    reaches: Annotated[tuple[str, ...], "For each party in order: its jobs that these may call: all, some, none"]


@dataclass(frozen=True, slots=True)
class Reach:
    """The users with the most live jobs, and how many jobs others have."""

    parties: tuple[Party, ...] = ()
    other_owners: int = 0
    other_jobs: int = 0


@dataclass(slots=True)
class _Jobs:
    """The live jobs of one user: by slice, those that may call, those that may be called, and all."""

    total: int = 0
    slices: Counter[SliceKey | None] = field(default_factory=Counter)
    calling: Counter[SliceKey | None] = field(default_factory=Counter)
    called: Counter[SliceKey | None] = field(default_factory=Counter)
    wan_open: int = 0
    wan_partly: int = 0


def reach(decided: Iterable[tuple[str, Decision]], policy: Policy, most: int) -> Reach:
    """The reach of the ``most`` users with the most jobs, from each live job's owner and decision."""
    dropped = {rule.position: bool(rule.exceptions) for rule in policy.wans if rule.action is WanAction.DROP}
    owners: dict[str, _Jobs] = {}
    for owner, decision in decided:
        jobs = owners.setdefault(owner, _Jobs())
        jobs.total += 1
        if decision.isolated:
            continue
        jobs.slices[decision.slice] += 1
        jobs.called[decision.slice] += decision.inbound
        if decision.outbound:
            jobs.calling[decision.slice] += 1
            jobs.wan_open += decision.wan not in dropped
            jobs.wan_partly += dropped.get(decision.wan, False)
    ranked = sorted(owners.items(), key=lambda item: (-item[1].total, item[0]))
    shown, others = ranked[:most], ranked[most:]
    parties = tuple(
        Party(owner, jobs.total, _wan(jobs), tuple(_extent(jobs, other) for _, other in shown)) for owner, jobs in shown
    )
    return Reach(parties, len(others), sum(jobs.total for _, jobs in others))


def _wan(jobs: _Jobs) -> Extent:
    if jobs.wan_open == jobs.total:
        return Extent.ALL
    return Extent.SOME if jobs.wan_open or jobs.wan_partly else Extent.NONE


def _extent(one: _Jobs, other: _Jobs) -> Extent:
    """The jobs of another that the jobs of one may call; where both are one user, a job does not count as another."""
    if one is other:
        common = [key for key, count in one.slices.items() if count > 1 and one.calling[key] and one.called[key]]
    else:
        common = [key for key, count in one.calling.items() if count and other.called[key]]
    if not common:
        return Extent.NONE
    (key, *rest) = common
    whole = not rest and one.calling[key] == one.total and other.called[key] == other.total
    return Extent.ALL if whole else Extent.SOME

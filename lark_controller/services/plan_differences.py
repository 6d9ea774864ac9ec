"""Sentences on the changes that another policy would make for a job. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lark_common.runs import NetworkType
from lark_controller.jobs.job import Job
from lark_controller.policies.model import Decision, GroupSpec, Policy, WanAction, WanRule

# The parts of a group's treatment, as a policy names them; rates are Mb/s.
_RATES: Final = ("guarantee", "ceiling", "burst")
_OTHERS: Final = ("queue", "port", "priority")


class Differences:
    """The differences that another policy makes to jobs: to the decision of each, and to what that decision means."""

    def __init__(self, old: Policy, new: Policy) -> None:
        # Equal treatments have one number: a rule may have thousands of exceptions, and each job a look at it.
        numbers: dict[tuple[object, ...], int] = {}
        self._rules = {rule.position: rule for rule in new.wans}
        self._treatments = tuple(
            {rule.position: numbers.setdefault(_treatment(rule), len(numbers)) for rule in policy.wans}
            for policy in (old, new)
        )
        # A rule that exempts jobs leaves them as without one.
        self._exempt = numbers.get((WanAction.ALLOW, frozenset(), None))
        self._groups = tuple({group.name: group for group in policy.groups} for policy in (old, new))

    def of(self, job: Job, old: Decision, new: Decision) -> Iterator[str]:
        """The sentences for a job with these two decisions; none where it is treated alike. Of a job without a network
        they are about what HTCondor moves for it, and its accounts: nothing else reaches it."""
        if job.network_type is not NetworkType.NONE:
            yield from self._passing(old, new)
        if _rates(job, old) != _rates(job, new):
            yield f"bandwidth {_enforced(old)} becomes {_enforced(new)}"
        if old.transfers != new.transfers:
            was_moved, is_moved = (
                "under no rule" if each is None else each.words for each in (old.transfers, new.transfers)
            )
            yield f"transfers {was_moved} become {is_moved}"
        yield from self._group(job, old, new)
        if old.scitag != new.scitag:
            yield f"SciTag {_marked(old)} becomes {_marked(new)}"
        if old.accounted != new.accounted:
            yield "its use is counted" if new.accounted else "its use is no longer counted"

    def _passing(self, old: Decision, new: Decision) -> Iterator[str]:
        """The rules by which a job's packets pass."""
        if old.blocked != new.blocked:
            yield "is blocked" if new.blocked else "is no longer blocked"
        if (old.slice and old.slice.value) != (new.slice and new.slice.value):
            yield f"slice {old.slice.value if old.slice else 'none'} becomes {new.slice.value if new.slice else 'none'}"
        yield from self._wan(old, new)
        for direction, was, will in (("inbound", old.inbound, new.inbound), ("outbound", old.outbound, new.outbound)):
            if was != will:
                yield f"{direction} connections become {'open' if will else 'closed'}"

    def _wan(self, old: Decision, new: Decision) -> Iterator[str]:
        """Rules are compared by what they do: one may come before them, and the same one may do something else."""
        before, after = (
            treatments.get(each.wan, self._exempt)
            for treatments, each in zip(self._treatments, (old, new), strict=True)
        )
        if before == after:
            return
        rule = self._rules.get(new.wan)
        yield "no WAN rule applies any more" if rule is None else f"WAN rule in line {rule.line} applies: {rule.does}"

    def _group(self, job: Job, old: Decision, new: Decision) -> Iterator[str]:
        if old.group != new.group:
            yield f"group {old.group or 'none'} becomes {new.group or 'none'}"
            return
        if job.network_type is NetworkType.NONE and (new.transfers is None or new.transfers.group != new.group):
            return
        before, after = (groups.get(old.group) for groups in self._groups)
        if before is not None and after is not None:
            yield from _given(before, after)


def _treatment(rule: WanRule) -> tuple[object, ...]:
    return rule.action, frozenset(rule.exceptions), rule.port


def _given(before: GroupSpec, after: GroupSpec) -> Iterator[str]:
    for name in (*_RATES, *_OTHERS):
        was, will = (getattr(group, name) for group in (before, after))
        if was != will:
            said = ["none" if each is None else f"{each:g}" if name in _RATES else str(each) for each in (was, will)]
            unit = "" if name in _OTHERS else " Mb" if name == "burst" else " Mb/s"
            units = ["" if each == "none" else unit for each in said]
            yield f"group {after.name}: {name} {said[0]}{units[0]} becomes {said[1]}{units[1]}"


def _marked(decision: Decision) -> str:
    return f"{decision.scitag.experiment}, {decision.scitag.activity}" if decision.scitag else "none"


def _rates(job: Job, decision: Decision) -> tuple[float, bool, float | None] | None:
    """The rates that a job has by its bandwidth rule; None: it has none, since it asks for none and is given none."""
    rule = decision.bandwidth
    rate = None if rule is None or job.network_type is NetworkType.NONE else rule.rate(job.bandwidth)
    return None if rule is None or rate is None else (rate, rule.borrows, rule.ceiling)


def _enforced(decision: Decision) -> str:
    return decision.bandwidth.words if decision.bandwidth else "not enforced"

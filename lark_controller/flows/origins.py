"""The origin of a flow in the policy, in a sentence: from its cookie to the job, the rule, the line of the policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lark_controller.flows.cookies import OWNER_TAG, Category, counted_by, parse
from lark_controller.flows.desired import Desired
from lark_controller.flows.model import FlowData
from lark_controller.flows.tables import Edge
from lark_controller.policies.model import Policy, RuleKind, SliceKey, WanAction


class Origin(NamedTuple):
    """A sentence for the operator, and the id of the job where the flow is one job's own."""

    text: str
    job: str | None = None


def origin(desired: Desired, slices: Mapping[int, SliceKey], data: FlowData) -> Origin:
    """The origin of a flow, by its cookie (and where a rule has exceptions, by what the flow does).

    ``slices`` are those of its switch by tag. For any thread: all it does with ``desired`` is to look up single items.
    """
    parts = parse(data.cookie)
    if parts.owner != OWNER_TAG:
        return Origin("not Lark's")
    policy = desired.policy
    match parts.category:
        case Category.LOCAL_BASE:
            return Origin("base flow, loaded on the worker before any controller")
        case Category.SWITCH:
            return Origin("frame of the tables")
        case Category.JOB:
            placed = desired.placed.get(parts.number)
            if placed is None:
                return Origin(f"job number {parts.number}, which is over")
            job = placed.job
            text = f"job {job.called} of {job.owner} on {job.run.slot}"
            if placed.decision.quarantine:
                text += f", quarantined: {placed.decision.quarantine}"
            elif placed.decision.isolated:
                kind = RuleKind.BLOCK if placed.decision.blocked else RuleKind.CONNECTIVITY
                why = next(because for because in placed.decision.because if because.kind is kind)
                text += f", without any network by {kind} when {why.when} (policy line {why.line})"
            return Origin(text, job.id)
        case Category.SLICE:
            key = slices.get(parts.number)
            if key is None:
                own = "slice policy: no jobs but those of its own slice"
                return Origin(own if parts.number == 0 else "a slice that is over")
            by = next(rule for rule in policy.slices if rule.position == key.rule)
            return Origin(f"slice {by.by} = {key.value} (policy line {by.line})")
        case Category.WAN | Category.CLASSIFY:
            wans = [rule for rule in policy.wans if rule.position == parts.number]
            if not wans:
                local = parts.category == Category.WAN
                return Origin("local networks are not the WAN" if local else "no job's address comes from outside")
            rule = wans[0]
            excepted = parts.category == Category.WAN and data.goto not in (None, Edge.DROPS)
            doing = {
                WanAction.DROP: "drop, its exception" if excepted else "drop",
                WanAction.STEER: f"steer to {rule.port}",
                WanAction.ALLOW: "allow",
            }[rule.action]
            return Origin(f"wan {doing}{f' when {rule.when}' if rule.when else ''} (policy line {rule.line})")
        case Category.CONNECTIVITY:
            return Origin("connectivity: one-way jobs by connection tracking")
        case Category.GROUP:
            return Origin(_marked(policy, parts.number))
        case Category.REACTIVE:
            return Origin("decided on a PacketIn, gone when idle")
        case Category.COUNT:
            whose = counted_by(data.cookie)
            counted = None if whose is None else desired.placed.get(whose[0])
            if counted is None:
                return Origin("counts for a job that is over")
            job = counted.job
            return Origin(f"counts for job {job.called} of {job.owner} on {job.run.slot}", job.id)
        case Category.MARKER:
            return Origin("marker of a switch that holds all that it should; no packet matches it")
        case Category.EXTERNAL:
            known = desired.placed.get(parts.number)
            if known is None:
                closed = parts.number == 0
                return Origin(
                    "external addresses that are closed" if closed else "external address of a job that is over"
                )
            job, text = known.job, ", ".join(str(each.address) for each in known.job.external)
            return Origin(f"external address {text} of job {job.called} of {job.owner} on {job.run.slot}", job.id)
        case Category.LEARNED:
            return Origin("learned station")
        case _:
            return Origin(f"category {parts.category}")


def _marked(policy: Policy, dscp: int) -> str:
    """The packets that have a DSCP."""
    for group in policy.groups:
        if group.dscp == dscp:
            return f"group {group.name} (policy line {group.line})"
    for mark in policy.transfer_marks:
        if mark.dscp == dscp:
            whose = f" of group {mark.group}" if mark.group else ""
            return f"transfers{whose} by WAN port {mark.port} (policy line {mark.line})"
    return "jobs without a group"

"""The packets that are dropped now: sender, receiver, rule and rate. Called by REST threads.

The counting flows give the job, the shared flows before them the rule. Where one rule alone may drop a job's
packets, that is the answer. Otherwise the job's drops are shared out by how many each rule drops at its
switch: exact where no other job's packets are dropped there, and an estimate where they are. A worker that enforces
rules itself counts no rule apart: they have even shares there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from lark_common.worker_rules import RULED
from lark_controller.accounting.drops import Dropping
from lark_controller.accounting.ledger import Ledger
from lark_controller.api.drops import Drop, DropList
from lark_controller.flows.drop_sources import DropSource, may_drop
from lark_controller.flows.placement import Placed
from lark_controller.jobs.job import Job
from lark_controller.policies.model import Because, Decision, Policy, RuleKind
from lark_controller.reconcile.core_drops import CoreDrop, CoreDrops
from lark_controller.reconcile.reconciler import Reconciler
from lark_controller.reconcile.switch import dpid_text
from lark_controller.services.job_names import live_names

_ANYONE: Final = "anyone"
# Of one user at most so many jobs are looked at.
_OWN: Final = 10_000


class _Reason(NamedTuple):
    """Something that may drop a job's packets: the other end in words, the rule in words, and its flows' source."""

    kind: str
    rule: str
    other: str
    line: int | None = None
    source: DropSource | None = None


# A policy that has just come into force drops nothing that the one before it dropped.
_SOME: Final = _Reason("policy", "a rule of the policy", _ANYONE)
# The packets of a job without a port on a switch that its worker drops though no rule concerns them.
_OF_WORKER: Final = _Reason(
    "worker",
    "no rule of its own: it is beyond its worker's limit of connections, or for jobs of slices, for groups or for "
    "link-local addresses",
    _ANYONE,
)


class Drops:
    """Operations on drops. Thread-safe: of the loop's state single items alone are looked up."""

    def __init__(self, ledger: Ledger, core_drops: CoreDrops, reconciler: Reconciler) -> None:
        self._ledger = ledger
        self._core_drops = core_drops
        self._reconciler = reconciler

    def now(self, limit: int, owner: str | None = None) -> DropList:
        """The drops of now, the most first: of all jobs, and of groups at cores, or of one user's jobs."""
        if owner is not None:
            return self._of_owner(limit, owner)
        chosen, whole = self._ledger.dropping(limit), self._ledger.drop_sum()
        desired = self._reconciler.desired
        policy = desired.policy
        live = [(each, placed) for each in chosen if (placed := desired.placed.get(each.number)) is not None]
        at = Counter((placed.job.datapath, inward) for each, placed in live for inward in _ways(each))
        names = live_names(placed.job for _, placed in live)
        found = [drop for each, placed in live for drop in self._of_job(each, placed, names, policy, at)]
        found += [_of_group(each, policy) for each in self._core_drops.now()]
        found.sort(key=lambda each: (-each.packets_per_second, each.job or "", each.rule))
        cores = sum(each.packets for each in self._core_drops.now())
        return DropList(tuple(found[:limit]), whole.jobs, whole.packets + cores)

    def _of_owner(self, limit: int, owner: str) -> DropList:
        desired = self._reconciler.desired

        def is_own(each: Dropping) -> bool:
            placed = desired.placed.get(each.number)
            return placed is not None and placed.job.owner == owner

        chosen = self._ledger.dropping(_OWN, is_own)
        live = [(each, placed) for each in chosen if (placed := desired.placed.get(each.number)) is not None]
        # Others' packets may be dropped at the same switches: every share is called one.
        at = Counter({(placed.job.datapath, inward): 2 for _, placed in live for inward in (False, True)})
        names = live_names(placed.job for _, placed in live)
        found = [drop for each, placed in live for drop in self._of_job(each, placed, names, desired.policy, at)]
        found.sort(key=lambda each: (-each.packets_per_second, each.job or "", each.rule))
        return DropList(tuple(found[:limit]), len(live), sum(sum(each.rate) for each, _ in live))

    def _of_job(
        self,
        dropping: Dropping,
        placed: Placed,
        names: Mapping[str, str],
        policy: Policy,
        at: Counter[tuple[int | None, bool]],
    ) -> Iterator[Drop]:
        job, rate = placed.job, dropping.rate
        name = names[job.id]
        counted = self._reconciler.drop_shares.of(job.datapath)
        for inward, packets in ((False, rate.policy_out), (True, rate.policy_in)):
            if not packets:
                continue
            ruled = job.network_type in RULED
            fallback = _OF_WORKER if ruled and not inward else _SOME
            reasons = list(_reasons(placed.decision, policy, inward, ruled=ruled)) or [fallback]
            weights = [0 if each.source is None else counted.packets.get(each.source, 0) for each in reasons]
            told_apart = counted.is_of_now and any(weights)
            if not any(weights):
                weights = [1] * len(reasons)
            several = sum(weight > 0 for weight in weights) > 1
            for reason, weight in zip(reasons, weights, strict=True):
                if weight:
                    share = packets * weight / sum(weights)
                    estimated = several and (not told_apart or at[job.datapath, inward] > 1)
                    yield _drop(job, name, dropping, reason, share, inward, estimated)
        bandwidth = placed.decision.bandwidth
        limited = bandwidth is not None and bandwidth.rate(job.bandwidth) is not None
        # The rest is divided among jobs that nothing limits, so that guarantees hold.
        most = "its rate" if limited else "its part of what no job has requested"
        for inward, packets in ((False, rate.rate_out), (True, rate.rate_in)):
            if packets:
                queue = "its own queue is full: " + (
                    f"more is sent to it than {most}" if inward else "it sends faster than its rate"
                )
                yield _drop(job, name, dropping, _Reason("rate", queue, _ANYONE), packets, inward, False)


def _ways(dropping: Dropping) -> Iterator[bool]:
    if dropping.rate.policy_out:
        yield False
    if dropping.rate.policy_in:
        yield True


def _reasons(decision: Decision, policy: Policy, inward: bool, *, ruled: bool) -> Iterator[_Reason]:
    """The rules that may drop what a job sends, or what is sent to it; ``ruled``: its worker enforces them."""
    why = {each.kind: each for each in reversed(decision.because)}
    if decision.quarantine:
        yield _Reason("quarantine", f"quarantine: {decision.quarantine}", _ANYONE)
        return
    if decision.isolated:
        kind = RuleKind.BLOCK if decision.blocked else RuleKind.CONNECTIVITY
        yield _Reason(kind, _rule(kind, why.get(kind)), _ANYONE, _line(why.get(kind)))
        return
    for source in may_drop(decision, policy, inward, ruled=ruled):
        because = why.get(source.kind)
        match source.kind:
            case RuleKind.SLICE if decision.slice is not None:
                others = f"jobs outside the slice {decision.slice.value}"
                yield _Reason("slice", _rule("slice", because), others, _line(because), source)
            case RuleKind.SLICE:
                line = policy.slices[0].line
                words = f"slice: the job is in none (policy line {line})"
                yield _Reason("slice", words, "jobs of slices", line, source)
            case RuleKind.WAN:
                yield _Reason("wan", _rule("wan drop", because), "the WAN", _line(because), source)
            case RuleKind.CONNECTIVITY:
                others = "anyone, by a new connection"
                yield _Reason("connectivity", _rule("connectivity", because), others, _line(because), source)


def _line(because: Because | None) -> int | None:
    return None if because is None else because.line


def _rule(words: str, because: Because | None) -> str:
    if because is None:
        return words
    when = f" when {because.when}" if because.when not in ("", "true") else ""
    return f"{words}{when} (policy line {because.line})"


def _drop(
    job: Job, name: str, dropping: Dropping, reason: _Reason, packets: float, inward: bool, estimated: bool
) -> Drop:
    own = f"job {name} of {job.owner}"
    return Drop(
        packets_per_second=round(packets, 2),
        source=reason.other if inward else own,
        destination=own if inward else reason.other,
        rule=reason.rule,
        kind=str(reason.kind),
        direction="in" if inward else "out",
        at=dropping.at,
        estimated=estimated,
        line=reason.line,
        job=job.id,
        name=name,
        global_job_id=job.run.global_job_id,
        owner=job.owner,
        group=dropping.group,
        host=job.host,
        datapath=None if job.datapath is None else dpid_text(job.datapath),
    )


def _of_group(drop: CoreDrop, policy: Policy) -> Drop:
    line = next((group.line for group in policy.groups if group.name == drop.group), None)
    return Drop(
        packets_per_second=round(drop.packets, 2),
        source=f"jobs of the group {drop.group}",
        destination="the WAN, or from there to them",
        rule=f"the group's queue or meter is full (policy line {line})",
        kind="group",
        direction="out",
        at=drop.at,
        line=line,
        group=drop.group,
        datapath=dpid_text(drop.datapath),
    )

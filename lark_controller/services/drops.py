"""The packets that are dropped now: sender, receiver, rule and rate. Called by REST threads.

The counting flows give the job, the shared flows before them the rule. Where one rule alone may drop a job's
packets, that is the answer. Otherwise the job's drops are shared out by how many each rule drops at its
switch, without those of jobs there that this rule alone may drop packets of: exact where none is left but this job's,
and an estimate where others are. A worker that enforces rules itself counts no rule apart: they have even shares there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from lark_common.worker_rules import RULED
from lark_controller.accounting.drops import Dropping
from lark_controller.accounting.ledger import Ledger
from lark_controller.api.drops import Drop, DropList, DropsByDown
from lark_controller.flows.drop_sources import DropSource, are_several, may_drop
from lark_controller.flows.placed_jobs import is_uncounted
from lark_controller.flows.placement import Placed
from lark_controller.flows.wan_down import DownWay, DownWays
from lark_controller.policies.model import Accounting, Because, Decision, Policy, RuleKind
from lark_controller.reconcile.core_drops import CoreDrop, CoreDrops
from lark_controller.reconcile.reconciler import Reconciler
from lark_controller.reconcile.switch import dpid_text
from lark_controller.services.job_names import live_names

_ANYONE: Final = "anyone"
# Of one user at most so many jobs are looked at.
_OWN: Final = 10_000
# Of all jobs so many at most are looked at, those with the most drops: where very many have theirs from several rules
# each, every answer would look at all of them.
_LOOKED_AT: Final = 10_000
# As many as drop anything.
_ALL: Final = 1 << 30
# Counters of jobs and of rules are read a moment apart: what is left of a rule's is nothing below this part of it.
_BLUR: Final = 0.05


class _Reason(NamedTuple):
    """Something that may drop a job's packets: the other end in words, the rule in words, and its flows' source."""

    kind: str
    rule: str
    other: str
    line: int | None = None
    source: DropSource | None = None


class _There(NamedTuple):
    """The drops at some switches by their sources: those of jobs that one rule alone may drop packets of, those of all
    jobs in a direction, and the number of jobs with several such rules in it."""

    known: Mapping[tuple[int, DropSource], float]
    whole: Mapping[tuple[int, bool], float]
    several: Mapping[tuple[int, bool], int]

    def left(self, datapath: int, inward: bool, counted: Mapping[DropSource, int]) -> dict[DropSource, float]:
        """The packets a second of each source that jobs with several dropped."""
        own = {source: packets for source, packets in counted.items() if source.inward is inward}
        scale = self.whole.get((datapath, inward), 0.0) / (sum(own.values()) or 1)
        rates = {source: packets * scale for source, packets in own.items()}
        less = {source: rate - self.known.get((datapath, source), 0.0) for source, rate in rates.items()}
        return {source: rate for source, rate in less.items() if rate > rates[source] * _BLUR}

    def is_shared(self, datapath: int, inward: bool, sources: Iterable[DropSource]) -> bool:
        """True where other jobs' packets were dropped by these sources, too."""
        alone = self.several.get((datapath, inward), 0) <= 1
        return not alone or any((datapath, source) in self.known for source in sources)


# A job without a rule that drops anything, whose switch has dropped packets all the same.
_SOME: Final = _Reason("policy", "a rule of the policy", _ANYONE)
# Packets that were counted, or a part of them, before the policy in force was: no rule of it dropped them.
_BEFORE: Final = _Reason("policy", "a rule of the policy before the one in force", _ANYONE)
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
        whole, cores = self._ledger.drop_sum(), self._core_drops.now()
        policy = self._reconciler.desired.policy
        groups = _first([_of_group(each, policy) for each in cores], limit)
        found = self._first_of_jobs(limit, groups) if limit else []
        packets = whole.packets + sum(each.packets for each in cores)
        unknown = self.away(), self.uncounted(), self.unread(), self.cores_unread()
        groups_there = len({each.group for each in cores})
        return DropList(tuple(found), whole.jobs, packets, *unknown, groups=groups_there, down=self._down())

    def of_job(self, limit: int, job_id: str) -> DropList:
        """The drops of now of one job, by rule; nothing of one that is over."""
        job = self._reconciler.directory.by_id.get(job_id)
        placed = None if job is None else self._reconciler.desired.placed.get(job.number)
        if placed is None:
            return DropList((), 0, 0.0)
        number = placed.job.number
        chosen = self._ledger.dropping(1, lambda each: each.number == number)
        found = _first(self._listed(chosen), limit)
        packets = sum(sum(each.rate) for each in chosen)
        unread = self._ledger.unread(lambda each: each == number)
        uncounted, down = int(is_uncounted(placed)), self._down_of([placed])
        return DropList(tuple(found), len(chosen), packets, uncounted=uncounted, unread=unread, down=down)

    def _first_of_jobs(self, limit: int, groups: list[Drop]) -> list[Drop]:
        """The ``limit`` most of the drops of all jobs and of these."""
        looked_at = min(limit, _LOOKED_AT)
        while True:
            chosen = self._ledger.dropping(looked_at)
            found = _first([*self._listed(chosen), *groups], limit)
            # No drop of a job that was not looked at is more than the most of the last one's, of all rules together.
            rest = round(max(chosen[-1].rate), 2) if len(chosen) == looked_at else 0.0
            least = found[-1].packets_per_second if len(found) == limit else 0.0
            if least >= rest or looked_at == _LOOKED_AT:
                return found
            looked_at = min(4 * looked_at, _LOOKED_AT)

    def _listed(self, chosen: Iterable[Dropping]) -> list[Drop]:
        """The drops of these jobs by rule."""
        # In this order: of a change in between, nothing is said to be of its rules.
        desired = self._reconciler.desired
        changed_at = self._reconciler.pair.changed_at
        live = [(each, placed) for each in chosen if (placed := desired.placed.get(each.number)) is not None]
        there = self._there(live, desired.policy)
        names = live_names(placed.job for _, placed in live)
        return [
            drop
            for each, placed in live
            for drop in self._of_job(each, placed, names, None if each.since < changed_at else desired.policy, there)
        ]

    def away(self) -> int:
        """The number of switches, declared or connected once, that are not connected now."""
        states = self._reconciler.switches
        known = {*list(states), *self._reconciler.desired.policy.switches}
        return sum((state := states.get(each)) is None or state.link is None for each in known)

    def uncounted(self, owner: str | None = None) -> int:
        """The number of live jobs with a network, of all users or of one, whose use the policy in force does not
        count."""
        desired = self._reconciler.desired
        if owner is None or not desired.uncounted:
            return desired.uncounted
        return sum(placed.job.owner == owner and is_uncounted(placed) for placed in list(desired.placed.values()))

    def unread(self, owner: str | None = None) -> int:
        """The number of live jobs with a network, of all users or of one, whose rates and drops are not known now."""
        if owner is None:
            return self._ledger.unread()
        placed = self._reconciler.desired.placed

        def is_own(number: int) -> bool:
            known = placed.get(number)
            return known is not None and known.job.owner == owner

        return self._ledger.unread(is_own)

    def cores_unread(self) -> int:
        """The number of connected cores of which it is not known what they drop of groups now."""
        return self._core_drops.unread()

    def _of_owner(self, limit: int, owner: str) -> DropList:
        placed = self._reconciler.desired.placed

        def is_own(each: Dropping) -> bool:
            known = placed.get(each.number)
            return known is not None and known.job.owner == owner

        chosen = self._ledger.dropping(_OWN, is_own)
        found = _first(self._listed(chosen), limit)
        packets = sum(sum(each.rate) for each in chosen)
        uncounted, unread, down = self.uncounted(owner), self.unread(owner), self._down_of(self._own(owner))
        return DropList(tuple(found), len(chosen), packets, uncounted=uncounted, unread=unread, down=down)

    def _own(self, owner: str) -> Iterator[Placed]:
        yield from (each for each in list(self._reconciler.desired.placed.values()) if each.job.owner == owner)

    def _down(self) -> tuple[DropsByDown, ...]:
        """The WAN ports by which nothing leaves, with the live jobs that would leave there."""
        desired = self._reconciler.desired
        if not (ways := self._down_ways()):
            return ()
        return _by_port((ways.of(*of), jobs) for of, jobs in list(desired.leaving.items()))

    def _down_of(self, chosen: Iterable[Placed]) -> tuple[DropsByDown, ...]:
        """The same of some jobs."""
        if not (ways := self._down_ways()):
            return ()
        leaving = (each for each in chosen if not each.decision.isolated)
        return _by_port((ways.of(each.decision.wan, each.job.network_type), 1) for each in leaving)

    def _down_ways(self) -> DownWays:
        desired = self._reconciler.desired
        return DownWays(desired.policy, desired.cores())

    def _there(self, chosen: Iterable[tuple[Dropping, Placed]], policy: Policy) -> _There:
        """All drops at the switches with a chosen job that several rules may drop packets of."""
        switches = {
            placed.datapath for _, placed in chosen
            if placed.job.network_type not in RULED and are_several(placed.decision, policy)
        }  # fmt: skip
        known: defaultdict[tuple[int, DropSource], float] = defaultdict(float)
        whole: defaultdict[tuple[int, bool], float] = defaultdict(float)
        several: Counter[tuple[int, bool]] = Counter()
        at = self._reconciler.desired.placed

        def is_there(each: Dropping) -> bool:
            placed = at.get(each.number)
            return placed is not None and placed.datapath in switches

        for each in self._ledger.dropping(_ALL, is_there) if switches else ():
            placed = at.get(each.number)
            if placed is None or placed.datapath is None or placed.job.network_type in RULED:
                continue
            datapath = placed.datapath
            for inward, packets in ((False, each.rate.policy_out), (True, each.rate.policy_in)):
                sources = list(may_drop(placed.decision, policy, inward)) if packets else []
                if sources:
                    whole[datapath, inward] += packets
                    several[datapath, inward] += len(sources) > 1
                if len(sources) == 1:
                    known[datapath, sources[0]] += packets
        return _There(known, whole, several)

    def _of_job(
        self,
        dropping: Dropping,
        placed: Placed,
        names: Mapping[str, str],
        policy: Policy | None,
        there: _There,
    ) -> Iterator[Drop]:
        """A job's drops by rule; ``policy`` is None where another one was in force when they were counted."""
        job, rate = placed.job, dropping.rate
        name = names[job.id]
        counted = self._reconciler.drop_shares.of(placed.datapath)
        for inward, packets in ((False, rate.policy_out), (True, rate.policy_in)):
            if not packets:
                continue
            if policy is None:
                yield _drop(placed, name, dropping, _BEFORE, packets, inward, False)
                continue
            ruled = job.network_type in RULED
            fallback = _OF_WORKER if ruled and not inward else _SOME
            reasons = list(_reasons(placed.decision, policy, inward, ruled=ruled)) or [fallback]
            by_source: Mapping[DropSource, float] = counted.packets
            if ruled or placed.datapath is None:
                by_source = {}
            elif counted.is_of_now:
                by_source = there.left(placed.datapath, inward, counted.packets)
            weights = [0.0 if each.source is None else by_source.get(each.source, 0.0) for each in reasons]
            told_apart = counted.is_of_now and any(weights)
            if not any(weights):
                weights = [1.0] * len(reasons)
            several = sum(weight > 0 for weight in weights) > 1
            left = [each.source for each, weight in zip(reasons, weights, strict=True) if weight and each.source]
            # The rules' counters have the packets of jobs that are not accounted, too.
            unseen = placed.datapath is None or policy.accounting is not Accounting.ALL
            shared = unseen or there.is_shared(placed.datapath or 0, inward, left)
            for reason, weight in zip(reasons, weights, strict=True):
                if weight:
                    share = packets * weight / sum(weights)
                    estimated = several and (not told_apart or shared)
                    yield _drop(placed, name, dropping, reason, share, inward, estimated)
        bandwidth = placed.decision.bandwidth
        limited = bandwidth is not None and bandwidth.rate(job.bandwidth) is not None
        # The rest is divided among jobs that nothing limits, so that guarantees hold.
        most = "its rate" if limited else "its part of what no job has requested"
        for inward, packets in ((False, rate.rate_out), (True, rate.rate_in)):
            if packets:
                queue = "its own queue is full: " + (
                    f"more is sent to it than {most}" if inward else "it sends faster than its rate"
                )
                yield _drop(placed, name, dropping, _Reason("rate", queue, _ANYONE), packets, inward, False)


def _by_port(found: Iterable[tuple[DownWay | None, int]]) -> tuple[DropsByDown, ...]:
    """The ports with their jobs, the most first."""
    jobs: Counter[DownWay] = Counter()
    for way, count in found:
        if way is not None and count:
            jobs[way] += count
    return tuple(DropsByDown(*way, count) for way, count in jobs.most_common())


def _first(drops: list[Drop], limit: int) -> list[Drop]:
    """The ``limit`` most, the most first."""
    return sorted(drops, key=lambda each: (-each.packets_per_second, each.job or "", each.rule))[:limit]


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
    placed: Placed, name: str, dropping: Dropping, reason: _Reason, packets: float, inward: bool, estimated: bool
) -> Drop:
    job = placed.job
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
        datapath=None if placed.datapath is None else dpid_text(placed.datapath),
    )


def _of_group(drop: CoreDrop, policy: Policy) -> Drop:
    line = next((group.line for group in policy.groups if group.name == drop.group), None)
    jobs = f"jobs of the group {drop.group}"
    spec = policy.switches.get(drop.datapath)
    outward = "the WAN, or from there to them" if drop.inward is None else "the WAN"
    return Drop(
        packets_per_second=round(drop.packets, 2),
        source="the WAN" if drop.inward else jobs,
        destination=jobs if drop.inward else outward,
        rule=f"the group's queue or meter is full (policy line {line})",
        kind="group",
        direction="in" if drop.inward else "out",
        at=drop.at,
        line=line,
        group=drop.group,
        datapath=dpid_text(drop.datapath),
        switch=None if spec is None else spec.name,
    )

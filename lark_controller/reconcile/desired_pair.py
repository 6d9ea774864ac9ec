"""The desired state in force and, while a policy changes, the one that comes. For the reconcile loop's thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import Final, NamedTuple

from lark_common.errors import RuleLimitError, UnsupportedError
from lark_controller.flows.desired import Desired
from lark_controller.flows.external_jobs import no_room
from lark_controller.flows.live_addresses import left_out, live_addresses
from lark_controller.flows.model import Changes
from lark_controller.flows.placement import Placed, Switch
from lark_controller.flows.transition import places_alike
from lark_controller.flows.worker_rules import unsupported
from lark_controller.jobs.job import Facts, Job
from lark_controller.policies.decide import Decider
from lark_controller.policies.model import Decision, Policy
from lark_controller.qos.worker_queues import Claim
from lark_controller.reconcile.pace import Pace
from lark_controller.reconcile.prepared import PreparedDirectory

# Jobs that are decided anew before other work may go ahead, and pairs of facts and decisions that are remembered.
_A_STEP: Final = 16
_REMEMBERED: Final = 65_536
# By desired state (0: in force, 1: coming), then by datapath.
PairChanges = dict[int, dict[int, Changes]]
PlacedSwitch = tuple[Switch, tuple[str, ...]]


class KnownSwitch(NamedTuple):
    """A switch that has been connected, to be ``placed`` by a policy with its workers' names, and whether it is now."""

    placed: Callable[[], PlacedSwitch]
    connected: bool


class DesiredPair:
    """One desired state, or two while switches go over from one policy to the next one by one (``moved``)."""

    def __init__(self, policy: Policy, prepared: PreparedDirectory | None = None) -> None:
        self.desired = Desired(policy) if prepared is None else prepared.desired
        self.decider = Decider(policy) if prepared is None else prepared.decider
        self.moved: set[int] = set()
        self._coming: tuple[Desired, Decider] | None = None
        self._changed_at = 0.0

    def all(self) -> list[tuple[Desired, Decider]]:
        """Every desired state with its decider, the one in force first."""
        now = [(self.desired, self.decider)]
        return now if self._coming is None else [*now, self._coming]

    def of(self, datapath: int) -> Desired:
        """The desired state whose program a switch holds."""
        # Asked for from other threads, too.
        coming = self._coming
        return coming[0] if coming is not None and datapath in self.moved else self.desired

    @property
    def changing(self) -> bool:
        """True while a policy changes."""
        return self._coming is not None

    @property
    def changed_at(self) -> float:
        """The time when the last switch had gone over to the policy in force (seconds since 1970), infinite while
        switches go over: readings that began before are of the policy before."""
        return inf if self.moved else self._changed_at

    @property
    def coming(self) -> Desired:
        """The desired state of a prepared policy."""
        assert self._coming is not None
        return self._coming[0]

    def admit(self, job: Job, old: Job | None) -> PairChanges:
        """Put a job into every desired state, or into none; ``old`` is what it was before.

        Raises RuleLimitError or UnsupportedError, of whichever switch.
        """
        changes: PairChanges = {}
        done: list[tuple[Desired, Decider]] = []
        try:
            for place, (desired, decider) in enumerate(self.all()):
                decision = decider.of(job)
                _check_support(desired, job, decision)
                # Declared switches are few, whatever the number of workers.
                limited = [datapath for datapath, spec in desired.policy.switches.items() if spec.max_rules]
                counts = {datapath: desired.rules.get(datapath, 0) for datapath in limited}
                before = desired.placed.get(job.number)
                changes[place] = desired.put(job, decision)
                done.append((desired, decider))
                if limited:
                    _check_limits(desired, counts, changes[place], before)
        except (RuleLimitError, UnsupportedError):
            for desired, decider in done:
                if old is None:
                    desired.remove(job.number)
                else:
                    desired.put(old, decider.of(old))
            raise
        return changes

    def set_queue(self, claim: Claim, queue: int | None, job: int | None) -> PairChanges:
        """Set whether a queue through which ``job`` sends stands; returns the changes in each state."""
        changes = {place: desired.set_queue(claim, queue, job) for place, (desired, _) in enumerate(self.all())}
        return {place: change for place, change in changes.items() if change}

    def set_group_queues(self, datapath: int, dscps: frozenset[int]) -> PairChanges:
        """Set the groups whose queues stand on a core; returns the changes in each state."""
        changes = {place: desired.set_group_queues(datapath, dscps) for place, (desired, _) in enumerate(self.all())}
        return {place: {datapath: change} for place, change in changes.items() if change}

    def remove(self, number: int) -> PairChanges:
        """Take a job out of every desired state."""
        return {place: desired.remove(number) for place, (desired, _) in enumerate(self.all())}

    def refuse_external(self, datapath: int, number: int, reason: str) -> PairChanges:
        """Let a job's external address be none of a switch, which refuses it."""
        return {
            place: desired.refuse_external(datapath, number, reason) for place, (desired, _) in enumerate(self.all())
        }

    def try_external(self, datapath: int, number: int) -> PairChanges:
        """Let a switch have a job's external address that it refused before, if it has room by now."""
        changes: PairChanges = {}
        for place, (desired, _) in enumerate(self.all()):
            changes[place] = desired.try_external(datapath, number)
            switch = desired.switches.get(datapath)
            if switch is not None and 0 < switch.max_rules < desired.rules.get(datapath, 0):
                desired.refuse_external(datapath, number, no_room(switch))
                changes[place] = {}
        return changes

    def expect_refusal(self, job: Job, reason: str) -> bool:
        """Let a job's edge not open the address that it is to be put with; False where that is so already."""
        datapath = self.desired.datapath_of(job)
        if job.opened is None or datapath is None:
            return False
        news = {desired.expect_refusal(datapath, job, reason) for desired, _ in self.all()}
        return True in news

    def external_moved(self) -> Iterator[int]:
        """Take the jobs of which an external address may be open or closed unlike before, by the policy in force."""
        while self.desired.moved:
            yield self.desired.moved.pop()

    async def prepare(self, policy: Policy, switches: Callable[[], Mapping[int, KnownSwitch]]) -> None:
        """Build the desired state of a new policy beside the one in force; jobs that come meanwhile enter both.

        ``switches`` gives the known switches, each to be placed by the new policy. Raises RuleLimitError or
        UnsupportedError where connected ones cannot enforce the policy; nothing has changed then.
        """
        decider = Decider(policy)
        # Before other work may go ahead: a job that comes in between would be left out.
        now = self.desired
        live = live_addresses(policy, (placed.job for placed in now.placed.values()), now.policy, now.closed)
        live.check()
        policy = live.enforced()
        follows = places_alike(self.desired.policy, policy)
        desired = Desired.following(policy, self.desired) if follows else Desired(policy, self.desired)
        desired.closed = live.closed()
        self._coming = (desired, decider)
        try:
            pace = Pace()
            for _ in self._decisions(desired, decider, follows=follows):
                await pace.step()
            for _ in desired.move_labels():
                await pace.step()
            known = switches()
            for datapath, switch in known.items():
                if not follows:
                    desired.place_switch(*switch.placed(), self.desired.with_room(datapath))
                    await pace.step()
                elif desired.switches[datapath].max_rules:
                    desired.fit(datapath)
            for _ in _check_whole(desired, [datapath for datapath, each in known.items() if each.connected]):
                await pace.step()
        except BaseException:
            self._coming = None
            raise

    def _decisions(self, desired: Desired, decider: Decider, *, follows: bool) -> Iterator[None]:
        """Decide every job that is there by another policy, some a step."""
        again, every = _Again(decider), desired.enters_all
        for count, number in enumerate(list(self.desired.placed), 1):
            placed = self.desired.placed.get(number)
            if placed is not None and follows:
                decision = again.of(placed)
                # A decision that is the same stands in both states, also of a job that was put meanwhile.
                if every or decision is not placed.decision:
                    desired.decide_anew(number, decision)
            elif placed is not None:
                desired.put(placed.job, decider.of(placed.job))
            if count % _A_STEP == 0:
                yield

    def abandon(self) -> None:
        """Forget a prepared policy, which no switch holds."""
        self._coming = None
        self.moved = set()

    def finish(self) -> None:
        """Put the coming state in force, once all switches have gone over."""
        assert self._coming is not None
        self._changed_at = time.time()
        self.desired, self.decider = self._coming
        self._coming = None
        self.moved = set()


class _Again:
    """The decisions of another policy for jobs that are there: equal facts with one decision are looked at once.

    A decision that is the same as before is the same object.
    """

    def __init__(self, decider: Decider) -> None:
        self._decider = decider
        # By identity of facts and decision, which are kept here as long as their identities.
        self._known: dict[tuple[int, int], tuple[Facts, Decision, Decision]] = {}

    def of(self, placed: Placed) -> Decision:
        """The decision for a job."""
        job, before = placed.job, placed.decision
        known = None if job.quarantine else self._known.get((id(job.facts), id(before)))
        if known is not None:
            return known[2]
        decision = self._decider.of(job)
        if decision == before:
            decision = before
        if not job.quarantine:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[id(job.facts), id(before)] = job.facts, before, decision
        return decision


def _check_support(desired: Desired, job: Job, decision: Decision) -> None:
    if why := unsupported(desired.policy, job, decision):
        raise UnsupportedError(why)
    # It was posted by the policy before; those that were there when this one came stay under their slices.
    if job.number not in desired.placed and (why := left_out(desired.policy, job)):
        raise UnsupportedError(why)
    datapath = desired.datapath_of(job)
    switch = None if datapath is None else desired.switches.get(datapath)
    if switch is not None and decision.one_way and not switch.tracks:
        raise UnsupportedError(
            f"switch {switch.name} has no connection tracking, which one-way connectivity "
            f"(inbound {decision.inbound}, outbound {decision.outbound}) needs"
        )


def _check_limits(desired: Desired, counts: dict[int, int], changes: dict[int, Changes], before: Placed | None) -> None:
    for datapath, was in counts.items():
        if datapath not in changes:
            continue
        switch, wanted = desired.switches[datapath], desired.rules.get(datapath, 0)
        if switch.max_rules and wanted > switch.max_rules and wanted > was:
            raise RuleLimitError(
                f"switch {switch.name} takes {switch.max_rules} rules and has {was}; this job "
                f"{'needs' if before is None else 'would need'} {wanted - was} more"
            )


def _check_whole(desired: Desired, connected: Iterable[int]) -> Iterator[None]:
    """Check all jobs that are there, a worker or switch a step; those that come meanwhile are checked on their own."""
    for host in desired.ruled.hosts():
        yield
        for placed in desired.ruled_at(host):
            if why := unsupported(desired.policy, placed.job, placed.decision):
                raise UnsupportedError(f"job {placed.job.called}: {why}")
    for datapath in connected:
        yield
        switch = desired.switches[datapath]
        if switch.max_rules and desired.rules[datapath] > switch.max_rules:
            raise RuleLimitError(
                f"switch {switch.name} takes {switch.max_rules} rules; this policy needs {desired.rules[datapath]}"
            )
        if switch.tracks:
            continue
        for placed in desired.jobs_at(datapath):
            if placed.tracked:
                raise UnsupportedError(
                    f"switch {switch.name} has no connection tracking, which one-way connectivity of job "
                    f"{placed.job.called} needs"
                )

"""The plan of a policy change: which jobs and switches it would change. May run on any thread.

Whoever may read may have plans made, of policies of any kind. So the work of one has an end, and other threads of the
process have at least half of the time meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from lark_common.errors import AdError, BusyError, RuleLimitError
from lark_common.runs import AddressType, names
from lark_controller.api.policy import Effect, JobChange, Plan, SwitchPlan
from lark_controller.flows import core
from lark_controller.flows.desired import Desired
from lark_controller.flows.diff import diff
from lark_controller.flows.live_addresses import Closed, LiveAddresses, left_out, live_addresses
from lark_controller.flows.model import Changes, Program
from lark_controller.flows.placement import Placed, Switch, cut_off
from lark_controller.flows.text import flow_text
from lark_controller.flows.worker_rules import unsupported
from lark_controller.jobs.job import Job
from lark_controller.policies.decide import Decider
from lark_controller.policies.model import Decision, Policy, Reach
from lark_controller.reconcile.policy_change import BothPlaces
from lark_controller.services.described_job import check_networks, check_switch
from lark_controller.services.external_rules import kept
from lark_controller.services.plan_differences import Differences

SAMPLE = 20
MAX_JOBS = 200
MAX_EFFECTS = 50
# With 200,000 jobs a plan takes some ten seconds, and minutes where it names attributes that no policy named before.
MAX_SECONDS: Final = 300.0
# Characters of the values that it keeps: facts for new attributes, and reasons of new decisions. A policy may name any
# attributes, and an ad may have a hundred of a thousand characters.
MAX_CHARACTERS: Final = 256 << 20
# Other threads wait for this one no longer than this, and then have as long; a step may be longer.
_SLICE: Final = 0.002
_LONGEST_REST: Final = 0.02


class Pace:
    """Work in small steps: it rests as long as it works, and ends after a time, or where it keeps too much."""

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        rest: Callable[[float], None] = time.sleep,
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._rest = rest
        self._since = clock()
        self._end = self._since + seconds
        self._kept = 0

    def keep(self, characters: int) -> None:
        """Call with the characters of values that are kept until the end, between steps. Raises BusyError."""
        self._kept += characters
        if self._kept > MAX_CHARACTERS:
            raise BusyError(f"the plan keeps more than {MAX_CHARACTERS >> 20} MB of attributes, and has been given up")
        self.step()

    def step(self) -> None:
        """Call between steps. Raises BusyError when the time is over."""
        now = self._clock()
        if now > self._end:
            raise BusyError(f"the plan takes more than {self._seconds:g} s, and has been given up")
        if now - self._since >= _SLICE:
            self._rest(min(now - self._since, _LONGEST_REST))
            self._since = self._clock()


def plan(
    before: Desired,
    after: Desired,
    jobs: Sequence[Job],
    switches: Iterable[BothPlaces],
    pace: Pace | None = None,
    live: LiveAddresses | None = None,
    away: Mapping[int, str] = MappingProxyType({}),
) -> Plan:
    """The plan for live jobs and connected switches. ``before`` and ``after`` are the desired states of the old and the
    new policy with what stands now, still without jobs and switches, which they get here. ``live`` are the addresses of
    live jobs that the new policy leaves out, and that of ``after`` has. ``away`` are the declared switches that are not
    connected, by datapath id, with the reasons.

    Raises BusyError where it takes longer than its ``pace``.
    """
    pace = Pace(MAX_SECONDS) if pace is None else pace
    old, new = before.policy, after.policy
    places = sorted(switches, key=lambda each: each.then.name)
    was = _fill(before, jobs, [each._replace(then=each.now) for each in places], pace)
    will = _fill(after, jobs, places, pace)
    losses: dict[int, tuple[str, ...]] = {}
    for job in jobs:
        if job.external and (keeps := kept(new, job)).losses:
            pace.step()
            # As the change has it: addresses are judged once the policy is in force.
            after.put(replace(job, external=keeps.external), will[job.number])
            losses[job.number] = keeps.losses
    differences = Differences(old, new)
    changed = [
        JobChange(job.id, job.owner, found, job.cluster, job.proc, job.run.global_job_id)
        for job in _paced(jobs, pace)
        if (
            found := (
                *differences.of(job, was[job.number], will[job.number]),
                *losses.get(job.number, ()),
                *_closed(before, after, job),
                *_placed(before, after, job),
                *_awaited(before, after, job, away),
            )
        )
    ]
    plans = []
    then = [each.then for each in places]
    given = new if live is None else live.policy
    warnings = [*_turned_away(given, jobs, pace), *_left_out(given, new, jobs, pace)]
    warnings += [*_untracked(new, then), *_cut_off(new, then)]
    refusals = [
        f"job {placed.job.called}: {why}"
        for host in after.ruled.hosts()
        for placed in after.ruled_at(host)
        if (why := unsupported(new, placed.job, placed.decision))
    ][:MAX_JOBS]
    try:
        if live is not None:
            live.check()
    except RuleLimitError as error:
        refusals.append(str(error))
    for switch in then:
        pace.step()
        program, there = after.build(switch.datapath), before.build(switch.datapath)
        changes = diff(program, there)
        if switch.max_rules and len(program.flows) > switch.max_rules:
            refusals.append(
                f"switch {switch.name} takes {switch.max_rules} rules; this policy needs {len(program.flows)}"
            )
        if not switch.tracks and any(placed.tracked for placed in after.jobs_at(switch.datapath)):
            refusals.append(
                f"switch {switch.name} has no connection tracking, which one-way connectivity of its jobs needs"
            )
        # A switch that does not keep all of a policy has it in force all the same.
        warnings += [f"switch {switch.name}: {sentence}" for sentence in core.remarks(switch, new)]
        if changes:
            plans.append(_switch_plan(switch, changes, program, there))
    return Plan(
        new.digest,
        len(jobs),
        len(changed),
        _effects(changed),
        tuple(changed[:MAX_JOBS]),
        tuple(plans),
        tuple(refusals),
        tuple(warnings),
    )


def _turned_away(policy: Policy, jobs: Sequence[Job], pace: Pace) -> Iterator[str]:
    """Warns where live jobs could not be posted under a policy as they are."""
    count, such = 0, ""
    for job in jobs:
        pace.step()
        try:
            # Those of the controller have others then.
            if job.address_type is not AddressType.CONTROLLER:
                check_networks(policy, job)
            check_switch(policy, job)
        except AdError as error:
            count += 1
            such = such or f"{job.called} of {job.owner}: {error.reason}"
    if count:
        yield f"{count} of {len(jobs)} live jobs would be refused if they started now, such as {such}"


def left_out_switches(away: Sequence[str]) -> Iterator[str]:
    """Warns of the switches that are away, by name: a plan has those that are connected alone."""
    if away:
        count = "1 switch is away," if len(away) == 1 else f"{len(away)} switches are away, such as"
        yield f"{count} {away[0]}: what changes there is not counted"


def left_out_of(policy: Policy, jobs: Iterable[Job], known: Policy, before: Closed, pace: Pace) -> LiveAddresses:
    """As :func:`~lark_controller.flows.live_addresses.live_addresses`. Raises BusyError where it takes too long."""
    return live_addresses(policy, _paced(jobs, pace), known, before)


def _paced(jobs: Iterable[Job], pace: Pace) -> Iterator[Job]:
    for job in jobs:
        pace.step()
        yield job


def _left_out(given: Policy, policy: Policy, jobs: Sequence[Job], pace: Pace) -> Iterator[str]:
    """Warns where live jobs keep addresses outside of the networks that slices close; ``policy`` has them."""
    if policy is given:
        return
    count = 0
    for job in jobs:
        pace.step()
        count += bool(left_out(given, job))
    what = "networks.jobs leaves out or networks.hosts has" if given.job_networks else "are not in networks.local"
    yield f"{count} of {len(jobs)} live jobs keep addresses that {what}: their slices hold for these until the jobs end"


def _untracked(policy: Policy, switches: Iterable[Switch]) -> Iterator[str]:
    """Warns of workers whose switches cannot have one-way jobs, whether there are some now or not."""
    edges = [switch for switch in switches if switch.is_edge]
    lacking = [switch.name for switch in edges if not switch.tracks]
    # Jobs that are open both ways, or closed both ways, need none.
    one_way = any(
        Reach.REQUESTED in (rule.inbound, rule.outbound) or rule.inbound is not rule.outbound
        for rule in policy.connectivities
    )
    if lacking and one_way:
        yield (
            f"a job that may only call, or only be called, is refused at {len(lacking)} of {len(edges)} switches of"
            f" workers, which have no connection tracking, such as {lacking[0]}"
        )


def _cut_off(policy: Policy, switches: Iterable[Switch]) -> Iterator[str]:
    """Warns of workers whose switches have no uplink as the policy describes them."""
    edges = [switch for switch in switches if switch.is_edge]
    lost = [switch for switch in edges if cut_off(switch, policy)]
    if lost:
        yield (
            f"{len(lost)} of {len(edges)} switches of workers would be cut off from all others, such as {lost[0].name}:"
            f" {cut_off(lost[0], policy)}"
        )


def _closed(before: Desired, after: Desired, job: Job) -> Iterator[str]:
    """The external addresses of a job that a switch would not have any more."""
    if job.external:
        known = before.why_closed(job.number)
        for address, why in after.why_closed(job.number).items():
            if address not in known:
                yield f"external address {address} is closed: {why}"


def _placed(before: Desired, after: Desired, job: Job) -> Iterator[str]:
    """The place at a switch that a job would have, where that is another one, or none."""
    was, will = before.placed[job.number], after.placed[job.number]
    here = will.datapath
    if (was.datapath, was.port) == (here, will.port):
        return
    if here is None:
        yield "is at no switch any more"
        return
    switch, spec = after.switches.get(here), after.policy.switches.get(here)
    if was.datapath != here:
        name = spec.name if spec is not None else f"{here:016x}" if switch is None else switch.name
        yield f"is at switch {name}"
    if will.port is not None:
        if was.datapath == here:
            yield "has a port at its switch"
    elif switch is not None:
        yield f"has no port at its switch: {switch.why_no_job_port(job.port)}"


def _awaited(before: Desired, after: Desired, job: Job, away: Mapping[int, str]) -> Iterator[str]:
    """The switches that are not connected for which a job would be pending, and those for which it would no longer."""
    # A quarantined job is pending for none.
    if not away or job.quarantine:
        return
    was, will = (_needed(each, each.placed[job.number]) & away.keys() for each in (before, after))
    for datapath in sorted(will - was):
        yield f"is pending, as switch {_name(after, datapath)} {away[datapath]}"
    for datapath in sorted(was - will):
        yield f"no longer waits for switch {_name(before, datapath)}, which {away[datapath]}"


def _needed(desired: Desired, placed: Placed) -> set[int]:
    """The switches, connected or not, that a job needs."""
    return desired.needed_cores(placed) | ({placed.datapath} if placed.datapath is not None else set[int]())


def _name(desired: Desired, datapath: int) -> str:
    spec = desired.policy.switches.get(datapath)
    return f"{datapath:016x}" if spec is None else spec.name


def _effects(changed: Iterable[JobChange]) -> tuple[Effect, ...]:
    """The changes of many jobs, each once with the number of its jobs, the most first."""
    alike: dict[tuple[str, ...], list[JobChange]] = {}
    for change in changed:
        alike.setdefault(change.changes, []).append(change)
    # Those with as many jobs stay in their order.
    shown = sorted(alike.items(), key=lambda item: -len(item[1]))[:MAX_EFFECTS]
    examples = [same[0] for _, same in shown]
    named = names((each.job_id, f"{each.cluster}.{each.proc}", each.global_job_id) for each in examples)
    return tuple(
        Effect(changes, len(same), len({each.owner for each in same}), named[example.job_id], example.owner)
        for (changes, same), example in zip(shown, examples, strict=True)
    )


def _fill(desired: Desired, jobs: Sequence[Job], places: Iterable[BothPlaces], pace: Pace) -> dict[int, Decision]:
    """Put jobs, and switches as they are placed then; returns what is decided of each job."""
    decider = Decider(desired.policy, pace.step)
    decisions: dict[int, Decision] = {}
    # Many jobs have one decision.
    known: set[int] = set()
    for job in jobs:
        decision = decisions[job.number] = decider.of(job)
        pace.keep(0 if id(decision) in known else decision.size)
        known.add(id(decision))
        desired.put(job, decision)
    for each in places:
        pace.step()
        desired.place_switch(each.then, each.hosts, each.with_room)
    return decisions


def _switch_plan(switch: Switch, changes: Changes, program: Program, there: Program) -> SwitchPlan:
    fresh = [flow for flow in changes.flows_set if flow.key not in there.flows]
    lines = [f"+ {flow_text(flow.key, flow.data)}" for flow in changes.flows_set]
    lines += [f"- {flow_text(key, there.flows[key])}" for key in changes.flows_gone]
    return SwitchPlan(
        f"{switch.datapath:016x}",
        switch.name,
        len(fresh),
        len(changes.flows_set) - len(fresh),
        len(changes.flows_gone),
        len(program.flows),
        switch.max_rules,
        tuple(lines[:SAMPLE]),
        len(changes.meters_set) + len(changes.meters_gone),
    )

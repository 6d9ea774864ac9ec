"""The state of each live job, which follows from its confirmations. For the reconcile loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from lark_common.log import WARNING, event
from lark_common.runs import Address, NetworkType
from lark_controller.api.audit import Happening
from lark_controller.flows.desired import Desired
from lark_controller.flows.placement import Placed
from lark_controller.jobs.external import closed_sentence
from lark_controller.jobs.job import Job, JobState, Standing, in_state
from lark_controller.policies.model import Decision, RuleKind
from lark_controller.reconcile.confirmations import (
    NO_SWITCH,
    TRANSLATED,
    Awaited,
    FlowsAt,
    NoSwitch,
    QueuesAt,
    RulesAt,
    Translated,
)
from lark_controller.reconcile.gateways import NOT_YET, Gateways
from lark_controller.reconcile.queue_obstacles import BEING_MADE, NoQueue
from lark_controller.reconcile.queues import Queues
from lark_controller.reconcile.state import LoopState
from lark_controller.reconcile.switch import SwitchState
from lark_controller.reconcile.workers import NOT_YET as RULES_NOT_YET

# Jobs that are settled before other work gets its turn of the loop.
_AT_ONCE: Final = 100


class Progress:
    """All live jobs' progress. ``on_state`` is called with every job whose state changed, or that of its reserved
    flows."""

    def __init__(self, loop: LoopState, queues: Queues, gateways: Gateways, on_state: Callable[[Job], None]) -> None:
        self._loop = loop
        self._queues = queues
        self._gateways = gateways
        # By the job's number, what its external address waits for as far as it is in the audit trail.
        self._noted: dict[int, tuple[str, ...]] = {}
        self._on_state = on_state
        self._naming: set[asyncio.Task[None]] = set()

    def expect(self, job: Job) -> None:
        """Set what a job lacks at the switches that it needs: its own edge, and cores where a WAN rule applies or that
        translate its external address; where none does, at a gateway."""
        loop, seen = self._loop, self._loop.confirmations
        placed = loop.desired.placed[job.number]
        self._gateways.expect(placed)
        for datapath in sorted(loop.desired.needed_cores(placed)):
            if not loop.connected(datapath):
                seen.blocked(job.number, FlowsAt(datapath), loop.why_away(datapath))
        if job.network_type is not NetworkType.OVS_BRIDGE:
            return
        if placed.datapath is None:
            seen.blocked(job.number, NO_SWITCH, f"no switch is known for host {job.host}")
            return
        if not loop.connected(placed.datapath):
            seen.blocked(job.number, FlowsAt(placed.datapath), loop.why_away(placed.datapath))
        elif placed.port is None:
            why = loop.desired.switches[placed.datapath].why_no_job_port(job.port)
            seen.blocked(job.number, FlowsAt(placed.datapath), why)
        # Only now, or callers were told for a moment that it waits for nothing.
        seen.confirmed(job.number, NO_SWITCH)
        self._queues.expect(placed)

    def follow(self, was: Placed, before: Desired) -> None:
        """Set what a job lacks by another policy, which has been put in force, where its place is another one than
        ``before``, or the cores are that its external address needs."""
        loop, seen, number = self._loop, self._loop.confirmations, was.job.number
        now = loop.desired.placed.get(number)
        if now is None:
            return
        here = now.datapath
        moved = (was.datapath, was.port) != (here, now.port)
        # The reason why its switch has no port for it may be another one.
        portless = here is not None and now.port is None and loop.connected(here)
        if not (moved or portless or now.job.external):
            return
        needed = loop.desired.needed_cores(now)
        others = bool(now.job.external) and needed != before.needed_cores(was)
        if not (moved or portless or others):
            return
        self.expect(now.job)
        if here is not None and now.port is not None and loop.connected(here):
            own = FlowsAt(here)
            if not seen.under_way(number, own):
                # It was said to have no port here until all switches had gone over.
                seen.confirmed(number, own)
        for datapath in ({was.datapath, *before.policy.cores} - {here, *needed}) if moved or others else ():
            if datapath is not None:
                seen.unneeded(number, FlowsAt(datapath))
        if was.datapath is not None and was.datapath != here:
            seen.unneeded(number, QueuesAt(was.datapath))
        loop.dirty.job(number)

    def expect_all(self, jobs: Iterable[Job]) -> None:
        """:meth:`expect` of jobs of which nothing is known yet: those at one switch mostly lack the same."""
        loop, desired = self._loop, self._loop.desired
        cores = sorted(desired.policy.cores)
        alike: dict[tuple[int, bool], list[Job]] = {}
        # At a switch's port all jobs with one decision are treated alike by cores. Each decision is a placed job's.
        classed_by: dict[int, bool] = {}
        for job in jobs:
            placed = desired.placed[job.number]
            datapath = placed.datapath
            if datapath is None or job.external or job.network_type is not NetworkType.OVS_BRIDGE:
                self.expect(job)
                continue
            classed = classed_by.get(id(placed.decision))
            if classed is None:
                classed = classed_by[id(placed.decision)] = desired.is_classed(placed)
            if (some := alike.get((datapath, classed))) is None:
                some = alike[datapath, classed] = []
            some.append(job)
        for (datapath, classed), some in alike.items():
            needed = [*(cores if classed else ()), datapath]
            if len(set(needed)) < len(needed) or any(map(loop.connected, needed)):
                for job in some:
                    self.expect(job)
                continue
            lacking = [(FlowsAt(each), loop.why_away(each)) for each in needed]
            loop.confirmations.begin([job.number for job in some], lacking)
            for job in some:
                self._queues.expect(desired.placed[job.number])

    async def settle_waiting(self, after: float) -> None:
        """Settle, ``after`` so many seconds, the jobs that still wait, in portions: what is stored of them is then no
        longer so."""
        await asyncio.sleep(after)
        for count, number in enumerate(self._loop.confirmations.open()):
            self._loop.dirty.job(number)
            if count % _AT_ONCE == 0:
                await asyncio.sleep(0)

    def name_others(self, state: SwitchState, numbers: list[int]) -> None:
        """Let jobs that wait for something else than a switch name that as their reason, where they name the switch."""
        if numbers:
            task = asyncio.get_running_loop().create_task(self._name_others(state, numbers))
            self._naming.add(task)
            task.add_done_callback(self._naming.discard)

    async def _name_others(self, state: SwitchState, numbers: list[int]) -> None:
        # All jobs of the pool may wait for a core, and still for their edges.
        named, directory = f"{self._label(FlowsAt(state.datapath))}: ", self._loop.directory
        for count, number in enumerate(numbers):
            if number in self._loop.desired.placed:
                shown = directory.standing(number), directory.reserving.get(number)
                # After this controller's start the store's states stand: who is enforced by them has no such reason.
                if any(
                    each is not None and each.state is not JobState.ENFORCED and named in each.reason for each in shown
                ):
                    self._loop.dirty.job(number)
            if count % _AT_ONCE == 0:
                await asyncio.sleep(0)

    def settle(self, number: int) -> None:
        """Set a job's state by what is confirmed."""
        placed = self._loop.desired.placed.get(number)
        if placed is None:
            return
        job = placed.job
        for datapath, why in self._lacking(number).items():
            self._loop.confirmations.blocked(number, FlowsAt(datapath), why)
        waiting = self._loop.confirmations.waiting(number)
        moving = all(self._moves(what, why) for what, why in waiting.items()) and not self._blocked(number)
        state, reason = state_of(job, waiting, moving=moving, label=self._label)
        directory, closed = self._loop.directory, self._loop.desired.why_closed(number)
        if state is JobState.ENFORCED:
            reason = closed_sentence(closed)
        elif state is JobState.QUARANTINED:
            reason += self._why_not_cut_off(placed, waiting)
        if job.external or number in self._noted:
            self._note_away(placed, waiting if state is JobState.PENDING else {})
        why = next(iter(waiting.values()), "") if state is JobState.PENDING else ""
        directory.set_queueless(number, why.why if isinstance(why, NoQueue) else "")
        flows = self._of_flows(placed, waiting)
        another = directory.set_reserving(number, None if flows == (state, reason) else flows)
        if flows is not None and flows.state is JobState.ENFORCED:
            self._loop.confirmations.flows_settled(number)
        if self._note_closed(job, closed) or another or (state, reason) != directory.standing(number):
            directory.set_standing(number, state, reason)
            self._on_state(directory.now(job))

    def _of_flows(self, placed: Placed, waiting: Mapping[Awaited, str]) -> Standing | None:
        """Tell how far the reserved flows that a job sends are enforced, None where it sends none: its worker's doing
        alone, whatever cores and gateways lack, and the job's own RequestBandwidth."""
        job, own = placed.job, dict[Awaited, str]()
        if all(each.incoming for each in job.reserved):
            return None
        for what, why in waiting.items():
            lacks = self._queues.why_no_flow(placed) if isinstance(what, QueuesAt) else why
            if lacks and not self._is_elsewhere(what, placed):
                own[what] = lacks
        # A worker that is there has the queues of a changed rate in a second or two, and is named once it is late.
        under_way = (why == RULES_NOT_YET or self._moves(what, why) for what, why in own.items())
        moving = all(under_way) and not self._blocked(job.number)
        found = Standing(*state_of(job, own, moving=moving, label=self._label))
        # It has no queue of its own while nothing of it passes, and whoever waits for one is told why.
        nothing = "" if found.state is JobState.QUARANTINED else why_nothing_passes(placed.decision)
        return Standing(JobState.PENDING, nothing) if nothing else found

    def _why_not_cut_off(self, placed: Placed, waiting: Mapping[Awaited, str]) -> str:
        """The end of a sentence on a quarantine that is not in force where the job is: its packets pass as before."""
        for what, why in waiting.items():
            under_way = why == RULES_NOT_YET or self._moves(what, why)
            if not isinstance(what, QueuesAt) and not self._is_elsewhere(what, placed) and not under_way:
                label = self._label(what)
                return f"; not cut off yet, {label}: {why}" if label else f"; not cut off yet: {why}"
        return ""

    @staticmethod
    def _is_elsewhere(what: Awaited, placed: Placed) -> bool:
        return what == TRANSLATED or (isinstance(what, FlowsAt) and what.datapath != placed.datapath)

    def _note_closed(self, job: Job, closed: Mapping[Address, str]) -> bool:
        """Note the external addresses of a job that are closed; returns whether they are others than before."""
        directory = self._loop.directory
        before = directory.closed.get(job.number, {})
        if closed == before:
            return False
        directory.close(job.number, closed)
        has = set(job.external_addresses)
        for address, why in closed.items():
            if before.get(address) != why:
                event("external address closed", level=WARNING, job=job.id, address=address, reason=why)
                self._loop.note(Happening(job.id, "external address closed", f"{address}: {why}"))
        for address in before.keys() & has - closed.keys():
            event("external address open", job=job.id, address=address)
            self._loop.note(Happening(job.id, "external address open", f"{address}: there is room for it now"))
        return True

    def _note_away(self, placed: Placed, waiting: Mapping[Awaited, str]) -> None:
        """Note that a job's external address waits for a gateway, or for a core that was here and is away. One that is
        still to connect has what it had before, after this controller's start."""
        at_gateway = waiting.get(TRANSLATED, NOT_YET)
        found = [] if at_gateway == NOT_YET else [at_gateway]
        for datapath in self._loop.desired.translating(placed):
            known = datapath in self._loop.switches and not self._loop.connected(datapath)
            if known and (why := waiting.get(FlowsAt(datapath))) is not None:
                found.append(f"{self._label(FlowsAt(datapath))}: {why}")
        for text in found:
            if text not in self._noted.get(placed.job.number, ()):
                self._loop.note(Happening(placed.job.id, "external address waits", text))
        if found:
            self._noted[placed.job.number] = tuple(found)
        else:
            self.forget(placed.job.number)

    def forget(self, number: int) -> None:
        """Forget a job that is over."""
        self._noted.pop(number, None)

    def lost(self, state: SwitchState) -> None:
        """Let all jobs of a switch wait: nothing can be sent to it now, for the reason in its state."""
        for placed in self._loop.desired.jobs_at(state.datapath):
            self._loop.confirmations.blocked(placed.job.number, FlowsAt(state.datapath), state.reason)
        for number in self._loop.confirmations.lost(FlowsAt(state.datapath), state.reason):
            self._loop.dirty.job(number)

    def _moves(self, what: Awaited, why: str) -> bool:
        """True while a job's confirmation is under way: a barrier reply of a switch, or queues."""
        match what:
            case QueuesAt():
                return why == BEING_MADE
            case FlowsAt(datapath):
                return self._loop.connected(datapath)
            case Translated():
                return why == NOT_YET
            case NoSwitch() | RulesAt():
                return False

    def _blocked(self, number: int) -> bool:
        placed = self._held(number)
        if placed is None or self._lacking(number):
            return True
        return placed.job.network_type is NetworkType.OVS_BRIDGE and placed.port is None

    def _lacking(self, number: int) -> dict[int, str]:
        """The switch that cannot enforce the policy for a job, or has no port for it, with the reason.

        It has taken the place of one that could, or was away when the job was registered; it lets nothing of it pass.
        Other flows than the port's may be confirmed by it for the job, those of its block of addresses.
        """
        placed = self._held(number)
        if placed is None or placed.datapath is None or not self._loop.connected(placed.datapath):
            return {}
        switch = self._loop.desired_of(placed.datapath).switches[placed.datapath]
        if placed.port is None and placed.job.network_type is NetworkType.OVS_BRIDGE:
            return {placed.datapath: switch.why_no_job_port(placed.job.port)}
        if not placed.tracked or switch.tracks:
            return {}
        return {placed.datapath: "has no connection tracking, which one-way connectivity needs; nothing passes"}

    def _held(self, number: int) -> Placed | None:
        """A job as its switch has it, which may have gone over to the policy that comes."""
        placed = self._loop.desired.placed.get(number)
        if placed is None or placed.datapath is None:
            return placed
        return self._loop.desired_of(placed.datapath).placed.get(number)

    def _label(self, what: Awaited) -> str:
        match what:
            case NoSwitch() | Translated():
                return ""
            case RulesAt(host):
                return f"worker {host}"
            case FlowsAt(datapath) | QueuesAt(datapath):
                state = self._loop.switches.get(datapath) or SwitchState(datapath)
                return f"switch {state.label(self._loop.desired_of(datapath))}"


def state_of(
    job: Job, waiting: Mapping[Awaited, str], *, moving: bool, label: Callable[[Awaited], str]
) -> tuple[JobState, str]:
    """The state and the reason for it.

    ``waiting`` holds what is not confirmed, with the reason, the first to be shown first; ``moving`` means that nothing
    but confirmations is missing; ``label`` names what is awaited (``""``: the reason needs no name).
    """
    if job.quarantine:
        return JobState.QUARANTINED, job.quarantine
    if waiting:
        what, why = next(iter(waiting.items()))
        named = label(what)
        return JobState.REGISTERING if moving else JobState.PENDING, f"{named}: {why}" if named else why
    if not job.addresses and job.network_type is not NetworkType.NONE:
        return JobState.PENDING, f"the address is not known yet ({job.address_type})"
    return JobState.ENFORCED, ""


def why_nothing_passes(decision: Decision) -> str:
    """The sentence on a job of which nothing passes, with the policy's rule for it; "" where something does."""
    if not decision.isolated:
        return ""
    if decision.quarantine:
        return "nothing of the job passes: it is in quarantine"
    kind, why = RuleKind.CONNECTIVITY, "its connections are closed in both directions"
    if decision.blocked:
        kind, why = RuleKind.BLOCK, "it is blocked"
    line = next((f" (policy line {each.line})" for each in decision.because if each.kind is kind and each.line), "")
    return f"nothing of the job passes: {why}{line}"


def as_now(job: Job, now: Job | None) -> Job:
    """A stored job in its present state; one that has ended in the store has ended."""
    if now is None or job.state is JobState.ENDED:
        return job
    job = in_state(job, now.state, now.reason)
    return job if job.external == now.external else replace(job, external=now.external)

"""Queues of all switches: what each should have, what stands, and which flows may therefore use them.

For the reconcile loop's thread. A queue stands before a flow chooses it, and the flow is gone before the queue goes;
a job is enforced only when its queues stand.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from lark_common.limits import Bucket
from lark_common.log import WARNING, event
from lark_controller.accounting.queue_sums import JobQueue, Place, QueueSums
from lark_controller.accounting.readings import QueueReading
from lark_controller.api.switches import SwitchProblem
from lark_controller.flows import core
from lark_controller.flows.desired import Desired
from lark_controller.flows.model import FlowData, FlowKey
from lark_controller.flows.placement import Placed, Switch
from lark_controller.flows.queue_choice import groups_that_choose, job_and_queue
from lark_controller.flows.worker_shares import flows_away, has_parts, some_exceed
from lark_controller.policies.model import GroupControl, InboundShares, Policy
from lark_controller.qos.queues import (
    DEFAULT_QUEUE,
    FIRST_RESERVED_QUEUE,
    PortQueues,
)
from lark_controller.qos.worker_queues import (
    Claim,
    QueueDemand,
    QueuePlan,
    Way,
    carried,
    flow_demand,
    worker_queue_plan,
)
from lark_controller.reconcile.confirmations import QueuesAt
from lark_controller.reconcile.job_queues import (
    claims_of,
    free_number,
    job_demand,
    parts_gone,
    ports_of,
    present_at,
    promised,
    serves,
)
from lark_controller.reconcile.queue_obstacles import (
    BEING_MADE,
    NO_DATABASE,
    NoQueue,
    group_obstacles,
    obstacle,
)
from lark_controller.reconcile.sending import Sending
from lark_controller.reconcile.state import LoopState
from lark_controller.reconcile.switch import dpid_text
from lark_controller.switches.openflow.link import SwitchLink
from lark_controller.switches.ovsdb.driver import OvsdbOptions
from lark_controller.switches.ovsdb.reports import Report
from lark_controller.switches.ovsdb.switch_database import CONNECTING, READING

# Lines of the log about problems with the queues of one switch: at once, and a second afterwards.
LINES_AT_ONCE: Final = 64
LINES: Final = 1 / 60


class Driver(Protocol):
    """The maker of queues on switches (:class:`lark_controller.switches.ovsdb.driver.Ovsdb`)."""

    def set_queues(self, datapath: int, revision: int, address: str, ports: Mapping[str, PortQueues]) -> None:
        """Set the queues that a switch should have from now on; without an ``address`` none are looked after."""


@dataclass(frozen=True, slots=True)
class Promise:
    """A queue's guarantee (``least``, bits a second), and the job or group that it is promised to."""

    least: int
    job: str | None = None
    group: str | None = None


@dataclass(slots=True)
class _State:
    """One switch: its jobs' queue numbers and demands, those of jobs whose flows are not gone yet, plan and report."""

    numbers: dict[Claim, int] = field(default_factory=dict)
    demands: dict[Claim, QueueDemand] = field(default_factory=dict)
    leaving: dict[Claim, QueueDemand] = field(default_factory=dict)
    plan: QueuePlan = field(default_factory=QueuePlan)
    revision: int = 0
    address: str = ""
    requested: bool = False
    report: Report | None = None
    problems: dict[str, float] = field(default_factory=dict)
    lines: Bucket = field(default_factory=lambda: Bucket(LINES, LINES_AT_ONCE, time.monotonic()))
    sums: QueueSums = field(default_factory=QueueSums)


class Queues:
    """Queues for all switches. ``options`` say where switches' databases are."""

    def __init__(self, loop: LoopState, sending: Sending, driver: Driver, options: OvsdbOptions) -> None:
        self._loop = loop
        self._sending = sending
        self._driver = driver
        self._options = options
        self._states: dict[int, _State] = {}

    # -- events of the reconcile loop ----------------------------------------------------------------------------------

    def switch_connected(self, link: SwitchLink, flows: Mapping[FlowKey, FlowData]) -> None:
        """Take in a switch that has connected: those of its ``flows`` that choose a queue show that the queue stood."""
        state = self._states.setdefault(link.datapath, _State())
        state.address = self._address(link, self._loop.desired_of(link.datapath).policy)
        state.requested = False
        switch = self._loop.desired_of(link.datapath).switches[link.datapath]
        if switch.group_control is GroupControl.QUEUES:
            self._loop.pair.set_group_queues(link.datapath, groups_that_choose(flows))
        for data in flows.values():
            number, queue = job_and_queue(data)
            placed = None if number is None else self._loop.desired_of(link.datapath).placed.get(number)
            if placed is None or placed.datapath != link.datapath or queue in state.numbers.values():
                continue
            claim: Claim | None = job_demand(placed).claim
            if queue >= FIRST_RESERVED_QUEUE:
                # The number itself names the job or flow, unless another had it; then it is chosen anew.
                claims = (Claim.of_flow(each.number) for each in placed.job.reserved)
                claim = next((each for each in claims if free_number(each, set()) == queue), None)
            if claim is not None and claim not in state.numbers:
                self.stands(link.datapath, claim, queue, placed.job.number)

    def stands(self, datapath: int, claim: Claim, queue: int, job: int) -> None:
        """Take a queue through which a job sends for one that stands, until its switch's database reports."""
        self._states[datapath].numbers[claim] = queue
        self._loop.pair.set_queue(claim, queue, job)

    def likely(self, datapath: int, desired: Desired) -> dict[Claim, int]:
        """The numbers that the queues of a switch's jobs, which are ``desired`` there, would have if all stood."""
        state = self._states.get(datapath) or _State()
        found = dict(state.numbers)
        present = present_at(desired, datapath)
        parts = has_parts(present)
        for placed in present:
            own = job_demand(placed)
            of_flows = [claim for claim in claims_of(placed.job) if not claim.is_job]
            for claim in [own.claim, *of_flows] if own.rate is not None or parts else of_flows:
                if claim not in found:
                    found[claim] = free_number(claim, set(found.values()))
        return found

    def refresh(self, datapath: int) -> None:
        """Calculate a switch's queues anew, and request them if they differ."""
        state = self._states.setdefault(datapath, _State())
        switch = self._loop.desired_of(datapath).switches.get(datapath)
        if switch is not None and not switch.is_edge:
            self._refresh_core(switch, state)
            return
        demands = self._demands(datapath, state)
        gone = {claim: each for claim, each in state.demands.items() if claim not in demands and not claim.is_part}
        gone |= parts_gone(state.numbers, state.leaving, demands)
        back = any(claim.is_part and each.number and claim in state.leaving for claim, each in demands.items())
        state.demands = demands
        for claim, each in gone.items():
            state.leaving[claim] = replace(each, port=None)
            if each.job is not None:
                # One that stays inside the worker since its receiver is known here waits for nothing any more.
                self._loop.dirty.job(each.job)
            # Nothing else changes of a job that has no part any more.
            if claim.is_part and (changes := self._loop.pair.set_queue(claim, None, claim.number)):
                self._sending.send(changes, claim.number)
        if back:
            self._choose(datapath, state)
        plan = self._plan(datapath, state)
        if plan.ports != state.plan.ports or not state.requested:
            state.plan = plan
            self._request(datapath, state)
        state.plan = plan
        if gone:
            link = self._link(datapath)
            if link is None:
                self._released(datapath, gone)
            else:
                link.when_idle(lambda: self._released(datapath, gone))

    def _refresh_core(self, switch: Switch, state: _State) -> None:
        """As :meth:`refresh`, on a core: no flow chooses a queue of a group that is to go."""
        datapath = switch.datapath
        desired = self._loop.desired_of(datapath)
        plan = QueuePlan(core.queue_plan(switch, desired.policy).ports)
        if plan == state.plan and state.requested:
            return
        state.plan = plan
        stand = desired.group_queues.get(datapath, frozenset())
        staying = stand & {number for port in plan.ports.values() for number in port.queues}
        self._sending.send(self._loop.pair.set_group_queues(datapath, staying), None)
        link = self._link(datapath)
        if stand == staying or link is None:
            self._request(datapath, state)
        else:
            link.when_idle(lambda: self._request(datapath, state))

    def expect(self, placed: Placed) -> None:
        """Take in a job that is new or changed: its switch may need other queues."""
        datapath = placed.datapath
        if datapath is None:
            return
        state = self._states.get(datapath)
        idle = state is None or not state.demands
        if idle and not self._loop.desired_of(datapath).policy.bandwidths and not placed.job.reserved:
            return
        self._loop.dirty.switch(datapath)
        self._loop.dirty.job(placed.job.number)

    def policy_changed(self, datapath: int, changed: Iterable[int] | None) -> None:
        """Follow a switch to another policy: its jobs may need other queues; ``changed`` are those of which something
        else was decided, where nothing else in the policy concerns queues."""
        self._loop.dirty.switch(datapath)
        if self._address_changed(datapath) or changed is None:
            changed = [placed.job.number for placed in self._loop.desired_of(datapath).jobs_at(datapath)]
        for number in changed:
            self._loop.dirty.job(number)

    def _address_changed(self, datapath: int) -> bool:
        """Follow a connected switch to the database that the policy names; True if that is another one than before."""
        state, link = self._states.get(datapath), self._link(datapath)
        address = "" if link is None else self._address(link, self._loop.desired_of(datapath).policy)
        if state is None or link is None or address == state.address:
            return False
        state.address, state.report = address, None
        if state.requested and not address:
            state.revision += 1
            self._driver.set_queues(datapath, state.revision, "", {})
        state.requested = False
        return True

    def _address(self, link: SwitchLink, policy: Policy) -> str:
        spec = policy.switches.get(link.datapath)
        return self._options.of(link.connection.host, None if spec is None else spec.ovsdb)

    def reported(self, report: Report) -> None:
        """Take in a report of the queues that stand on a switch."""
        state = self._states.get(report.datapath)
        if state is None or not state.address:
            # The last word of a database that the policy does not name any more.
            return
        state.report = report
        self._note_problems(report.datapath, state)
        switch = self._loop.desired_of(report.datapath).switches.get(report.datapath)
        if switch is not None and switch.group_control is GroupControl.QUEUES and report.ports is not None:
            planned = {number for port in state.plan.ports.values() for number in port.queues} - {DEFAULT_QUEUE}
            stand = frozenset(number for number in planned if self._queue_stands(state, number, report.ports))
            self._sending.send(self._loop.pair.set_group_queues(report.datapath, stand), None)
        self._choose(report.datapath, state)

    def _choose(self, datapath: int, state: _State) -> None:
        """Let the flows of a switch's jobs choose the queues that stand, and no others."""
        report = state.report
        if report is None:
            return
        for placed in self._loop.desired_of(datapath).jobs_at(datapath):
            number = placed.job.number
            concerned = False
            for claim in (*claims_of(placed.job), Claim.of_part(number)):
                queue, demand = state.numbers.get(claim), state.demands.get(claim)
                if queue is None or demand is None or not demand.number:
                    continue
                concerned = True
                if report.ports is not None:
                    stands = self._queue_stands(state, queue, report.ports)
                    if changes := self._loop.pair.set_queue(claim, queue if stands else None, number):
                        self._sending.send(changes, number)
            if concerned:
                self._loop.dirty.job(number)

    def promises(self, datapath: int) -> dict[tuple[str, int], Promise]:
        """The guarantees of the queues that stand on a switch, by port and number; none where they have no effect."""
        state, desired = self._states.get(datapath), self._loop.desired_of(datapath)
        switch = desired.switches.get(datapath)
        if state is None or switch is None or state.report is None or state.report.ports is None:
            return {}
        if state.report.ineffective:
            return {}
        groups = {group.dscp: group.name for group in desired.policy.groups}
        jobs = {
            state.numbers[claim]: placed.job.id
            for placed in desired.jobs_at(datapath)
            for claim in claims_of(placed.job)
            if claim in state.numbers
        }
        most = promised(state.demands.values(), state.plan.short)
        found = {}
        for port, held in state.report.ports.items():
            for number, queue in held.queues.items():
                job, group = (jobs.get(number), None) if switch.is_edge else (None, groups.get(number))
                least = min(queue.least, most.get(number, queue.least)) if job else queue.least
                if least and number != DEFAULT_QUEUE and (job or group):
                    found[port, number] = Promise(least, job, group)
        return found

    def is_reported(self, datapath: int) -> bool:
        """True where it is known which queues stand on a switch."""
        state = self._states.get(datapath)
        return state is not None and state.report is not None and state.report.ports is not None

    def reserved_flows(self, datapath: int) -> dict[int, int]:
        """The numbers of the reservations whose flows have a queue on a switch, by the queue's number; none where
        queues have no effect."""
        state = self._states.get(datapath)
        if state is None or (state.report is not None and state.report.ineffective):
            return {}
        return {queue: claim.number for claim, queue in state.numbers.items() if not claim.is_job}

    def waited(self, datapath: int) -> Mapping[tuple[str, int], float]:
        """The seconds for which packets were found waiting in a switch's queues so far, by port and number."""
        state = self._states.get(datapath)
        return {} if state is None or state.report is None else state.report.waited

    def of_jobs(self, datapath: int) -> Mapping[int, QueueReading]:
        """The sums of the own queues of a switch's jobs, by the job's number; jobs without any are left out.

        A job sends through a queue at each uplink, those of its reserved flows included; towards it there is one.
        """
        state = self._states.get(datapath)
        if state is None or state.report is None or state.report.ports is None:
            return {}
        report, job_queues = state.report, dict[Place, JobQueue]()
        jobs = self._loop.desired_of(datapath).jobs_at(datapath)
        numbers = {state.numbers.get(claim): placed.job.number for placed in jobs for claim in claims_of(placed.job)}
        for port, number in {*report.dropped, *report.waited}:
            if number in numbers:
                job_queues[port, number] = JobQueue(numbers[number], inward=False)
        for placed in jobs:
            if placed.job.port is not None:
                job_queues[placed.job.port, DEFAULT_QUEUE] = JobQueue(placed.job.number, inward=True)
        return state.sums.read(job_queues, report.dropped, report.waited)

    def dropped(self, datapath: int) -> Mapping[tuple[str, int], int]:
        """The packets that a switch's queues have dropped, by port and number, as far as their host reports them."""
        state = self._states.get(datapath)
        return {} if state is None or state.report is None else state.report.dropped

    def obstacle(self, link: SwitchLink, policy: Policy) -> str:
        """The reason why a connected switch would make no queue under a policy; ``""`` where none is known."""
        address, state = self._address(link, policy), self._states.get(link.datapath)
        return obstacle(address, None if state is None or state.address != address else state.report)

    def group_obstacles(self, datapath: int) -> dict[int, str]:
        """The groups, by DSCP, whose queues on a core are without effect, each with the reason."""
        state, stand = self._states.get(datapath), self._loop.desired_of(datapath).group_queues.get(datapath)
        if state is None:
            return {}
        return group_obstacles(state.plan.ports, stand or frozenset(), state.requested, state.report)

    def problems(self, datapath: int) -> tuple[SwitchProblem, ...]:
        """The present problems with the queues of a switch."""
        state = self._states.get(datapath)
        return () if state is None else tuple(SwitchProblem(at, text) for text, at in state.problems.items())

    def _note_problems(self, datapath: int, state: _State) -> None:
        sentences: tuple[str, ...] = ()
        if state.plan.ports and not state.requested:
            sentences = (NO_DATABASE,)
        elif state.plan.ports and state.report is not None:
            report = state.report
            sentences = (report.reason, report.ineffective, *report.problems.values())
        before, state.problems = state.problems, {}
        for text in sentences:
            if text and text not in (CONNECTING, READING):
                state.problems[text] = before.get(text, time.time())
                if text not in before and state.lines.take_whole(time.monotonic()):
                    event("queues not made", level=WARNING, datapath=dpid_text(datapath), reason=text)

    # -- internal ------------------------------------------------------------------------------------------------------

    def _demands(self, datapath: int, state: _State) -> dict[Claim, QueueDemand]:
        desired = self._loop.desired_of(datapath)
        present = present_at(desired, datapath)
        found = [flow_demand(at.job, each, 0, at.decision.bandwidth) for at, each in flows_away(present)]
        parts = any(each.is_floor for each in found) or some_exceed(present)
        if desired.policy.bandwidths or found:
            found += [job_demand(placed) for placed in present]
        return {
            each.claim: each if each.way is Way.IN or (each.rate is None and not parts) else self._numbered(each, state)
            for each in found
        }

    @staticmethod
    def _numbered(demand: QueueDemand, state: _State) -> QueueDemand:
        """A demand with the number of its queue."""
        claim = demand.claim
        if claim not in state.numbers:
            state.numbers[claim] = free_number(claim, set(state.numbers.values()))
        return replace(demand, number=state.numbers[claim])

    def _plan(self, datapath: int, state: _State) -> QueuePlan:
        desired = self._loop.desired_of(datapath)
        switch = desired.switches.get(datapath)
        demands = [*state.demands.values(), *state.leaving.values()]
        if switch is None or not switch.is_edge or not demands:
            return QueuePlan()
        # Without a bandwidth rule for jobs, nothing that comes in is limited.
        inbound = desired.policy.edge_inbound if desired.policy.bandwidths else InboundShares.OPEN
        host = next((placed.job.host for placed in desired.jobs_at(datapath)), switch.name)
        return worker_queue_plan(demands, carried(uplink_speeds(switch), desired.policy, host, demands), inbound)

    def _request(self, datapath: int, state: _State) -> None:
        state.requested = bool(state.address)
        if state.requested:
            state.revision += 1
            self._driver.set_queues(datapath, state.revision, state.address, state.plan.ports)
        else:
            self._note_problems(datapath, state)

    def _link(self, datapath: int) -> SwitchLink | None:
        known = self._loop.switches.get(datapath)
        return None if known is None else known.link

    def _released(self, datapath: int, gone: Iterable[Claim]) -> None:
        """Let queues go whose flows are gone."""
        state = self._states[datapath]
        for claim in gone:
            state.leaving.pop(claim, None)
            if claim not in state.demands or not state.demands[claim].number:
                state.numbers.pop(claim, None)
                # A job that is at another switch by now has its queue there.
                if not claim.is_job or claim.number in self._loop.desired_of(datapath).numbers_at(datapath):
                    self._loop.pair.set_queue(claim, None, None)
        self._loop.dirty.switch(datapath)

    def holds(self, datapath: int, claim: Claim) -> bool:
        """True while a queue of this claim may still stand on a switch, or flows there that use it."""
        state = self._states.get(datapath)
        if state is None or claim in state.numbers:
            return state is not None
        report = state.report
        return state.requested and (report is None or report.ports is None or report.revision < state.revision)

    def judge(self, placed: Placed) -> None:
        """Set what a job waits for as far as its queues are concerned."""
        number, datapath = placed.job.number, placed.datapath
        state = None if datapath is None else self._states.get(datapath)
        if state is None or datapath is None:
            return
        seen, queues = self._loop.confirmations, QueuesAt(datapath)
        why = self._why_not(claims_of(placed.job), state)
        if not why:
            seen.confirmed(number, queues)
        elif seen.awaits(number, queues) != why:
            seen.blocked(number, queues, why)

    def why_no_flow(self, placed: Placed) -> str:
        """The reason why a reserved flow that a job sends lacks its queue; ``""`` where none does."""
        state = None if placed.datapath is None else self._states.get(placed.datapath)
        return (
            "" if state is None else self._why_not([each for each in claims_of(placed.job) if not each.is_job], state)
        )

    def _why_not(self, claims: Iterable[Claim], state: _State) -> str:
        demands = [state.demands[claim] for claim in claims if claim in state.demands]
        found = [why for each in demands if (why := self._why_not_this(each, state))]
        # A queue that is under way would hide one that cannot be.
        return next((why for why in found if why != BEING_MADE), BEING_MADE if found else "")

    @staticmethod
    def _why_not_this(demand: QueueDemand, state: _State) -> str:
        if demand.rate is None or demand.way is Way.IN:
            return ""
        if demand.claim in state.plan.short:
            return NoQueue(state.plan.short[demand.claim])
        if not state.requested:
            return NoQueue(NO_DATABASE)
        report = state.report
        if report is None:
            return BEING_MADE
        if report.ineffective:
            return NoQueue(report.ineffective)
        for port, shares in ports_of(demand, state.plan.ports):
            held = None if report.ports is None else report.ports.get(port)
            for number, queue in shares.queues.items():
                if held is None or not serves(held.queues.get(number), queue, demand):
                    why = report.problems.get(port) or report.reason
                    return NoQueue(why) if why else BEING_MADE
        return ""

    @staticmethod
    def _queue_stands(state: _State, queue: int, ports: Mapping[str, PortQueues]) -> bool:
        at = [port for port, shares in state.plan.ports.items() if queue in shares.queues]
        return bool(at) and all(port in ports and queue in ports[port].queues for port in at)


def uplink_speeds(switch: Switch) -> dict[str, float | None]:
    """The speed of each uplink of a worker's switch by its name, Mb/s; None where it is not known."""
    names = {number: name for name, number in switch.ports.items()}
    return {names[number]: switch.speeds.get(number) for number in switch.uplinks}

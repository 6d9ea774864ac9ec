"""The reasons why a switch makes no queues, or without effect, as plans and groups have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import pytest

from lark_controller.jobs.job import ReservedFlow
from lark_controller.policies.file import load
from lark_controller.qos.queues import FIRST_JOB_QUEUE, PortQueues, Queue
from lark_controller.qos.worker_queues import Claim, QueueDemand, QueuePlan, flow_demand
from lark_controller.reconcile.confirmations import QueuesAt
from lark_controller.reconcile.queue_obstacles import BEING_MADE, NO_DATABASE, group_obstacles, obstacle
from lark_controller.reconcile.queues import Driver, Promise, Queues, _State
from lark_controller.reconcile.sending import Sending
from lark_controller.reconcile.state import LoopState
from lark_controller.switches.ovsdb.driver import OvsdbOptions
from lark_controller.switches.ovsdb.reports import Report
from lark_controller.switches.ovsdb.switch_database import CONNECTING, READING, USERSPACE
from tests.flows.test_desired import FULL, a_job, a_switch

M = 10**6
PLANNED = {
    "wan": PortQueues(100 * M, {0: Queue(M, 100 * M), 7: Queue(50 * M, 100 * M), 8: Queue(10 * M, 100 * M)}),
    "lan": PortQueues(100 * M, {0: Queue(M, 100 * M), 7: Queue(50 * M, 100 * M)}),
}
NONE = "its queue is without effect: "
UNKNOWN = "it is not known which rates its queue has: "
OTHER = "its queue on port lan"
OTHER_CEILING, OTHER_GUARANTEE = f"{OTHER} has a ceiling", f"{OTHER} has a guarantee"


def other(most: int, least: int = 50, priority: int = 0) -> dict[str, PortQueues]:
    """The queues that are planned, and another one for a group at the port to the site."""
    queue = Queue(least * M, most * M, priority)
    return {**PLANNED, "lan": PortQueues(100 * M, {**PLANNED["lan"].queues, 7: queue})}


@pytest.mark.parametrize(
    ("address", "report", "why"),
    [
        ("", None, NO_DATABASE),
        ("", Report(1, 1, {}), NO_DATABASE),
        # Nothing has been seen of it yet.
        ("unix:/db", None, ""),
        ("unix:/db", Report(1, 0, None, READING), ""),
        ("unix:/db", Report(1, 0, None, CONNECTING), CONNECTING),
        ("unix:/db", Report(1, 1, {}), ""),
        ("unix:/db", Report(1, 1, {}, ineffective=USERSPACE), USERSPACE),
        ("unix:/db", Report(1, 1, {}, "gone", ineffective=USERSPACE), USERSPACE),
    ],
)
def test_a_switch_that_would_make_no_queues(address: str, report: Report | None, why: str) -> None:
    assert obstacle(address, report) == why


@pytest.mark.parametrize(
    ("stand", "requested", "report", "found"),
    [
        ({7, 8}, True, Report(1, 1, PLANNED), {}),
        ({7}, True, Report(1, 1, PLANNED), {8: NONE + BEING_MADE}),
        (set(), True, None, {7: NONE + BEING_MADE, 8: NONE + BEING_MADE}),
        (set(), False, None, {7: NONE + NO_DATABASE, 8: NONE + NO_DATABASE}),
        # They stand, and packets do not wait there.
        ({7, 8}, True, Report(1, 1, PLANNED, ineffective=USERSPACE), {7: NONE + USERSPACE, 8: NONE + USERSPACE}),
        # The port that has it as a problem, whichever comes first.
        ({8}, True, Report(1, 1, {}, problems={"lan": "a foreign QoS"}), {7: NONE + "a foreign QoS"}),
        ({8}, True, Report(1, 1, {}, problems={"wan": "a foreign QoS"}), {7: NONE + "a foreign QoS"}),
        (set(), True, Report(1, 0, None, CONNECTING), {7: NONE + CONNECTING, 8: NONE + CONNECTING}),
        # They stand as they were before the last change of the policy.
        ({7, 8}, True, Report(1, 1, other(60), "silent"), {7: f"{OTHER_CEILING} of 60 Mb/s and not 100 still: silent"}),
        (
            {7, 8},
            True,
            Report(1, 1, other(100, 40)),
            {7: f"{OTHER_GUARANTEE} of 40 Mb/s and not 50 still: {BEING_MADE}"},
        ),
        ({7, 8}, True, Report(1, 1, other(100, 50, 1)), {7: f"{OTHER} has another priority still: {BEING_MADE}"}),
        # Their flows show that they stood before this controller came.
        ({7, 8}, True, Report(1, 0, None, CONNECTING), {7: UNKNOWN + CONNECTING, 8: UNKNOWN + CONNECTING}),
    ],
)
def test_a_group_that_its_queues_do_not_keep(
    stand: set[int], requested: bool, report: Report | None, found: Mapping[int, str]
) -> None:
    assert group_obstacles(PLANNED, stand, requested, report) == found


@pytest.mark.parametrize(("short", "why"), [(Claim.of_job(1), ""), (Claim.of_flow(7), "bandwidth: no room")])
def test_a_reserved_flow_lacks_nothing_where_its_jobs_own_bandwidth_alone_has_no_room(short: Claim, why: str) -> None:
    job = replace(a_job(1, datapath=1), reserved=(ReservedFlow(7, 20_000), ReservedFlow(8, 20_000, incoming=True)))
    loop = LoopState(load(FULL), lambda: None, lambda _: None)
    loop.desired.load([(job, loop.decider.of(job))])
    queues = Queues(loop, cast("Sending", None), cast("Driver", None), OvsdbOptions())
    placed = loop.desired.placed[1]
    assert queues.why_no_flow(placed) == ""
    demands = [QueueDemand(Claim.of_job(1), 2, None, 50.0), flow_demand(job, job.reserved[0], 3, None)]
    state = _State(demands={each.claim: each for each in demands}, plan=QueuePlan(short={short: "no room"}))
    state.requested, state.report = True, Report(1, 0, {})
    queues._states[1] = state
    assert queues.why_no_flow(placed) == why


def test_a_queue_that_cannot_be_is_the_reason_and_not_one_that_is_being_made() -> None:
    job = replace(a_job(1, datapath=1), reserved=(ReservedFlow(7, 20_000),))
    loop = LoopState(load(FULL), lambda: None, lambda _: None)
    loop.desired.load([(job, loop.decider.of(job))])
    queues = Queues(loop, cast("Sending", None), cast("Driver", None), OvsdbOptions())
    own, flow = QueueDemand(Claim.of_job(1), 2, None, 50.0), flow_demand(job, job.reserved[0], 3, None)
    queue = PortQueues(100 * M, {2: Queue(M, M)})
    plan = QueuePlan({"up": queue}, short={flow.claim: "no room"})
    state = _State(demands={own.claim: own, flow.claim: flow}, plan=plan, requested=True, report=Report(1, 0, {}))
    queues._states[1] = state
    queues.judge(loop.desired.placed[1])
    assert loop.confirmations.waiting(1)[QueuesAt(1)] == "bandwidth: no room"
    state.plan = QueuePlan({"up": queue})
    queues.judge(loop.desired.placed[1])
    assert loop.confirmations.waiting(1)[QueuesAt(1)] == BEING_MADE


def test_a_sender_waits_for_no_uplink_once_the_receiver_is_known_on_the_same_worker() -> None:
    loop = LoopState(load(FULL), lambda: None, lambda _: None)
    loop.desired.set_switch(a_switch(FULL, 1))
    sender = replace(a_job(1), reserved=(ReservedFlow(7, 20_000),))
    loop.desired.put(sender, loop.decider.of(sender))
    queues = Queues(loop, cast("Sending", None), cast("Driver", None), OvsdbOptions())
    queues.refresh(1)
    queues.judge(loop.desired.placed[1])
    assert QueuesAt(1) in loop.confirmations.waiting(1)
    list(loop.dirty.jobs())
    # The two are handed to the loop one after the other.
    receiver = replace(a_job(2), reserved=(ReservedFlow(7, 20_000, incoming=True),))
    loop.desired.put(receiver, loop.decider.of(receiver))
    queues.refresh(1)
    assert 1 in list(loop.dirty.jobs())
    queues.judge(loop.desired.placed[1])
    assert loop.confirmations.waiting(1) == {}


def test_a_job_whose_queue_has_another_rate_still_waits_for_it() -> None:
    job = a_job(1, datapath=1)
    loop = LoopState(load(FULL), lambda: None, lambda _: None)
    loop.desired.load([(job, loop.decider.of(job))])
    queues = Queues(loop, cast("Sending", None), cast("Driver", None), OvsdbOptions())
    claim = Claim.of_job(1)
    wanted, stands = (PortQueues(100 * M, {0: Queue(M, 100 * M), 2: Queue(rate * M, rate * M)}) for rate in (60, 40))
    demand = QueueDemand(claim, 2, None, 60.0)
    state = _State(numbers={claim: 2}, demands={claim: demand}, plan=QueuePlan({"up": wanted}), requested=True)
    queues._states[1] = state
    placed = loop.desired.placed[1]
    for reason, why in (("", BEING_MADE), ("its database does not answer", "bandwidth: its database does not answer")):
        state.report = Report(1, 1, {"up": stands}, reason)
        queues.judge(placed)
        assert loop.confirmations.waiting(1)[QueuesAt(1)] == why
    state.report = Report(1, 2, {"up": wanted})
    queues.judge(placed)
    assert QueuesAt(1) not in loop.confirmations.waiting(1)


def test_a_guaranteed_job_waits_for_its_rate_and_not_for_its_part_which_nobody_promises() -> None:
    job = a_job(1, datapath=1)
    loop = LoopState(load(FULL), lambda: None, lambda _: None)
    loop.desired.set_switch(a_switch(FULL, 1))
    loop.desired.put(job, loop.decider.of(job))
    queues = Queues(loop, cast("Sending", None), cast("Driver", None), OvsdbOptions())
    claim, placed = Claim.of_job(1), loop.desired.placed[1]

    def at(least: int, most: int = 100) -> dict[str, PortQueues]:
        return {"up": PortQueues(100 * M, {0: Queue(M, 100 * M), 2: Queue(least * M, most * M)})}

    demand = QueueDemand(claim, 2, None, 30.0, borrows=True)
    state = _State(numbers={claim: 2}, demands={claim: demand}, plan=QueuePlan(at(50)), requested=True)
    queues._states[1] = state
    for stands, waits in ((at(50), False), (at(40), False), (at(60), False), (at(29), True), (at(50, 80), True)):
        state.report = Report(1, 1, stands)
        queues.judge(placed)
        assert (QueuesAt(1) in loop.confirmations.waiting(1)) == waits, stands
    state.report = Report(1, 1, at(50))
    assert queues.promises(1) == {("up", 2): Promise(30 * M, job.id, None)}
    # Who comes short has a part at most, and is promised nothing.
    state.plan = QueuePlan(at(20), {claim: "no room"})
    state.report = Report(1, 2, at(20))
    assert queues.promises(1) == {}


def test_jobs_that_ask_for_nothing_write_no_queues_unless_one_beside_them_may_exceed_its_guarantee() -> None:
    rule = "  - bandwidth: {mode: guarantee, ceiling: 100}\nedge: {inbound: open, speed: 1Gbit}\n"
    text = FULL.replace("groups:", f"{rule}groups:")
    loop = LoopState(load(text), lambda: None, lambda _: None)
    loop.desired.set_switch(a_switch(text, 1, 80))
    written: list[Mapping[str, PortQueues]] = []

    class Written:
        def set_queues(self, datapath: int, revision: int, address: str, ports: Mapping[str, PortQueues]) -> None:
            written.append(ports)

    queues = Queues(loop, cast("Sending", None), Written(), OvsdbOptions())
    queues._states[1] = _State(address="unix:/db")

    def writes(*rates: float | None, first: int) -> int:
        before = len(written)
        for number, rate in enumerate(rates, first):
            job = replace(a_job(number), bandwidth=rate)
            loop.desired.put(job, loop.decider.of(job))
            queues.refresh(1)
        return len(written) - before

    # The first is that there are none, and one whose ceiling is its rate has no part.
    assert (writes(*63 * [None], first=1), written[-1]) == (1, {})
    assert writes(100.0, *[None] * 2, first=64) == 1
    # From then on each has a queue; a start writes its own, and those of all where their parts are in another step.
    assert writes(1.0, *[None] * 3, first=67) == 4
    before, queue = written[-1]["uplink"].queues, FIRST_JOB_QUEUE + 1
    assert len(before) == 1 + 70
    assert before[queue].least == 12 * M
    assert len({ports["uplink"].queues[queue] for ports in written[-4:]}) == 1


def test_a_job_that_asks_again_chooses_no_queue_before_it_stands() -> None:
    text = FULL.replace("groups:", "  - bandwidth: {mode: cap}\ngroups:")
    loop = LoopState(load(text), lambda: None, lambda _: None)
    loop.desired.set_switch(a_switch(FULL, 1))
    queues = Queues(loop, cast("Sending", None), cast("Driver", None), OvsdbOptions())

    def asks(rate: float | None) -> int | None:
        job = replace(a_job(1), bandwidth=rate)
        loop.desired.put(job, loop.decider.of(job))
        queues.refresh(1)
        return loop.desired.placed[1].queue

    assert asks(5.0) is None
    queues.stands(1, Claim.of_job(1), 2, 1)
    assert [asks(rate) for rate in (6.0, None, None, 5.0)] == [2, None, None, None]


def test_a_queue_without_effect_promises_nothing_that_could_be_missed() -> None:
    job = a_job(1, datapath=1)
    loop = LoopState(load(FULL), lambda: None, lambda _: None)
    loop.desired.set_switch(a_switch(FULL, 1))
    loop.desired.put(job, loop.decider.of(job))
    queues = Queues(loop, cast("Sending", None), cast("Driver", None), OvsdbOptions())
    claim, ports = Claim.of_job(1), {"up": PortQueues(100 * M, {0: Queue(M, 100 * M), 2: Queue(60 * M, 60 * M)})}
    demand = QueueDemand(claim, 2, None, 60.0)
    state = _State(numbers={claim: 2}, demands={claim: demand}, plan=QueuePlan(ports), requested=True)
    queues._states[1] = state
    state.report = Report(1, 1, ports)
    assert queues.promises(1) == {("up", 2): Promise(60 * M, job.id, None)}
    state.report = Report(1, 1, ports, ineffective=USERSPACE)
    assert queues.promises(1) == {}

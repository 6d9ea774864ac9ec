"""The reasons why a switch makes no queues, or without effect, as plans and groups have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import pytest

from lark_controller.jobs.job import ReservedFlow
from lark_controller.policies.file import load
from lark_controller.qos.queues import PortQueues, Queue
from lark_controller.qos.worker_queues import Claim, QueueDemand, QueuePlan, flow_demand
from lark_controller.reconcile.confirmations import QueuesAt
from lark_controller.reconcile.queue_obstacles import BEING_MADE, NO_DATABASE, group_obstacles, obstacle
from lark_controller.reconcile.queues import Driver, Queues, _State
from lark_controller.reconcile.sending import Sending
from lark_controller.reconcile.state import LoopState
from lark_controller.switches.ovsdb.driver import OvsdbOptions
from lark_controller.switches.ovsdb.reports import Report
from lark_controller.switches.ovsdb.switch_database import CONNECTING, READING, USERSPACE
from tests.flows.test_desired import FULL, a_job, a_switch

PLANNED = {
    "wan": PortQueues(100, {0: Queue(1, 100), 7: Queue(50, 100), 8: Queue(10, 100)}),
    "lan": PortQueues(100, {0: Queue(1, 100), 7: Queue(50, 100)}),
}


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
        ({7}, True, Report(1, 1, PLANNED), {8: BEING_MADE}),
        (set(), True, None, {7: BEING_MADE, 8: BEING_MADE}),
        (set(), False, None, {7: NO_DATABASE, 8: NO_DATABASE}),
        # They stand, and packets do not wait there.
        ({7, 8}, True, Report(1, 1, PLANNED, ineffective=USERSPACE), {7: USERSPACE, 8: USERSPACE}),
        # The port that has it as a problem, whichever comes first.
        ({8}, True, Report(1, 1, {}, problems={"lan": "a foreign QoS"}), {7: "a foreign QoS"}),
        ({8}, True, Report(1, 1, {}, problems={"wan": "a foreign QoS"}), {7: "a foreign QoS"}),
        (set(), True, Report(1, 0, None, CONNECTING), {7: CONNECTING, 8: CONNECTING}),
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

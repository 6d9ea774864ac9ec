"""Jobs that are taken in together at a start lack what each lacks by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lark_common.runs import NetworkType
from lark_controller.flows.placement import Placed
from lark_controller.jobs.job import QUARANTINED, Job, JobState, ReservedFlow
from lark_controller.policies.file import load
from lark_controller.reconcile.confirmations import NO_SWITCH, TRANSLATED, Awaited, FlowsAt, QueuesAt, RulesAt
from lark_controller.reconcile.gateways import Gateways
from lark_controller.reconcile.progress import Progress
from lark_controller.reconcile.queues import Queues
from lark_controller.reconcile.state import LoopState
from lark_controller.reconcile.switch import SwitchState
from lark_controller.reconcile.workers import NOT_YET as RULES_NOT_YET
from tests.flows.test_desired import CORE, FULL, a_job

JOBS = [
    *(a_job(number, owner=owner, datapath=1) for number, owner in enumerate(("alice", "bob", "alice", "bob"), 1)),
    a_job(5, owner="bob", group="atlas", datapath=2),
    a_job(6, group="atlas", datapath=None),
    a_job(7, owner="bob", datapath=CORE),
    replace(a_job(8, owner="bob", datapath=1), network_type=NetworkType.BRIDGE),
    replace(a_job(9, owner="bob", datapath=1), network_type=NetworkType.NAT),
]


def taken_in(connected: frozenset[int], *, together: bool) -> tuple[LoopState, list[int]]:
    """The loop's state after a start with some switches connected, and the jobs whose queues were looked at."""
    loop = LoopState(load(FULL), lambda: None, lambda _: None)
    loop.desired.load((job, loop.decider.of(job)) for job in JOBS)
    for datapath in connected:
        loop.switches[datapath] = cast("SwitchState", SimpleNamespace(compared=True, reason=""))
        loop.desired.switches[datapath] = cast("Any", SimpleNamespace(why_no_job_port=lambda port: f"no port {port}"))
    seen: list[int] = []

    def expect(placed: Placed) -> None:
        seen.append(placed.job.number)

    queues = cast("Queues", SimpleNamespace(expect=expect))
    progress = Progress(loop, queues, Gateways(loop), lambda _: None)
    if together:
        progress.expect_all(JOBS)
    else:
        for job in JOBS:
            progress.expect(job)
    return loop, sorted(seen)


@pytest.mark.parametrize("connected", [(), (1,), (CORE,), (1, 2, CORE)])
def test_jobs_taken_in_together_lack_what_each_lacks_by_itself(connected: tuple[int, ...]) -> None:
    (together, seen), (singly, one_by_one) = (taken_in(frozenset(connected), together=each) for each in (True, False))
    assert seen == one_by_one
    for job in JOBS:
        lacking = together.confirmations.waiting(job.number)
        assert lacking == singly.confirmations.waiting(job.number)
    assert sorted(together.confirmations.open()) == sorted(singly.confirmations.open())
    if not connected:
        assert set(together.confirmations.waiting(1)) == {FlowsAt(1), FlowsAt(CORE)}
        assert set(together.confirmations.waiting(6)) == {NO_SWITCH}


@pytest.mark.parametrize(
    ("lacking", "standing"),
    [
        ([], JobState.ENFORCED),
        # The flows' own switch and queues count, and not a core or a gateway that the job needs for something else.
        ([FlowsAt(CORE), TRANSLATED], JobState.ENFORCED),
        ([QueuesAt(1)], JobState.PENDING),
        ([FlowsAt(CORE), QueuesAt(1)], JobState.PENDING),
        ([FlowsAt(1)], JobState.PENDING),
    ],
)
def test_what_a_job_has_reserved_is_enforced_where_its_own_worker_does_so(
    lacking: list[Awaited], standing: JobState
) -> None:
    told: list[Job] = []
    loop = LoopState(load(FULL), lambda: None, lambda _: None)
    sends = replace(JOBS[0], reserved=(ReservedFlow(7, 20_000),))
    receives = replace(JOBS[1], reserved=(ReservedFlow(7, 20_000, incoming=True),))
    loop.desired.load((job, loop.decider.of(job)) for job in (sends, receives))
    queues = SimpleNamespace(why_no_flow=lambda placed: loop.confirmations.awaits(placed.job.number, QueuesAt(1)))
    progress = Progress(loop, cast("Queues", queues), Gateways(loop), told.append)
    for job in (sends, receives):
        loop.directory.put(job)
        for what in lacking:
            loop.confirmations.blocked(job.number, what, "not there")
        progress.settle(job.number)
    found = loop.directory.reserved(sends.id)
    assert found is not None
    assert found.state is standing
    why = loop.directory.unenforced(sends.id)
    assert why.endswith(": not there") if standing is JobState.PENDING else why == ""
    state = JobState.PENDING if lacking else JobState.ENFORCED
    assert [loop.directory.standing(job.number).state for job in (sends, receives)] == [state, state]
    # Whoever waits is told once more where it changes, and the job's own state does not.
    before = len(told)
    loop.confirmations.blocked(sends.number, QueuesAt(1), "no uplink")
    progress.settle(sends.number)
    progress.settle(sends.number)
    assert loop.directory.unenforced(sends.id).endswith("not there" if FlowsAt(1) in lacking else "no uplink")
    assert len(told) - before == (0 if FlowsAt(1) in lacking else 1)
    loop.directory.forget(sends.number)
    assert not loop.directory.reserving


@pytest.mark.parametrize(
    ("lacking", "reason"),
    [
        ({}, ""),
        ({QueuesAt(1): "its queues are not there", FlowsAt(CORE): "is not connected", TRANSLATED: "nobody does"}, ""),
        ({FlowsAt(1): "is not connected"}, "; not cut off yet, switch 0000000000000001: is not connected"),
        ({NO_SWITCH: "no switch is known for host worker1"}, "; not cut off yet: no switch is known for host worker1"),
        ({RulesAt("worker1"): RULES_NOT_YET}, ""),
        ({RulesAt("worker1"): "is late"}, "; not cut off yet, worker worker1: is late"),
    ],
)
def test_a_quarantine_that_is_not_in_force_says_so(lacking: Mapping[Awaited, str], reason: str) -> None:
    loop = LoopState(load(FULL), lambda: None, lambda _: None)
    job = replace(JOBS[0], quarantine="bob's job has its address")
    loop.desired.load([(job, loop.decider.of(job))])
    loop.directory.put(job)
    for what, why in lacking.items():
        loop.confirmations.blocked(job.number, what, why)
    Progress(loop, cast("Queues", SimpleNamespace()), Gateways(loop), lambda _: None).settle(job.number)
    assert loop.directory.standing(job.number) == (JobState.QUARANTINED, f"bob's job has its address{reason}")


def test_a_job_in_quarantine_is_told_no_more_than_that_of_what_it_has_reserved() -> None:
    loop = LoopState(load(FULL), lambda: None, lambda _: None)
    job = replace(JOBS[0], reserved=(ReservedFlow(7, 20_000),), quarantine="bob's job has its address")
    loop.desired.load([(job, loop.decider.of(job))])
    loop.directory.put(job)
    Progress(loop, cast("Queues", SimpleNamespace()), Gateways(loop), lambda _: None).settle(job.number)
    assert loop.directory.reserved(job.id) == (JobState.QUARANTINED, QUARANTINED)
    assert loop.directory.unenforced(job.id) == QUARANTINED
    assert loop.directory.reserved("another") is None
    assert loop.directory.unenforced("another") == ""

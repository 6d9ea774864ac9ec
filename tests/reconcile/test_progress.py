"""Jobs that are taken in together at a start lack what each lacks by itself."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lark_common.runs import NetworkType
from lark_controller.flows.placement import Placed
from lark_controller.policies.file import load
from lark_controller.reconcile.confirmations import NO_SWITCH, FlowsAt
from lark_controller.reconcile.gateways import Gateways
from lark_controller.reconcile.progress import Progress
from lark_controller.reconcile.queues import Queues
from lark_controller.reconcile.state import LoopState
from lark_controller.reconcile.switch import SwitchState
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

"""Requests that wait until what a job has reserved is enforced, at a running controller."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork
from lark_common.errors import CapacityError
from lark_common.worker_rules import WaysOut
from lark_controller.api.reservations import Change, Wish
from lark_controller.controller import Controller
from lark_controller.flows.placement import Placed
from lark_controller.flows.worker_shares import has_parts
from lark_controller.jobs.job import Job, JobState
from lark_controller.policies.model import Decision
from lark_controller.reconcile.queue_obstacles import NO_DATABASE
from lark_controller.reconcile.workers import LATE
from tests.fixtures.controllers import an_edge, connect, network, running, until
from tests.services.test_reservations import POLICY, start

__all__ = ["network"]

OUT = WaysOut({"eth0": 1000.0})
SLOW = WaysOut({"eth0": 500.0})
BRIDGED = 'LarkNetworkType = "bridge"\nAvailBandwidth = 1000'


def put_in_place(controller: Controller, job: Job) -> None:
    """Have the job's worker confirm its rules: with the first word it tells of its interfaces, and gets others."""
    for _ in range(2):
        controller.workers.confirmed(job.host, controller.workers.rules(job.host, "", 0).revision, {}, (), OUT)


def states(controller: Controller, job: Job) -> tuple[JobState, JobState]:
    """The states of a job, and of what it has reserved."""
    found, reserved = controller.jobs.live(job.id), controller.jobs.reserved(job.id)
    assert found is not None
    assert reserved is not None
    return found.state, reserved.state


def test_whoever_waits_for_what_is_reserved_waits_for_no_core(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller, ThreadPoolExecutor(1) as threads:
        # Her rule needs a core, which never comes.
        job = start(controller, 1, "carol", more=BRIDGED)
        controller.reservations.reserve(Wish(job.id, "10.0.0.5", 20.0, None), "test", of_job=True)
        found = threads.submit(controller.jobs.confirm, job.id, 600, of_flows=True)
        until(lambda: controller._reconciler.confirmations._of_flows)
        put_in_place(controller, job)
        assert found.result(60).waiting
        assert states(controller, job) == (JobState.PENDING, JobState.ENFORCED)
        # What is enforced already is not waited for, and nobody is kept who is over.
        found = threads.submit(controller.jobs.confirm, job.id, 600, of_flows=True)
        assert found.result(60).waiting
        assert not controller._reconciler.confirmations._waiters


def test_what_was_enforced_before_a_start_is_so_again_once_its_worker_says_so(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        job = start(controller, 1, more=BRIDGED)
        controller.reservations.reserve(Wish(job.id, "10.0.0.5", 20.0, None), "test", of_job=True)
        put_in_place(controller, job)
        until(lambda: states(controller, job) == (JobState.ENFORCED, JobState.ENFORCED))
        until(lambda: controller.jobs.found(job.id).state is JobState.ENFORCED)
    with running(tmp_path, POLICY) as controller:
        # Before a worker has said anything, a job is shown as it is stored.
        assert states(controller, job) == (JobState.ENFORCED, JobState.ENFORCED)
        assert controller.jobs.confirm(job.id, 0.01, of_flows=True).waiting
        assert states(controller, job) == (JobState.PENDING, JobState.REGISTERING)
        put_in_place(controller, job)
        controller.jobs.confirm(job.id, 60, of_flows=True)
        assert states(controller, job) == (JobState.ENFORCED, JobState.ENFORCED)


def test_a_rate_that_its_worker_is_setting_is_under_way_and_not_pending(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        job = start(controller, 1, more=BRIDGED)
        reserved = controller.reservations.reserve(Wish(job.id, "10.0.0.5", 20.0, None), "test", of_job=True)
        put_in_place(controller, job)
        until(lambda: states(controller, job) == (JobState.ENFORCED, JobState.ENFORCED))
        # As a communicator changes its rate: the program that waits for changes is told of no trouble.
        controller.reservations.change(reserved.id, Change(10.0), "test", of_job=True)
        until(lambda: states(controller, job)[1] is JobState.REGISTERING)
        assert [path.pending for path in controller.reservations.paths(job.host).items] == [""]
        # A worker that takes too long is one that is away.
        controller._loop.run(_late(controller), 30)
        until(lambda: states(controller, job)[1] is JobState.PENDING)
        (path,) = controller.reservations.paths(job.host).items
        assert path.pending == f"worker {job.host}: {LATE}"
        put_in_place(controller, job)
        until(lambda: states(controller, job) == (JobState.ENFORCED, JobState.ENFORCED))


async def _late(controller: Controller) -> None:
    for _ in controller._reconciler.workers.note_late(math.inf):
        pass


def test_who_is_refused_hears_of_jobs_that_hold_the_link_without_a_queue(tmp_path: Path, network: FakeNetwork) -> None:
    guaranteed = POLICY.replace("topology:", "  - bandwidth: {mode: guarantee}\ntopology:") + "edge: {speed: 1Gbit}\n"
    with running(tmp_path, guaranteed) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        first = start(controller, 1, rate=800)
        until(lambda: NO_DATABASE in controller.jobs.found(first.id).reason)
        with pytest.raises(CapacityError, match="no room") as refused:
            start(controller, 2, rate=800)
        assert str(refused.value).endswith(
            "has 200 of 1000 Mb/s left, and 800 are asked (others hold 800); of link access:worker1 1 pending job has "
            f"a part reserved, and no queue: {NO_DATABASE}"
        )
        # It keeps its part: with the next start it has its queue, and nobody is there instead.
        assert controller.jobs.live(first.id) is not None
        controller.jobs.end(first.id, "test")
        assert start(controller, 3, rate=800).live


def test_jobs_that_a_worker_has_no_queue_for_hold_the_link_and_those_that_wait_for_a_core_are_no_such(
    tmp_path: Path,
) -> None:
    core = '  "bandwidth: a": {datapath: "00000000000000b0", role: core, ports: {lan: 1, wan-fast: 3}}\n'
    named = POLICY.replace("topology:", "  - bandwidth: {mode: guarantee}\ntopology:")
    named = named.replace("policies:", f"{core}policies:")
    with running(tmp_path, named) as controller:
        with_queue, without = start(controller, 1, rate=400, more=BRIDGED), start(controller, 2, rate=300, more=BRIDGED)
        # Their rule needs a core, which never comes.
        for number in (3, 4):
            start(controller, number, "carol", rate=100, more=BRIDGED)
        for _ in range(2):
            revision = controller.workers.rules("worker1", "", 0).revision
            controller.workers.confirmed("worker1", revision, {}, (), SLOW)
        until(lambda: "bandwidth: uplink" in controller.jobs.found(without.id).reason)
        until(lambda: controller.jobs.found(with_queue.id).state is JobState.ENFORCED)
        with pytest.raises(CapacityError) as refused:
            start(controller, 5, rate=800)
        _, said, why = str(refused.value).partition("; of link access:worker1 1 pending job has a part reserved, and ")
        assert (bool(said), why.startswith("no queue: uplink eth0 of 500 Mb/s has")) == (True, True), refused.value


def test_a_flow_inside_a_worker_has_no_queue_while_its_two_ends_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, POLICY) as controller:
        ends = start(controller, 1), start(controller, 2)
        jobs = {job.id: job for job in ends}
        queues: list[bool] = []
        put = controller.reservations._feed._put

        def note(job: Job) -> None:
            jobs[job.id] = job
            queues.append(has_parts(Placed(each, Decision(), 1, 10) for each in jobs.values()))
            put(job)

        monkeypatch.setattr(controller.reservations._feed, "_put", note)
        made = controller.reservations.reserve(Wish(ends[0].id, ends[1].id, 1.0), "alice", of_job=False)
        controller.reservations.change(made.id, Change(rate=2.0), "alice", of_job=False)
        assert [len(each.reserved) for each in jobs.values()] == [1, 1]
        controller.reservations.release(made.id, "alice", of_job=False)
        assert [len(each.reserved) for each in jobs.values()] == [0, 0]
        assert queues == [False] * 6

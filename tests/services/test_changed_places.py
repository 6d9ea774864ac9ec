"""Policies that give jobs other places: a job's state is that of the place that it has now."""

from __future__ import annotations

from pathlib import Path

from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_common.classads.ads import parse_post
from lark_controller.controller import Controller
from lark_controller.flows.model import PORT_LOCAL
from lark_controller.jobs.job import Job, JobState
from tests.fixtures.controllers import OPEN, an_edge, connect, jobs_flows, network, post, running, until

__all__ = ["network"]

UPLINK = OPEN.replace("policies:", 'edge: {uplinks: ["uplink*", "p1*"]}\npolicies:')
CORE = OPEN.replace(
    "policies:", 'switches: {x2: {datapath: "0000000000000002", role: core, ports: {lan: 1}}}\npolicies:'
)


def at(datapath: int) -> str:
    """A policy by which worker9 is at a switch."""
    declared = f'switches: {{e{datapath}: {{datapath: "{datapath:016x}", role: edge, host: worker9}}}}\n'
    return OPEN.replace("policies:", declared + "policies:")


def by_its_host(controller: Controller, port: str = "p1") -> Job:
    """A job on worker9, whose ad names no switch."""
    text = (
        'Owner = "alice"\nGlobalJobId = "s#1.0#1"\nJobCurrentStartDate = 1\n------\nMachine = "worker9"\n'
        'Name = "slot1@worker9"\nLarkInnerMacAddress = "02:00:00:00:00:01"\nLarkInnerAddressIPv4 = "10.64.0.1"\n'
        f'LarkExternalInterface = "{port}"'
    )
    return controller.jobs.register(*parse_post(text.encode(), "text/plain"), "hook").job


def standing(controller: Controller, job: Job) -> tuple[JobState, str]:
    now = controller.jobs.detail(job.id).job
    return now.state, now.reason


def becomes(controller: Controller, job: Job, state: JobState, reason: str) -> None:
    """Wait until this is a job's state and the beginning of its reason."""
    try:
        until(lambda: (now := standing(controller, job))[0] is state and now[1].startswith(reason), 10)
    except AssertionError:
        assert standing(controller, job) == (state, reason)


def test_a_job_waits_for_the_switch_that_a_policy_gives_its_host(tmp_path: Path, network: FakeNetwork) -> None:
    without = FakeSwitch(4, {1: "uplink", 12: "p2", PORT_LOCAL: "br"})
    edges = {2: an_edge(2), 3: an_edge(3), 4: without}
    with running(tmp_path, OPEN) as controller:
        for edge in edges.values():
            connect(network, controller, edge)
        job = by_its_host(controller)

        def follows(text: str, reason: str, datapath: int = 0) -> None:
            """Puts a policy: the job is enforced at this switch alone, or waits for this reason at none."""
            controller.policy.put(text, "ops")
            becomes(controller, job, JobState.PENDING if reason else JobState.ENFORCED, reason)
            until(lambda: [number for number, edge in edges.items() if jobs_flows(edge)] == [datapath] * bool(datapath))
            waiting = controller.jobs.detail(job.id).confirmation.waiting
            assert len(waiting) == bool(reason)

        unknown = "no switch is known for host worker9"
        becomes(controller, job, JobState.PENDING, unknown)
        follows(at(2), "", 2)
        follows(at(9), "switch e9: has not connected yet")
        follows(at(2), "", 2)
        follows(OPEN, unknown)
        follows(at(9), "switch e9: has not connected yet")
        follows(at(3), "", 3)
        follows(at(4), "switch e4: it has no port p1")
        follows(at(2), "", 2)
        # One that comes is what the job waits for.
        controller.policy.put(at(9), "ops")
        connect(network, controller, an_edge(9))
        becomes(controller, job, JobState.ENFORCED, "")


def test_a_job_follows_the_role_of_its_switch(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, OPEN) as controller:
        edge = an_edge(2)
        connect(network, controller, edge)
        job = post(controller, 1, datapath=2).job
        becomes(controller, job, JobState.ENFORCED, "")
        for _ in range(2):
            controller.policy.put(CORE, "ops")
            becomes(controller, job, JobState.PENDING, "switch x2: it is a core switch, and jobs are at edges")
            controller.policy.put(OPEN, "ops")
            becomes(controller, job, JobState.ENFORCED, "")
            assert controller.jobs.detail(job.id).confirmation.waiting == ()
            assert jobs_flows(edge)


def test_a_job_follows_the_uplinks_that_a_policy_declares(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, OPEN) as controller:
        edge = an_edge(2)
        connect(network, controller, edge)
        job, beside = (post(controller, number, datapath=2).job for number in (1, 2))
        for each in (job, beside):
            becomes(controller, each, JobState.ENFORCED, "")
        for _ in range(2):
            controller.policy.put(UPLINK, "ops")
            becomes(controller, job, JobState.PENDING, f"switch fake {2:016x}: its port p1 is an uplink, not a job's")
            assert standing(controller, beside) == (JobState.ENFORCED, "")
            controller.policy.put(OPEN, "ops")
            becomes(controller, job, JobState.ENFORCED, "")
            assert jobs_flows(edge, job.number)


def test_a_plan_counts_the_jobs_whose_places_come_or_go(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, at(2)) as controller:
        for edge in (an_edge(2), an_edge(3), FakeSwitch(4, {1: "uplink", 12: "p2", PORT_LOCAL: "br"})):
            connect(network, controller, edge)
        job = by_its_host(controller)
        becomes(controller, job, JobState.ENFORCED, "")

        def planned(text: str) -> tuple[str, ...]:
            plan = controller.policy.plan(text)
            assert plan.jobs_changed == len(plan.jobs)
            return () if not plan.jobs else plan.jobs[0].changes

        assert planned(at(2)) == ()
        assert planned(at(3)) == ("is at switch e3",)
        assert planned(at(9)) == ("is at switch e9", "is pending, as switch e9 has not connected yet")
        assert planned(at(4)) == ("is at switch e4", "has no port at its switch: it has no port p1")
        assert planned(OPEN) == ("is at no switch any more",)
        uplink = at(2).replace("policies:", 'edge: {uplinks: ["uplink*", "p1*"]}\npolicies:')
        assert planned(uplink) == ("has no port at its switch: its port p1 is an uplink, not a job's",)
        controller.policy.put(at(9), "ops")
        assert planned(at(3)) == ("is at switch e3", "no longer waits for switch e9, which has not connected yet")
        controller.policy.put(uplink, "ops")
        assert planned(at(2)) == ("has a port at its switch",)

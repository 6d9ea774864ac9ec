"""The promises of a policy that switches do not keep: plans and groups name them, and the policy is in force."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_controller.controller import Controller
from lark_controller.jobs.job import JobState
from lark_controller.qos.queues import PortQueues
from lark_controller.reconcile import policy_change
from lark_controller.reconcile.pace import Pace
from lark_controller.reconcile.queue_obstacles import NO_DATABASE
from lark_controller.switches.ovsdb.driver import Ovsdb
from lark_controller.switches.ovsdb.reports import Report
from lark_controller.switches.ovsdb.switch_database import USERSPACE
from tests.fixtures.controllers import POLICY, a_core, an_edge, connect, post, running, until

GROUPS = "groups: {cms: {guarantee: 10, ceiling: 100, dscp: 1}, atlas: {ceiling: 5, dscp: 2}, low: {dscp: 3}}\n"
QUEUES = POLICY.replace("max_rules: 60", "max_rules: 60, groups_by: queues")
NOT_GIVEN = "guarantee 10 Mb/s is not given, because a meter can only limit; groups_by: queues can"
DATABASES = QUEUES.replace("groups_by: queues", 'groups_by: queues, ovsdb: "tcp:127.0.0.1:6640"').replace(
    "{lan: 1, wan: 2, wan-fast: 3}", "{lan: {port: 1, speed: 100}, wan: {port: 2, speed: 100}, wan-fast: 3}"
).replace(
    "policies:",
    '  edge1: {datapath: "0000000000000001", role: edge, ovsdb: "tcp:127.0.0.1:6640", ports: {uplink: 1}}\npolicies:',
)  # fmt: skip


def unkept(controller: Controller) -> dict[str, tuple[str, ...]]:
    return {group.name: group.unkept for group in controller.usage.groups()}


def test_a_guarantee_that_a_core_has_meters_for_is_said_before_it_is_in_force(
    tmp_path: Path, network: FakeNetwork
) -> None:
    with running(tmp_path) as controller:
        connect(network, controller, a_core())
        assert controller.policy.plan(POLICY).warnings == ()
        # The policy alone shows it, and so does the switch.
        assert controller.policy.plan(POLICY + GROUPS).warnings == (f"switch core1: group cms: {NOT_GIVEN}",)
        assert controller.policy.warnings(POLICY + GROUPS) == (f"switch core1: group cms: {NOT_GIVEN}",)
        assert controller.policy.warnings(QUEUES + GROUPS) == ()


def test_a_policy_of_which_a_switch_keeps_a_part_is_not_refused(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        connect(network, controller, FakeSwitch(0xC0, {1: "a", 2: "b", 3: "c"}, max_meter=1))
        plan = controller.policy.plan(POLICY + GROUPS)
        assert plan.refusals == ()
        assert plan.warnings[1:] == (
            "switch core1: group atlas: ceiling 5 Mb/s is not enforced, because this switch has only 1 meters; give "
            "the group a queue",
        )
        assert controller.policy.put(POLICY + GROUPS, "ops").version == 2
        # A later change has the same, and can be put in force as well.
        assert controller.policy.plan(POLICY.replace("mallory", "eve") + GROUPS).refusals == ()
        shown = {problem.problem for problem in controller.switches.find(f"{0xC0:016x}").problems}
        assert {sentence.removeprefix("switch core1: ") for sentence in plan.warnings} <= shown


def test_switches_without_a_database_are_said_before_jobs_wait_for_their_queues(
    tmp_path: Path, network: FakeNetwork
) -> None:
    unknown = POLICY + "  - bandwidth: {default: 5}\n"
    limited = unknown.replace("switches:", "edge: {speed: 1Gbit}\nswitches:")
    with running(tmp_path) as controller:
        for datapath in (1, 2):
            connect(network, controller, an_edge(datapath))
        connect(network, controller, a_core())
        plan = controller.policy.plan(limited + GROUPS.replace("cms: {guarantee: 10, ", "cms: {"))
        (waiting,) = plan.warnings
        assert waiting.startswith(
            "every job, since bandwidth has a default, stays pending with the network type ovs_bridge at 2 of 2"
        )
        assert waiting.endswith(NO_DATABASE)
        assert plan.refusals == ()
        found = controller.policy.plan(QUEUES + GROUPS).warnings
        assert f"switch core1: no group has a queue: {NO_DATABASE}" in found
        # So it is, once the policy is in force.
        controller.policy.put(limited, "ops")
        job = post(controller, 1).job
        controller.jobs.confirm(job.id, 2)
        until(lambda: NO_DATABASE in controller.jobs.detail(job.id).job.reason)
        assert controller.jobs.detail(job.id).job.state is JobState.PENDING


@pytest.mark.parametrize("was_there", [True, False])
def test_a_job_that_a_new_policy_steers_waits_for_a_core_that_is_away(
    tmp_path: Path, network: FakeNetwork, was_there: bool
) -> None:
    steered = POLICY + """  - wan: {when: 'Owner == "alice"', port: wan-fast}\n"""
    with running(tmp_path) as controller:
        core, edge = a_core(), an_edge()
        connect(network, controller, edge)
        if was_there:
            connect(network, controller, core)
            network.run(core.disconnect)
            until(lambda: not controller.switches.find(f"{0xC0:016x}").connected)
        jobs = [post(controller, number, owner).job for number, owner in ((1, "alice"), (2, "carol"))]
        for job in jobs:
            controller.jobs.confirm(job.id, 20)

        def states() -> list[JobState]:
            return [controller.jobs.detail(job.id).job.state for job in jobs]

        assert states() == [JobState.ENFORCED] * 2
        controller.policy.put(steered, "ops")
        until(lambda: states() == [JobState.PENDING, JobState.ENFORCED])
        assert "core1: " in controller.jobs.detail(jobs[0].id).job.reason
        # Another policy, by which it needs no core, lets it wait for none.
        controller.policy.put(POLICY, "ops")
        until(lambda: states() == [JobState.ENFORCED] * 2)
        controller.policy.put(steered, "ops")
        until(lambda: states() == [JobState.PENDING, JobState.ENFORCED])
        connect(network, controller, core)
        until(lambda: states() == [JobState.ENFORCED] * 2)


def test_no_job_waits_for_a_core_that_a_new_policy_does_not_have(tmp_path: Path, network: FakeNetwork) -> None:
    declared = next(line for line in POLICY.splitlines() if "core1: " in line)
    other = POLICY.replace(declared, declared.replace("core1", "core2").replace("c0", "c2"))
    with running(tmp_path) as controller:
        core, edge = FakeSwitch(0xC2, {1: "a", 2: "b", 3: "c"}), an_edge()
        connect(network, controller, edge)
        connect(network, controller, core)
        job = post(controller, 1, "bob").job
        until(lambda: controller.jobs.detail(job.id).job.reason.startswith("switch core1: "))
        # Its place is another's: what is decided of the job is as before.
        controller.policy.put(other, "ops")
        until(lambda: controller.jobs.detail(job.id).job.state is JobState.ENFORCED)


def test_no_job_waits_for_a_core_that_comes_while_jobs_are_told_to(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, there = threading.Event(), threading.Event()
    paces: list[Pace] = []

    class Meanwhile(Pace):
        """The second is that of the jobs that are told to wait: the core comes after the first of them."""

        async def step(self) -> None:
            paces.extend([self] if self not in paces else [])
            if self in paces[1:]:
                told.set()
                while not there.is_set():
                    await asyncio.sleep(0.01)

    monkeypatch.setattr(policy_change, "Pace", Meanwhile)
    steered = POLICY + """  - wan: {when: 'Owner == "alice"', port: wan-fast}\n"""
    with running(tmp_path) as controller:
        connect(network, controller, an_edge())
        jobs = [post(controller, number).job for number in (1, 2)]
        for job in jobs:
            controller.jobs.confirm(job.id, 20)
        putting = threading.Thread(target=controller.policy.put, args=(steered, "ops"))
        putting.start()
        assert told.wait(20)
        connect(network, controller, a_core())
        there.set()
        putting.join()
        until(lambda: [controller.jobs.detail(job.id).job.state for job in jobs] == [JobState.ENFORCED] * 2)


def test_queues_that_stand_without_effect_keep_no_group(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open vSwitch's userspace datapath takes queues, and no packet waits there."""
    without_effect = {0xC0: "", 1: USERSPACE}

    def set_queues(self: Ovsdb, datapath: int, revision: int, address: str, ports: Mapping[str, PortQueues]) -> None:
        self._on_report(Report(datapath, revision, ports, ineffective=without_effect[datapath]))

    monkeypatch.setattr(Ovsdb, "set_queues", set_queues)
    with running(tmp_path, DATABASES + GROUPS) as controller:
        waiting = "core1 has not connected since this controller's start, so it is not known what it keeps"
        assert unkept(controller) == {"cms": (waiting,), "atlas": (waiting,), "low": ()}
        connect(network, controller, a_core())
        connect(network, controller, an_edge())
        slow = "core1: the speed of port c is not known, so no group has a queue there; the policy can say it"
        until(lambda: unkept(controller) == {"cms": (slow,), "atlas": (slow,), "low": (slow,)})
        plan = controller.policy.plan(DATABASES + "  - bandwidth: {mode: cap}\n" + GROUPS)
        assert plan.warnings == (
            f"switch core1: {slow.removeprefix('core1: ')}",
            "every job that asks for bandwidth stays pending with the network type ovs_bridge at 1 of 1 switches of"
            f" workers, which can make no queues; at edge1: {USERSPACE}",
        )
        without_effect[0xC0] = USERSPACE
        controller.policy.put(DATABASES + GROUPS.replace("guarantee: 10", "guarantee: 20"), "ops")
        until(lambda: len(unkept(controller)["cms"]) == 2)
        assert unkept(controller)["cms"][1] == f"core1: its queue is without effect: {USERSPACE}"
        assert unkept(controller)["low"] == (slow,)
        found = controller.policy.plan(DATABASES + GROUPS).warnings
        assert f"switch core1: no group has a queue: {USERSPACE}" in found

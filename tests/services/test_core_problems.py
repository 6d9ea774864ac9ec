"""The problems of a core are those of now: one that is over goes. And the limits of groups that it does not keep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from os_ken.ofproto import ofproto_v1_3 as ofp

from fake_switch.switch import FakeNetwork
from tests.fixtures.controllers import a_core, an_edge, connect, post, running, until

POLICY = """
version: 1
networks:
  jobs: [10.64.0.0/16]
switches:
  core1:
    datapath: "00000000000000c0"
    role: core
    ports: {lan: 1, wan: 2, wan-fast: 3}
policies:
  - wan: {when: 'Owner == "alice"', port: wan-fast}
"""
LACKS = "wan rule in line 11: the switch has no port wan-fast as it is declared"


def test_a_port_that_comes_is_no_longer_missing(tmp_path: Path, network: FakeNetwork) -> None:
    core = a_core()
    late = core.ports.pop(3)
    with running(tmp_path, POLICY) as controller:
        connect(network, controller, core)

        def problems() -> list[str]:
            return [each.problem for each in controller.switches.find("core1").problems if "wan rule" in each.problem]

        assert problems() == [LACKS]
        # The list has it as well: it is in sync, and not well.
        until(lambda: [each.in_sync for each in controller.switches.all()] == [True])
        assert [each.reason for each in controller.switches.all()] == [LACKS]
        network.run(lambda: core.change_port(late, ofp.OFPPR_ADD))
        until(lambda: problems() == [])
        assert [each.reason for each in controller.switches.all()] == [""]
        network.run(lambda: core.change_port(replace(late), ofp.OFPPR_DELETE))
        until(lambda: problems() == [LACKS])


GROUPS = """
groups:
  cms: {when: 'Owner == "alice"', port: wan, ceiling: 100Mbit, dscp: 10}
  atlas: {when: 'Owner == "bob"', port: wan, ceiling: 100Mbit, dscp: 12}
  cdf: {when: 'Owner == "carol"', ceiling: 100Mbit, dscp: 14}
"""
UNKEPT = (
    "core1: its guarantee and ceiling do not hold for what leaves by port wan-fast, where wan rule in line 12 sends "
    "jobs of it: its queue is on port wan"
)


def test_a_group_whose_jobs_are_steered_past_its_queue_is_said_to_be_without_limits(
    tmp_path: Path, network: FakeNetwork
) -> None:
    policy = POLICY.replace("role: core", "role: core\n    groups_by: queues").replace('== "alice"', '!= "bob"')
    policy += GROUPS
    with running(tmp_path, policy) as controller:
        connect(network, controller, a_core())
        connect(network, controller, an_edge())

        def said() -> set[str]:
            return {group.name for group in controller.usage.groups() if UNKEPT in group.unkept}

        assert said() == set()
        jobs = [post(controller, number, owner).job for number, owner in enumerate(("alice", "bob", "carol"), 1)]
        for job in jobs:
            controller.jobs.confirm(job.id, 20)
        assert said() == {"cms"}

        def told(address: str) -> list[str]:
            found = controller.switches.explain(address, "192.0.2.1", 20)
            return [step.text for step in found.steps if "do not hold" in step.text]

        assert told("10.64.0.1") == [
            "guarantee and ceiling of group cms (policy line 15) do not hold for what leaves by wan-fast: its queue is "
            "on port wan"
        ]
        assert told("10.64.0.2") == told("10.64.0.3") == []
        controller.policy.put(policy.replace("port: wan,", "port: wan-fast,"), "test")
        assert said() == set()
        controller.policy.put(policy, "test")
        assert said() == {"cms"}
        controller.jobs.end(jobs[0].id, "test")
        until(lambda: said() == set())

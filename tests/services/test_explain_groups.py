"""The controller explains by which group's rates a core treats a packet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork, FakeSwitch
from tests.fixtures.controllers import a_core, an_edge, connect, post, running, until
from tests.services.test_explain import NO_SLICES, PATIENCE, attached


@pytest.mark.parametrize("kind", ["ovs_bridge", "bridge", "nat"])
def test_explain_has_the_group_that_the_core_treats_a_job_by(tmp_path: Path, network: FakeNetwork, kind: str) -> None:
    """Of jobs without a port on a switch the worker sets the DSCP by which the core knows the group."""
    groups = "groups: {group_a: {ceiling: 5Mbit}, default: {ceiling: 1Mbit}}\n"
    with running(tmp_path, NO_SLICES + groups) as controller:
        connect(network, controller, an_edge(hardware="Open vSwitch"))
        connect(network, controller, a_core())
        group = 'AcctGroup = "group_a"'
        if kind == "ovs_bridge":
            job = post(controller, 1, attributes=group).job
            controller.jobs.confirm(job.id, 20)
        else:
            job = attached(controller, 4, kind, worker=2, attributes=group)
        found = controller.switches.explain(job.id, "192.0.2.1", PATIENCE)
        at_core = [step.text for step in found.steps if step.where == "core1 qos"]
        assert (found.verdict, at_core) == ("forwarded", ["goes on: group group_a (policy line 8)"])
        # A packet from outside for it is of no group by its DSCP.
        back = controller.switches.explain("192.0.2.1", "10.64.0.4", PATIENCE)
        assert not any("group_a" in step.text and step.where == "core1 qos" for step in back.steps)


BACKED = """
version: 1
networks: {jobs: [10.64.0.0/16], local: [10.0.0.0/8]}
switches:
  core1:
    datapath: "00000000000000c0"
    role: core
    groups_by: queues
    ports:
      lan: 1
      wan: {port: 2, next_hop: "02:00:00:00:ff:01", backup: wan-fast}
      wan-fast: {port: 3, next_hop: "02:00:00:00:ff:02"}
policies:
  - wan: {when: 'Owner == "bob"', action: drop}
groups:
  cms: {when: 'Owner == "alice"', port: wan, ceiling: 100Mbit}
  atlas: {when: 'Owner == "bob"', port: wan, ceiling: 100Mbit}
  cdf: {when: 'Owner == "carol"', ceiling: 100Mbit}
  empty: {when: 'Owner == "dora"', port: wan, ceiling: 100Mbit}
"""


async def _set(switch: FakeSwitch, port: int, up: bool) -> None:
    switch.change_port(replace(switch.ports[port], up=up))


def test_a_group_that_a_backup_without_its_queue_carries_is_said_to_be_without_limits(
    tmp_path: Path, network: FakeNetwork
) -> None:
    with running(tmp_path, BACKED) as controller:
        core = a_core()
        connect(network, controller, core)
        connect(network, controller, an_edge())
        for number, owner in enumerate(("alice", "bob", "carol"), 1):
            controller.jobs.confirm(post(controller, number, owner).job.id, 20)

        def said() -> dict[str, list[str]]:
            found = {each.name: [text for text in each.unkept if "do not hold" in text]
                     for each in controller.usage.groups()}  # fmt: skip
            return {name: texts for name, texts in found.items() if texts}

        def told() -> list[str]:
            found = controller.switches.explain("10.64.0.1", "192.0.2.1", PATIENCE)
            return [step.text for step in found.steps if "do not hold" in step.text]

        assert (said(), told()) == ({}, [])
        network.call(_set(core, 2, up=False))
        text = (
            "core1: its guarantee and ceiling do not hold for what leaves by port wan-fast, which takes the place of "
            "port wan while that is down: its queue is on port wan"
        )
        until(lambda: said() == {"cms": [text]})
        assert told() == [
            "guarantee and ceiling of group cms (policy line 16) do not hold for what leaves by wan-fast: its queue is "
            "on port wan"
        ]
        # By neither does anything leave.
        network.call(_set(core, 3, up=False))
        until(lambda: said() == {})
        assert told() == []
        network.call(_set(core, 2, up=True))
        until(lambda: controller.switches.explain("10.64.0.1", "192.0.2.1", PATIENCE).reason.endswith("by wan"))
        assert (said(), told()) == ({}, [])

"""The controller explains by which group's rates a core treats a packet."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork
from tests.fixtures.controllers import a_core, an_edge, connect, post, running
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
        # What comes from outside for it is of no group by its DSCP.
        back = controller.switches.explain("192.0.2.1", "10.64.0.4", PATIENCE)
        assert not any("group_a" in step.text and step.where == "core1 qos" for step in back.steps)

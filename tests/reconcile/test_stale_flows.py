"""A switch that comes back full of flows that it should not hold."""

from __future__ import annotations

from pathlib import Path

from fake_switch.switch import FakeNetwork
from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.model import Flow, FlowData, FlowKey, match
from lark_controller.switches.openflow.link import MORE_FLOWS
from tests.fixtures.controllers import an_edge, connect, post, running, until


def test_stale_flows_go_whatever_their_number_and_a_job_that_waits_is_enforced(
    tmp_path: Path, network: FakeNetwork
) -> None:
    edge = an_edge()
    stale = [
        Flow(FlowKey(0, 5, match(eth_type=0x800, ipv4_dst=number)), FlowData(cookie(Category.JOB, 1 << 30)))
        for number in range(2 * MORE_FLOWS)
    ]
    for flow in stale:
        edge.put(flow)
    with running(tmp_path) as controller:
        job = post(controller, 1).job
        connect(network, controller, edge)
        assert str(controller.jobs.confirm(job.id, 20).job.state) == "enforced"
        until(lambda: not any(flow.key in edge.tables.entries for flow in stale))
        program = controller._reconciler.desired.build(edge.datapath)
        assert edge.tables.entries.keys() == program.flows.keys()

"""One-way connectivity on switches with and without connection tracking: enforced, refused, or pending; never open."""

from __future__ import annotations

from pathlib import Path

import pytest

from lark_controller.controller import Controller
from lark_controller.errors import UnsupportedError
from lark_controller.flows.cookies import Category, parse
from lark_controller.flows.model import Track
from lark_controller.flows.tables import Edge
from lark_controller.openflow.fake import FakeNetwork, FakeSwitch
from lark_controller.status import Registered
from tests.controllers import OPEN, an_edge, connect, post, running, until

REQUESTED = OPEN.replace("policies: [", "policies: [{connectivity: {inbound: requested, outbound: requested}}, ")
WHY = "has no connection tracking"


def an_open_vswitch(*, tracks: bool) -> FakeSwitch:
    return an_edge(hardware="Open vSwitch", tracks=tracks)


def asking(controller: Controller, number: int) -> Registered:
    return post(controller, number, attributes="InboundConnectivity = false\n")


def of_connectivity(edge: FakeSwitch) -> list[tuple[bool, int | None]]:
    """Whether each flow on one-way connectivity tracks, and where it leads."""
    return [
        (any(isinstance(action, Track) for action in data.actions), data.goto)
        for data in edge.program.flows.values()
        if parse(data.cookie).category == Category.CONNECTIVITY
    ]


def test_with_connection_tracking_it_is_enforced(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, REQUESTED) as controller:
        edge = an_open_vswitch(tracks=True)
        connect(network, controller, edge)
        assert controller.confirm(asking(controller, 1).job.id, 20).job.state == "enforced"
        assert any(tracks for tracks, _ in of_connectivity(edge))


def test_without_it_the_job_is_refused_with_the_reason_and_others_are_not(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, REQUESTED) as controller:
        edge = an_open_vswitch(tracks=False)
        connect(network, controller, edge)
        refused = controller.confirm(asking(controller, 1).job.id, 20).job
        assert refused.state == "refused"
        assert WHY in refused.reason
        assert controller.confirm(post(controller, 2).job.id, 20).job.state == "enforced"


def test_a_job_registered_before_its_switch_came_is_pending_and_nothing_of_it_passes(
    tmp_path: Path, network: FakeNetwork
) -> None:
    with running(tmp_path, REQUESTED) as controller:
        job = asking(controller, 1).job
        edge = an_open_vswitch(tracks=False)
        connect(network, controller, edge)
        until(lambda: WHY in controller.job(job.id).job.reason)
        shown = controller.confirm(job.id, 0.05)
        assert shown.job.state == "pending"
        assert [WHY in waiting.reason for waiting in shown.waiting] == [True]
        assert of_connectivity(edge) == [(False, Edge.DROPS)] * 2
        # Its switch comes back with what was missing.
        network.run(edge.disconnect)
        until(lambda: "is not connected" in controller.job(job.id).job.reason)
        better = an_open_vswitch(tracks=True)
        connect(network, controller, better)
        assert controller.confirm(job.id, 20).job.state == "enforced"


def test_a_policy_that_needs_it_for_a_live_job_is_refused(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, OPEN) as controller:
        connect(network, controller, an_open_vswitch(tracks=False))
        controller.confirm(asking(controller, 1).job.id, 20)
        with pytest.raises(UnsupportedError, match=WHY):
            controller.put_policy(REQUESTED, "operator")

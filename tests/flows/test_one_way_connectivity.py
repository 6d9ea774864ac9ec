"""One-way connectivity on switches with and without connection tracking: enforced, refused, or pending; never open."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_common.errors import UnsupportedError
from lark_common.worker_rules import CT_ZONE, CT_ZONE_OTHERS
from lark_controller.api.jobs import Registered
from lark_controller.controller import Controller
from lark_controller.flows.cookies import Category, parse
from lark_controller.flows.model import Track
from lark_controller.flows.tables import Edge
from tests.fixtures import frames
from tests.fixtures.controllers import (
    OPEN,
    an_edge,
    connect,
    post,
    running,
    until,
)

REQUESTED = OPEN.replace("policies: [", "policies: [{connectivity: {inbound: requested, outbound: requested}}, ")
WHY = "has no connection tracking"


def an_open_vswitch(*, tracks: bool) -> FakeSwitch:
    return an_edge(hardware="Open vSwitch", tracks=tracks)


def asking(controller: Controller, number: int) -> Registered:
    return post(controller, number, attributes="InboundConnectivity = false\n")


def of_connectivity(edge: FakeSwitch) -> list[tuple[bool, int | None]]:
    """For each flow on one-way connectivity: it tracks, and the table to which it leads."""
    return [
        (any(isinstance(action, Track) for action in data.actions), data.goto)
        for data in edge.program.flows.values()
        if parse(data.cookie).category == Category.CONNECTIVITY
    ]


def test_with_connection_tracking_it_is_enforced(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, REQUESTED) as controller:
        edge = an_open_vswitch(tracks=True)
        connect(network, controller, edge)
        assert controller.jobs.confirm(asking(controller, 1).job.id, 20).job.state == "enforced"
        assert any(tracks for tracks, _ in of_connectivity(edge))


def test_without_it_the_job_is_refused_with_the_reason_and_others_are_not(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, REQUESTED) as controller:
        edge = an_open_vswitch(tracks=False)
        connect(network, controller, edge)
        refused = controller.jobs.confirm(asking(controller, 1).job.id, 20).job
        assert refused.state == "refused"
        assert WHY in refused.reason
        assert controller.jobs.confirm(post(controller, 2).job.id, 20).job.state == "enforced"


def test_a_plan_warns_of_it_before_there_is_a_job(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, OPEN) as controller:
        connect(network, controller, an_open_vswitch(tracks=False))
        connect(network, controller, an_edge(2, hardware="Open vSwitch", tracks=True))
        warned = [each for each in controller.policy.plan(REQUESTED).warnings if "connection tracking" in each]
        assert warned == [
            "a job that may only call, or only be called, is refused at 1 of 2 switches of workers, which have no"
            " connection tracking, such as fake 0000000000000001"
        ]
        # Without a rule nobody is refused, nor where jobs are open both ways or closed both ways.
        for reach in ("allow", "deny"):
            both = REQUESTED.replace("requested", reach)
            assert WHY[4:] not in "".join(controller.policy.plan(both).warnings)
        assert WHY[4:] not in "".join(controller.policy.plan(OPEN).warnings)


def test_a_job_registered_before_its_switch_came_is_pending_and_nothing_of_it_passes(
    tmp_path: Path, network: FakeNetwork
) -> None:
    with running(tmp_path, REQUESTED) as controller:
        job = asking(controller, 1).job
        edge = an_open_vswitch(tracks=False)
        connect(network, controller, edge)
        until(lambda: WHY in controller.jobs.detail(job.id).job.reason)
        shown = controller.jobs.confirm(job.id, 0.05)
        assert shown.job.state == "pending"
        assert [WHY in waiting.reason for waiting in shown.waiting] == [True]
        assert of_connectivity(edge) == [(False, Edge.DROPS)] * 2
        # Its switch comes back with what was missing.
        network.run(edge.disconnect)
        until(lambda: "is not connected" in controller.jobs.detail(job.id).job.reason)
        better = an_open_vswitch(tracks=True)
        connect(network, controller, better)
        assert controller.jobs.confirm(job.id, 20).job.state == "enforced"


def test_a_policy_that_needs_it_for_a_live_job_is_refused(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, OPEN) as controller:
        connect(network, controller, an_open_vswitch(tracks=False))
        controller.jobs.confirm(asking(controller, 1).job.id, 20)
        with pytest.raises(UnsupportedError, match=WHY):
            controller.policy.put(REQUESTED, "operator")


ONE_WAY = """
version: 1
networks: {jobs: [10.64.0.0/16], local: [10.0.0.0/8]}
policies: [{connectivity: {inbound: requested, outbound: requested}}]
"""
BOTH_WAYS = ONE_WAY.replace("{inbound: requested, outbound: requested}", "{inbound: allow, outbound: allow}")
OUTSIDE = "198.51.100.7"


def calls(network: FakeNetwork, edge: FakeSwitch, number: int, address: str) -> None:
    """A job opens a TCP connection and sends a ping."""
    macs = f"02:00:00:00:00:{number:02x}", "02:00:00:00:00:99"
    for frame in (frames.tcp(*macs, address, OUTSIDE, 40000, 443), frames.icmp(*macs, address, OUTSIDE, 8)):
        assert network.run(partial(edge.inject, 10 + number, frame))


def tracked(edge: FakeSwitch) -> list[tuple[int, str]]:
    """Zone and opening address of each connection that a switch knows."""
    packed = ((zone, connection.src.to_bytes(4)) for zone, connection in edge.connections)
    return sorted((zone, ".".join(map(str, address))) for zone, address in packed)


def both(address: str) -> list[tuple[int, str]]:
    return [(CT_ZONE, address), (CT_ZONE_OTHERS, address)]


@pytest.mark.parametrize("how", ["ends", "is refused", "has another address", "is two-way", "has a two-way policy"])
def test_connections_are_forgotten_with_what_allowed_them_and_others_stay(
    tmp_path: Path, network: FakeNetwork, how: str
) -> None:
    with running(tmp_path, ONE_WAY) as controller:
        edge = an_open_vswitch(tracks=True)
        connect(network, controller, edge)
        jobs = [asking(controller, number).job for number in (1, 2)]
        for number, job in enumerate(jobs, 1):
            assert controller.jobs.confirm(job.id, 20).job.state == "enforced"
            calls(network, edge, number, f"10.64.0.{number}")
        assert tracked(edge) == sorted(both("10.64.0.1") + both("10.64.0.2"))
        left = [(CT_ZONE, "10.64.0.2")]
        does: dict[str, Callable[[], object]] = {
            "ends": lambda: controller.jobs.end(jobs[0].id, "hook"),
            "is refused": lambda: controller._loop.call(lambda: controller._reconciler.refuse(jobs[0], "no room")),
            "has another address": lambda: post(
                controller, 1, address="10.64.0.77", attributes="InboundConnectivity = false\n"
            ),
            "is two-way": lambda: post(controller, 1),
            "has a two-way policy": lambda: controller.policy.put(BOTH_WAYS, "ops"),
        }
        does[how]()
        if how == "has a two-way policy":
            left = []
        # Echo has a zone that goes as a whole, and is taken up again by the next request.
        until(lambda: tracked(edge) == left)


def test_a_policy_that_stays_one_way_forgets_nothing(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, ONE_WAY) as controller:
        edge = an_open_vswitch(tracks=True)
        connect(network, controller, edge)
        controller.jobs.confirm(asking(controller, 1).job.id, 20)
        calls(network, edge, 1, "10.64.0.1")
        controller.policy.put(ONE_WAY.replace("policies: [", "policies: [{block: {when: 'Owner == \"eve\"'}}, "), "ops")
        # What was sent before this job's flows has been carried out when they are there.
        assert controller.jobs.confirm(post(controller, 2).job.id, 20).job.state == "enforced"
        assert tracked(edge) == both("10.64.0.1")


@pytest.mark.parametrize("restarted", [False, True])
def test_a_switch_that_was_away_is_told_when_it_returns(tmp_path: Path, network: FakeNetwork, restarted: bool) -> None:
    edge = an_open_vswitch(tracks=True)
    with running(tmp_path, ONE_WAY) as controller:
        connect(network, controller, edge)
        job = asking(controller, 1).job
        controller.jobs.confirm(job.id, 20)
        calls(network, edge, 1, "10.64.0.1")
        network.run(edge.disconnect)
        until(lambda: not controller.switches.find(f"{1:016x}").connected)
        if not restarted:
            controller.jobs.end(job.id, "hook")
            connect(network, controller, edge)
            until(lambda: tracked(edge) == [])
            return
    # Another life of the controller, which has never seen the switch, ends the job.
    with running(tmp_path, ONE_WAY) as controller:
        controller.jobs.end(job.id, "hook")
        assert tracked(edge) == both("10.64.0.1")
        connect(network, controller, edge)
        until(lambda: tracked(edge) == [])


def test_a_job_that_a_switch_still_has_keeps_its_connections(tmp_path: Path, network: FakeNetwork) -> None:
    edge = an_open_vswitch(tracks=True)
    with running(tmp_path, ONE_WAY) as controller:
        connect(network, controller, edge)
        controller.jobs.confirm(asking(controller, 1).job.id, 20)
        calls(network, edge, 1, "10.64.0.1")
        network.run(edge.disconnect)
        until(lambda: not controller.switches.find(f"{1:016x}").connected)
    with running(tmp_path, ONE_WAY) as controller:
        connect(network, controller, edge)
        assert controller.jobs.confirm(post(controller, 2).job.id, 20).job.state == "enforced"
        assert tracked(edge) == both("10.64.0.1")

"""A whole controller that has a generation: what it says of switches, and what it counts when another follows it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fake_switch.stored import StoredSwitch
from fake_switch.switch import FakeNetwork
from lark_controller.flows.diff import diff
from lark_controller.flows.marker import MARKERS
from lark_controller.flows.model import Program
from lark_controller.jobs.job import JobState
from lark_controller.reconcile import markers
from lark_controller.reconcile.switch import NO_ROLES
from lark_controller.switches.openflow.roles import MASTER, Role
from tests.fixtures import controllers
from tests.fixtures.controllers import a_core, an_edge, connect, jobs_flows, post, running, until


def begin(monkeypatch: pytest.MonkeyPatch, generation: int) -> None:
    """Controllers that start from now on have this generation."""
    monkeypatch.setattr(controllers, "OPTIONS", replace(controllers.OPTIONS, generation=generation))


@pytest.fixture
def _one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Controllers have generation 1."""
    begin(monkeypatch, 1)


@pytest.mark.usefixtures("_one")
def test_a_switch_without_roles_is_used_and_said_to_have_none(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        edge = an_edge(knows_roles=False)
        connect(network, controller, edge)
        connect(network, controller, a_core())
        post(controller, 1)
        until(lambda: jobs_flows(edge))
        assert [problem.problem for problem in controller.switches.find(f"{1:016x}").problems] == [NO_ROLES]
        assert not controller.switches.find(f"{0xC0:016x}").problems


@pytest.mark.usefixtures("_one")
def test_no_job_is_refused_for_a_flow_that_came_too_late(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        edge = an_edge()
        edge.masters.tells = False
        connect(network, controller, edge)
        directory = controller._reconciler.directory
        first = post(controller, 1).job
        until(lambda: directory.standing(first.number).state is JobState.ENFORCED)
        successor = edge.another()

        def follow() -> None:
            edge.masters.opened(successor)
            edge.masters.ask(successor, Role(MASTER, 2))

        network.run(follow)
        job = post(controller, 2, "bob", port="p2").job
        until(lambda: edge.refused_as_slave)
        network.call(edge.closed.wait())
        until(lambda: not controller._openflow.links)
        assert directory.standing(job.number).state is not JobState.REFUSED
        assert not controller.switches.find(f"{1:016x}").problems
        assert jobs_flows(edge, job.number) == 0
        # What its successor keeps up is not called lost by the one that it has followed.
        assert directory.standing(first.number).state is JobState.ENFORCED


def test_a_successor_sends_nothing_to_a_switch_as_it_was(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markers, "QUIET", 0.05)
    monkeypatch.setattr(markers, "LOOK", 0.02)
    edge = StoredSwitch(1, an_edge().ports)
    begin(monkeypatch, 1)
    with running(tmp_path, check_seconds=3600) as one:
        connect(network, one, edge)
        for number in (1, 2):
            post(one, number, port=f"p{number}")
        until(lambda: any(value[0] & MARKERS[1] == MARKERS[0] for value in edge.flows.values()))
        before = edge.digest()
        begin(monkeypatch, 2)
        with running(tmp_path, check_seconds=3600) as two:
            successor = edge.another()
            connect(network, two, successor)
            assert successor.flow_mods == 0
            assert edge.digest() == before
            # The one before is not stopped: it knows, and sends no switch anything.
            until(lambda: not one._openflow.links)
            sent = edge.flow_mods
            post(one, 3, "carol", port="p3")
            network.call(edge.connect(*one.openflow_addresses[0]))
            network.call(edge.closed.wait())
            assert (edge.flow_mods, edge.digest()) == (sent, before)
            # What comes afterwards is sent by the one in charge.
            job = post(two, 4, "carol", port="p3").job
            until(lambda: two._reconciler.directory.standing(job.number).state is JobState.ENFORCED)
            wanted = two._openflow.call(lambda: two._reconciler.desired.build(1)).result()
            assert not diff(wanted, Program.of(successor.decoded()))

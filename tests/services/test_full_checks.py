"""A full check compares digests, where a switch holds and should hold what it did when nothing differed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fake_switch.stored import StoredSwitch
from fake_switch.switch import FakeNetwork
from lark_controller.controller import Controller
from lark_controller.flows.cookies import Category, cookie, parse
from lark_controller.flows.desired import Desired
from lark_controller.flows.marker import Marker
from lark_controller.flows.model import Flow, FlowData, FlowKey, Meter, Program, match
from lark_controller.reconcile import drift
from lark_controller.switches.openflow import replies, wire
from tests.fixtures.controllers import POLICY, an_edge, connect, post, running, until


class Work:
    """The programs that were calculated, and the flows that were decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.built = self.decoded = 0
        build, flow_stats = Desired.build, replies.flow_stats

        def counted_build(desired: Desired, datapath: int) -> Program:
            self.built += 1
            return build(desired, datapath)

        def counted_flow_stats(message: bytes, *given: Any, **named: Any) -> list[replies.FlowRecord]:
            found = flow_stats(message, *given, **named)
            self.decoded += len(found)
            return found

        monkeypatch.setattr(Desired, "build", counted_build)
        monkeypatch.setattr(replies, "flow_stats", counted_flow_stats)

    def of(self, controller: Controller) -> tuple[int, int, int]:
        """The entries that a check finds to differ, the programs that it calculates, the flows that it decodes."""
        self.built = self.decoded = 0
        found = controller._openflow.call(drift.check(controller._reconciler, 1)).result()
        return found, self.built, self.decoded


def with_jobs(network: FakeNetwork, controller: Controller) -> StoredSwitch:
    edge = StoredSwitch(1, an_edge().ports)
    connect(network, controller, edge)
    for number, owner in ((1, "alice"), (2, "bob")):
        post(controller, number, owner, port=f"p{number}")
    settled(controller)
    return edge


def settled(controller: Controller) -> None:
    """Wait until the switch has confirmed all that it was sent."""

    async def idle() -> bool:
        link = controller._reconciler.switches[1].link
        return link is not None and link._applies.idle

    until(lambda: controller._openflow.call(idle()).result())


def write(network: FakeNetwork, edge: StoredSwitch, message: bytes) -> None:
    """Change a switch as somebody else does."""

    async def take() -> None:
        edge.data_received(message)

    network.call(take())


def test_of_an_unchanged_switch_nothing_is_calculated_or_decoded(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(monkeypatch)
    with running(tmp_path) as controller:
        edge = with_jobs(network, controller)
        assert work.of(controller) == (0, 1, len(edge.flows))
        before = controller._reconciler.switches[1].compared_at
        assert [work.of(controller) for _ in range(3)] == [(0, 0, 0)] * 3
        assert controller._reconciler.switches[1].compared_at > before
        # Packets change counters, and time the ages of flows.
        edge.busy = True
        assert work.of(controller) == (0, 0, 0)
        post(controller, 3, "alice", port="p3")
        settled(controller)
        assert work.of(controller) == (0, 1, len(edge.flows))
        assert work.of(controller) == (0, 0, 0)


@pytest.mark.parametrize("change", ["lost", "other", "more"])
def test_foreign_changes_are_found_behind_a_comparison_without_a_difference(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    work = Work(monkeypatch)
    with running(tmp_path) as controller:
        edge = with_jobs(network, controller)
        for _ in range(2):
            assert work.of(controller)[0] == 0
        held = dict(edge.flows)
        (first, *_) = (each for each in edge.decoded() if parse(each.data.cookie).category == Category.JOB)
        if change == "lost":
            write(network, edge, wire.flow_delete(1, first.key))
        elif change == "other":
            write(network, edge, wire.flow_add(1, first._replace(data=first.data._replace(actions=(), goto=None))))
        else:
            more = Flow(FlowKey(0, 7, match(in_port=3)), FlowData(cookie(Category.JOB, 99)))
            write(network, edge, wire.flow_add(1, more))
        assert edge.flows != held
        assert work.of(controller)[0] == 1
        settled(controller)
        assert edge.flows == held
        # As it was again, it is as it was compared.
        assert work.of(controller) == (0, 0, 0)


def test_a_switch_that_holds_again_what_it_held_before_a_job_is_set_right(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(monkeypatch)
    with running(tmp_path) as controller:
        edge = with_jobs(network, controller)
        assert work.of(controller)[0] == 0
        before = dict(edge.flows)
        post(controller, 3, "alice", port="p3")
        settled(controller)
        held = dict(edge.flows)

        async def set_back() -> None:
            edge.flows.clear()
            edge.flows.update(before)

        network.call(set_back())
        assert work.of(controller)[0] > 0
        settled(controller)
        assert edge.flows.keys() == held.keys()
        assert work.of(controller)[0] == 0


def test_foreign_meters_are_found(tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    with running(tmp_path) as controller:
        edge = with_jobs(network, controller)
        for _ in range(2):
            assert work.of(controller)[0] == 0
        write(network, edge, wire.meter_set(1, Meter(5, 1000, 100), new=True))
        assert work.of(controller)[0] == 1


def test_another_policy_ends_the_proof(tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    with running(tmp_path) as controller:
        edge = with_jobs(network, controller)
        work.of(controller)
        controller.policy.put(POLICY.replace("bob", "alice"), "test")
        settled(controller)
        assert work.of(controller) == (0, 1, len(edge.flows))


def test_a_proof_is_over_after_an_hour(tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    with running(tmp_path) as controller:
        edge = with_jobs(network, controller)
        work.of(controller)
        monkeypatch.setattr(drift, "PROOF_SECONDS", 0.0)
        assert work.of(controller) == (0, 1, len(edge.flows))


def test_a_marker_that_somebody_has_set_is_found(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands for flows that others may change; the next change takes it away."""
    work = Work(monkeypatch)
    with running(tmp_path) as controller:
        edge = with_jobs(network, controller)
        assert work.of(controller)[0] == 0
        held = dict(edge.flows)
        write(network, edge, wire.flow_add(1, Marker(5, 7, True, True).flow(0)))
        assert edge.flows != held
        assert work.of(controller) == (0, 0, 0)
        post(controller, 3, "alice", port="p3")
        settled(controller)
        assert Category.MARKER not in {parse(each.data.cookie).category for each in edge.decoded()}

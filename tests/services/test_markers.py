"""A controller that starts again reads a switch's marker in place of its flows, and is not deceived by it."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from fake_switch.stored import StoredSwitch
from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_controller.controller import Controller
from lark_controller.flows.cookies import OURS, Category, parse
from lark_controller.flows.diff import diff
from lark_controller.flows.marker import NO_PROGRAM, Marker, read_marker
from lark_controller.flows.model import FlowKey, Program
from lark_controller.flows.placement import Placed
from lark_controller.jobs.job import JobState
from lark_controller.qos.queues import PortQueues
from lark_controller.qos.worker_queues import Claim
from lark_controller.reconcile import markers, reconciler
from lark_controller.reconcile.drift import check
from lark_controller.switches.openflow import wire
from lark_controller.switches.ovsdb.driver import Ovsdb
from lark_controller.switches.ovsdb.reports import Report
from tests.fixtures.controllers import OPEN, POLICY, a_core, an_edge, connect, post, running, until

EDGE = """  edge1:
    datapath: "0000000000000001"
    role: edge
    ovsdb: "tcp:127.0.0.1:6640"
    ports: {uplink: {port: 1, speed: 1Gbit}}
policies:"""
LIMITED = POLICY.replace("policies:", EDGE).replace(
    "  - slice:", "  - bandwidth: {default: 10Mbit}\n  - slice:"
)  # fmt: skip


@contextmanager
def again(path: Path, policy: str = POLICY) -> Iterator[Controller]:
    """A controller that compares every switch once an hour; a marker stands for the first comparison."""
    with running(path, policy, check_seconds=3600) as controller:
        yield controller


def counted(switch: FakeSwitch, of: type[StoredSwitch] = StoredSwitch) -> StoredSwitch:
    """A switch with the same ports that counts what it is sent."""
    return of(switch.datapath, switch.ports)


def held(switch: StoredSwitch) -> Program:
    return Program.of(flow for flow in switch.decoded() if parse(flow.data.cookie).category != Category.MARKER)


def marker_of(switch: StoredSwitch) -> Marker | None:
    found = [flow for flow in switch.decoded() if parse(flow.data.cookie).category == Category.MARKER]
    assert len(found) <= 1
    return read_marker(found[0].key.match, found[0].data.cookie) if found else None


def desired(controller: Controller, datapath: int = 1) -> Program:
    return controller._openflow.call(lambda: controller._reconciler.desired.build(datapath)).result()


def trusted(controller: Controller, datapath: int = 1) -> bool:
    return controller._reconciler.switches[datapath].trusted


def with_jobs(tmp_path: Path, network: FakeNetwork, policy: str = POLICY) -> StoredSwitch:
    """A worker's switch with two jobs, after its controller has stopped."""
    edge = counted(an_edge())
    with again(tmp_path, policy) as controller:
        connect(network, controller, edge)
        for number, owner in ((1, "alice"), (2, "bob")):
            post(controller, number, owner, port=f"p{number}")
        until(lambda: not diff(desired(controller), held(edge)))
    edge.forget_counts()
    return edge


def test_a_controller_that_starts_again_sends_nothing_to_a_switch_as_it_was(
    tmp_path: Path, network: FakeNetwork
) -> None:
    edge = with_jobs(tmp_path, network)
    marker = marker_of(edge)
    assert marker is not None
    assert marker.rules == len(held(edge).flows)
    with again(tmp_path) as controller:
        connect(network, controller, edge)
        assert edge.flow_mods == 0
        assert trusted(controller)
        found = controller.switches.find(f"{1:016x}")
        assert (found.desired, found.installed) == (marker.rules, marker.rules)
        directory = controller._reconciler.directory
        until(lambda: JobState.ENFORCED in {standing.state for standing in directory.standings.values()})
        # What comes afterwards is sent as ever, behind the marker's end.
        post(controller, 3, "alice", port="p3")
        until(lambda: not diff(desired(controller), held(edge)))
        assert marker_of(edge) is None
    assert marker_of(edge) not in (None, marker)


def test_jobs_that_come_and_go_before_a_switch_is_back_are_all_that_it_is_sent(
    tmp_path: Path, network: FakeNetwork
) -> None:
    edge = with_jobs(tmp_path, network)
    before = held(edge)
    with again(tmp_path) as controller:
        (job,) = (job for job in controller._reconciler.jobs() if job.owner == "alice")
        controller.jobs.end(job.id, "", "hook")
        added = post(controller, 3, "carol", port="p3")
        connect(network, controller, edge)
        assert trusted(controller)
        assert not diff(desired(controller), held(edge))
        changes = diff(held(edge), before)
        # And one that takes the marker away.
        assert edge.flow_mods == len(changes) + 1
        assert len(changes.flows_set) < len(before.flows) / 2
        until(lambda: controller._reconciler.directory.standing(added.job.number).state is JobState.ENFORCED)


def test_a_switch_that_comes_late_is_compared(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markers, "KEPT_SECONDS", 0.0)
    monkeypatch.setattr(markers, "LOOK", 0.02)
    edge = with_jobs(tmp_path, network)
    with again(tmp_path) as controller:
        until(lambda: controller._reconciler.markers._loaded is None)
        post(controller, 3, "carol", port="p3")
        connect(network, controller, edge)
        assert not trusted(controller)
        assert not diff(desired(controller), held(edge))


def test_what_is_stored_of_jobs_is_shown_until_their_switches_had_the_time_to_return(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = counted(an_edge())
    with again(tmp_path) as controller:
        connect(network, controller, edge)
        job = post(controller, 1, "alice", port="p1").job
        until(lambda: controller._reconciler.directory.standing(job.number).state is JobState.ENFORCED)
        until(lambda: not controller._upkeep.unwritten)
    with again(tmp_path) as controller:
        assert controller._reconciler.directory.standing(job.number).state is JobState.ENFORCED
    monkeypatch.setattr(reconciler, "RETURN_SECONDS", 0.1)
    with again(tmp_path) as controller:
        until(lambda: controller._reconciler.directory.standing(job.number).state is JobState.PENDING)
        connect(network, controller, edge)
        until(lambda: controller._reconciler.directory.standing(job.number).state is JobState.ENFORCED)


def test_another_policy_is_found(tmp_path: Path, network: FakeNetwork) -> None:
    edge = with_jobs(tmp_path, network)
    with again(tmp_path, POLICY.replace("bob", "alice")) as controller:
        connect(network, controller, edge)
        assert not trusted(controller)
        assert not diff(desired(controller), held(edge))


def test_another_code_is_found(tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    edge = with_jobs(tmp_path, network)
    monkeypatch.setattr(markers, "code_digest", lambda: b"another")
    with again(tmp_path) as controller:
        connect(network, controller, edge)
        assert not trusted(controller)
        assert not diff(desired(controller), held(edge))


def test_the_next_full_check_finds_what_a_marker_does_not_show(tmp_path: Path, network: FakeNetwork) -> None:
    edge = with_jobs(tmp_path, network)
    lost = next(key for key, value in edge.flows.items() if parse(value[0]).category == Category.JOB)
    del edge.flows[lost]
    with again(tmp_path) as controller:
        connect(network, controller, edge)
        assert trusted(controller)
        assert diff(desired(controller), held(edge))
        assert controller._openflow.call(check(controller._reconciler, 1)).result() == 1
        until(lambda: not diff(desired(controller), held(edge)))
        assert not trusted(controller)


def test_switches_that_markers_stand_for_are_checked_first_and_soon(tmp_path: Path, network: FakeNetwork) -> None:
    edge = with_jobs(tmp_path, network)
    with running(tmp_path, check_seconds=0.1) as controller:
        connect(network, controller, edge)
        until(lambda: not trusted(controller))


def test_without_full_checks_a_marker_stands_for_nothing(tmp_path: Path, network: FakeNetwork) -> None:
    edge = with_jobs(tmp_path, network)
    with running(tmp_path, check_seconds=0) as controller:
        connect(network, controller, edge)
        assert not trusted(controller)
        assert not diff(desired(controller), held(edge))


def test_a_marker_is_gone_before_the_first_change(tmp_path: Path, network: FakeNetwork) -> None:
    """A switch that holds a part of a change has no marker, whatever ends the connection on the way."""
    edge = with_jobs(tmp_path, network)
    order: list[bool] = []

    class Watched(StoredSwitch):
        def _flow_mod(self, xid: int, message: bytes) -> None:
            super()._flow_mod(xid, message)
            order.append(marker_of(self) is None)

    watched = counted(edge, Watched)
    watched.flows = edge.flows
    with again(tmp_path) as controller:
        connect(network, controller, watched)
        post(controller, 3, "alice", port="p3")
        until(lambda: not diff(desired(controller), held(watched)))
        assert order
        assert all(order)


def test_a_switch_is_marked_once_it_is_quiet(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markers, "QUIET", 0.0)
    monkeypatch.setattr(markers, "LOOK", 0.02)
    edge, core = counted(an_edge()), counted(a_core())
    with again(tmp_path) as controller:
        connect(network, controller, edge)
        connect(network, controller, core)
        post(controller, 1, "alice", port="p1")
        until(lambda: not diff(desired(controller), held(edge)) and marker_of(edge) is not None)
        # A controller that is killed leaves it, so that the next one finds it.
        first = marker_of(edge)
        network.run(edge.disconnect)
        until(lambda: not controller.switches.find(f"{1:016x}").connected)
        connect(network, controller, edge)
        assert trusted(controller)
        assert marker_of(edge) == first


def test_a_core_is_compared_and_spared_the_flows_that_try_what_it_can_do(tmp_path: Path, network: FakeNetwork) -> None:
    core = counted(a_core())
    with again(tmp_path) as controller:
        connect(network, controller, core)
    assert marker_of(core) == Marker(NO_PROGRAM, len(held(core).flows), normal=True, tracks=True)
    core.forget_counts()
    with again(tmp_path) as controller:
        connect(network, controller, core)
        assert core.flow_mods == 0
        assert not trusted(controller, core.datapath)
        # What it lost meanwhile comes again, behind the marker's end.
        network.run(core.disconnect)
        until(lambda: not controller.switches.find(f"{core.datapath:016x}").connected)
        (lost, *_) = (flow for flow in core.decoded() if parse(flow.data.cookie).category != Category.MARKER)
        core.data_received(wire.flow_delete(1, lost.key))
        core.forget_counts()
        connect(network, controller, core)
        assert not diff(desired(controller, core.datapath), held(core))
        assert core.flow_mods == 2


def test_a_switch_that_holds_answers_to_packet_ins_is_not_marked(tmp_path: Path, network: FakeNetwork) -> None:
    edge = with_jobs(tmp_path, network, OPEN)
    with again(tmp_path, OPEN) as controller:
        connect(network, controller, edge)

        def hold(count: int) -> None:
            controller._reconciler._reactions.count = lambda datapath: count  # type: ignore[method-assign]

        post(controller, 3, "alice", port="p3")
        until(lambda: not diff(desired(controller), held(edge)))
        hold(1)
        controller._openflow.call(controller._reconciler.markers.finish()).result()
        assert marker_of(edge) is None
        hold(0)
    assert marker_of(edge) is not None


def test_a_switch_that_takes_no_marker_is_not_asked_again(tmp_path: Path, network: FakeNetwork) -> None:
    edge = an_edge()
    tried: list[FlowKey] = []

    def is_marker(mod: object) -> bool:
        found = parse(mod.data.cookie).category == Category.MARKER  # type: ignore[attr-defined]
        tried.extend([mod.key] * found)  # type: ignore[attr-defined]
        return found

    edge.fail_on(is_marker, ofp.OFPET_FLOW_MOD_FAILED, ofp.OFPFMFC_EPERM)
    with again(tmp_path) as controller:
        connect(network, controller, edge)
        post(controller, 1, "alice", port="p1")
        until(lambda: not diff(desired(controller), edge.program))
        finish = controller._reconciler.markers.finish
        for _ in range(3):
            controller._openflow.call(finish()).result()
        assert len(tried) == 1
        assert controller.switches.find(f"{1:016x}").in_sync


def test_a_marker_stands_for_the_queues_that_stand(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database of queues reports later than the switch connects; flows must not change meanwhile."""
    reporting = True

    def set_queues(self: Ovsdb, datapath: int, revision: int, address: str, ports: Mapping[str, PortQueues]) -> None:
        if reporting:
            self._on_report(Report(datapath, revision, ports))

    monkeypatch.setattr(Ovsdb, "set_queues", set_queues)
    edge = counted(an_edge())

    def queued(controller: Controller) -> list[Placed]:
        return [placed for placed in controller._reconciler.desired.jobs_at(1) if placed.queue is not None]

    with again(tmp_path, LIMITED) as controller:
        connect(network, controller, edge)
        for number, owner in ((1, "alice"), (2, "bob")):
            post(controller, number, owner, port=f"p{number}")
        until(lambda: len(queued(controller)) == 2 and not diff(desired(controller), held(edge)))
    edge.forget_counts()
    reporting = False
    with again(tmp_path, LIMITED) as controller:
        connect(network, controller, edge)
        assert trusted(controller)
        assert len(queued(controller)) == 2
        assert not diff(desired(controller), held(edge))
        assert edge.flow_mods == 0


def test_a_job_with_a_queue_that_ended_before_its_switch_is_back_leaves_nothing(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_queues(self: Ovsdb, datapath: int, revision: int, address: str, ports: Mapping[str, PortQueues]) -> None:
        self._on_report(Report(datapath, revision, ports))

    monkeypatch.setattr(Ovsdb, "set_queues", set_queues)
    edge = counted(an_edge())
    with again(tmp_path, LIMITED) as controller:
        connect(network, controller, edge)
        jobs = [post(controller, number, "alice", port=f"p{number}").job for number in (1, 2)]
        until(lambda: len(controller._reconciler.desired.queues) == 2 and not diff(desired(controller), held(edge)))
    with again(tmp_path, LIMITED) as controller:
        controller.jobs.end(jobs[0].id, "", "hook")
        connect(network, controller, edge)
        assert trusted(controller)
        until(lambda: not diff(desired(controller), held(edge)))
        assert list(controller._reconciler.desired.queues) == [Claim.of_job(jobs[1].number)]
        assert not controller._reconciler.queues.holds(1, Claim.of_job(jobs[0].number))


def test_a_switch_that_does_not_answer_a_full_check_is_not_checked_first_for_ever(
    tmp_path: Path, network: FakeNetwork
) -> None:
    edge = with_jobs(tmp_path, network)

    class Mute(StoredSwitch):
        def _multipart(self, xid: int, message: bytes) -> None:
            if int.from_bytes(message[40:48]) != OURS[1]:
                super()._multipart(xid, message)

    mute = counted(edge, Mute)
    mute.flows = edge.flows
    with again(tmp_path) as controller:
        connect(network, controller, mute)
        assert trusted(controller)
        checking = controller._openflow.call(check(controller._reconciler, 1))
        until(lambda: not trusted(controller))
        checking.cancel()


def test_another_connection_of_a_switch_is_compared_in_full(tmp_path: Path, network: FakeNetwork) -> None:
    """Changes through the older connection may come after the marker was read."""
    edge = with_jobs(tmp_path, network)
    other = counted(edge)
    other.flows = edge.flows
    with again(tmp_path) as controller:
        connect(network, controller, edge)
        network.call(other.connect(*controller.openflow_addresses[0]))
        network.call(_closed(edge))
        until(lambda: controller.switches.find(f"{1:016x}").in_sync and not trusted(controller))
        assert other.asked > 0


def test_a_switch_that_cannot_be_marked_keeps_neither_others_nor_the_end_waiting(
    tmp_path: Path, network: FakeNetwork
) -> None:
    first, second = counted(an_edge(1)), counted(an_edge(2))
    with again(tmp_path) as controller:
        connect(network, controller, first)
        connect(network, controller, second)
        controller._openflow.call(lambda: controller._reconciler.desired.switches.pop(1)).result()
    assert marker_of(first) is None
    assert marker_of(second) is not None


async def _closed(switch: FakeSwitch) -> None:
    await asyncio.wait_for(switch.closed.wait(), 20)


def test_the_state_before_a_change_of_policy_is_let_go_of(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markers, "LOOK", 0.01)
    edge = with_jobs(tmp_path, network)
    with again(tmp_path) as controller:
        connect(network, controller, edge)
        loop = controller._reconciler
        before = weakref.ref(loop.desired)
        # It concerns cores alone: the edge keeps its marker, and is not asked for a fingerprint.
        controller.policy.put(POLICY + "  - wan: {when: 'Owner == \"nobody\"', port: wan-fast}\n", "admin")
        assert loop.desired is not before()
        until(lambda: before() is None)

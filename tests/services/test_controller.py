"""The controller with fake switches: what it tells them, what it makes of their answers, faults and restarts."""

from __future__ import annotations

import asyncio
import gc
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from fake_switch.switch import FakeNetwork
from lark_common.errors import AddressError, NotFoundError
from lark_common.log import LOGGER
from lark_controller.api.instances import Expected
from lark_controller.api.jobs import JobFilter
from lark_controller.api.switches import SwitchStatus
from lark_controller.flows.cookies import Category, parse
from lark_controller.flows.tables import Edge
from lark_controller.jobs.job import Job
from lark_controller.reconcile.reconciler import Reconciler
from lark_controller.services import described_job, registration, switches
from lark_controller.services.switch_names import SwitchNames
from lark_controller.store import Store
from lark_controller.switches.openflow.replies import PacketIn
from tests.fixtures import frames
from tests.fixtures.controllers import (
    OPEN,
    POLICY,
    a_core,
    an_edge,
    connect,
    jobs_flows,
    post,
    running,
    until,
)


def test_a_workers_token_registers_no_more_jobs_than_a_worker_can_have(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(described_job, "MOST_OF_HOST", 2)
    with running(tmp_path) as controller:
        connect(network, controller, an_edge())
        first = post(controller, 1).job
        post(controller, 2)
        with pytest.raises(AddressError, match="worker1 has 2 live jobs; at most 2 of a host are accepted"):
            post(controller, 3)
        # What lives may be posted again, other hosts have their own, and an end makes room.
        assert not post(controller, 1).created
        post(controller, 4, datapath=2)
        controller.jobs.end(first.id, "hook")
        assert post(controller, 3).created


def test_a_run_that_is_posted_in_a_loop_has_few_lines_of_the_log(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registration, "LINES_A_SECOND", 0.0)
    with running(tmp_path) as controller, caplog.at_level("INFO", LOGGER):
        connect(network, controller, an_edge())
        for _ in range(3 * registration.LINES_AT_ONCE):
            post(controller, 1)
        # Another has its own.
        post(controller, 2)
        post(controller, 2)
        lines = [record.getMessage() for record in caplog.records]
        assert lines.count("job posted again") == registration.LINES_AT_ONCE + 1
        assert lines.count("job registered") == 2


def test_the_loop_turns_to_other_work_while_all_switches_are_listed(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switches, "_AT_A_TIME", 2)
    order: list[str] = []
    status = switches._status

    def listed(loop: Reconciler, datapath: int, names: SwitchNames, *, ports: bool) -> SwitchStatus:
        if not order:
            asyncio.get_running_loop().call_soon(order.append, "other work")
        order.append("a switch")
        return status(loop, datapath, names, ports=ports)

    with running(tmp_path) as controller:
        for datapath in (1, 2, 3):
            connect(network, controller, an_edge(datapath))
        monkeypatch.setattr(switches, "_status", listed)
        names = [each.datapath for each in controller.switches.all()]
    assert names == sorted(names)
    assert len(names) >= 3
    assert order.index("other work") < len(order) - 1


def test_a_post_is_enforced_once_the_edge_has_confirmed(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        network.run(edge.hold_barriers)
        job = post(controller, 1).job
        early = controller.jobs.confirm(job.id, 0.05)
        assert early.job.state == "registering"
        assert [waiting.datapath for waiting in early.waiting] == ["0000000000000001"]
        network.run(edge.release_barriers)
        late = controller.jobs.confirm(job.id, 20)
        assert (late.job.state, late.confirmed, late.waiting) == ("enforced", ("0000000000000001",), ())
        assert jobs_flows(edge) > 0
        controller.jobs.end(job.id, "hook")
        until(lambda: jobs_flows(edge) == 0)


def test_no_first_packet_of_a_registered_job_is_asked_about(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither to a job of the same user nor to the WAN."""
    questions: list[PacketIn] = []
    with running(tmp_path) as controller:
        edge = an_edge()
        monkeypatch.setattr(edge, "packet_in", questions.append)
        connect(network, controller, edge)
        for number in (1, 2):
            assert controller.jobs.confirm(post(controller, number).job.id, 20).job.state == "enforced"
        to_job = frames.udp("02:00:00:00:00:01", "02:00:00:00:00:02", "10.64.0.1", "10.64.0.2")
        to_wan = frames.udp("02:00:00:00:00:01", "02:00:00:00:00:fe", "10.64.0.1", "198.51.100.1")
        assert [port for port, _ in network.run(lambda: edge.inject(11, to_job))] == [12]
        assert [port for port, _ in network.run(lambda: edge.inject(11, to_wan))] == [1]
        assert questions == []


def test_a_job_that_is_posted_again_has_one_value_everywhere(tmp_path: Path, network: FakeNetwork) -> None:
    """Its lease alone is another: no switch is concerned, and still no part of the controller keeps the old one."""

    def keepers() -> list[object]:
        old = [each for each in gc.get_objects() if type(each) is Job and each.id == job_id and each.lease_until != now]
        return [each for each in gc.get_referrers(*old) if each is not old and not isinstance(each, FrameType)]

    with running(tmp_path, policy=OPEN, counter_seconds=0) as controller:
        connect(network, controller, an_edge())
        job_id = post(controller, 1, started=4_242_001).job.id
        assert controller.jobs.confirm(job_id, 20).job.state == "enforced"
        now = post(controller, 1, started=4_242_001).job.lease_until
        until(lambda: not keepers())


def test_a_limit_that_a_job_meets_is_in_the_audit_trail_and_its_switchs_problems(
    tmp_path: Path, network: FakeNetwork
) -> None:
    with running(tmp_path) as controller:
        connect(network, controller, an_edge())
        job = post(controller, 1).job
        controller.jobs.limited(job.id, "worker", "too many connections")
        (problem,) = controller.switches.find(f"{1:016x}").problems
        assert (problem.problem, problem.job) == ("too many connections", job.id)
        entry = controller.audit.page(job.id, None, 10).entries[0]
        assert (entry.action, entry.actor, entry.detail) == ("limit met", "worker", "too many connections")
        controller.jobs.end(job.id, "hook")
        with pytest.raises(NotFoundError):
            controller.jobs.limited(job.id, "worker", "too many connections")


@pytest.mark.parametrize(("port", "whose"), [("uplink", "an uplink"), ("br", "the host itself")])
def test_a_job_takes_neither_an_uplink_nor_the_hosts_own_port(
    tmp_path: Path, network: FakeNetwork, port: str, whose: str
) -> None:
    with running(tmp_path) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        before = dict(edge.program.flows)
        job = post(controller, 1, port=port).job
        until(lambda: controller.jobs.confirm(job.id, 0.05).job.state == "pending")
        answer = controller.jobs.confirm(job.id, 0.05)
        assert answer.waiting[0].reason == f"its port {port} is {whose}, not a job's"
        assert edge.program.flows == before


def test_a_job_without_a_port_waits_beside_one_of_its_users_that_has_one(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        beside = post(controller, 1).job
        until(lambda: controller.jobs.confirm(beside.id, 0.05).job.state == "enforced")
        # Flows of the slice that both are in are confirmed for it, and none of a port.
        for number, port in ((2, "uplink"), (3, "p9")):
            job = post(controller, number, port=port, running=True).job

            def waits(job_id: str = job.id) -> bool:
                return controller.jobs.confirm(job_id, 0.05).job.state == "pending"

            until(waits)
            assert f"port {port}" in controller.jobs.confirm(job.id, 0.05).job.reason


def test_a_job_at_a_core_switch_is_told_so(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        connect(network, controller, a_core())
        job = post(controller, 1, datapath=0xC0, port="a").job
        until(lambda: controller.jobs.confirm(job.id, 0.05).job.state == "pending")
        assert controller.jobs.confirm(job.id, 0.05).waiting[0].reason == "it is a core switch, and jobs are at edges"


def test_two_switches_with_one_datapath_id_are_a_problem_of_that_switch(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        connect(network, controller, an_edge())
        # One that comes back before its old connection is known to be dead is no problem.
        connect(network, controller, an_edge())
        assert controller.switches.find("0000000000000001").problems == ()
        for own in ("127.0.0.2", "127.0.0.1", "127.0.0.2"):
            network.call(an_edge().connect(*controller.openflow_addresses[0], own=own))
            until(lambda own=own: controller.switches.find("0000000000000001").address.startswith(own))  # type: ignore[misc]  # mypy knows no defaults here
            until(lambda: controller.switches.find("0000000000000001").in_sync)
        (problem,) = controller.switches.find("0000000000000001").problems
        assert "127.0.0.1 and from 127.0.0.2: two switches have this datapath id" in problem.problem


def test_the_reason_names_the_switch_that_is_waited_for(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        one, two = an_edge(1), an_edge(2)
        connect(network, controller, one)
        connect(network, controller, two)
        controller.jobs.confirm(post(controller, 1).job.id, 20)
        # The slice has a job at the first switch, which therefore is told of the second job.
        other = post(controller, 2, datapath=2, port="absent").job
        until(lambda: controller.jobs.detail(other.id).confirmation.confirmed == ("0000000000000001",))
        until(
            lambda: controller.jobs.detail(other.id).job.reason == "switch fake 0000000000000002: it has no port absent"
        )


def test_a_switch_has_its_name_before_it_has_connected_and_is_called_by_its_host(tmp_path: Path) -> None:
    east = 'switches:\n  east: {datapath: "0000000000000001", role: edge, host: worker1.example}\n'
    west = '  west: {datapath: "0000000000000002", role: edge, host: worker1.elsewhere}\n'
    north = '  north: {datapath: "0000000000000003", role: edge, host: worker3}\n'
    with running(tmp_path, POLICY.replace("switches:\n", east + west + north)) as controller:
        job = post(controller, 1, datapath=3).job
        until(lambda: controller.jobs.confirm(job.id, 0.05).job.state == "pending")
        assert controller.jobs.detail(job.id).job.reason == "switch north: has not connected yet"
        for word in ("east", "1", "worker1.example", "Worker1.Example"):
            assert controller.switches.find(word).name == "east"
        with pytest.raises(NotFoundError, match="2 switches are called worker1"):
            controller.switches.find("worker1")
        for word in ("worker", "worker1.", "", "east."):
            with pytest.raises(NotFoundError, match="no switch has"):
                controller.switches.find(word)


def test_a_switch_that_is_away_since_a_restart_is_listed_where_jobs_wait_for_it(
    tmp_path: Path, network: FakeNetwork
) -> None:
    with running(tmp_path) as controller:
        connect(network, controller, an_edge())
        job = post(controller, 1).job
        controller.jobs.confirm(job.id, 20)
        # A description is any text.
        assert controller.switches.find("worker1").description.startswith("fake")
    with running(tmp_path) as controller:
        # Nobody declared it, and it has not come back.
        (core, edge) = sorted(controller.switches.all(), key=lambda each: each.role)
        assert (core.name, core.state) == ("core1", "away")
        assert (edge.datapath, edge.host, edge.state, edge.jobs) == (f"{1:016x}", "worker1", "away", 1)
        for word in ("1", "worker1"):
            assert controller.switches.find(word).reason == "has not connected yet"
        assert controller.switches.names([edge.datapath]) == {edge.datapath: edge.datapath}
        controller.jobs.end(job.id, "hook")
        until(lambda: [each.role for each in controller.switches.all()] == ["core"])


def test_a_job_waits_for_its_switch_and_for_its_port(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        job = post(controller, 1, port="late0").job
        until(lambda: controller.jobs.confirm(job.id, 0.05).job.state == "pending")
        assert controller.jobs.detail(job.id).job.reason == "switch 0000000000000001: has not connected yet"
        edge = an_edge()
        connect(network, controller, edge)
        until(lambda: controller.jobs.confirm(job.id, 0.05).waiting[0].reason == "it has no port late0")
        assert controller.jobs.detail(job.id).job.state == "pending"
        other = an_edge().ports[11]
        network.run(lambda: edge.change_port(replace(other, number=20, name="late0"), ofp.OFPPR_ADD))
        assert controller.jobs.confirm(job.id, 20).job.state == "enforced"
        network.run(lambda: edge.change_port(replace(other, number=20, name="late0"), ofp.OFPPR_DELETE))
        until(lambda: controller.jobs.detail(job.id).job.state == "pending")
        until(lambda: jobs_flows(edge) == 0)
        network.run(edge.disconnect)
        until(lambda: "is not connected" in controller.jobs.detail(job.id).job.reason)


def test_a_job_whose_flow_is_refused_leaves_nothing_anywhere(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        edge, core = an_edge(), a_core()
        connect(network, controller, edge)
        connect(network, controller, core)
        network.run(
            lambda: edge.fail_on(
                lambda mod: (
                    mod.command == ofp.OFPFC_ADD
                    and mod.key.table == Edge.FORWARD
                    and any(term.name == "arp_tpa" for term in mod.key.match)
                ),
                ofp.OFPET_FLOW_MOD_FAILED,
                ofp.OFPFMFC_TABLE_FULL,
            )
        )
        job = post(controller, 1, owner="bob").job
        until(lambda: controller.jobs.detail(job.id).job.state == "refused")
        reason = controller.jobs.detail(job.id).job.reason
        assert "TABLE_FULL" in reason
        assert "0000000000000001" in reason
        until(lambda: jobs_flows(edge) == 0)
        until(lambda: controller.switches.find("core1").desired == len(core.program.flows))
        problems = controller.switches.find("0000000000000001").problems
        assert {problem.job for problem in problems} == {job.id}
        assert all("arp" in problem.flow for problem in problems)
        # Its address is free again, once the store knows.
        network.run(edge.fail_nothing)

        def taken() -> bool:
            try:
                return (
                    controller.jobs.confirm(post(controller, 2, address="10.64.0.1").job.id, 20).job.state == "enforced"
                )
            except AddressError:
                return False

        until(taken)


def test_rule_limits_are_kept_before_anything_is_sent(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Refusals reach the store at the end of the test.
    monkeypatch.setattr("lark_controller.services.background.GATHER", 600)
    with running(tmp_path) as controller:
        core, edge = a_core(), an_edge()
        connect(network, controller, core)
        connect(network, controller, edge)
        room = 60 - len(core.program.flows)
        states, reason = [], ""
        for number in range(1, room + 2):
            job = post(controller, number, "bob", port=None, address=f"10.64.{number}.1").job
            controller.jobs.confirm(job.id, 0.05)
            found = controller.jobs.detail(job.id).job
            states.append(found.state)
            reason = found.reason
        assert states[: room // 2] == ["pending"] * (room // 2)
        assert states[room // 2 :] == ["refused"] * (room + 1 - room // 2)
        assert len(core.program.flows) <= 60
        assert "core1 takes 60 rules" in reason
        with pytest.raises(NotFoundError):
            controller.jobs.at(f"10.64.{room + 1}.1")
    with closing(Store.open(f"sqlite:///{tmp_path}/lark.db")) as store:
        assert {job.state for job in store.runs.page(JobFilter(state=None), None, 100).jobs} == {"pending", "refused"}


def test_a_restart_loses_nothing_and_changes_nothing(tmp_path: Path, network: FakeNetwork) -> None:
    edge = an_edge()
    with running(tmp_path) as controller:
        connect(network, controller, edge)
        assert controller.jobs.confirm(post(controller, 1).job.id, 20).job.state == "enforced"
        held = dict(edge.program.flows)
    received = edge.received
    with running(tmp_path) as controller:
        connect(network, controller, edge)
        assert edge.program.flows == held
        assert edge.received >= received
        assert controller.jobs.at("10.64.0.1").job.owner == "alice"


def test_reactive_decisions_go_when_a_job_starts_or_ends_there(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, OPEN) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        controller.jobs.confirm(post(controller, 1).job.id, 20)
        frame = frames.udp("02:00:00:00:00:01", "02:00:00:00:00:99", "10.64.0.1", "10.9.9.9", 1000, 2000)
        network.run(lambda: edge.inject(11, frame))

        def decisions() -> int:
            return sum(parse(d.cookie).category == Category.REACTIVE for d in edge.program.flows.values())

        until(lambda: decisions() == 1)
        assert controller.switches.find("0000000000000001").packet_ins == 1
        outputs = network.run(lambda: edge.inject(11, frame))
        assert [port for port, _ in outputs] == [1]
        stranger = post(controller, 9, "bob", address="10.9.9.9", port=None).job
        until(lambda: decisions() == 0)
        network.run(lambda: edge.inject(11, frame))
        until(lambda: decisions() == 1)
        assert network.run(lambda: edge.inject(11, frame)) == ()
        controller.jobs.end(stranger.id, "hook")
        until(lambda: decisions() == 0)
        # A job that a switch or worker refuses leaves as little behind as one that ends.
        late = post(controller, 8, "bob", address="10.9.9.9", port=None).job
        until(lambda: controller.jobs.detail(late.id))
        network.run(lambda: edge.inject(11, frame))
        until(lambda: decisions() == 1)
        controller._loop.call(lambda: controller._reconciler.refuse(late, "no room"))
        until(lambda: decisions() == 0)


def test_expected_are_switches_that_are_declared_or_have_jobs(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        connect(network, controller, an_edge())
        # The core is away; of a worker without jobs nothing is missing.
        until(lambda: controller.switches.expected() == Expected(1, 0, (0xC0,)))
        post(controller, 1, "alice", port="p1")
        until(lambda: controller.switches.expected() == Expected(2, 1))
        connect(network, controller, a_core())
        until(lambda: controller.switches.expected() == Expected(2, 2))

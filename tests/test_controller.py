"""The controller with fake switches: what it tells them, what it makes of their answers, faults and restarts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from lark_controller.accountant import Keeping
from lark_controller.ads import parse_post
from lark_controller.controller import Controller
from lark_controller.errors import AddressError, AdError, ChangedError, PolicyError, RuleLimitError
from lark_controller.flows.cookies import Category, counted_by, parse
from lark_controller.flows.model import PORT_LOCAL
from lark_controller.flows.tables import Edge
from lark_controller.jobs import Job
from lark_controller.metrics import Metrics
from lark_controller.openflow.connection import OpenFlowOptions
from lark_controller.openflow.fake import FakeNetwork, FakeSwitch
from lark_controller.policies.decide import needed_attributes
from lark_controller.policies.file import load
from lark_controller.registration import Registration
from lark_controller.reservations import Reservations
from lark_controller.status import Registered
from lark_controller.store import Store
from tests import frames

POLICY = """
version: 1
networks:
  jobs: [10.64.0.0/16]
  local: [10.0.0.0/8]
switches:
  core1: {datapath: "00000000000000c0", role: core, max_rules: 60, ports: {lan: 1, wan: 2, wan-fast: 3}}
policies:
  - block: {when: 'Owner == "mallory"'}
  - slice: {by: Owner}
  - wan: {when: 'Owner == "bob"', action: drop}
"""
OPEN = """
version: 1
networks: {local: [10.0.0.0/8]}
policies: [{slice: {by: Owner}}]
"""
OPTIONS = OpenFlowOptions(
    listen=(("127.0.0.1", 0),), echo_interval=60, apply_timeout=2, handshake_timeout=5, write_timeout=2
)


@contextmanager
def running(
    path: Path, policy: str = POLICY, lease: float = 900, counter_seconds: float = 10.0
) -> Iterator[Controller]:
    store = Store.open(f"sqlite:///{path}/lark.db")
    store.migrate()
    version = store.put_policy(policy, load(policy).digest, "test", time.time())
    controller = Controller(
        store,
        version,
        OPTIONS,
        Metrics(),
        lease_seconds=lease,
        check_seconds=0,
        keeping=Keeping(read_seconds=counter_seconds),
    )
    controller.start()
    try:
        yield controller
    finally:
        controller.stop()
        store.close()


@pytest.fixture
def network() -> Iterator[FakeNetwork]:
    with FakeNetwork() as network:
        yield network


def an_edge(datapath: int = 1, **options: object) -> FakeSwitch:
    ports = {1: "uplink", 11: "p1", 12: "p2", 13: "p3", PORT_LOCAL: "br"}
    return FakeSwitch(datapath, ports, **options)  # type: ignore[arg-type]  # options are the switch's own


def a_core() -> FakeSwitch:
    return FakeSwitch(0xC0, {1: "a", 2: "b", 3: "c"})


def connect(network: FakeNetwork, controller: Controller, switch: FakeSwitch) -> None:
    network.call(switch.connect(*controller.openflow_addresses[0]))
    until(lambda: controller.switch(f"{switch.datapath:016x}").in_sync)


def until(condition: Callable[[], object], limit: float = 20.0) -> None:
    """The limit only ends a test that has failed already."""
    end = time.monotonic() + limit
    while True:
        try:
            if condition():
                return
        except LookupError:
            pass
        except Exception as error:
            if "no switch has" not in str(error):
                raise
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


def post(
    controller: Controller,
    number: int,
    owner: str = "alice",
    *,
    slot: str = "",
    started: int = 1,
    datapath: int = 1,
    address: str | None = "",
    port: str | None = "",
    more: str = "",
    attributes: str = "",
) -> Registered:
    lines = [
        f'Owner = "{owner}"', f'GlobalJobId = "s#{number}.0#1"', f"JobCurrentStartDate = {started}",
        attributes, "------",
        f'Machine = "worker{datapath}"', f'Name = "{slot or f"slot{number}"}@worker{datapath}"',
        f'LarkDatapathId = "{datapath:016x}"', f'LarkInnerMacAddress = "02:00:00:00:00:{number:02x}"', more,
    ]  # fmt: skip
    if address is not None:
        lines.append(f'LarkInnerAddressIPv4 = "{address or f"10.64.0.{number}"}"')
    if port is not None:
        lines.append(f'LarkExternalInterface = "{port or f"p{number}"}"')
    return controller.register(*parse_post("\n".join(lines).encode(), "text/plain"), "hook")


def jobs_flows(switch: FakeSwitch, number: int | None = None) -> int:
    return sum(
        parse(data.cookie).category == Category.JOB and number in (None, parse(data.cookie).number)
        for data in switch.program.flows.values()
    )


def test_a_post_is_enforced_once_the_edge_has_confirmed(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        network.run(edge.hold_barriers)
        job = post(controller, 1).job
        early = controller.confirm(job.id, 0.05)
        assert early.job.state == "registering"
        assert [waiting.datapath for waiting in early.waiting] == ["0000000000000001"]
        network.run(edge.release_barriers)
        late = controller.confirm(job.id, 20)
        assert (late.job.state, late.confirmed, late.waiting) == ("enforced", ("0000000000000001",), ())
        assert jobs_flows(edge) > 0
        controller.end(job.id, "hook")
        until(lambda: jobs_flows(edge) == 0)


@pytest.mark.parametrize(("port", "whose"), [("uplink", "an uplink"), ("br", "the host itself")])
def test_a_job_takes_neither_an_uplink_nor_the_hosts_own_port(
    tmp_path: Path, network: FakeNetwork, port: str, whose: str
) -> None:
    with running(tmp_path) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        before = dict(edge.program.flows)
        job = post(controller, 1, port=port).job
        until(lambda: controller.confirm(job.id, 0.05).job.state == "pending")
        answer = controller.confirm(job.id, 0.05)
        assert answer.waiting[0].reason == f"its port {port} is {whose}, not a job's"
        assert edge.program.flows == before


def test_a_job_at_a_core_switch_is_told_so(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        connect(network, controller, a_core())
        job = post(controller, 1, datapath=0xC0, port="a").job
        until(lambda: controller.confirm(job.id, 0.05).job.state == "pending")
        assert controller.confirm(job.id, 0.05).waiting[0].reason == "it is a core switch, and jobs are at edges"


def test_the_reason_names_the_switch_that_is_waited_for(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        one, two = an_edge(1), an_edge(2)
        connect(network, controller, one)
        connect(network, controller, two)
        controller.confirm(post(controller, 1).job.id, 20)
        # The slice has a job at the first switch, which therefore is told of the second job.
        other = post(controller, 2, datapath=2, port="absent").job
        until(lambda: controller.job(other.id).confirmation.confirmed == ("0000000000000001",))
        until(lambda: controller.job(other.id).job.reason == "switch fake 0000000000000002: it has no port absent")


def test_a_job_waits_for_its_switch_and_for_its_port(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        job = post(controller, 1, port="late0").job
        until(lambda: controller.confirm(job.id, 0.05).job.state == "pending")
        assert controller.job(job.id).job.reason == "switch 0000000000000001: has not connected yet"
        edge = an_edge()
        connect(network, controller, edge)
        until(lambda: controller.confirm(job.id, 0.05).waiting[0].reason == "it has no port late0")
        assert controller.job(job.id).job.state == "pending"
        other = an_edge().ports[11]
        network.run(lambda: edge.change_port(replace(other, number=20, name="late0"), ofp.OFPPR_ADD))
        assert controller.confirm(job.id, 20).job.state == "enforced"
        network.run(lambda: edge.change_port(replace(other, number=20, name="late0"), ofp.OFPPR_DELETE))
        until(lambda: controller.job(job.id).job.state == "pending")
        until(lambda: jobs_flows(edge) == 0)
        network.run(edge.disconnect)
        until(lambda: "is not connected" in controller.job(job.id).job.reason)


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
        until(lambda: controller.job(job.id).job.state == "refused")
        reason = controller.job(job.id).job.reason
        assert "TABLE_FULL" in reason
        assert "0000000000000001" in reason
        until(lambda: jobs_flows(edge) == 0)
        until(lambda: controller.switch("core1").desired == len(core.program.flows))
        problems = controller.switch("0000000000000001").problems
        assert {problem.job for problem in problems} == {job.id}
        assert all("arp" in problem.flow for problem in problems)
        # Its address is free again, once the store knows.
        network.run(edge.fail_nothing)

        def taken() -> bool:
            try:
                return controller.confirm(post(controller, 2, address="10.64.0.1").job.id, 20).job.state == "enforced"
            except AddressError:
                return False

        until(taken)


def test_rule_limits_are_kept_before_anything_is_sent(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        core, edge = a_core(), an_edge()
        connect(network, controller, core)
        connect(network, controller, edge)
        room = 60 - len(core.program.flows)
        states, reason = [], ""
        for number in range(1, room + 2):
            job = post(controller, number, "bob", port=None, address=f"10.64.{number}.1").job
            controller.confirm(job.id, 0.05)
            found = controller.job(job.id).job
            states.append(found.state)
            reason = found.reason
        assert states[: room // 2] == ["pending"] * (room // 2)
        assert states[room // 2 :] == ["refused"] * (room + 1 - room // 2)
        assert len(core.program.flows) <= 60
        assert "core1 takes 60 rules" in reason


def test_a_policy_that_does_not_fit_changes_nothing(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        core = a_core()
        connect(network, controller, core)
        before = dict(core.program.flows)
        exceptions = ", ".join(f"192.0.2.{n}" for n in range(60))
        with pytest.raises(RuleLimitError, match="core1 takes 60 rules"):
            controller.put_policy(POLICY.replace("action: drop", f"action: drop, except: [{exceptions}]"), "ops")
        with pytest.raises(PolicyError):
            controller.put_policy("version: 1\npolicies: [{blok: {}}]\n", "ops")
        with pytest.raises(ChangedError, match="version 1 by test is in force"):
            controller.put_policy(POLICY.replace('"bob"', '"carol"'), "ops", instead_of="0" * 64)
        assert controller.policy().actor == "test"
        assert core.program.flows == before
        plan = controller.plan_policy(POLICY.replace('"bob"', '"carol"'))
        assert plan.jobs_changed == 0


def test_a_new_policy_touches_only_what_differs(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        for number, owner in ((1, "alice"), (2, "carol")):
            controller.confirm(post(controller, number, owner).job.id, 20)
        alice = controller.job_at("10.64.0.1").job.id
        own = controller.flows(f"{1:016x}", 5, alice)
        assert own == tuple(flow for flow in controller.flows(f"{1:016x}", 5) if flow.job == alice)
        assert {"admit", "count", "forward"} <= {flow.table_name for flow in own}
        assert {flow.state for flow in own} == {"installed"}
        assert controller.flows(f"{1:016x}", 5, "0" * 16) == ()
        before = dict(edge.program.flows)
        plan = controller.plan_policy(POLICY.replace('"mallory"', '"carol"'))
        assert [change.changes for change in plan.jobs] == [("is blocked",)]
        controller.put_policy(POLICY.replace('"mallory"', '"carol"'), "ops")
        until(lambda: edge.program.flows != before)
        after = dict(edge.program.flows)
        carol = controller.job_at("10.64.0.2").job
        changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        others = {(after.get(k) or before[k]).cookie for k in changed}
        assert all(
            parse(each).category == Category.SLICE or carol.number == (counted_by(each) or (parse(each).number,))[0]
            for each in others
        ), "alice's flows were touched"


def test_a_restart_loses_nothing_and_changes_nothing(tmp_path: Path, network: FakeNetwork) -> None:
    edge = an_edge()
    with running(tmp_path) as controller:
        connect(network, controller, edge)
        assert controller.confirm(post(controller, 1).job.id, 20).job.state == "enforced"
        held = dict(edge.program.flows)
    received = edge.received
    with running(tmp_path) as controller:
        connect(network, controller, edge)
        assert edge.program.flows == held
        assert edge.received >= received
        assert controller.job_at("10.64.0.1").job.owner == "alice"


def test_two_jobs_cannot_have_one_address_or_one_port(tmp_path: Path) -> None:
    with running(tmp_path) as controller:
        first = post(controller, 1).job
        with pytest.raises(AddressError) as caught:
            post(controller, 2, address="10.64.0.1")
        assert caught.value.holder == first.id
        with pytest.raises(AddressError, match="belongs to live job"):
            post(controller, 2, port="p1")
        with pytest.raises(AdError, match="outside the declared job networks"):
            post(controller, 2, address="10.65.0.1")
        assert not post(controller, 1).created
        again = post(controller, 1, started=2, slot="slot1")
        assert again.created
        until(lambda: controller.job(first.id).job.state == "ended")
        assert controller.job(first.id).job.reason == "superseded"


def test_a_lease_that_is_not_renewed_ends_the_job(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, lease=0.2) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        job = post(controller, 1).job
        until(lambda: controller.job(job.id).job.state == "ended")
        until(lambda: jobs_flows(edge) == 0)
        assert controller.audit(job.id, None, 10).entries[0].action == "expire"


def test_a_job_that_its_lease_has_ended_comes_back_with_the_address_that_it_was_given(
    tmp_path: Path, network: FakeNetwork
) -> None:
    def assigned(controller: Controller, number: int) -> Job:
        return post(controller, number, address=None, more='LarkAddressType = "controller"').job

    with running(tmp_path, lease=0.5) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        first, second = assigned(controller, 1), assigned(controller, 2)
        until(lambda: controller.job(first.id).job.state == controller.job(second.id).job.state == "ended")
        back = assigned(controller, 2)
        assert (back.live, back.addresses) == (True, second.addresses)
        assert first.addresses != second.addresses


def test_reactive_decisions_go_when_a_job_starts_or_ends_there(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, OPEN) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        controller.confirm(post(controller, 1).job.id, 20)
        frame = frames.udp("02:00:00:00:00:01", "02:00:00:00:00:99", "10.64.0.1", "10.9.9.9", 1000, 2000)
        network.run(lambda: edge.inject(11, frame))

        def decisions() -> int:
            return sum(parse(d.cookie).category == Category.REACTIVE for d in edge.program.flows.values())

        until(lambda: decisions() == 1)
        assert controller.switch("0000000000000001").packet_ins == 1
        outputs = network.run(lambda: edge.inject(11, frame))
        assert [port for port, _ in outputs] == [1]
        stranger = post(controller, 9, "bob", address="10.9.9.9", port=None).job
        until(lambda: decisions() == 0)
        network.run(lambda: edge.inject(11, frame))
        until(lambda: decisions() == 1)
        assert network.run(lambda: edge.inject(11, frame)) == ()
        controller.end(stranger.id, "hook")
        until(lambda: decisions() == 0)


def test_jobs_that_come_and_end_while_the_policy_changes_leave_nothing_behind(
    tmp_path: Path, network: FakeNetwork
) -> None:
    with running(tmp_path) as controller, ThreadPoolExecutor(4) as hooks:
        edge = an_edge()
        connect(network, controller, edge)
        idle = sum(1 for _ in edge.program.flows)
        over = Event()

        def come_and_end(slot: int) -> int:
            count = 0
            while not over.is_set():
                count += 1
                number = slot + 10 * count
                job = post(controller, number % 250 + 1, slot=f"slot{number}", port=f"p{slot}", started=count).job
                controller.end(job.id, "hook")
            return count

        running_hooks = [hooks.submit(come_and_end, slot) for slot in (1, 2, 3)]
        try:
            for change in range(30):
                controller.put_policy(POLICY.replace('"mallory"', f'"nobody{change}"'), "ops")
        finally:
            over.set()
        assert all(each.result(60) for each in running_hooks)
        until(lambda: sum(controller.job_counts().values()) == 0)
        until(lambda: len(edge.program.flows) == idle)


def test_addresses_come_from_blocks_and_are_given_back(tmp_path: Path) -> None:
    with running(tmp_path) as controller:
        jobs = [
            post(controller, n, owner, address=None, port=None, more='LarkAddressType = "controller"').job
            for n, owner in enumerate(("alice", "alice", "bob"), 1)
        ]
        assert [str(job.ipv4) for job in jobs] == ["10.64.0.1", "10.64.0.2", "10.64.0.64"]
        assert jobs[0].ipv4_block == jobs[1].ipv4_block != jobs[2].ipv4_block
        again = post(controller, 1, "alice", address=None, port=None, more='LarkAddressType = "controller"')
        assert (again.created, again.job.ipv4) == (False, jobs[0].ipv4)
        for job in jobs:
            controller.end(job.id, "hook")
        until(lambda: sum(controller.job_counts().values()) == 0)
    with running(tmp_path) as controller:
        fresh = post(controller, 7, "zoe", address=None, port=None, more='LarkAddressType = "controller"').job
        assert str(fresh.ipv4) == "10.64.0.1"


def test_addresses_of_declared_hosts_are_no_jobs(tmp_path: Path) -> None:
    policy = POLICY.replace("  local:", "  hosts: [10.64.0.1, 10.64.0.2/31]\n  local:")
    with running(tmp_path, policy) as controller:
        with pytest.raises(AdError, match="kept for a host"):
            post(controller, 1)
        job = post(controller, 1, address=None, port=None, more='LarkAddressType = "controller"').job
        assert str(job.ipv4) == "10.64.0.4"


def test_explain_says_who_and_why(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        connect(network, controller, a_core())
        for number, owner in ((1, "alice"), (2, "alice"), (3, "bob")):
            controller.confirm(post(controller, number, owner).job.id, 20)
        good = controller.explain("10.64.0.1", "10.64.0.2", 5)
        assert good.verdict == "forwarded"
        assert good.steps[0].text.endswith(", enforced")
        bad = controller.explain("10.64.0.1", "10.64.0.3", 5)
        assert bad.verdict == "dropped"
        assert "slice-from" in bad.reason
        assert any('Owner = "alice"' in step.text for step in bad.steps)
        wan = controller.explain(controller.job_at("10.64.0.3").job.id, "192.0.2.1", 5)
        assert (wan.verdict, "wan drop" in wan.reason) == ("dropped", True)
        for src, dst in (("10.64.0.9", "192.0.2.1"), ("10.64.0.1", "10.64.0.9"), ("192.0.2.1", "10.64.0.9")):
            nobody = controller.explain(src, dst, 5)
            assert nobody.verdict == "dropped"
            assert "10.64.0.9" in nobody.reason


@pytest.mark.parametrize(("kind", "rest"), [("block", ""), ("connectivity", ", inbound: deny, outbound: deny")])
def test_explain_names_the_rule_that_takes_all_network_away(
    tmp_path: Path, network: FakeNetwork, kind: str, rest: str
) -> None:
    rule = f"  - {kind}: {{when: 'Owner == \"zoe\"'{rest}}}\n"
    with running(tmp_path, POLICY + rule) as controller:
        connect(network, controller, an_edge())
        connect(network, controller, a_core())
        for number, owner in ((1, "alice"), (3, "zoe")):
            controller.confirm(post(controller, number, owner).job.id, 20)
        for pair in (("10.64.0.1", "10.64.0.3"), ("10.64.0.3", "10.64.0.1")):
            found = controller.explain(*pair, 5)
            assert found.verdict == "dropped"
            assert f'by {kind} when Owner == "zoe" (policy line' in found.reason


def test_a_renewal_that_comes_while_leases_are_looked_through_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/lark.db")
    store.migrate()
    none = Reservations(store, lambda text: None, lambda job_id: None, lambda job_id, bandwidth: None)
    registration = Registration(store, 900, lambda job: None, lambda job_id: None, none)
    policy = load(POLICY)
    registration.use(policy, needed_attributes(policy))
    job_ad, machine_ad = parse_post(
        b'Owner = "alice"\nGlobalJobId = "s#1.0#1"\n------\nMachine = "w"\nLarkInnerAddressIPv4 = "10.64.0.1"\n',
        "text/plain",
    )
    job = registration.register(job_ad, machine_ad, "hook").job

    def expired(now: float) -> list[Job]:
        registration.renew(job.id)
        return [job]

    monkeypatch.setattr(store, "expired", expired)
    assert registration.expire(time.time() + 10_000) == 0
    found = store.find(job.id)
    assert found is not None
    assert found.live
    store.close()

"""A policy that takes another's place on fake switches: as a whole or not at all, and only what differs."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event

import pytest

from fake_switch.switch import FakeNetwork
from lark_common.errors import BusyError, ChangedError, NotFoundError, PolicyError, RuleLimitError
from lark_controller.api.external import ExternalWish
from lark_controller.api.switches import FlowFilter
from lark_controller.flows.cookies import Category, counted_by, parse
from lark_controller.flows.model import Changes
from lark_controller.flows.transition import Transition
from lark_controller.jobs.external import listed
from lark_controller.policies.file import load
from lark_controller.policies.model import Policy
from lark_controller.services import policy as policy_service
from lark_controller.services import policy_plan
from lark_controller.services.policy_plan import Pace
from tests.fixtures import frames
from tests.fixtures.controllers import (
    OPEN,
    POLICY,
    a_core,
    an_edge,
    connect,
    flows_of,
    planned,
    post,
    running,
    until,
)


def test_a_policy_that_does_not_fit_changes_nothing(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        core = a_core()
        connect(network, controller, core)
        before = dict(core.program.flows)
        exceptions = ", ".join(f"192.0.2.{n}" for n in range(60))
        with pytest.raises(RuleLimitError, match="core1 takes 60 rules"):
            controller.policy.put(POLICY.replace("action: drop", f"action: drop, except: [{exceptions}]"), "ops")
        with pytest.raises(PolicyError):
            controller.policy.put("version: 1\npolicies: [{blok: {}}]\n", "ops")
        with pytest.raises(ChangedError, match="version 1 by test is in force"):
            controller.policy.put(POLICY.replace('"bob"', '"carol"'), "ops", instead_of="0" * 64)
        assert controller.policy.version.actor == "test"
        assert core.program.flows == before
        plan = controller.policy.plan(POLICY.replace('"bob"', '"carol"'))
        assert plan.jobs_changed == 0


def test_a_new_policy_touches_only_what_differs(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        for number, owner in ((1, "alice"), (2, "carol")):
            controller.jobs.confirm(post(controller, number, owner).job.id, 20)
        alice = controller.jobs.at("10.64.0.1").job.id
        own = controller.switches.flows(f"{1:016x}", FlowFilter(job=alice), None, 1000, 5).flows
        assert own == flows_of(controller, alice)
        assert {"admit", "count", "forward"} <= {flow.table_name for flow in own}
        assert {flow.state for flow in own} == {"installed"}
        assert controller.switches.flows(f"{1:016x}", FlowFilter(job="0" * 16), None, 1000, 5).flows == ()
        before = dict(edge.program.flows)
        plan = controller.policy.plan(POLICY.replace('"mallory"', '"carol"'))
        assert [change.changes for change in plan.jobs] == [("is blocked",)]
        assert plan.warnings == ("1 switch is away, core1: what changes there is not counted",)
        held = planned(controller, POLICY + "topology: {hosts: {default: {switch: rack2}}}\n")
        assert [sentence.partition(" ")[0] for sentence in held] == ["topology.hosts.default", "every"]
        assert "at 1 of 1 workers of this pool" in held[1]
        controller.policy.put(POLICY.replace('"mallory"', '"carol"'), "ops")
        until(lambda: edge.program.flows != before)
        after = dict(edge.program.flows)
        carol = controller.jobs.at("10.64.0.2").job
        changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        others = {(after.get(k) or before[k]).cookie for k in changed}
        assert all(
            parse(each).category == Category.SLICE or carol.number == (counted_by(each) or (parse(each).number,))[0]
            for each in others
        ), "alice's flows were touched"


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
                controller.jobs.end(job.id, "hook")
            return count

        running_hooks = [hooks.submit(come_and_end, slot) for slot in (1, 2, 3)]
        try:
            for change in range(30):
                controller.policy.put(POLICY.replace('"mallory"', f'"nobody{change}"'), "ops")
        finally:
            over.set()
        assert all(each.result(60) for each in running_hooks)
        until(lambda: controller.jobs.counts().live == 0)
        until(lambda: len(edge.program.flows) == idle)


def test_a_switch_that_cannot_be_brought_over_is_compared_when_it_returns(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path) as controller:
        edges = [an_edge(datapath) for datapath in (1, 2, 3)]
        for edge in edges:
            connect(network, controller, edge)
            controller.jobs.confirm(post(controller, edge.datapath, "carol", datapath=edge.datapath).job.id, 20)
        before = [dict(edge.program.flows) for edge in edges]
        pair, changes = controller._reconciler.pair, Transition.changes
        failing = [2]

        def fails_once(transition: Transition, datapath: int) -> Changes:
            if datapath in failing and datapath in pair.moved:
                failing.remove(datapath)
                raise RuntimeError("nobody has thought of this")
            return changes(transition, datapath)

        monkeypatch.setattr(Transition, "changes", fails_once)
        blocked = POLICY.replace('"mallory"', '"carol"')
        assert controller.policy.put(blocked, "ops").version == controller.policy.version.version == 2
        until(lambda: all(edges[place].program.flows != before[place] for place in (0, 2)))
        until(edges[1].closed.is_set)
        assert edges[1].program.flows == before[1]
        connect(network, controller, edges[1])
        assert edges[1].program.flows != before[1]
        # Nothing is left of that: the next policy reaches every switch.
        controller.policy.put(POLICY, "ops")
        until(lambda: all(edge.program.flows == held for edge, held in zip(edges, before, strict=True)))
        assert not pair.moved


def test_what_goes_wrong_behind_a_change_of_policy_keeps_nothing_else_from_being_done(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, OPEN) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        controller.jobs.confirm(post(controller, 1).job.id, 20)
        frame = frames.udp("02:00:00:00:00:01", "02:00:00:00:00:99", "10.64.0.1", "10.9.9.9")
        network.run(lambda: edge.inject(11, frame))

        def decisions() -> int:
            return sum(parse(data.cookie).category == Category.REACTIVE for data in edge.program.flows.values())

        def fails() -> None:
            raise RuntimeError("nobody has thought of this")

        until(lambda: decisions() == 1)
        monkeypatch.setattr(controller._reconciler.workers, "policy_changed", fails)
        other = OPEN.replace("policies: [", "policies: [{block: {when: 'Owner == \"mallory\"'}}, ")
        assert controller.policy.put(other, "ops").version == controller.policy.version.version == 2
        until(lambda: decisions() == 0)


def test_a_plan_sees_other_attributes_and_keeps_nothing(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        connect(network, controller, an_edge())
        first = post(controller, 1, "alice", attributes='Site = strcat("north", "-1")').job
        post(controller, 2, "carol")
        names = controller._reconciler.decider.names
        told = controller.policy.plan(POLICY + "  - block: {when: 'regexp(\"^north\", Site)'}\n")
        assert [(change.job_id, change.changes) for change in told.jobs] == [(first.id, ("is blocked",))]
        assert controller._reconciler.decider.names == names
        assert controller.jobs.at("10.64.0.1").job.facts == first.facts


def test_a_worker_whose_ports_are_no_uplinks_is_cut_off_and_that_is_said(tmp_path: Path, network: FakeNetwork) -> None:
    elsewhere = POLICY + 'edge: {uplinks: ["nosuch*"]}\n'
    with running(tmp_path) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        controller.jobs.confirm(post(controller, 1).job.id, 20)
        frame = frames.udp("02:00:00:00:00:01", "02:00:00:00:00:99", "10.64.0.1", "192.0.2.1")

        def leave_by() -> set[int]:
            found: list[set[int]] = []
            network.run(lambda: found.append({port for port, _ in edge.inject(11, frame)}))
            return found.pop()

        def said() -> list[str]:
            return [each.problem for each in controller.switches.find(f"{1:016x}").problems]

        assert (leave_by(), said(), controller.switches.find(f"{1:016x}").reason) == ({1}, [], "")
        lost = [each for each in controller.policy.plan(elsewhere).warnings if "cut off" in each]
        assert len(lost) == 1
        assert lost[0].startswith(
            "1 of 1 switches of workers would be cut off from all others, such as fake 0000000000000001:"
        )
        controller.policy.put(elsewhere, "ops")
        until(lambda: leave_by() == set())
        (problem,) = said()
        assert problem.startswith("none of its ports is an uplink as the policy describes them (nosuch*):")
        assert controller.switches.find(f"{1:016x}").reason == problem
        # A port that comes later is one.
        network.run(lambda: edge.change_port(replace(edge.ports[1], number=9, name="nosuch0")))
        until(lambda: leave_by() == {9})
        assert said() == []


def test_a_plan_says_what_becomes_of_a_jobs_bandwidth_and_its_accounts(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        post(controller, 1, "alice", attributes="RequestBandwidth = 10")
        capped = POLICY + "  - bandwidth: {mode: cap}\n"
        told = controller.policy.plan(capped + "accounting: none\n").effects
        assert [each.changes for each in told] == [
            ("bandwidth not enforced becomes cap", "its use is no longer counted"),
        ]
        controller.policy.put(capped, "ops")
        told = controller.policy.plan(POLICY + "  - bandwidth: {mode: guarantee, default: 5, ceiling: 50}\n").effects
        assert [each.changes for each in told] == [
            ("bandwidth cap becomes guarantee (default 5, ceiling 50 Mb/s)",),
        ]


def test_a_plan_says_what_becomes_of_a_jobs_transfers(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        post(controller, 1, "alice")
        limited = POLICY + "  - transfers: {rate: 50}\n"
        told = controller.policy.plan(limited).effects
        assert [each.changes for each in told] == [("transfers under no rule become at most 50 Mb/s",)]
        controller.policy.put(limited, "ops")
        told = controller.policy.plan(POLICY + "  - transfers: {block: true}\n").effects
        assert [each.changes for each in told] == [("transfers at most 50 Mb/s become blocked",)]
        # No switch has anything to do with it.
        assert controller.policy.plan(POLICY).switches == ()


def test_one_plan_and_two_checks_are_made_at_a_time(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = Barrier(3, timeout=30), Event()

    def slow(text: str) -> Policy:
        begun.wait()
        assert go_on.wait(30)
        return load(text)

    with running(tmp_path) as controller, ThreadPoolExecutor() as threads:
        connect(network, controller, an_edge())
        monkeypatch.setattr(policy_service, "load", slow)
        checks = [threads.submit(controller.policy.mistakes, POLICY) for _ in range(2)]
        begun.wait()
        with pytest.raises(BusyError, match="2 policies are being checked"):
            controller.policy.mistakes(POLICY)
        plan = threads.submit(controller.policy.plan, POLICY)
        threads.submit(begun.wait)
        begun.wait()
        with pytest.raises(BusyError, match="being planned"):
            controller.policy.plan(POLICY)
        go_on.set()
        assert [check.result() for check in checks] == [(), ()]
        assert plan.result().jobs_changed == 0
        monkeypatch.undo()
        assert controller.policy.plan(POLICY).jobs_changed == 0


def test_a_plan_rests_as_long_as_it_works_and_ends() -> None:
    now = [0.0]
    rests: list[float] = []

    def rest(seconds: float) -> None:
        rests.append(seconds)
        now[0] += seconds

    pace = Pace(1.0, lambda: now[0], rest)
    for _ in range(10):
        now[0] += 0.001
        pace.step()
    assert rests == pytest.approx([0.002] * 5)
    now[0] += 0.5
    pace.step()
    assert rests[-1] == pytest.approx(0.02)
    now[0] += 1.0
    with pytest.raises(BusyError, match="more than 1 s"):
        pace.step()


def test_a_plan_keeps_no_more_than_it_may(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path) as controller:
        connect(network, controller, an_edge())
        for number in range(1, 9):
            post(controller, number, attributes=f'Long = "{number}{"a" * 4000}"')
        asks = POLICY + "  - wan: {when: 'Long != \"b\"', action: drop}\n"
        assert controller.policy.plan(asks).jobs_changed == 8
        # The facts alone, and then the reasons, too.
        for most in (7 * 4000, 13 * 4000):
            monkeypatch.setattr(policy_plan, "MAX_CHARACTERS", most)
            with pytest.raises(BusyError, match="keeps more than"):
                controller.policy.plan(asks)
        monkeypatch.setattr(policy_plan, "MAX_CHARACTERS", 20 * 4000)
        assert controller.policy.plan(asks).jobs_changed == 8


def test_the_way_back_to_an_earlier_policy(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        controller.jobs.confirm(post(controller, 1, "carol").job.id, 20)
        before = dict(edge.program.flows)
        changed = controller.policy.put(POLICY.replace('"mallory"', '"carol"'), "ops")
        until(lambda: edge.program.flows != before)
        with pytest.raises(ChangedError):
            controller.policy.restore(1, "ops", instead_of="0" * 64)
        with pytest.raises(NotFoundError, match="no version 9"):
            controller.policy.restore(9, "ops")
        with pytest.raises(NotFoundError):
            controller.policy.past(2**70)
        back = controller.policy.restore(1, "eve", instead_of=changed.digest)
        until(lambda: edge.program.flows == before)
        assert (back.version, back.actor, back.text) == (3, "eve", POLICY)
        page = controller.policy.history(None, 2)
        assert [(each.version, each.actor) for each in page.versions] == [(3, "eve"), (2, "ops")]
        assert [each.version for each in controller.policy.history(page.next_cursor, 2).versions] == [1]
        old, new, found = controller.policy.compare(2)
        assert (old.version, new.version, found.added, found.removed) == (2, 3, 1, 1)
        assert "\n+  - block: {when: 'Owner == \"mallory\"'}" in found.diff
        noted = controller.audit.page("policy", None, 1).entries[0]
        assert (noted.actor, noted.detail.partition(", SHA")[0]) == ("eve", "version 3, version 1 again")


def test_jobs_with_the_same_change_are_told_together(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        connect(network, controller, an_edge())
        for number, owner in ((1, "alice"), (2, "carol"), (3, "carol"), (4, "dave")):
            post(controller, number, owner)
        text = POLICY.replace('Owner == "mallory"', 'Owner == "carol" || Owner == "dave"')
        effects = controller.policy.plan(text).effects
        assert [(each.changes, each.jobs, each.owners, each.example_owner) for each in effects] == [
            (("is blocked",), 3, 2, "carol")
        ]


def test_a_ceiling_alone_changes_meters_and_no_flows(tmp_path: Path, network: FakeNetwork) -> None:
    text = POLICY + "groups: {default: {ceiling: 100Mbit}}\n"
    with running(tmp_path, text) as controller:
        connect(network, controller, a_core())
        assert controller.policy.plan(text).switches == ()
        (plan,) = controller.policy.plan(text.replace("100Mbit", "90Mbit")).switches
        assert (plan.added, plan.changed, plan.removed, plan.meters) == (0, 0, 0, 1)


def test_a_plan_warns_where_jobs_as_those_that_live_could_not_start(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        connect(network, controller, an_edge())
        post(controller, 1)
        post(controller, 2, "carol", address=None, more='LarkAddressType = "controller"')
        assert planned(controller, POLICY) == ()
        assert planned(controller, POLICY.replace("10.64.0.0/16", "10.65.0.0/16")) == (
            "1 of 2 live jobs would be refused if they started now, such as 1.0 of alice: 10.64.0.1 is outside the"
            " declared job networks: 10.65.0.0/16",
            "2 of 2 live jobs keep addresses that networks.jobs leaves out or networks.hosts has: their slices hold for"
            " these until the jobs end",
        )
        # The switch of another worker, or of this one by a part of its name.
        edge = '  w: {datapath: "0000000000000001", role: edge, host: worker, ports: {uplink: 1}}\npolicies:'
        (warned,) = planned(controller, POLICY.replace("policies:", edge))
        assert "2 of 2 live jobs would be refused" in warned
        assert "switch w is that of worker, and the job's host is worker1" in warned


def test_a_plan_says_whose_external_address_and_name_it_takes(tmp_path: Path, network: FakeNetwork) -> None:
    def external(pool: str, open_: str, names: str) -> str:
        return (
            f"external:\n  pools: {{public: [{pool}]}}\n  zones: {{x.org: 60}}\n"
            f"  rules:\n    - {{pool: public, open: [{open_}], names: '{names}'}}\n"
        )

    given = POLICY + external("198.51.100.64/30", "any", "{name}.x.org")
    with running(tmp_path, given) as controller:
        job = post(controller, 1, "alice").job
        controller.external.associate(ExternalWish(job.id, listed("tcp/80"), name="web"), "test")

        def told(text: str) -> list[str]:
            return [change for effect in controller.policy.plan(text).effects for change in effect.changes]

        lost = "loses external address 198.51.100.64: "
        # Nothing of it is to be translated then.
        gone = "no longer waits for switch core1, which has not connected yet"
        assert told(given) == []
        assert told(POLICY) == [lost + "the policy has no external addresses", gone]
        assert told(POLICY + external("198.51.100.0/30", "any", "{name}.x.org")) == [
            lost + "198.51.100.64 is not in pool public",
            gone,
        ]
        assert told(POLICY + external("198.51.100.64/30", "udp", "{name}.x.org")) == [
            lost + "the policy opens tcp/80 no more",
            gone,
        ]
        assert told(POLICY + external("198.51.100.64/30", "tcp", "{name}.{owner}.x.org")) == [
            "loses the name web.x.org: the policy names it web.alice.x.org now"
        ]
        blocked = given.replace("policies:\n", "policies:\n  - block: {when: 'Owner == \"alice\"'}\n")
        assert lost + "nothing of the job may pass" in told(blocked)
        assert [each.name for each in controller.external.page().associations] == ["web.x.org"]


def test_no_jobs_ads_stop_a_change_of_the_policy_or_the_start(tmp_path: Path, network: FakeNetwork) -> None:
    """Ads that were accepted once are not refused again, whatever has become of them."""
    becomes = (
        "", 'RequestBandwidth = "x"', "RequestBandwidth = CurrentTime", 'Site = substr("é", 1)', "1 =",
        'Site = strcat("a")\n1 =',
    )  # fmt: skip
    asks = POLICY + "  - block: {when: 'Site == \"a\"'}\n"
    with running(tmp_path) as controller:
        connect(network, controller, an_edge())
        jobs = [post(controller, number, attributes='Site = "a"').job for number in range(1, 1 + len(becomes))]
        with closing(sqlite3.connect(tmp_path / "lark.db", isolation_level=None)) as database:
            for job, line in zip(jobs, becomes, strict=True):
                change = "UPDATE run_ads SET job_ad = job_ad || ? WHERE number = ?"
                assert database.execute(change, (f"{line}\n", job.number)).rowcount == 1
        assert controller.policy.plan(asks).jobs_changed == 4
        controller.policy.put(asks, "ops")
        found = [controller.jobs.detail(job.id).decision for job in jobs]
        # Only where the attribute is an expression are others of its ad looked at.
        assert [each.blocked for each in found] == [True, True, True, False, True, False]
        assert all(each.slice is not None for each in found)
    with running(tmp_path, asks.replace("Site", "Rack")) as controller:
        assert [controller.jobs.found(job.id).live for job in jobs] == [True] * len(becomes)

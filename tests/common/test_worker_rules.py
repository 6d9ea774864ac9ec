"""Rules for workers: a function of jobs and policy, its JSON, its meaning, and their confirmation."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark_common.classads.ads import parse_post
from lark_common.client import Client
from lark_common.errors import NotFoundError, UnsupportedError
from lark_common.runs import AddressType, NetworkType
from lark_common.worker_rules import (
    JobRules,
    WayOut,
    WaysOut,
    WorkerRules,
    from_json,
    to_json,
)
from lark_controller.api.jobs import Registered
from lark_controller.controller import Controller
from lark_controller.flows.desired import Desired
from lark_controller.flows.worker_rules import permits, unsupported
from lark_controller.jobs.job import Job, JobState
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from lark_controller.reconcile import workers
from lark_controller.reconcile.workers import LATE, NOT_YET, PATIENCE, WorkerStates
from lark_controller.services import explain, switches
from tests.fixtures.controllers import running, until
from tests.flows.test_desired import (
    FULL,
    POLICIES,
    a_job,
    numbers,
    steps,
)
from tests.flows.test_ruled import RULES

HOST = "worker1"


def rules_of(*jobs: Job, policy: str = FULL) -> WorkerRules:
    loaded = load(policy)
    pool, decider = Desired(loaded), Decider(loaded)
    for job in jobs:
        pool.put(job, decider.decide(job.facts))
    return pool.worker_rules(HOST)


def a_bridge_job(number: int, **changes: Any) -> Job:
    return a_job(number, datapath=None, network_type=NetworkType.BRIDGE, **changes)


def a_nat_job(number: int, **changes: Any) -> Job:
    address = IPv4Address("10.255.64.0") + number
    return a_job(number, datapath=None, **{"network_type": NetworkType.NAT, "ipv4": address, **changes})


def test_a_decision_as_rules() -> None:
    closed = a_bridge_job(3, owner="bob", inbound=False, address_type=AddressType.DHCP)
    rules = rules_of(a_bridge_job(1, vlan=7, outbound=False), a_nat_job(2, owner="bob", group="atlas"), closed)
    declared = (ip_network("10.64.0.0/16"), ip_network("2001:db8:64::/48"))
    assert rules.job_networks == (*declared, ip_network("10.255.64.2/32"))
    first, second, third = rules.jobs
    assert (first.network_type, first.vlan, first.mac) == (NetworkType.BRIDGE, 7, "02:00:00:00:00:01")
    assert (first.inbound, first.outbound, first.wan, first.dscp) == (True, False, 0, 1)
    assert (second.addresses, second.wan, second.dscp) == ((ip_address("10.255.64.2"),), 1, 2)
    assert (third.inbound, third.outbound, third.isolated, third.vlan) == (False, True, False, None)
    assert [job.dhcp for job in rules.jobs] == [False, False, True]
    assert third.slice == second.slice != first.slice
    assert rules.exceptions == {1: (ip_network("192.0.2.1/32"),)}
    assert rules.slices[first.slice] == (ip_network("10.64.0.1/32"),)
    # Behind NAT an address is the worker's own; the jobs of one slice on one worker know it.
    assert rules.slices[second.slice] == (ip_network("10.64.0.3/32"), ip_network("10.255.64.2/32"))


def test_blocked_jobs_and_jobs_without_connectivity_are_isolated() -> None:
    rules = rules_of(a_nat_job(1, owner="mallory"), a_nat_job(2, inbound=False, outbound=False))
    assert [job.isolated for job in rules.jobs] == [True, True]
    assert rules.slices == {}


def test_slices_follow_jobs_everywhere() -> None:
    elsewhere = a_job(3, ipv4_block=IPv4Network("10.64.0.0/29"))
    rules = rules_of(a_bridge_job(1), elsewhere, a_nat_job(2), a_bridge_job(4, host="worker2"))
    assert [job.id for job in rules.jobs] == [a_job(1).id, a_job(2).id]
    (prefixes,) = rules.slices.values()
    assert prefixes == (ip_network("10.64.0.0/29"), ip_network("10.255.64.2/32"))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(POLICIES), steps)
def test_whoever_has_what_was_told_has_the_whole(text: str, history: list[Any]) -> None:
    """A worker that takes its rules whenever they are said to have changed has those of a pool made anew."""
    policy = load(text)
    pool, decider = Desired(policy), Decider(policy)
    held: dict[str, WorkerRules] = {}
    live: dict[int, Job] = {}
    for action, what in history:
        known = {number for host in pool.ruled.hosts() for number in pool.ruled.numbers(host)}
        if action == "put":
            live[what.number] = what
            pool.put(what, decider.decide(what.facts))
        elif action == "remove":
            live.pop(what, None)
            pool.remove(what)
        for host, fresh in pool.ruled.take().items():
            held[host] = pool.worker_rules(host)
            if action == "put" and what.number not in known and what.host == host and what.datapath is None:
                assert fresh <= {what.number}
    oracle = Desired(policy)
    for job in live.values():
        oracle.put(job, decider.decide(job.facts))
    for host in {*held, *oracle.ruled.hosts()}:
        assert held[host] == oracle.worker_rules(host)
        assert from_json(to_json(held[host])) == held[host]


@settings(max_examples=20, deadline=None)
@given(numbers)
def test_what_says_nothing_new_of_a_job_changes_no_rules(number: int) -> None:
    policy = load(FULL)
    pool, decider = Desired(policy), Decider(policy)
    job = a_nat_job(number)
    pool.put(job, decider.decide(job.facts))
    assert pool.ruled.take() == {HOST: {number}}
    pool.put(replace(job, lease_until=5.0, state=JobState.ENFORCED), decider.decide(job.facts))
    assert pool.ruled.take() == {}
    pool.remove(number)
    assert pool.ruled.take() == {HOST: set()}
    assert pool.worker_rules(HOST).jobs == ()


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("mac", "x\n"), ("id", "0123456789abcdeg"), ("addresses", ["10.0.0.1; drop"]), ("vlan", 4095), ("dhcp", 1),
        ("slice", -1), ("dscp", 64), ("dscp", True), ("network_type", "x"), ("wan", None),
    ],
)  # fmt: skip
def test_what_is_no_rule_is_not_read(change: str, value: object) -> None:
    document = to_json(rules_of(a_nat_job(1)))
    document["jobs"][0][change] = value
    with pytest.raises(ValueError, match=r"."):
        from_json(document)


def test_what_is_no_object_is_not_read() -> None:
    for document in ({}, {"job_networks": None}, to_json(WorkerRules()) | {"slices": []}):
        with pytest.raises(ValueError, match="not the rules of a host"):
            from_json(document)


JOB = JobRules("0" * 16, NetworkType.NAT, "02:00:00:00:00:01")


@pytest.mark.parametrize(
    ("changes", "other", "passes"),
    [
        ({}, "192.0.2.9", True),
        ({"isolated": True}, "10.1.1.1", False),
        ({"slice": 5}, "10.64.1.7", True),
        ({"slice": 5}, "10.64.2.7", False),
        ({"slice": 5}, "10.64.0.53", True),
        ({"slice": 5}, "10.1.1.1", True),
        ({"slice": 5}, "192.0.2.9", True),
        ({"wan": 1}, "192.0.2.9", False),
        ({"wan": 1}, "192.0.2.1", True),
        ({"wan": 1}, "10.64.1.1", True),
        ({"outbound": False}, "10.64.1.1", False),
        ({"inbound": False}, "10.64.1.1", True),
    ],
)
def test_what_rules_permit(changes: dict[str, Any], other: str, passes: bool) -> None:
    job = replace(JOB, **changes)
    assert (permits(RULES, job, ip_address(other), sends=True) == "") is passes
    turned = replace(job, inbound=job.outbound, outbound=job.inbound)
    assert (permits(RULES, turned, ip_address(other), sends=False) == "") is passes


def test_what_no_worker_can_enforce_is_said() -> None:
    policy = load(FULL)
    steered = a_nat_job(1)
    assert "steers to wan-fast" in unsupported(policy, steered, Decider(policy).decide(steered.facts))
    assert unsupported(policy, a_bridge_job(1), Decider(policy).decide(steered.facts)) == ""
    scattered = load(POLICIES[1])
    assert "networks.jobs" in unsupported(scattered, steered, Decider(scattered).decide(steered.facts))


# -- the life of such a job --------------------------------------------------------------------------------------------

POLICY = """
version: 1
networks: {jobs: [10.64.0.0/16], local: [10.0.0.0/8]}
policies:
  - block: {when: 'Owner == "mallory"'}
  - slice: {by: Owner}
"""
STEERING = """
version: 1
networks: {jobs: [10.64.0.0/16], local: [10.0.0.0/8]}
switches: {core1: {datapath: "00000000000000c0", role: core, ports: {lan: 1, wan: 2, wan-fast: 3}}}
policies: [{wan: {port: wan-fast}}]
"""


@contextmanager
def ruling(path: Path) -> Iterator[Controller]:
    with running(path, POLICY) as controller:
        yield controller


def post(
    controller: Controller, number: int, kind: str = "nat", owner: str = "alice", address: str | None = ""
) -> Registered:
    where = f"10.255.64.{number}" if kind == "nat" else f"10.64.0.{number}"
    given = where if address == "" else address
    lines = [
        f'Owner = "{owner}"', f'GlobalJobId = "s#{number}.0#1"', "JobCurrentStartDate = 1", "------",
        f'Machine = "{HOST}"', f'Name = "slot{number}@{HOST}"', f'LarkNetworkType = "{kind}"',
        f'LarkInnerMacAddress = "02:00:00:00:00:{number:02x}"', f'LarkExternalInterface = "p{number}"',
        'LarkAddressType = "controller"' if given is None else f'LarkInnerAddressIPv4 = "{given}"',
    ]  # fmt: skip
    return controller.jobs.register(*parse_post("\n".join(lines).encode(), "text/plain"), "test")


def confirmed(controller: Controller) -> None:
    """The worker has its rules in place as they are now."""
    controller.workers.confirmed(HOST, controller.workers.rules(HOST, "", 0).revision, {})


def state(controller: Controller, job: Job) -> tuple[str, str]:
    found = controller.jobs.detail(job.id).job
    return found.state.value, found.reason


@pytest.mark.parametrize("kind", ["nat", "bridge"])
def test_a_job_is_enforced_when_its_worker_says_so(tmp_path: Path, kind: str) -> None:
    with ruling(tmp_path) as controller:
        job = post(controller, 1, kind).job
        until(lambda: state(controller, job)[0] == "pending")
        assert state(controller, job)[1] == "worker worker1: has not put the job's rules in place yet"
        found = controller.workers.rules(HOST, "", 0)
        assert found.rules is not None
        assert ([each.id for each in found.rules.jobs], found.waiting) == ([job.id], (job.id,))
        # Neither another life of the controller nor what is to come is taken for what is there.
        for revision in ("5f0e12ab.9", "", found.revision.partition(".")[0] + ".0"):
            assert controller.workers.confirmed(HOST, revision, {}).waiting == (job.id,)
        assert controller.workers.confirmed(HOST, found.revision, {}).waiting == ()
        assert state(controller, job) == ("enforced", "")
        # A post that says nothing new waits for nothing.
        post(controller, 1, kind)
        assert controller.workers.rules(HOST, found.revision, 0).rules is None
        assert state(controller, job) == ("enforced", "")


def test_a_confirmation_of_before_a_job_does_not_count_for_it(tmp_path: Path) -> None:
    with ruling(tmp_path) as controller:
        first = post(controller, 1).job
        until(lambda: controller.workers.rules(HOST, "", 0).waiting)
        old = controller.workers.rules(HOST, "", 0).revision
        second = post(controller, 2).job
        until(lambda: len(controller.workers.rules(HOST, "", 0).waiting) == 2)
        assert controller.workers.confirmed(HOST, old, {}).waiting == (second.id,)
        assert state(controller, first)[0] == "enforced"
        assert state(controller, second)[0] == "pending"


def test_a_worker_is_told_at_once_and_waits_no_longer_than_it_likes(tmp_path: Path) -> None:
    with ruling(tmp_path) as controller:
        revision = controller.workers.rules(HOST, "", 0).revision
        assert controller.workers.rules(HOST, revision, 0.05).rules is None
        answers = []
        waiting = threading.Thread(target=lambda: answers.append(controller.workers.rules(HOST, revision, 30)))
        waiting.start()
        post(controller, 1)
        waiting.join(20)
        assert [[job.network_type for job in rules.jobs] for a in answers if (rules := a.rules)] == [[NetworkType.NAT]]
        waiting = threading.Thread(
            target=lambda: answers.append(controller.workers.rules(HOST, answers[0].revision, 30))
        )
        waiting.start()
        controller.release()
        waiting.join(20)
        assert len(answers) == 2


def test_what_a_worker_cannot_enforce_is_refused_with_its_reason(tmp_path: Path) -> None:
    with ruling(tmp_path) as controller:
        job, other = post(controller, 1).job, post(controller, 2).job
        until(lambda: len(controller.workers.rules(HOST, "", 0).waiting) == 2)
        revision = controller.workers.rules(HOST, "", 0).revision
        # A worker speaks for its own jobs alone.
        controller.workers.confirmed("worker2", revision, {other.id: "no"})
        controller.workers.confirmed(HOST, revision, {job.id: "no connection tracking"})
        assert state(controller, job) == ("refused", "worker worker1: no connection tracking")
        assert state(controller, other) == ("enforced", "")
        rules = controller.workers.rules(HOST, "", 0).rules
        assert rules is not None
        assert [each.id for each in rules.jobs] == [other.id]


def test_a_policy_that_no_worker_can_enforce_is_refused(tmp_path: Path) -> None:
    with ruling(tmp_path) as controller:
        post(controller, 1)
        until(lambda: controller.workers.rules(HOST, "", 0).waiting)
        with pytest.raises(UnsupportedError, match=r"job 1\.0: wan rule 1 steers"):
            controller.policy.put(STEERING, "test")


def test_a_new_policy_reaches_the_workers(tmp_path: Path) -> None:
    with ruling(tmp_path) as controller:
        job = post(controller, 1).job
        until(lambda: controller.workers.rules(HOST, "", 0).waiting)
        before = controller.workers.rules(HOST, "", 0)
        controller.workers.confirmed(HOST, before.revision, {})
        controller.policy.put(POLICY.replace("mallory", "alice"), "test")
        after = controller.workers.rules(HOST, before.revision, 0)
        assert after.rules is not None
        assert [each.isolated for each in after.rules.jobs] == [True]
        assert state(controller, job) == ("enforced", "")


@pytest.mark.parametrize("kind", ["nat", "bridge"])
def test_jobs_of_a_worker_that_does_not_follow_are_not_shown_as_enforced(tmp_path: Path, kind: str) -> None:
    """A new policy does not hold where the worker service is gone: the rules of before stay there."""
    with ruling(tmp_path) as controller:
        job, other = post(controller, 1, kind).job, post(controller, 2, kind).job

        def told(seconds: float) -> None:
            def note() -> None:
                for _ in controller._reconciler.workers.note_late(time.monotonic() + seconds):
                    controller._reconciler.act()

            controller._loop.call(note)

        until(lambda: len(controller.workers.rules(HOST, "", 0).waiting) == 2)
        before = controller.workers.rules(HOST, "", 0).revision
        assert controller.workers.confirmed(HOST, before, {}).waiting == ()
        told(1e6)
        assert state(controller, job) == ("enforced", "")
        controller.policy.put(POLICY.replace("mallory", "alice"), "test")
        told(PATIENCE - 1)
        assert state(controller, job) == ("enforced", "")
        told(PATIENCE + 1)
        assert state(controller, job) == state(controller, other) == ("pending", f"worker worker1: {LATE}")
        # It may be as it was: nobody says that the packet is dropped.
        said = controller.switches.explain(job.id, other.id, 5)
        assert (said.verdict, said.reason.endswith(LATE)) == ("unknown", True)
        # What was late is not enough, and what is confirmed is.
        assert controller.workers.confirmed(HOST, before, {}).waiting == (job.id, other.id)
        now = controller.workers.rules(HOST, "", 0).revision
        assert controller.workers.confirmed(HOST, now, {}).waiting == ()
        assert state(controller, job) == ("enforced", "")
        assert controller.switches.explain(job.id, other.id, 5).verdict == "dropped"
        told(1e6)
        assert state(controller, job) == ("enforced", "")


def test_workers_that_are_late_are_looked_at_one_by_one_and_may_follow_meanwhile() -> None:
    states = WorkerStates()
    for host in ("worker1", "worker2", "worker3"):
        states.changed(host, ())
    late = states.late(time.monotonic())
    assert next(late) == "worker1"
    states.confirmed("worker2", states.revision("worker2"))
    assert list(late) == ["worker3"]
    assert list(states.late(time.monotonic())) == []


def test_upkeep_looks_for_workers_that_do_not_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PATIENCE", 0.0)
    with running(tmp_path, POLICY, lease=12) as controller:
        job = post(controller, 1).job
        until(lambda: controller.workers.rules(HOST, "", 0).waiting)
        controller.workers.confirmed(HOST, controller.workers.rules(HOST, "", 0).revision, {})
        controller.policy.put(POLICY.replace("mallory", "alice"), "test")
        until(lambda: state(controller, job) == ("pending", f"worker worker1: {LATE}"))


def test_it_is_explained_what_a_worker_does(tmp_path: Path) -> None:
    with ruling(tmp_path) as controller:
        alice, bob, other = post(controller, 1).job, post(controller, 2, owner="bob").job, post(controller, 3).job
        until(lambda: len(controller.workers.rules(HOST, "", 0).waiting) == 3)
        assert "not of the job's slice" in controller.switches.explain(alice.id, bob.id, 5).reason
        mallory = post(controller, 4, owner="mallory").job
        bridged = post(controller, 5, "bridge", "bob").job
        until(lambda: len(controller.workers.rules(HOST, "", 0).waiting) == 5)
        assert "nothing passes" in controller.switches.explain(mallory.id, "192.0.2.1", 5).reason
        told = controller.switches.explain(alice.id, bridged.id, 5)
        assert (told.verdict, told.reason.partition(":")[0]) == ("dropped", f"worker {HOST} drops it")
        # Of a job that has no rules yet nothing passes.
        waiting = controller.switches.explain(alice.id, other.id, 5)
        assert (waiting.verdict, waiting.reason.endswith(NOT_YET)) == ("unknown", True)
        confirmed(controller)
        assert controller.switches.explain(alice.id, other.id, 5).verdict == "forwarded"
        outside = controller.switches.explain("192.0.2.1", alice.id, 5)
        assert (outside.verdict, "behind its NAT" in outside.reason) == ("dropped", True)
        leaves = controller.switches.explain(alice.id, "192.0.2.1", 5)
        assert leaves.verdict == "forwarded"
        assert any("worker's own address" in step.text for step in leaves.steps)


def test_a_plan_says_what_no_worker_can_enforce(tmp_path: Path) -> None:
    with ruling(tmp_path) as controller:
        post(controller, 1)
        until(lambda: controller.workers.rules(HOST, "", 0).waiting)
        (refusal,) = controller.policy.plan(STEERING).refusals
        assert refusal.startswith("job 1.0: wan rule 1 steers")


def test_a_job_that_ends_leaves_the_rules(tmp_path: Path) -> None:
    with ruling(tmp_path) as controller:
        job = post(controller, 1).job
        until(lambda: controller.workers.rules(HOST, "", 0).waiting)
        controller.jobs.end(job.id, "test")
        until(lambda: (found := controller.workers.rules(HOST, "", 0).rules) is not None and not found.jobs)
        # A worker that is dead confirms nothing, and what it owed is forgotten with the job.
        assert (
            controller._reconciler.workers.states.confirmed(HOST, controller.workers.rules(HOST, "", 0).revision) == []
        )


def test_behind_nat_the_controller_gives_no_address(tmp_path: Path) -> None:
    with ruling(tmp_path) as controller:
        job = post(controller, 1, address=None).job
        assert job.addresses == ()
        assert post(controller, 2, "bridge", address=None).job.ipv4 is not None
        until(lambda: "address is not known" in state(controller, job)[1] or "rules" in state(controller, job)[1])
        assert AddressType.CONTROLLER is job.address_type


def test_after_a_restart_workers_are_told_anew_and_running_jobs_stay_enforced(tmp_path: Path) -> None:
    with ruling(tmp_path) as controller:
        job = post(controller, 1).job
        until(lambda: controller.workers.rules(HOST, "", 0).waiting)
        revision = controller.workers.rules(HOST, "", 0).revision
        controller.workers.confirmed(HOST, revision, {})
        until(lambda: controller._store.runs.find(job.id).state is JobState.ENFORCED)  # type: ignore[union-attr]  # it is there
    with ruling(tmp_path) as controller:
        found = controller.workers.rules(HOST, revision, 0)
        assert found.rules is not None
        assert (len(found.rules.jobs), found.waiting) == (1, (job.id,))
        assert state(controller, job) == ("enforced", "")
        controller.workers.confirmed(HOST, found.revision, {})
        assert state(controller, job) == ("enforced", "")


def test_a_job_that_leaves_while_it_is_explained_is_explained_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ruling(tmp_path) as controller:
        alice = post(controller, 1).job
        until(lambda: controller.workers.rules(HOST, "", 0).waiting)
        confirmed(controller)
        real = explain.explain

        def ended_first(*args: Any) -> Any:
            controller.jobs.end(alice.id, "hook")
            until(lambda: alice.number not in controller._reconciler.desired.placed)
            return real(*args)

        monkeypatch.setattr(switches, "explain", ended_first)
        assert controller.switches.explain(alice.id, "192.0.2.1", 5).verdict == "forwarded"
        with pytest.raises(NotFoundError):
            controller.switches.explain(alice.id, "192.0.2.1", 5)


def test_by_which_interfaces_jobs_leave_is_sent_where_that_says_more_than_their_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A controller of before refuses what it does not know."""
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(Client, "_json", lambda _self, *asked, **_more: sent.append(json.loads(asked[3])))
    client, nat = Client("http://127.0.0.1:9"), WayOut(NetworkType.NAT, frozenset({"br0"}))
    client.confirm_rules(HOST, "1", out=WaysOut({"br0": None}, (nat,)))
    client.confirm_rules(HOST, "1", out=WaysOut({"br0": None, "eth1": 100.0}, (nat,)))
    assert sent[0] == {"revision": "1", "refused": {}, "late": [], "uplinks": {"br0": None}}
    assert sent[1]["ways"] == [{"network_type": "nat", "uplinks": ["br0"]}]

"""Drops of the moment, on switches that forward: one job or several, one rule or several, either direction."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_controller.accounting.readings import CountKind, FlowReading, PortReading, WorkerCounts
from lark_controller.controller import Controller
from lark_controller.jobs.job import Job
from lark_controller.reconcile.core_drops import CoreDrop, CoreDrops
from tests.fixtures import frames
from tests.fixtures.controllers import an_edge, connect, post, running, until

POLICY = """
version: 1
networks:
  jobs: [10.64.0.0/16]
  local: [10.0.0.0/8]
policies:
  - block: {when: 'Owner == "mallory"'}
  - slice: {by: Owner}
  - wan: {when: 'Owner == "bob" || Owner == "carol"', action: drop}
"""
ROUTER = "02:00:00:00:ff:01"
Found = dict[tuple[str | None, str, str], tuple[float, bool]]


def sends(network: FakeNetwork, edge: FakeSwitch, source: Job, address: str, packets: int = 20) -> None:
    """A job's packets come to its port."""
    port = next(number for number, info in edge.ports.items() if info.name == source.port)
    frame = frames.udp(source.mac or "", ROUTER, str(source.ipv4), address)
    for _ in range(packets):
        network.run(lambda: edge.inject(port, frame))


def dropped(controller: Controller) -> Found:
    """The drops of the moment: owner, kind and direction, rate, and whether that is an estimate."""
    found = controller.drops.now(100).drops
    # The same by job.
    for job in {each.job for each in found if each.job}:
        alone = controller.drops.of_job(100, job)
        assert {each.job for each in alone.drops} <= {job}
        assert alone.jobs == bool(alone.drops)
    return {(each.owner, each.kind, each.direction): (each.packets_per_second, each.estimated) for each in found}


def test_rules_are_told_apart_and_what_cannot_be_is_an_estimate(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, POLICY, counter_seconds=0.1) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        bob, carol, mallory = (
            post(controller, n, owner).job for n, owner in ((1, "bob"), (2, "carol"), (3, "mallory"))
        )
        for job in (bob, carol, mallory):
            controller.jobs.confirm(job.id, 20)
        assert dropped(controller) == {}

        def alone() -> bool:
            """One job, two rules: each rule's own counters say how much."""
            sends(network, edge, bob, "192.0.2.1", 30)
            sends(network, edge, bob, str(carol.ipv4), 10)
            found = dropped(controller)
            wan, sliced = found.get(("bob", "wan", "out")), found.get(("bob", "slice", "out"))
            return bool(wan and sliced and not wan[1] and not sliced[1] and 1.5 < wan[0] / sliced[0] < 6)

        until(alone)
        until(lambda: dropped(controller) == {})

        def two() -> bool:
            """Two jobs at one switch, either rule: whose is which is estimated."""
            sends(network, edge, bob, "192.0.2.1")
            sends(network, edge, carol, str(bob.ipv4))
            sends(network, edge, mallory, "192.0.2.1")
            found = dropped(controller)
            some = [estimated for (owner, _, _), (_, estimated) in found.items() if owner != "mallory"]
            return len(some) == 4 and all(some) and found.get(("mallory", "block", "out"), (0, True))[1] is False

        until(two)
        whole = controller.drops.now(1)
        assert (len(whole.drops), whole.jobs) == (1, 3)
        until(lambda: dropped(controller) == {})


def test_drops_of_jobs_with_one_rule_are_no_others(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, POLICY, counter_seconds=0.1) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        bob, carol, dora = (post(controller, n, owner).job for n, owner in ((1, "bob"), (2, "carol"), (3, "dora")))
        for job in (bob, carol, dora):
            controller.jobs.confirm(job.id, 20)

        def apart() -> bool:
            """The slice drops packets of dora alone, and bob's are for the WAN."""
            sends(network, edge, bob, "192.0.2.1")
            sends(network, edge, dora, str(carol.ipv4))
            found = dropped(controller)
            few = controller.drops.now(1).drops
            return (
                set(found) == {("bob", "wan", "out"), ("dora", "slice", "out")}
                and not any(estimated for _, estimated in found.values())
                and not few[0].estimated
            )

        until(apart)
        until(lambda: dropped(controller) == {})

        def few() -> bool:
            """Two jobs with two rules each: a share is an estimate, also of the one that is asked for."""
            for job in (bob, carol):
                sends(network, edge, job, "192.0.2.1")
                sends(network, edge, job, str(dora.ipv4))
            found = dropped(controller)
            first = controller.drops.now(1).drops
            return len(found) == 4 and all(estimated for _, estimated in found.values()) and first[0].estimated

        until(few)


def test_jobs_that_are_not_accounted_make_a_share_an_estimate(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, POLICY + "accounting: requested\n", counter_seconds=0.1) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        bob = post(controller, 1, "bob", attributes="NetworkAccounting = true").job
        dora, carol = (post(controller, n, owner).job for n, owner in ((2, "dora"), (3, "carol")))
        for job in (bob, dora, carol):
            controller.jobs.confirm(job.id, 20)

        def shares() -> bool:
            """The slice drops packets of dora, whom no account names, and the WAN rule those of bob."""
            sends(network, edge, bob, "192.0.2.1")
            sends(network, edge, dora, str(carol.ipv4))
            found = dropped(controller)
            return set(found) == {("bob", "wan", "out"), ("bob", "slice", "out")} and all(
                estimated for _, estimated in found.values()
            )

        until(shares)


def test_what_is_sent_to_a_job_is_dropped_on_its_way_in(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, POLICY, counter_seconds=0.1) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        bob = post(controller, 1, "bob").job
        controller.jobs.confirm(bob.id, 20)

        def comes() -> bool:
            """From outside, by the worker's uplink."""
            frame = frames.udp(ROUTER, bob.mac or "", "192.0.2.1", str(bob.ipv4))
            for _ in range(5):
                network.run(lambda: edge.inject(1, frame))
            found = [(each.kind, each.direction, each.source, each.destination, each.line)
                     for each in controller.drops.now(9).drops]  # fmt: skip
            return found == [("wan", "in", "the WAN", "job 1.0 of bob", 9)]

        until(comes)


def test_workers_count_no_rule_apart_and_drop_some_packets_without_one(tmp_path: Path) -> None:
    slices = POLICY.replace("slice: {by: Owner}", "slice: {by: Owner, when: 'Owner != \"alice\"'}")
    with running(tmp_path, slices, counter_seconds=0) as controller:
        nat, more = "10.255.64.2", 'LarkNetworkType = "nat"'
        alice, bob, zoe = (
            post(controller, n, owner, address=nat, port=None, more=more).job
            for n, owner in ((1, "alice"), (2, "bob"), (3, "zoe"))
        )

        def drops() -> Found:
            for job in (alice, bob, zoe):
                before = controller.jobs.detail(job.id).usage
                packets = (0 if before is None else before.usage.packets_out) + 10
                report = WorkerCounts(PortReading(0, 0, packets, packets), policy_drops=(0, packets))
                controller.usage.counted(job.id, report, False)
            return dropped(controller)

        parts = {("alice", "worker"): False, ("bob", "slice"): True, ("bob", "wan"): True, ("zoe", "slice"): False}
        until(lambda: {key[:2]: estimated for key, (_, estimated) in drops().items()} == parts)


def test_jobs_with_one_number_are_shown_with_their_access_points(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, POLICY, counter_seconds=1.0) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        jobs = [post(controller, n, "mallory", global_id=f"submit{n}#7.0#1").job for n in (1, 2)]
        for job in jobs:
            controller.jobs.confirm(job.id, 20)
        named = {f"submit{n}#7.0" for n in (1, 2)}

        def both() -> bool:
            for job in jobs:
                sends(network, edge, job, "192.0.2.1", 3)
            found = controller.drops.now(9).drops
            return {(each.name, each.source) for each in found} == {(name, f"job {name} of mallory") for name in named}

        # Both jobs' packets are to come between the same two readings.
        until(both, 120)
        ports = controller.switches.find(f"{1:016x}").ports
        assert {port.job_name for port in ports if port.job} == named


def test_a_switch_that_goes_takes_its_drops_along(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, POLICY, counter_seconds=0.1) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        job = post(controller, 1, "mallory").job
        controller.jobs.confirm(job.id, 20)

        def drops() -> bool:
            sends(network, edge, job, "192.0.2.1")
            return bool(dropped(controller))

        until(drops)
        assert controller.drops.now(9).away == 0
        network.run(edge.disconnect)
        until(lambda: dropped(controller) == {})
        until(lambda: controller.drops.now(9).away == 1)
        assert controller.drops.now(9, "mallory").away is None


def test_jobs_of_which_nothing_passes_follow_the_policy(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, POLICY, counter_seconds=0.1) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        jobs = [post(controller, number, owner).job for number, owner in ((1, "mallory"), (2, "bob"))]
        for job in jobs:
            controller.jobs.confirm(job.id, 20)
        assert (controller.jobs.counts().isolated, controller.jobs.isolated(jobs)) == (1, [jobs[0].number])
        controller.policy.put(POLICY.replace("mallory", "bob"), "test")
        until(lambda: controller.jobs.isolated(jobs) == [jobs[1].number])
        assert controller.jobs.counts().isolated == 1
        controller.policy.put(POLICY.replace("mallory", "nobody"), "test")
        until(lambda: controller.jobs.counts().isolated == 0)
        controller.policy.put(POLICY, "test")
        until(lambda: controller.jobs.counts().isolated == 1)
        controller.jobs.end(jobs[0].id, "test")
        until(lambda: controller.jobs.counts().isolated == 0)


def drops_of(controller: Controller, job: Job, packets: int, began: float, seconds: float = 10.0) -> None:
    """A reading by which a job's rules have dropped so many packets that it sent, since the reading before."""
    ledger = controller.usage._ledger
    until(lambda: ledger.has_open(job.number))
    if not ledger.started(job.number):
        ledger.read(job.number, began, PortReading(0, 0, 0, 0), port_age=1.0)
    before = ledger.usage(job.number)
    assert before is not None
    whole = before.usage.policy_drops_out + packets
    flows = [FlowReading(CountKind.DROP_OUT, whole, 100 * whole)]
    ledger.read(job.number, began + seconds, PortReading(whole, 100 * whole, 0, 0), flows)


def test_the_most_drops_are_those_of_a_rule_and_not_of_a_job(tmp_path: Path) -> None:
    with running(tmp_path, POLICY, counter_seconds=0) as controller:
        owners = ("bob", "carol", "bob", "mallory", "dora")
        jobs = [post(controller, number, owner).job for number, owner in enumerate(owners, 1)]
        now = time.time()
        # Of the first three two rules drop packets, half each.
        for job, packets in zip(jobs, (100, 100, 100, 80, 60), strict=True):
            drops_of(controller, job, packets, now)
        whole = [(each.owner, each.packets_per_second) for each in controller.drops.now(100).drops]
        assert whole[:2] == [("mallory", 8.0), ("dora", 6.0)]
        assert {each for _, each in whole[2:]} == {5.0}
        assert len(whole) == 8
        for limit in (1, 2, 3):
            found = controller.drops.now(limit)
            assert [(each.owner, each.packets_per_second) for each in found.drops] == whole[:limit]
            assert (found.jobs, found.packets_per_second) == (5, 44.0)
        nothing = controller.drops.now(0)
        assert (nothing.drops, nothing.jobs, nothing.packets_per_second) == ((), 5, 44.0)


def test_drops_under_the_policy_before_are_not_of_a_rule_of_this_one(tmp_path: Path) -> None:
    with running(tmp_path, POLICY, counter_seconds=0) as controller:
        bob = post(controller, 1, "bob").job
        began = time.time() - 5
        drops_of(controller, bob, 100, began, 4)
        assert {each.line for each in controller.drops.now(9).drops} == {8, 9}
        controller.policy.put(POLICY.replace("mallory", "bob"), "test")
        (found,) = controller.drops.now(9).drops
        shown = found.kind, found.line, found.packets_per_second, found.rule
        assert shown == ("policy", None, 25.0, "a rule of the policy before the one in force")
        assert controller.drops.now(9, "bob").drops == (found,)
        # Part of this reading, too.
        began = time.time()
        drops_of(controller, bob, 100, began, 1)
        assert [each.line for each in controller.drops.now(9).drops] == [None]
        drops_of(controller, bob, 100, began, 11)
        assert [(each.kind, each.line) for each in controller.drops.now(9).drops] == [("block", 7)]


def test_what_the_policy_does_not_count_is_told_and_does_not_stand_still(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, POLICY, counter_seconds=0.1) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        mallory = post(controller, 1, "mallory").job
        controller.jobs.confirm(mallory.id, 20)
        nat = post(controller, 2, "bob", address="10.255.64.2", port=None, more='LarkNetworkType = "nat"').job
        post(controller, 3, "carol", address=None, port=None, more='LarkNetworkType = "none"')

        def counted(packets: int) -> bool:
            report = WorkerCounts(PortReading(packets, 1000 * packets, 0, 0), policy_drops=(0, packets))
            return controller.usage.counted(nat.id, report, False)

        def drops() -> bool:
            sends(network, edge, mallory, "192.0.2.1")
            return {owner for owner, _, _ in dropped(controller)} == {"bob", "mallory"}

        assert counted(100)
        until(drops)
        assert controller.drops.now(9).uncounted == controller.drops.uncounted() == 0
        assert nat.id in {each.name for each in controller.usage.flowing("job", 9)}
        controller.policy.put(POLICY + "accounting: none\n", "test")
        until(lambda: dropped(controller) == {})
        assert (controller.drops.now(9).uncounted, controller.drops.now(9).jobs) == (2, 0)
        assert controller.drops.now(9, "bob").uncounted == controller.drops.uncounted("bob") == 1
        assert controller.drops.now(9, "carol").uncounted == 0
        # Its rate ends, what it has used until then stays.
        until(lambda: controller.usage.flowing("job", 9) == ())
        assert not counted(500)
        usage = controller.jobs.detail(nat.id).usage
        assert usage is not None
        assert usage.usage.packets_out == 100
        post(controller, 4, "dora")
        until(lambda: controller.drops.uncounted() == 3)
        controller.policy.put(POLICY, "test")
        until(lambda: controller.drops.uncounted() == 0)
        assert counted(600)
        usage = controller.jobs.detail(nat.id).usage
        assert usage is not None
        assert usage.usage.packets_out == 600


def test_groups_whose_packets_a_core_drops_are_counted_apart_from_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"""{POLICY}groups: {{cms: {{port: wan, ceiling: 4Mbit}}, atlas: {{port: wan, ceiling: 3Mbit}}}}
switches: {{core1: {{datapath: "00000000000000c0", role: core, ports: {{lan: 1, wan: 2}}}}}}
"""
    with running(tmp_path, text, counter_seconds=0) as controller:
        bob = post(controller, 1, "bob").job
        drops_of(controller, bob, 100, time.time())
        at = [CoreDrop(0xC0, group, 50.0, time.time(), inward) for group, inward in (("cms", False), ("cms", True))]
        monkeypatch.setattr(CoreDrops, "now", lambda _: [*at, CoreDrop(0xC0, "atlas", 20.0, time.time(), False)])
        found = controller.drops.now(100)
        assert (found.jobs, found.groups, found.packets_per_second) == (1, 2, 130.0)
        assert {(each.switch, each.kind == "group") for each in found.drops} == {("core1", True), (None, False)}

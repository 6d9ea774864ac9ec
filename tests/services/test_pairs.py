"""Advice by pair: queues of fake switches and reports of workers, real store."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from fake_switch import switchside
from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_common.classads.ads import parse_post
from lark_common.errors import AmbiguousError, NotFoundError
from lark_controller.accounting.pairs import _Pair
from lark_controller.accounting.readings import FlowQueue
from lark_controller.api.reservations import Change, Wish
from lark_controller.api.usage import PairsAdvice
from lark_controller.api.workers import Delivered
from lark_controller.controller import Controller
from lark_controller.jobs.job import Job
from lark_controller.qos.delivery import Counters
from lark_controller.switches.openflow.link import SwitchLink
from lark_controller.switches.openflow.replies import QueueCounters
from tests.fixtures.controllers import connect, network, running, until

__all__ = ["network"]

POLICY = """
version: 1
networks: {jobs: [10.64.0.0/16], local: [10.0.0.0/8]}
topology:
  hosts:
    worker2: {switch: core1, capacity: 1000, addresses: [10.0.0.2]}
    worker3: {switch: core1, capacity: 150}
    default: {switch: core1, capacity: 1000}
"""
HOSTS = ("worker1", "worker2", "worker3")


def start(
    controller: Controller,
    node: int | None,
    *more: str,
    job: int = 1,
    host: str = "",
    owner: str = "alice",
    kind: str = "ovs_bridge",
    pattern: str = "",
) -> Job:
    """Post the ads of a node, or of a job of its own; each host has a switch with its number."""
    place = node or 0
    machine = host or HOSTS[place]
    slot = f"slot{job}_{place}@{machine}"
    nodes = [] if node is None else [f"Node = {node}", "MaxHosts = 3"]
    if pattern:
        slots = ",".join(f"slot{job}_{each}@{name}" for each, name in enumerate(HOSTS))
        nodes += [f'RequestMpiBandwidth = "{pattern}"', f'AllRemoteHosts = "{slots}"']
    datapath = [f'LarkDatapathId = "{int(machine[-1]):016x}"'] if kind == "ovs_bridge" else []
    lines = [
        f'Owner = "{owner}"', f'GlobalJobId = "s#{job}.0#1"', "JobCurrentStartDate = 1", *nodes, "------",
        f'Machine = "{machine}"', f'Name = "{slot}"', f'NetworkType = "{kind}"', *datapath,
        f'LarkInnerAddressIPv4 = "10.64.{job}.{place + 1}"', f'LarkExternalInterface = "p{job}{place}"', *more,
    ]  # fmt: skip
    return controller.jobs.register(*parse_post("\n".join(lines).encode(), "text/plain"), "hook").job


def a_switch(number: int) -> FakeSwitch:
    return FakeSwitch(number, {1: "uplink", **{10 + place: f"p1{place}" for place in range(3)}})


@contextmanager
def pool(path: Path, network: FakeNetwork, seconds: float = 0.05) -> Iterator[tuple[Controller, list[FakeSwitch]]]:
    with running(path, POLICY, counter_seconds=seconds) as controller:
        switches = [a_switch(number) for number in (1, 2, 3)]
        for each in switches:
            connect(network, controller, each)
        yield controller, switches


def queue_of(controller: Controller, job: Job, number: int) -> int:
    """The number of the queue that a reservation has at the switch of a job."""
    queues: dict[int, int] = {}

    def is_there() -> bool:
        found = controller._loop.call(lambda: controller._reconciler.queues.reserved_flows(job.datapath or 0))
        queues.update({flow: queue for queue, flow in found.items()})
        return number in queues

    until(is_there)
    passes()
    return queues[number]


def passes() -> None:
    """Wait for some of the milliseconds that readings are timed by, so that what was sent has a rate."""
    began = time.time()
    until(lambda: time.time() > began + 0.01)


def counts(network: FakeNetwork, switch: FakeSwitch, sent: Mapping[int, int], port: int = 1) -> None:
    """A switch has sent so many bytes through these queues."""
    records = [switchside.queue_counters(QueueCounters(port, queue, size, 0, 0)) for queue, size in sent.items()]

    def say() -> None:
        switch.queued[:] = records

    network.run(say)


def numbers(controller: Controller) -> dict[tuple[str, str], int]:
    """The numbers of reservations by their ends."""
    page = controller.reservations.page(None, None, 100).reservations
    return {(each.source, each.destination): each.number for each in page}


def shown(found: PairsAdvice) -> dict[str, float]:
    """The mean rate of each pair times its seconds: what it has sent, in bytes."""
    return {each.name: round(each.advice.mean * each.advice.seconds * 1e6 / 8) for each in found.pairs}


def test_a_patterns_pairs_are_counted_from_their_nodes_to_their_ends_and_after(
    tmp_path: Path, network: FakeNetwork
) -> None:
    with pool(tmp_path, network) as (controller, switches):
        jobs = [start(controller, node, pattern="ring 100") for node in range(3)]
        until(lambda: all(controller.jobs.live(job.id) for job in jobs))
        flows = numbers(controller)
        queue = queue_of(controller, jobs[0], flows["worker1", "worker2"])
        # Queues of others are nobody's pairs.
        counts(network, switches[0], {queue: 1_000_000, 0: 77, 1: 88})
        until(lambda: shown(controller.usage.pairs(jobs[0].id, False)) == {"node 0 to node 1": 1_000_000})
        until(lambda: len(controller.usage.pairs(jobs[2].id, application=True).pairs) == 3)
        found = controller.usage.pairs(jobs[2].id, application=True)
        assert found.jobs == 3
        assert [each.name for each in found.pairs] == ["node 0 to node 1", "node 1 to node 2", "node 2 to node 0"]
        assert [(each.node, each.peer_node, each.destination) for each in found.pairs] == [
            (0, 1, "worker2"), (1, 2, "worker3"), (2, 0, "worker1"),
        ]  # fmt: skip
        assert [each.advice.asked for each in found.pairs] == [100, 100, 100]
        assert all(each.advice.so_far and each.own_peer for each in found.pairs)
        # A parallel job has one ad: the first node has what is in it, of all.
        first = controller.usage.pairs_summary(jobs[0].id)
        assert first is not None
        assert first.sentence.startswith("3 pairs")
        assert controller.usage.pairs_summary(jobs[1].id) is None
        # What comes between the last round and the end is read before the queue goes.
        counts(network, switches[0], {queue: 3_000_000})
        for job in jobs:
            controller.jobs.end(job.id, "hook")
        until(lambda: not any(each.advice.so_far for each in controller.usage.pairs(jobs[0].id, True).pairs))
        assert shown(controller.usage.pairs(jobs[0].id, False)) == {"node 0 to node 1": 3_000_000}
        until(lambda: len(controller.usage._pairs._ledger) == 0)
        ended = controller.usage.pairs(jobs[1].id, application=True)
        assert [each.name for each in ended.pairs] == [each.name for each in found.pairs]
        assert shown(ended)["node 0 to node 1"] == 3_000_000
    with running(tmp_path, POLICY) as controller:
        assert shown(controller.usage.pairs(jobs[0].id, True))["node 0 to node 1"] == 3_000_000


def test_a_released_flow_has_its_last_counters(tmp_path: Path, network: FakeNetwork) -> None:
    # No round of counters comes to help.
    with pool(tmp_path, network, seconds=0) as (controller, switches):
        sender, receiver = start(controller, 0), start(controller, 1)
        made = controller.reservations.reserve(Wish(sender.id, receiver.id, 100, 60), "ops", True)
        queue = queue_of(controller, sender, made.number)
        counts(network, switches[0], {queue: 500_000})
        controller.reservations.release(made.id, "ops", True)
        until(lambda: shown(controller.usage.pairs(sender.id, False)) == {"node 0 to node 1": 500_000})
        # The program reserves it anew, at another rate: that is the same pair.
        again = controller.reservations.reserve(Wish(sender.id, receiver.id, 40, 60), "ops", True)
        controller.reservations.change(again.id, Change(20), "ops", True)
        counts(network, switches[0], {queue_of(controller, sender, again.number): 1_000})
        until(lambda: controller.usage.pairs(sender.id, False).pairs[0].advice.asked_least == 20)
        controller.jobs.read_counters(sender.id, 5)
        (pair,) = controller.usage.pairs(sender.id, False).pairs
        assert shown(controller.usage.pairs(sender.id, False)) == {"node 0 to node 1": 501_000}
        assert (pair.advice.asked_least, pair.advice.asked) == (20, 100)


def test_flows_that_are_given_back_together_share_requests(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pool(tmp_path, network, seconds=0) as (controller, switches):
        sender = start(controller, None)
        others = [start(controller, None, job=number, host="worker2") for number in range(2, 8)]
        made = [controller.reservations.reserve(Wish(sender.id, each.id, 1, 60), "ops", True) for each in others]
        queues = {queue_of(controller, sender, each.number): 1_000 for each in made}
        counts(network, switches[0], queues)
        asked: list[float | None] = []
        real = SwitchLink.queue_stats

        async def noted(link: SwitchLink, timeout: float | None = None) -> list[QueueCounters]:
            asked.append(timeout)
            return await real(link, timeout)

        monkeypatch.setattr(SwitchLink, "queue_stats", noted)
        stop = threading.Event()
        held = threading.Thread(target=lambda: controller._loop.call(stop.wait))
        held.start()
        for each in made:
            controller.reservations.release(each.id, "ops", True)
        stop.set()
        held.join()
        until(lambda: sum(shown(controller.usage.pairs(sender.id, False)).values()) == 6_000)
        assert len(asked) <= 2


def test_a_flow_that_is_given_back_just_before_the_end_has_its_last_counters(
    tmp_path: Path, network: FakeNetwork
) -> None:
    with pool(tmp_path, network, seconds=0) as (controller, switches):
        sender, receiver = start(controller, 0), start(controller, 1)
        made = controller.reservations.reserve(Wish(sender.id, receiver.id, 100, 60), "ops", True)
        counts(network, switches[0], {queue_of(controller, sender, made.number): 500_000})
        # Both are there before the switch can answer.
        stop = threading.Event()
        held = threading.Thread(target=lambda: controller._loop.call(stop.wait))
        held.start()
        controller.reservations.release(made.id, "ops", True)
        controller.jobs.end(sender.id, "hook")
        stop.set()
        held.join()
        until(lambda: not any(each.advice.so_far for each in controller.usage.pairs(sender.id, False).pairs))
        assert shown(controller.usage.pairs(sender.id, False)) == {"node 0 to node 1": 500_000}


def test_a_restart_goes_on_where_it_was_left(tmp_path: Path, network: FakeNetwork) -> None:
    with pool(tmp_path, network) as (controller, switches):
        sender, receiver = start(controller, 0), start(controller, 1)
        made = controller.reservations.reserve(Wish(sender.id, receiver.id, 100, None), "ops", True)
        counts(network, switches[0], {queue_of(controller, sender, made.number): 500_000})
        until(lambda: shown(controller.usage.pairs(sender.id, False)) == {"node 0 to node 1": 500_000})
        over = start(controller, None, job=2, host="worker3")
        controller.reservations.reserve(Wish(over.id, receiver.id, 10, None), "ops", True)
    with running(tmp_path, POLICY, counter_seconds=0.05) as controller:
        edge = a_switch(1)
        connect(network, controller, edge)
        assert shown(controller.usage.pairs(sender.id, False)) == {"node 0 to node 1": 500_000}
        counts(network, edge, {queue_of(controller, sender, made.number): 700_000})
        until(lambda: shown(controller.usage.pairs(sender.id, False)) == {"node 0 to node 1": 700_000})


def test_a_flow_of_which_nothing_was_written_is_counted_from_then_on(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As after an upgrade, or a crash before the next write.
    with monkeypatch.context() as patched:
        patched.setattr("lark_controller.store.store.UsageHistory.write_pairs", lambda self, entries: None)
        with pool(tmp_path, network, seconds=0) as (controller, _):
            sender, receiver = start(controller, 0), start(controller, 1)
            made = controller.reservations.reserve(Wish(sender.id, receiver.id, 100, None), "ops", True)
    with running(tmp_path, POLICY, counter_seconds=0) as controller:
        edge = a_switch(1)
        connect(network, controller, edge)
        queue = queue_of(controller, sender, made.number)
        for sent, known in ((100_000_000_000, {}), (100_000_700_000, {"node 0 to node 1": 700_000})):
            counts(network, edge, {queue: sent})
            passes()
            controller.jobs.read_counters(sender.id, 5)
            found = shown(controller.usage.pairs(sender.id, False))
            assert {name: size for name, size in found.items() if size} == known


def test_drops_and_waits_are_counted_once_although_the_switchs_database_goes_away(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pool(tmp_path, network, seconds=0) as (controller, switches):
        sender, receiver = start(controller, 0), start(controller, 1)
        made = controller.reservations.reserve(Wish(sender.id, receiver.id, 100, None), "ops", True)
        queue = queue_of(controller, sender, made.number)
        there = ("uplink", queue)
        for dropped, waited in (({there: 5}, {there: 3.0}), ({}, {}), ({there: 7}, {there: 4.0})):
            queues = controller._reconciler.queues
            monkeypatch.setattr(queues, "dropped", lambda datapath, found=dropped: found)
            monkeypatch.setattr(queues, "waited", lambda datapath, found=waited: found)
            counts(network, switches[0], {queue: 1_000})
            passes()
            controller.jobs.read_counters(sender.id, 5)
        (use,) = controller.usage._pairs._ledger.of_job(sender.number) or ()
        assert (use.dropped, use.throttled) == (7, 4_000)


def test_a_flow_of_a_job_that_a_policy_newly_accounts_is_counted_from_then_on(
    tmp_path: Path, network: FakeNetwork
) -> None:
    with running(tmp_path, POLICY + "accounting: requested\n", counter_seconds=0.05) as controller:
        edge = a_switch(1)
        connect(network, controller, edge)
        sender, receiver = start(controller, 0), start(controller, 1)
        made = controller.reservations.reserve(Wish(sender.id, receiver.id, 100, None), "ops", True)
        queue = queue_of(controller, sender, made.number)
        counts(network, edge, {queue: 100_000_000_000})
        controller.policy.put(POLICY, "ops")
        until(lambda: [pair.queues for pair in pairs_in(controller)] not in ([], [None]))
        counts(network, edge, {queue: 100_000_700_000})
        until(lambda: shown(controller.usage.pairs(sender.id, False)) == {"node 0 to node 1": 700_000})


def pairs_in(controller: Controller) -> list[_Pair]:
    senders = controller.usage._pairs._ledger._senders.values()
    return [pair for sender in list(senders) for pair in sender.pairs.values()]


def test_workers_count_the_flows_of_their_own_jobs(tmp_path: Path) -> None:
    with running(tmp_path, POLICY, counter_seconds=0) as controller:
        sender = start(controller, None, kind="bridge", host="worker1")
        receiver = start(controller, None, job=2, kind="bridge", host="worker2")
        made = controller.reservations.reserve(Wish(sender.id, receiver.id, 100, None), "ops", True)

        def report(host: str, sent: int, job: Job = sender, at: float = 1000.0) -> None:
            counted = Delivered(100_000_000, Counters(at, sent, 3, None, 0.5))
            names = [(job.id, f"eth0/{made.number}"), (job.id, "eth0"), (job.id, "eth0/x"), ("ff" * 8, "eth0/1")]
            controller.workers.delivered(host, dict.fromkeys(names, counted))

        until(lambda: controller.usage.pairs(sender.id, False).pairs)
        passes()
        report("worker1", 4_000_000)
        (pair,) = controller.usage.pairs(sender.id, False).pairs
        assert (shown(controller.usage.pairs(sender.id, False)), pair.advice.dropped) == ({pair.name: 4_000_000}, 3)
        assert pair.name == "job s#1.0 to job s#2.0"
        # Another worker's report of this flow, and one in the name of another job, count nothing.
        report("worker2", 9_000_000)
        report("worker2", 9_000_000, receiver)
        assert shown(controller.usage.pairs(sender.id, False)) == {pair.name: 4_000_000}
        # Nor does one that a later one has overtaken. The clock of a worker that has booted begins anew.
        report("worker1", 3_000_000, at=999.5)
        report("worker1", 4_000_000, at=1001.0)
        report("worker1", 4_000_000, at=10.0)
        report("worker1", 3_500_000, at=9.0)
        report("worker1", 4_000_000, at=11.0)
        assert shown(controller.usage.pairs(sender.id, False)) == {pair.name: 4_000_000}
        # The queue is gone, and its last counters come with the next report.
        controller.reservations.release(made.id, "ops", True)
        until(
            lambda: not controller._loop.call(lambda: controller._reconciler.desired.placed[sender.number].job.reserved)
        )
        report("worker1", 5_000_000, at=12.0)
        assert shown(controller.usage.pairs(sender.id, False)) == {pair.name: 5_000_000}
        controller.jobs.end(sender.id, "hook")
        until(lambda: not any(each.advice.so_far for each in controller.usage.pairs(sender.id, False).pairs))
        assert shown(controller.usage.pairs(sender.id, False)) == {pair.name: 5_000_000}


def test_pairs_of_which_nothing_is_counted(tmp_path: Path, network: FakeNetwork) -> None:
    with pool(tmp_path, network) as (controller, _):
        sender = start(controller, 0)
        beside = start(controller, None, job=2, host="worker1")
        other = start(controller, None, job=3, host="worker3", owner="bob")
        for destination in (beside.id, other.id, "worker2"):
            controller.reservations.reserve(Wish(sender.id, destination, 100, None), "ops", True)
        until(lambda: len(controller.usage.pairs(sender.id, False).pairs) == 3)
        found = {each.name: each for each in controller.usage.pairs(sender.id, False).pairs}
        assert sorted(found) == ["node 0 to 10.0.0.2/32", "node 0 to a job on worker3", "node 0 to job s#2.0"]
        reasons = {name: str(each.advice.reason) for name, each in found.items()}
        assert reasons["node 0 to job s#2.0"] == "needs no link"
        assert not found["node 0 to a job on worker3"].own_peer
        assert found["node 0 to 10.0.0.2/32"].peer is None
        # From a host that is no job nothing is sent by a job.
        controller.reservations.reserve(Wish("worker2", beside.id, 1, 60), "ops", False)
        assert controller.usage.pairs(beside.id, False).pairs == ()
        assert controller.usage.pairs_summary(beside.id) is None
        assert controller.usage.pairs(beside.id, False).sentence.startswith("nothing was reserved")
        with pytest.raises(NotFoundError):
            controller.usage.pairs("0" * 16, True)


def test_only_what_the_policy_accounts_is_counted(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, POLICY + "accounting: requested\n", counter_seconds=0.05) as controller:
        edge = a_switch(1)
        connect(network, controller, edge)
        sender, receiver = start(controller, 0), start(controller, 1)
        controller.reservations.reserve(Wish(sender.id, receiver.id, 100, None), "ops", True)
        assert controller.usage.pairs(sender.id, False).pairs == ()
        controller.policy.put(POLICY, "ops")
        until(lambda: controller.usage.pairs(sender.id, False).pairs)


def test_an_application_without_nodes_is_the_jobs_at_the_ends_of_its_pairs(
    tmp_path: Path, network: FakeNetwork
) -> None:
    with pool(tmp_path, network) as (controller, _):
        jobs = [start(controller, None, job=number, host=HOSTS[number - 1]) for number in (1, 2, 3)]
        stranger = start(controller, None, job=4, host="worker3", owner="bob")
        for source, destination in ((0, 1), (1, 2), (2, 0)):
            controller.reservations.reserve(Wish(jobs[source].id, jobs[destination].id, 10, None), "ops", True)
        controller.reservations.reserve(Wish(stranger.id, jobs[0].id, 10, None), "ops", True)
        names = ["job s#1.0 to job s#2.0", "job s#2.0 to job s#3.0", "job s#3.0 to job s#1.0"]
        until(lambda: len(controller.usage.pairs(jobs[0].id, True).pairs) == 3)
        assert sorted(each.name for each in controller.usage.pairs(jobs[0].id, True).pairs) == names
        for job in (*jobs, stranger):
            controller.jobs.end(job.id, "hook")
        until(lambda: len(controller.usage._pairs._ledger) == 0)
        assert sorted(each.name for each in controller.usage.pairs(jobs[0].id, True).pairs) == names


def test_the_jobs_of_an_answer_are_looked_up_together(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lark_controller.services.pairs.MOST_PAIRS", 2)
    with pool(tmp_path, network) as (controller, _):
        sender = start(controller, None)
        others = [start(controller, None, job=number, host=HOSTS[number % 3]) for number in range(2, 6)]
        for other in others:
            controller.reservations.reserve(Wish(sender.id, other.id, 1, None), "ops", True)
        until(lambda: len(controller.usage._pairs._ledger.of_job(sender.number) or ()) == 4)
        for job in others:
            controller.jobs.end(job.id, "hook")
        until(lambda: not any(controller.jobs.live(job.id) for job in others))
        asked: list[list[str]] = []
        runs = controller.usage._pairs._store.runs
        with_ids = runs.with_ids

        def noted(ids: list[str], owner: str) -> list[Job]:
            asked.append(ids)
            return with_ids(ids, owner)

        monkeypatch.setattr(runs, "with_ids", noted)
        monkeypatch.setattr(runs, "find", None)
        found = controller.usage._pairs.advice(sender.id, False)
        assert (len(found.pairs), found.left_out, [len(ids) for ids in asked]) == (2, 2, [2])
        assert all(each.own_peer for each in found.pairs)


def test_a_parallel_job_may_be_named_as_a_whole(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        jobs = {node: start(controller, node) for node in (2, 0, 1)}
        for word in ("1.0", "s#1.0#1"):
            assert controller.jobs.named(word, any_node=True) == jobs[0].id
            with pytest.raises(AmbiguousError):
                controller.jobs.named(word)
        # Two access points' jobs of one number are two jobs.
        lines = [
            'Owner = "alice"',
            'GlobalJobId = "t#1.0#1"',
            "------",
            'Machine = "worker1"',
            'Name = "slot9@worker1"',
        ]
        more = ['LarkInnerAddressIPv4 = "10.64.9.9"']
        controller.jobs.register(*parse_post("\n".join(lines + more).encode(), "text/plain"), "hook")
        with pytest.raises(AmbiguousError):
            controller.jobs.named("1.0", any_node=True)


def test_what_a_path_carries_bounds_the_advice(tmp_path: Path) -> None:
    with running(tmp_path, POLICY, counter_seconds=0) as controller:
        sender, receiver = start(controller, 0), start(controller, 2)
        assert controller.reservations.path_rate(sender, "worker2") == 1000
        assert controller.reservations.path_rate(sender, "worker3") == 150
        assert controller.reservations.path_rate(sender, "worker1") is None
        made = controller.reservations.reserve(Wish(sender.id, receiver.id, 100, None), "ops", True)
        ledger = controller.usage._pairs._ledger
        until(lambda: ledger.has(sender.number))
        for seconds in (1, 61):
            queue = FlowQueue(12_500_000 * seconds, 0, 900 * seconds)
            ledger.read({made.number: {"uplink": queue}}, sender.created + seconds)
        (pair,) = controller.usage.pairs(sender.id, False).pairs
        assert pair.advice.sentence.endswith(": ask for 150, the most that its path carries")

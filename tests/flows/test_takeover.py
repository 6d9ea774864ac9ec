"""The desired state of another policy, taken over from what stands, for every pair of policies; and single changes."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Address
from itertools import permutations, product
from typing import Any

import pytest

from lark_common.runs import NetworkType
from lark_controller.flows.desired import Desired
from lark_controller.flows.labelled_prefixes import LabelledPrefixes
from lark_controller.flows.model import SetQueue
from lark_controller.flows.prefixes import Prefix
from lark_controller.flows.transition import Transition, places_alike
from lark_controller.jobs.job import ReservedFlow
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from lark_controller.qos.worker_queues import Claim
from tests.flows.test_desired import CORE, EDGES, FULL, QUEUES, a_job, a_switch, apply
from tests.flows.test_transition import QUEUED, VARIANTS, calls

OTHER_DSCP = QUEUES.replace("cms: {ceiling: 250Mbit}", "cms: {ceiling: 250Mbit, dscp: 30}")
OTHER_ORDER = QUEUES.replace("  cms: {ceiling: 250Mbit}\n  default: {queue: 1}", "  default: {queue: 1}\n  cms: {}")
PAIRS = [*permutations(VARIANTS, 2), *permutations((*QUEUED, OTHER_DSCP, OTHER_ORDER), 2)]
NAT: dict[str, Any] = {"network_type": NetworkType.NAT}


def some_jobs() -> list[Any]:
    owners, groups = ("alice", "bob", "carol", "mallory"), ("cms", "atlas")
    attached = [
        a_job(number, owner=owners[number % 4], group=groups[number // 2 % 2], datapath=EDGES[number % 3],
              inbound=number % 5 != 0)
        for number in range(1, 13)
    ]  # fmt: skip
    return [*attached, a_job(20, owner="alice", datapath=None, **NAT), a_job(21, owner="bob", datapath=None, **NAT)]


def standing(text: str) -> Desired:
    desired, decider = Desired(load(text)), Decider(load(text))
    for datapath in (*EDGES, CORE):
        desired.set_switch(a_switch(text, datapath), (f"worker{datapath}",))
    desired.set_group_queues(CORE, frozenset({1, 2, 30}))
    for job in some_jobs():
        # Queues that stand; a job has the flows of its own where its bandwidth is limited.
        desired.set_queue(Claim.of_job(job.number), job.number, None)
        desired.put(job, decider.of(job))
    return desired


def test_each_policy_follows_each_other() -> None:
    states = {text: standing(text) for text in {text for pair in PAIRS for text in pair}}
    programs = {text: {dp: state.build(dp) for dp in (*EDGES, CORE)} for text, state in states.items()}
    for old, new in PAIRS:
        before = states[old]
        assert places_alike(load(old), load(new))
        after, decider = Desired.following(load(new), before), Decider(load(new))
        for number, placed in before.placed.items():
            after.decide_anew(number, decider.of(placed.job))
        for _ in after.move_labels():
            pass
        transition = Transition(before, after)
        for datapath, program in programs[new].items():
            assert after.build(datapath) == program
            assert apply(programs[old][datapath], transition.changes(datapath)) == program
        assert (+after.groups, after.isolated) == (+states[new].groups, states[new].isolated)
        assert after.worker_rules("worker1") == states[new].worker_rules("worker1")
    # What stands is as it was.
    assert all(state.build(CORE) == programs[text][CORE] for text, state in states.items())


def test_policies_that_place_ports_otherwise_are_not_alike() -> None:
    one = load(FULL)
    assert places_alike(one, load(FULL.replace("ceiling: 250Mbit", "ceiling: 1Mbit")))
    for other in (
        FULL.replace("policies:", "edge: {uplinks: [x*]}\npolicies:"),
        FULL.replace("policies:", "edge: {speed: 5}\npolicies:"),
        FULL.replace("lan: 1", "lan: 9"),
    ):
        assert not places_alike(one, load(other))


def test_a_job_that_moves_between_slices_changes_other_switches_once() -> None:
    desired, decider = Desired(load(FULL)), Decider(load(FULL))
    for datapath in (1, 2):
        desired.set_switch(a_switch(FULL, datapath), (f"worker{datapath}",))
    for number, owner in ((1, "alice"), (2, "bob")):
        for datapath in (1, 2):
            job = a_job(number + 10 * datapath, owner=owner, datapath=datapath)
            desired.put(job, decider.of(job))
    held = {datapath: desired.build(datapath) for datapath in (1, 2)}
    for owner in ("alice", "bob", "alice", "carol"):
        moving = a_job(30, owner=owner, datapath=None, **NAT)
        changes = desired.put(moving, decider.of(moving))
        held = {datapath: apply(program, changes[datapath]) if datapath in changes else program
                for datapath, program in held.items()}  # fmt: skip
        for datapath in (1, 2):
            assert held[datapath] == desired.build(datapath)
            assert desired.rules[datapath] == len(held[datapath].flows)
    changes = desired.remove(30)
    assert all(apply(held[datapath], made) == desired.build(datapath) for datapath, made in changes.items())


def test_counts_of_jobs() -> None:
    desired = standing(FULL)
    assert len(desired.isolated) == 3
    assert dict(+desired.groups) == {"cms": 8, "default": 6}
    assert [desired.count_at(datapath) for datapath in (*EDGES, CORE, 99)] == [4, 4, 4, 0, 0]
    assert [placed.job.number for placed in desired.jobs_at(EDGES[1])] == [1, 4, 7, 10]
    assert desired.jobs_at(99) == []
    assert [placed.job.number for placed in desired.ruled_at("worker1")] == [20, 21]
    for job in some_jobs():
        desired.remove(job.number)
    assert (set(desired.isolated), +desired.groups, desired.placed) == (set(), {}, {})


# -- labels -----------------------------------------------------------------------------------------------------------

BLOCK = Prefix(4, 0x0A400000, 30)


def single(offset: int) -> tuple[int, int]:
    return 4, BLOCK.value + offset


def labelled(*labels: str | None, block: Prefix | None = BLOCK) -> LabelledPrefixes:
    one = LabelledPrefixes()
    for offset, label in enumerate(labels):
        one.put(single(offset), block, label)
    return one


@pytest.mark.parametrize("block", [BLOCK, None])
def test_other_labels_are_as_if_they_had_come_with_the_addresses(block: Prefix | None) -> None:
    for labels in (("a", "a", "b"), ("b", "b", "b"), ("a", None, "a"), ("b", "a", "a"), (None, None, None)):
        one = labelled("a", "a", "a", block=block)
        other = one.copy()
        one.relabel((single(offset), label) for offset, label in enumerate(labels))
        wanted = labelled(*labels, block=block)
        assert set(one.labels()) == set(wanted.labels())
        assert all(one.prefixes(label) == wanted.prefixes(label) for label in wanted.labels())
        assert all(one.digest(label) == wanted.digest(label) for label in ("a", "b"))
        # The copy is as it was, and takes changes apart.
        assert other.prefixes("a") == labelled("a", "a", "a", block=block).prefixes("a")
        for offset in range(3):
            one.discard(single(offset))
        assert (len(one), one.labels(), len(other)) == (0, (), 3)


def test_addresses_that_are_not_there_get_no_label() -> None:
    one = labelled("a", "a")
    one.relabel([(single(9), "b"), (single(0), "a"), ((6, 5), "b")])
    assert (len(one), one.labels(), one.prefixes("a")) == (2, ("a",), (BLOCK,))
    assert one.discard(single(9)) == []


def test_a_block_ends_with_the_last_address_that_came_from_it() -> None:
    one = LabelledPrefixes()
    one.put(single(0), BLOCK, "a")
    one.put(single(1), BLOCK, "a")
    one.put(single(3), None, "a")
    assert one.prefixes("a") == (BLOCK,)
    assert one.discard(single(0)) == []
    ((label, delta),) = one.discard(single(1))
    assert (label, delta.removed, delta.added) == ("a", (BLOCK,), (Prefix(4, BLOCK.value + 3, 32),))
    assert one.count("a") == 1
    assert [one.count(label) for label in ("b", None)] == [0, 0]


def test_a_job_that_is_over_under_the_new_policy_alone_takes_its_flows_with_it() -> None:
    before, decider = Desired(load(FULL)), Decider(load(FULL))
    before.set_switch(a_switch(FULL, 1), ("worker1",))
    six = IPv6Address("2001:db8:64::5")
    for number, change in ((5, {}), (6, {"ipv6": six + 1}), (7, {"ipv6": six + 2})):
        job = a_job(number, **change)
        before.put(job, decider.of(job))
    for gone, new in ((6, ()), (None, (8,))):
        after = Desired.following(load(FULL.replace("block: {when: 'Owner", "block: {when: 'User")), before)
        for number, placed in before.placed.items():
            after.decide_anew(number, decider.of(placed.job))
        for _ in after.move_labels():
            pass
        if gone is not None:
            after.remove(gone)
        for number in new:
            job = a_job(number, ipv6=six + 3)
            after.put(job, decider.of(job))
        transition = Transition(before, after)
        assert apply(before.build(1), transition.changes(1)) == after.build(1)
        assert after.rules[1] == len(after.build(1).flows)
        (pair,) = transition.changed(1)
        assert [placed is None for placed in pair] == [gone is None, gone is not None]


def test_queues_may_stand_before_their_switch_is_there() -> None:
    desired, decider = Desired(load(QUEUES)), Decider(load(QUEUES))
    desired.set_switch(a_switch(QUEUES, 1), ("worker1",))
    job = a_job(1)
    desired.put(job, decider.of(job))
    dscp = desired.dscp_of(desired.placed[1].decision)
    assert not desired.set_group_queues(CORE, frozenset({dscp}))
    desired.set_switch(a_switch(QUEUES, CORE))
    there = desired.build(CORE)
    assert SetQueue(dscp) in {action for data in there.flows.values() for action in data.actions}
    # The same again changes nothing; without it there are fewer flows.
    assert not desired.set_group_queues(CORE, frozenset({dscp}))
    changes = desired.set_group_queues(CORE, frozenset())
    assert apply(there, changes) == desired.build(CORE)
    assert desired.rules[CORE] == len(desired.build(CORE).flows) < len(there.flows)


def test_other_local_networks_change_what_a_reserved_flow_to_the_wan_leaves_out() -> None:
    other = QUEUES.replace("10.0.0.0/8", "10.0.0.0/9")
    for reserved in ((), (ReservedFlow(5, 1000),), (ReservedFlow(5, 1000, (IPv4Network("192.0.2.7/32"),)),)):
        before, decider = Desired(load(QUEUES)), Decider(load(QUEUES))
        before.set_switch(a_switch(QUEUES, 1), ("worker1",))
        before.set_queue(Claim.of_flow(5), 0x8005, None)
        job = a_job(1, reserved=reserved)
        before.put(job, decider.of(job))
        after = Desired.following(load(other), before)
        after.decide_anew(1, Decider(load(other)).of(job))
        list(after.move_labels())
        transition = Transition(before, after)
        assert apply(before.build(1), transition.changes(1)) == after.build(1)
        assert after.rules[1] == len(after.build(1).flows)
        assert bool(transition.changed(1)) is bool(reserved)


def test_a_job_that_comes_before_labels_are_moved_costs_nothing_at_other_switches() -> None:
    new = FULL.replace("{by: Owner}", "{by: AcctGroup}")
    block = IPv4Network("10.64.1.0/26")

    def cost(edges: int) -> int:
        owners, decided = ("alice", "bob"), Decider(load(FULL))
        before, afresh = Desired(load(FULL)), Desired(load(new))
        for datapath in range(3, 3 + edges):
            before.set_switch(a_switch(FULL, datapath), (f"worker{datapath}",))
            afresh.set_switch(a_switch(new, datapath), (f"worker{datapath}",))
        there = [
            a_job(number, owner=owner, datapath=datapath, ipv4=block[number], ipv4_block=block)
            for number, (owner, datapath) in enumerate(product(owners, range(3, 3 + edges)), 1)
        ]
        for job in there:
            before.put(job, decided.of(job))
        after, decider = Desired.following(load(new), before), Decider(load(new))
        # The first of the block's jobs are under their new label when another comes.
        for job in there[:edges]:
            after.decide_anew(job.number, decider.of(job))
        fresh = a_job(63, owner="bob", datapath=3, ipv4=block[63], ipv4_block=block)
        took = calls(lambda: after.put(fresh, decider.of(fresh)))
        before.put(fresh, decided.of(fresh))
        for job in there[edges:]:
            after.decide_anew(job.number, decider.of(job))
        for _ in after.move_labels():
            pass
        for job in (*there, fresh):
            afresh.put(job, decider.of(job))
        transition = Transition(before, after)
        for datapath in range(3, 3 + edges):
            held, wanted = before.build(datapath), afresh.build(datapath)
            assert after.build(datapath) == wanted
            assert apply(held, transition.changes(datapath)) == wanted
            assert after.rules[datapath] == len(wanted.flows)
        return took

    assert cost(24) - cost(4) < 400

"""A change of policy on what stands equals the full recompute, and touches nothing that stays."""

from __future__ import annotations

import cProfile
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark_controller.flows.cookies import Category, parse
from lark_controller.flows.desired import Desired
from lark_controller.flows.edge.program import alike
from lark_controller.flows.transition import Transition, places_alike
from lark_controller.jobs.job import Directory, Job, ReservedFlow
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from lark_controller.qos.worker_queues import Claim
from lark_controller.reconcile import desired_pair
from lark_controller.reconcile.desired_pair import DesiredPair
from lark_controller.reconcile.prepared import PreparedDirectory
from tests.flows.test_desired import CORE, EDGES, FULL, QUEUES, a_job, a_switch, apply, jobs, numbers, steps

BLOCK = """  - block: {when: 'Owner == "mallory"'}\n"""
CONNECTIVITY = """  - connectivity: {inbound: requested, outbound: requested}\n"""
STEER = """  - wan: {when: 'AcctGroup == "cms"', port: wan-fast}\n"""
VARIANTS = (
    FULL,
    FULL.replace('"mallory"', '"carol"'),
    FULL.replace("{by: Owner}", "{by: AcctGroup}"),
    FULL.replace('"cms"\'', '"atlas"\''),
    FULL.replace("action: drop, except: [192.0.2.1]", "action: allow"),
    FULL.replace("except: [192.0.2.1]", "except: [192.0.2.2]"),
    FULL.replace("  cms: {ceiling", "  atlas: {ceiling: 10Mbit}\n  cms: {ceiling"),
    FULL.replace("  - slice: {by: Owner}\n", ""),
    FULL.replace(CONNECTIVITY, ""),
    FULL.replace("local: [10.0.0.0/8", "local: [10.0.0.0/9"),
    FULL.replace("policies:", "accounting: none\npolicies:"),
    FULL.replace(BLOCK, "# a line that moves the others\n" + BLOCK),
    FULL.replace("  - slice", STEER + "  - slice"),
)
QUEUED = (
    QUEUES,
    QUEUES.replace("{by: Owner}", "{by: AcctGroup}"),
    QUEUES.replace("  cms: {ceiling", "  atlas: {ceiling: 10Mbit}\n  cms: {ceiling"),
    QUEUES.replace("default: 10Mbit", "default: 20Mbit"),
    QUEUES.replace("default: 10Mbit, when: 'Owner != \"carol\"'", "default: 10Mbit, when: 'Owner != \"alice\"'"),
)
pairs = st.one_of(st.permutations(VARIANTS), st.permutations(QUEUED)).map(lambda order: (order[0], order[1]))
meanwhile = st.lists(st.one_of(jobs.map(lambda job: ("put", job)), numbers.map(lambda number: ("remove", number))))


def play(desired: Desired, decider: Decider, history: list[Any], live: dict[int, Job]) -> None:
    for action, what in history:
        if action == "put":
            live[what.number] = what
            desired.put(what, decider.of(what))
        elif action == "remove":
            live.pop(what, None)
            desired.remove(what)
        elif action == "queue":
            desired.set_queue(*what)
        elif action == "groups":
            desired.set_group_queues(CORE, what)


@settings(max_examples=100, deadline=None)
@given(pairs, steps, meanwhile, meanwhile, st.integers(0, 40))
def test_the_way_to_another_policy_equals_the_full_recompute(
    texts: tuple[str, str], history: list[Any], early: list[Any], late: list[Any], place: int
) -> None:
    old, new = map(load, texts)
    before, decided = Desired(old), Decider(old)
    live: dict[int, Job] = {}
    for datapath in (*EDGES, CORE):
        before.set_switch(a_switch(texts[0], datapath, 20), (f"worker{datapath}",))
    play(before, decided, history, live)

    assert places_alike(old, new)
    after, decider = Desired.following(new, before), Decider(new)
    pair = DesiredPair(old, PreparedDirectory(Directory(), decided, before))
    deciding = pair._decisions(after, decider, follows=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(desired_pair, "_A_STEP", 1)
        for _ in islice(deciding, place):
            pass
    # Jobs come, change and go in both states while the policy is prepared, and while it is put in force.
    play(before, decided, early, dict(live))
    play(after, decider, early, live)
    for _ in deciding:
        pass
    for _, step in zip(after.move_labels(), (*early, *early), strict=False):
        play(before, decided, [step], dict(live))
        play(after, decider, [step], live)
    for _ in after.move_labels():
        pass
    transition = Transition(before, after)
    held = {datapath: apply(before.build(datapath), transition.changes(datapath)) for datapath in (1, CORE)}
    for action, what in late:
        for desired, by, moved in ((before, decided, (2, 3)), (after, decider, (1, CORE))):
            changes = desired.put(what, by.of(what)) if action == "put" else desired.remove(what)
            for datapath in moved:
                if desired is after and datapath in changes:
                    held[datapath] = apply(held[datapath], changes[datapath])
        if action == "put":
            live[what.number] = what
        else:
            live.pop(what, None)
    held |= {datapath: apply(before.build(datapath), transition.changes(datapath)) for datapath in (2, 3)}

    oracle = Desired(new, after)
    for datapath in (*EDGES, CORE):
        oracle.set_switch(a_switch(texts[1], datapath, 20), (f"worker{datapath}",))
    for job in live.values():
        oracle.put(job, Decider(new).of(job))
    for datapath in (*EDGES, CORE):
        assert after.build(datapath) == oracle.build(datapath)
        assert held[datapath] == oracle.build(datapath)
        assert after.rules[datapath] == len(held[datapath].flows)
    for host in ("worker1", "worker2", "worker3"):
        assert after.worker_rules(host) == oracle.worker_rules(host)
    assert (+after.groups, after.uncounted, after.at_edges) == (+oracle.groups, oracle.uncounted, oracle.at_edges)


def test_a_job_of_which_nothing_else_is_decided_stays_as_it_is() -> None:
    old, new = load(FULL), load(FULL.replace('"mallory"', '"carol"'))
    before, decided = Desired(old), Decider(old)
    before.set_switch(a_switch(FULL, 1), ("worker1",))
    for number, owner in ((5, "alice"), (6, "carol")):
        job = a_job(number, owner=owner)
        before.put(job, decided.of(job))
    after, decider = Desired.following(new, before), Decider(new)
    for number, placed in before.placed.items():
        after.decide_anew(number, decider.of(placed.job))
    assert len(list(after.move_labels())) == 1
    assert after.placed[5] is before.placed[5]
    changes = Transition(before, after).changes(1)
    touched = [parse(flow.data.cookie) for flow in changes.flows_set]
    assert {each.number for each in touched if each.category == Category.JOB} == {6}
    assert [pair[1] for pair in Transition(before, after).changed(1)] == [after.placed[6]]


def test_jobs_that_are_treated_as_before_cost_nothing_where_a_policy_steers_others() -> None:
    elsewhere = FULL.replace("'AcctGroup == \"cms\"', port: wan-fast", "'AcctGroup == \"atlas\"', port: wan-fast")
    assert elsewhere != FULL
    old, new = load(FULL), load(elsewhere)

    def cost(others: int) -> int:
        before, decided = Desired(old), Decider(old)
        before.set_switch(a_switch(FULL, 1, 40), ("worker1",))
        for number in range(1, 3 + others):
            job = a_job(number, group="cms" if number < 3 else "local")
            before.put(job, decided.of(job))
        after, decider = Desired.following(new, before), Decider(new)
        for number, placed in list(before.placed.items()):
            after.decide_anew(number, decider.of(placed.job))
        assert len(list(after.move_labels())) > 0
        for desired in (before, after):
            desired.edge_rules(tracks=True)
        return calls(lambda: Transition(before, after).changed(1))

    # A look at each, and not one at its flows.
    assert cost(16) - cost(0) < 16 * 8


def test_jobs_at_other_ports_or_with_other_queues_have_other_flows() -> None:
    desired = Desired(load(FULL))
    desired.set_switch(a_switch(FULL, 1), ("worker1",))
    job = a_job(5)
    desired.put(job, Decider(load(FULL)).of(job))
    placed = desired.placed[5]
    assert alike(placed, replace(placed))
    for change in ({"datapath": 2}, {"port": 99}, {"queue": 7}, {"reserved": (((), 7),)}):
        assert not alike(placed, replace(placed, **change))


def test_other_local_networks_change_reserved_flows_alone() -> None:
    new = load(FULL.replace("local: [10.0.0.0/8", "local: [10.0.0.0/9"))
    before, decided = Desired(load(FULL)), Decider(load(FULL))
    before.set_switch(a_switch(FULL, 1), ("worker1",))
    job = a_job(5)
    before.put(job, decided.of(job))
    after = Desired.following(new, before)
    after.decide_anew(5, Decider(new).of(job))
    assert after.networks != before.networks
    assert Transition(before, after).changed(1) == []
    flow = ReservedFlow(1, 1000)
    before.put(replace(job, reserved=(flow,)), decided.of(job))
    before.set_queue(Claim.of_flow(1), 7, 5)
    after = Desired.following(new, before)
    after.decide_anew(5, Decider(new).of(job))
    assert [pair[1] for pair in Transition(before, after).changed(1)] == [after.placed[5]]


def test_steering_is_no_business_of_edges() -> None:
    old, new = load(FULL), load(FULL.replace(STEER, ""))
    before, decided = Desired(old), Decider(old)
    for datapath in (1, CORE):
        before.set_switch(a_switch(FULL, datapath), (f"worker{datapath}",))
    job = a_job(5)
    before.put(job, decided.of(job))
    after = Desired.following(new, before)
    after.decide_anew(5, Decider(new).of(job))
    assert len(list(after.move_labels())) == 1
    transition = Transition(before, after)
    assert not transition.changes(1)
    assert transition.changes(CORE)


def calls(work: Callable[[], object]) -> int:
    """The number of functions that some work calls."""
    profile = cProfile.Profile()
    profile.runcall(work)
    return sum(each.callcount for each in profile.getstats())


def test_a_change_costs_what_it_changes_and_not_what_a_switch_holds() -> None:
    old = load(FULL)
    before, decided = Desired(old), Decider(old)
    before.set_switch(a_switch(FULL, 1), ("worker1",))
    for number in range(1, 19):
        job = a_job(number, owner="carol" if number == 18 else f"user{number % 3}")
        before.put(job, decided.of(job))

    def way_to(text: str) -> Transition:
        after, decider = Desired.following(load(text), before), Decider(load(text))
        for number, placed in list(before.placed.items()):
            after.decide_anew(number, decider.of(placed.job))
        for _ in after.move_labels():
            pass
        # The rules that all switches share are calculated once.
        for desired in (before, after):
            desired.edge_rules(tracks=True)
        return Transition(before, after)

    whole = calls(lambda: before.build(1))
    steered, one = way_to(FULL.replace(STEER, "")), way_to(FULL.replace('"mallory"', '"carol"'))
    assert not steered.changes(1)
    assert steered.changed(1) == []
    assert calls(lambda: steered.changes(1)) < whole / 5
    assert len(one.changed(1)) == 1
    assert calls(lambda: one.changes(1)) < whole / 3

"""Room for external addresses at a core whose rules are limited: who has it, who waits, and that changes add up."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark_controller.flows.desired import Desired
from lark_controller.flows.external_room import Room
from lark_controller.flows.model import Changes
from lark_controller.flows.placement import place_switch
from lark_controller.flows.transition import Transition
from lark_controller.jobs.external import External, listed
from lark_controller.jobs.job import Job
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from tests.flows.test_external import POLICY, a_core
from tests.flows.test_pipeline import CORE, a_job


def limited(more: int) -> str:
    """The policy with so much room beside its own rules."""
    desired = Desired(load(POLICY))
    a_core(desired)
    return POLICY.replace("role: core,", f"role: core, max_rules: {len(desired.build(CORE).flows) + more},")


def mapped(number: int, opened: str = "tcp/80", owner: str = "alice") -> Job:
    """A job whose external address was given before those of higher numbers."""
    address = ip_address("198.51.100.64") + number
    return replace(a_job(number, owner), external=(External(address, listed(opened), "", number),))


def needs(opened: str = "tcp/80") -> int:
    """The rules that such an address takes."""
    desired = Desired(load(POLICY))
    a_core(desired)
    before = len(desired.build(CORE).flows)
    desired.put(mapped(1, opened), Decider(desired.policy).of(mapped(1)))
    return len(desired.build(CORE).flows) - before


class Core:
    """A core, and what it holds by the changes that it was sent."""

    def __init__(self, text: str) -> None:
        self.desired = Desired(load(text))
        a_core(self.desired)
        self.decider = Decider(self.desired.policy)
        self.holds = self.desired.build(CORE).flows

    def apply(self, changes: dict[int, Changes]) -> None:
        change = changes.get(CORE, Changes())
        kept = {key: data for key, data in self.holds.items() if key not in set(change.flows_gone)}
        self.holds = kept | {flow.key: flow.data for flow in change.flows_set}
        assert self.holds == self.desired.build(CORE).flows
        assert self.desired.rules[CORE] == len(self.holds)

    def put(self, job: Job) -> None:
        self.apply(self.desired.put(job, self.decider.of(job)))

    def remove(self, number: int) -> None:
        self.apply(self.desired.remove(number))

    @property
    def closed(self) -> set[int]:
        return {number for number in self.desired.placed if self.desired.why_closed(number)}


def test_an_address_without_room_waits_with_the_reason_and_the_oldest_is_next() -> None:
    size = needs()
    core = Core(limited(2 * size))
    for number in (1, 2, 4, 3):
        core.put(mapped(number))
    assert core.closed == {3, 4}
    (reason,) = core.desired.why_closed(3).values()
    assert reason == f"switch core1 takes {len(core.holds)} rules and has no room for it"
    core.desired.moved.clear()
    core.remove(1)
    assert core.closed == {4}
    assert core.desired.moved == {1, 3}
    core.put(a_job(2, "alice"))
    assert core.closed == set()


def test_one_that_is_too_large_keeps_nobody_else_from_the_room() -> None:
    core = Core(limited(2 * needs()))
    core.put(mapped(1, "tcp/1025-65534"))
    core.put(mapped(2))
    assert core.closed == {1}


def test_the_policys_own_rules_come_first_and_take_the_youngests_room() -> None:
    core = Core(limited(2 * needs()))
    for number in (1, 2):
        core.put(mapped(number))
    assert core.closed == set()
    # One user's WAN rule takes two rules for each prefix.
    core.put(a_job(3, "bob"))
    assert core.closed == {2}
    core.remove(3)
    assert core.closed == set()


def test_those_that_a_core_has_already_keep_their_room_when_it_is_compared() -> None:
    size = needs()
    text = limited(size)
    desired = Desired(load(text))
    decider = Decider(desired.policy)
    desired.load((job, decider.of(job)) for job in (mapped(1), mapped(2)))
    ports = {"p1": 1, "p2": 2}
    switch = place_switch(desired.policy, CORE, ports, normal=True, tracks=True, max_meter=0)
    for has, closed in ((2, 1), (1, 2)):
        desired.place_switch(switch, open_there={has})
        assert desired.why_closed(closed)
        assert not desired.why_closed(has)
        assert len(desired.program(CORE).flows) == switch.max_rules
        desired._rooms.clear()


def test_what_a_switch_refuses_is_closed_there_until_it_is_tried_again_or_other() -> None:
    core = Core(POLICY)
    for number in (1, 2):
        core.put(mapped(number))
    there = len(core.holds)
    core.apply(core.desired.refuse_external(CORE, 1, "table full"))
    assert core.desired.why_closed(1) == {ip_address("198.51.100.65"): "table full"}
    assert len(core.holds) == there - needs()
    assert core.desired.refuse_external(CORE, 1, "once more") == {}
    assert core.desired.refused_external() == {CORE: 1}
    core.apply(core.desired.try_external(CORE, 1))
    assert (core.closed, len(core.holds)) == (set(), there)
    core.apply(core.desired.refuse_external(CORE, 1, "table full"))
    core.put(mapped(1, "tcp/81"))
    assert (core.closed, core.desired.refused_external()) == (set(), {})


def test_who_follows_hears_of_what_a_switch_placed_anew_may_open_and_of_no_others() -> None:
    desired = Desired(load(POLICY))
    for number in (1, 2):
        desired.put(mapped(number), Decider(desired.policy).of(mapped(number)))
    edge = desired.placed[1].datapath
    assert edge is not None
    for datapath in (CORE, edge):
        switch = place_switch(desired.policy, datapath, {"p1": 1, "p2": 2}, normal=True, tracks=True, max_meter=0)
        desired.place_switch(switch)
        desired.refuse_external(datapath, 1, "table full")
        desired.moved.clear()
        desired.place_switch(switch)
        assert (desired.why_closed(1), desired.moved) == ({}, {1})


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 60),
    st.lists(
        st.tuples(
            st.sampled_from(["put", "bare", "remove", "refuse", "try"]),
            st.integers(1, 6),
            st.sampled_from(["alice", "bob", "mallory"]),
            st.sampled_from(["tcp/80", "any", "tcp/8000-8100"]),
        ),
        max_size=16,
    ),
)
def test_changes_add_up_and_no_limit_is_passed_for_external_addresses(more: int, history: list[Any]) -> None:
    core = Core(limited(more))
    for what, number, owner, opened in history:
        if what == "put":
            core.put(mapped(number, opened, owner))
        elif what == "bare":
            core.put(a_job(number, owner))
        elif what == "remove":
            core.remove(number)
        elif what == "refuse":
            core.apply(core.desired.refuse_external(CORE, number, "refused"))
        else:
            core.apply(core.desired.try_external(CORE, number))
        desired = core.desired
        room = desired._rooms[CORE]
        assert room.used == sum(room.has.values())
        assert len(core.holds) <= desired.switches[CORE].max_rules or not room.used
        left = desired.switches[CORE].max_rules - len(core.holds)
        assert all(flows > left for flows in room.waits.values())
        desired.fit(CORE)
        assert desired.build(CORE).flows == core.holds
        assert desired._rooms[CORE].used == room.used
    after = Desired.following(load(limited(more).replace("192.0.2.8", "192.0.2.9")), core.desired)
    for placed in list(core.desired.placed.values()):
        after.decide_anew(placed.job.number, Decider(after.policy).of(placed.job))
    list(after.move_labels())
    after.fit(CORE)
    change = Transition(core.desired, after).changes(CORE)
    kept = {key: data for key, data in core.holds.items() if key not in set(change.flows_gone)}
    assert kept | {flow.key: flow.data for flow in change.flows_set} == after.build(CORE).flows


TWO = """
version: 1
networks: {jobs: [10.64.0.0/16], local: [10.0.0.0/8]}
switches:
  core1: {datapath: "00000000000000c0", role: core, ports: {lan: 1, wan: 2}}
  core2: {datapath: "00000000000000c1", role: core, max_rules: 1, ports: {lan: 1, wan-fast: 2}}
policies:
  - wan: {when: 'Owner == "bob"', port: wan-fast}
  - wan: {when: 'Owner == "carol"', port: wan}
external:
  pools:
    public: [198.51.100.64/28]
    slow: {networks: [198.51.100.128/28], port: wan}
    second: {networks: [198.51.100.144/28], switch: core2}
  rules: [{pool: public, open: [any]}]
"""


@pytest.mark.parametrize(
    ("owner", "address", "closed"),
    [
        ("carol", "198.51.100.65", False),
        ("bob", "198.51.100.65", True),
        ("alice", "198.51.100.129", False),
        ("alice", "198.51.100.145", True),
        # By whichever core a packet comes from outside.
        ("alice", "198.51.100.65", True),
    ],
)
def test_of_two_cores_the_one_of_its_wan_port_closes_an_address(owner: str, address: str, closed: bool) -> None:
    desired = Desired(load(TWO))
    for datapath in (CORE, CORE + 1):
        desired.set_switch(
            place_switch(desired.policy, datapath, {"a": 1, "b": 2}, normal=True, tracks=True, max_meter=0)
        )
    job = replace(a_job(1, owner), external=(External(ip_address(address), listed("tcp/80"), "", 1),))
    desired.put(job, Decider(desired.policy).of(job))
    why = desired.why_closed(1)
    assert list(why) == ([ip_address(address)] if closed else [])
    assert all("switch core2 takes 1 rules" in reason for reason in why.values())
    needed = {"carol": [CORE], "bob": [CORE + 1]}.get(owner, [CORE + 1] if address.endswith("145") else [CORE])
    if address != "198.51.100.65" or owner != "alice":
        assert list(desired.translating(desired.placed[1])) == needed


@pytest.mark.parametrize("room", [0, 5, 10, 100])
def test_room_is_shared_out_by_age(room: int) -> None:
    shared = Room()
    for number in (3, 1, 2):
        shared.enter(number, 5)
    shared.settle(room, lambda number: number)
    assert sorted(shared.has) == [1, 2, 3][: room // 5]


def test_the_youngest_lose_their_room_at_once_and_each_is_looked_at_once() -> None:
    room, asked = Room(), list[int]()

    def age(number: int) -> int:
        asked.append(number)
        return number

    for number in range(2_000):
        room.enter(number, 2)
    assert len(room.settle(4_000, age).opened) == 2_000
    asked.clear()
    assert sorted(room.settle(1_000, age).closed) == list(range(500, 2_000))
    assert len(asked) <= 2 * 2_000

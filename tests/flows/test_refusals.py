"""Refusals of external addresses by switches, and the turn of those without room: values, step by step."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_controller.flows.desired import Desired
from lark_controller.flows.external_jobs import no_room
from lark_controller.flows.external_room import Moved, Refusals, Room
from lark_controller.flows.origins import origin
from lark_controller.flows.placement import place_switch
from lark_controller.jobs.external import External, listed
from lark_controller.jobs.job import Job
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from tests.flows.test_external import FIRST, OPENS, POLICY, a_core, mapped
from tests.flows.test_pipeline import CORE, EDGE, a_job


def with_address(number: int, last: int = 1) -> Job:
    return replace(a_job(number, "alice"), external=(External(ip_address(f"198.51.100.{last}"), listed("tcp/80")),))


def test_a_refusal_is_of_a_job_at_a_switch_with_the_address_that_it_had() -> None:
    refusals, job = Refusals(), with_address(1)
    assert refusals.why(1, job) == ""
    refusals.note(1, job, "table full")
    assert [refusals.why(datapath, job) for datapath in (1, 2, None)] == ["table full", "", ""]
    assert refusals.why(1, with_address(1, 2)) == refusals.why(1, with_address(2)) == ""
    refusals.note(1, job, "once more")
    assert refusals.why(1, job) == "once more"


def test_refusals_are_forgotten_by_job_by_switch_and_where_the_address_is_another() -> None:
    refusals, one, two = Refusals(), with_address(1), with_address(2, 2)
    for datapath in (1, 2):
        for job in (two, one):
            refusals.note(datapath, job, "full")
    refusals.note(3, two, "full")
    assert refusals.oldest() == {1: 1, 2: 1, 3: 2}
    copied = refusals.copy()
    refusals.forget(1, 1)
    assert (refusals.why(1, one), refusals.why(2, one)) == ("", "full")
    assert refusals.oldest() == {1: 2, 2: 1, 3: 2}
    refusals.follow(2, two.external)
    assert refusals.why(1, two) == "full"
    refusals.follow(2, ())
    assert [refusals.why(datapath, two) for datapath in (1, 2, 3)] == ["", "", ""]
    refusals.forget_at(2)
    assert refusals.oldest() == {}
    refusals.forget(9, 9)
    refusals.follow(9, ())
    # The copy has all that was there.
    assert copied.oldest() == {1: 1, 2: 1, 3: 2}
    copied.forget_at(1)
    assert (copied.why(1, one), copied.why(2, one), copied.oldest()) == ("", "full", {2: 1, 3: 2})


def by_number(number: int) -> int:
    return number


def test_room_moves_from_the_youngest_to_the_oldest_that_fits() -> None:
    room = Room()
    for number, flows in ((3, 4), (1, 6), (2, 4)):
        room.enter(number, flows)
    assert room.settle(10, by_number) == Moved((1, 2), ())
    assert (room.has, room.waits, room.used) == ({1: 6, 2: 4}, {3: 4}, 10)
    assert room.settle(10, by_number) == Moved()
    # One that has grown keeps its room before younger ones.
    room.enter(1, 7)
    assert room.settle(10, by_number) == Moved((), (2,))
    assert (room.has, room.waits, room.used) == ({1: 7}, {3: 4, 2: 4}, 7)
    room.leave(1)
    room.leave(99)
    assert room.used == 0
    assert room.settle(4, by_number) == Moved((2,), ())
    assert room.settle(8, by_number) == Moved((3,), ())
    room.leave(3)
    room.enter(4, 5)
    room.leave(4)
    assert room.settle(100, by_number) == Moved()
    # No more than the room, to the last rule.
    room.enter(5, 6)
    assert room.settle(9, by_number) == Moved()
    assert room.settle(10, by_number) == Moved((5,), ())
    assert room.settle(9, by_number) == Moved((), (5,))


def test_those_that_had_room_are_first_once() -> None:
    room = Room({3})
    for number in (1, 3):
        room.enter(number, 5)
    assert room.settle(5, by_number) == Moved((3,), ())
    # From then on it is the older one, once there is none of them.
    assert room.settle(4, by_number) == Moved((), (3,))
    assert room.settle(5, by_number) == Moved((1,), ())
    other = Room({3})
    for number in (1, 3):
        other.enter(number, 5)
    assert other.copy().settle(5, by_number) == Moved((3,), ())
    assert other.used == 0


def test_one_that_loses_its_room_and_gets_it_back_has_not_moved() -> None:
    room = Room()
    for number, flows in ((1, 3), (2, 8), (3, 3)):
        room.enter(number, flows)
    assert room.settle(14, by_number).opened == (1, 2, 3)
    # Both younger ones go, and the youngest fits beside the oldest.
    assert room.settle(7, by_number) == Moved((), (2,))
    assert (room.has, room.used) == ({1: 3, 3: 3}, 6)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6), st.integers(0, 20)), max_size=30))
def test_room_is_never_more_than_there_is_and_nobody_waits_who_fits(steps: list[tuple[int, int, int]]) -> None:
    room = Room()
    held: dict[int, int] = {}
    open_now: set[int] = set()
    for number, flows, space in steps:
        if flows:
            room.enter(number, flows)
            held[number] = flows
        else:
            room.leave(number)
            held.pop(number, None)
            open_now.discard(number)
        moved = room.settle(space, by_number)
        assert not set(moved.opened) & set(moved.closed)
        assert not set(moved.opened) & open_now
        assert set(moved.closed) <= open_now
        open_now = open_now | set(moved.opened) - set(moved.closed)
        open_now -= set(moved.closed)
        assert set(room.has) == open_now
        assert {**room.has, **room.waits} == held
        assert room.used == sum(room.has.values()) <= space
        assert all(flows > space - room.used for flows in room.waits.values())
        assert room.copy().settle(space, by_number) == Moved()


@pytest.mark.parametrize(
    ("tracks", "refused", "reason"),
    [
        (True, "", ""),
        (True, "table full", "table full"),
        (False, "", "switch worker1 has no connection tracking, which an open IPv6 address needs"),
    ],
)
def test_why_an_edge_does_not_open_an_address(tracks: bool, refused: str, reason: str) -> None:
    desired = Desired(load(OPENS.format(rule="")))
    job = a_job(1, "alice")
    assert job.ipv6 is not None
    job = replace(job, external=(External(job.ipv6, listed("any")),))
    desired.put(job, Decider(desired.policy).of(job))
    switch = place_switch(
        desired.policy, EDGE, {"up": 9, "p1": 11}, normal=True, tracks=tracks, max_meter=0, description="worker1"
    )
    assert desired.why_closed(1) == {}
    desired.set_switch(switch)
    if refused:
        desired.refuse_external(EDGE, 1, refused)
    assert desired.why_closed(1) == ({job.ipv6: reason} if reason else {})
    assert (desired.placed[1].opened is None) is bool(reason)
    assert desired.why_closed(99) == {}
    assert desired.refused_external() == ({EDGE: 1} if refused else {})
    desired.try_external(EDGE, 1)
    assert (desired.placed[1].opened is None) is (not tracks)


LIMITED = (
    OPENS.format(rule="")
    + "switches: {edge1: {datapath: '0000000000000001', role: edge, ports: {uplink: up}, max_rules: 0}}\n"
)


def opened_job(number: int) -> Job:
    job = a_job(number, "alice")
    assert job.ipv6 is not None
    return replace(job, external=(External(job.ipv6, listed("tcp/80")),))


def an_edge(text: str) -> Desired:
    """An edge with three jobs whose own addresses are to be open."""
    desired = Desired(load(text))
    for number in (2, 1, 3):
        desired.put(opened_job(number), Decider(desired.policy).of(opened_job(number)))
    ports = {"up": 9, "p1": 11, "p2": 12, "p3": 13}
    desired.place_switch(place_switch(desired.policy, EDGE, ports, normal=True, tracks=True, max_meter=0))
    return desired


@pytest.mark.parametrize("closed", [0, 1, 2, 3])
@pytest.mark.parametrize("spare", [0, 1])
def test_an_edge_whose_rules_are_limited_closes_the_youngest_jobs_addresses(closed: int, spare: int) -> None:
    free = an_edge(LIMITED)
    for number in range(4 - closed, 4):
        free.refuse_external(EDGE, number, "closed")
    size = len(free.build(EDGE).flows)
    found = an_edge(LIMITED.replace("max_rules: 0", f"max_rules: {size + spare}"))
    assert {number for number in (1, 2, 3) if found.why_closed(number)} == set(range(4 - closed, 4))
    assert found.build(EDGE).flows == free.build(EDGE).flows
    assert found.rules[EDGE] == size
    assert found.moved >= set(range(4 - closed, 4))
    for number in range(4 - closed, 4):
        (reason,) = found.why_closed(number).values()
        assert reason == no_room(found.switches[EDGE])


def test_an_edge_that_has_no_room_for_its_jobs_themselves_opens_nothing() -> None:
    found = an_edge(LIMITED.replace("max_rules: 0", "max_rules: 1"))
    assert all(found.why_closed(number) for number in (1, 2, 3))
    assert found.rules[EDGE] == len(found.build(EDGE).flows) > 1


def test_the_reason_of_a_core_names_its_limit() -> None:
    core = place_switch(
        load(POLICY.replace("role: core,", "role: core, max_rules: 7,")),
        CORE,
        {},
        normal=True,
        tracks=True,
        max_meter=0,
    )
    assert no_room(core) == "switch core1 takes 7 rules and has no room for it"


def test_a_flow_of_an_external_address_says_whose_it_is() -> None:
    desired = Desired(load(POLICY))
    a_core(desired)
    job = mapped(1, "alice", "tcp/80")
    job = replace(job, external=(*job.external, External(ip_address("198.51.100.66"), listed("icmp"))))
    desired.put(job, Decider(desired.policy).of(job))
    flows = desired.build(CORE).flows
    of_job = [data for data in flows.values() if origin(desired, {}, data).job == job.id]
    assert of_job
    texts = {origin(desired, {}, data).text for data in of_job}
    assert texts == {f"external address {FIRST}, 198.51.100.66 of job 1.0 of alice on {job.run.slot}"}
    desired.remove(1)
    assert {origin(desired, {}, data).text for data in of_job} == {"external address of a job that is over"}
    assert desired.refuse_external(CORE, 1, "over") == desired.try_external(CORE, 1) == {}

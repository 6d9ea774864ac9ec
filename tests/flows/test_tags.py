"""Slice tags: which of them change when a job comes or goes, and what it costs to know."""

from __future__ import annotations

import cProfile
import random
from dataclasses import replace

import pytest

from lark_controller.flows import tags
from lark_controller.flows.desired import Desired
from lark_controller.flows.tags import JobsByEdge, assign_tags, natural_tag
from lark_controller.jobs.job import Job
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from lark_controller.policies.model import SliceKey
from tests.flows.test_desired import FULL, a_job, a_switch


def _colliding(pairs: int) -> list[SliceKey]:
    """Slices of which two at a time have the same tag of their own."""
    seen: dict[int, SliceKey] = {}
    found: list[SliceKey] = []
    number = 0
    while len(found) < 2 * pairs:
        number += 1
        key = SliceKey(1, f"user{number}")
        other = seen.setdefault(natural_tag(key), key)
        if other is not key:
            found += [other, key]
    return found


def test_the_slices_that_a_job_moves_are_those_whose_tags_differ() -> None:
    keys = [*_colliding(4), *(SliceKey(1, f"other{number}") for number in range(4))]
    for seed in range(20):
        rng, jobs = random.Random(seed), JobsByEdge()
        held: dict[int, SliceKey] = {}
        for number in range(200):
            leaves = held.pop(rng.choice(list(held))) if held and rng.random() < 0.5 else None
            comes = rng.choice(keys) if leaves is None or rng.random() < 0.5 else None
            before = assign_tags([*held.values(), *([] if leaves is None else [leaves])])
            after = assign_tags([*held.values(), *([] if comes is None else [comes])])
            changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
            assert jobs.at(1).moved(leaves, comes) == changed
            if leaves is not None:
                jobs.take(1, number, leaves)
            if comes is not None:
                jobs.add(1, number, comes)
                held[number] = comes
            assert jobs.at(1).tags == after


def _calls(present: int) -> tuple[int, int]:
    """The calls of functions to put a user's first job on an edge with jobs of so many others, and to remove it."""
    desired = Desired(load(FULL))
    decider = Decider(desired.policy)
    desired.set_switch(a_switch(FULL, 1, ports=300))

    def one(number: int) -> Job:
        return replace(a_job(number, owner=f"user{number}"), datapath=1, port=f"p{number}")

    for number in range(1, present + 1):
        desired.put(one(number), decider.of(one(number)))
    job = one(present + 1)
    decision = decider.of(job)
    _ = desired.tags_at(1)
    put, remove = cProfile.Profile(), cProfile.Profile()
    put.runcall(desired.put, job, decision)
    remove.runcall(desired.remove, job.number)
    first, second = (sum(entry.callcount for entry in each.getstats()) for each in (put, remove))
    return first, second


def test_the_first_job_of_a_user_does_not_go_through_those_of_others() -> None:
    few, many = _calls(10), _calls(200)
    assert many[0] - few[0] < 190


def test_the_last_job_of_a_user_does_not_go_through_those_of_others() -> None:
    few, many = _calls(10), _calls(200)
    assert many[1] - few[1] < 190


def test_tags_that_were_handed_out_stay_as_they_were() -> None:
    jobs, key, other = JobsByEdge(), SliceKey(1, '"alice"'), SliceKey(1, '"bob"')
    jobs.add(1, 7, key)
    handed_out = jobs.at(1).tags
    apart = jobs.copy()
    jobs.add(1, 8, other)
    jobs.take(1, 7, key)
    assert handed_out == {key: natural_tag(key)} == apart.at(1).tags
    assert jobs.at(1).tags == {other: natural_tag(other)}


def test_thousands_of_slices_that_come_before_anybody_asks_cost_no_copy_of_the_tags_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[SliceKey] = []

    def looked(key: SliceKey) -> int:
        looks.append(key)
        return natural_tag(key)

    monkeypatch.setattr(tags, "natural_tag", looked)
    jobs, keys = JobsByEdge(), [SliceKey(1, f"user{number}") for number in range(50)]
    for number, key in enumerate(keys):
        jobs.add(1, number, key)
    assert looks == []
    assert jobs.at(1).tags == assign_tags(keys)
    looks.clear()
    # One after the question goes by itself, and of those after it nobody has asked.
    for number, key in enumerate(keys[:40]):
        jobs.take(1, number, key)
    for number, key in enumerate(keys[:20]):
        jobs.add(1, number, key)
    assert looks == []
    assert jobs.at(1).tags == assign_tags([*keys[:20], *keys[40:]])


def test_a_switch_that_is_placed_anew_keeps_the_tags_of_its_slices() -> None:
    desired = Desired(load(FULL))
    decider = Decider(desired.policy)
    switch = a_switch(FULL, 1, ports=10)
    desired.set_switch(switch)
    for number in range(1, 6):
        job = replace(a_job(number, owner=f"user{number}"), datapath=1, port=f"p{number}")
        desired.put(job, decider.of(job))
    before = desired.tags_at(1)
    assert len(before) == 5
    desired.place_switch(switch)
    assert desired.tags_at(1) is before


def test_an_edge_has_jobs_until_the_last_one_goes() -> None:
    jobs, key, other = JobsByEdge(), SliceKey(1, '"alice"'), SliceKey(1, '"bob"')
    for datapath, number, of in ((1, 7, key), (1, 8, None), (2, 9, key), (2, 10, other)):
        jobs.add(datapath, number, of)
    assert (set(jobs.edges()), jobs.edges_of(key), jobs.edges_of(other)) == ({1, 2}, {1, 2}, {2})
    apart = jobs.copy()
    jobs.take(1, 7, key)
    assert (set(jobs.edges()), jobs.edges_of(key), jobs.at(1).numbers) == ({1, 2}, {2}, {8})
    jobs.take(1, 8, None)
    assert (set(jobs.edges()), jobs.at(1).numbers, jobs.at(None).numbers) == ({2}, set(), set())
    assert (set(apart.edges()), apart.edges_of(key), apart.at(1).numbers) == ({1, 2}, {1, 2}, {7, 8})
    apart.add(2, 11, other)
    apart.take(2, 9, key)
    assert (jobs.at(2).numbers, jobs.at(2).slices) == ({9, 10}, {key: 1, other: 1})
    assert (apart.at(2).numbers, apart.at(2).slices) == ({10, 11}, {other: 2})

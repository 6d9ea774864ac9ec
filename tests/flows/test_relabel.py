"""Prefixes under labels that change: net changes, jobs that enter, and blocks that move in steps."""

from __future__ import annotations

from ipaddress import ip_network

from hypothesis import given
from hypothesis import strategies as st

from lark_controller.flows.labelled_prefixes import LabelledPrefixes
from lark_controller.flows.placement import Placed
from lark_controller.flows.relabel import Net, enter, fill, move_blocks, relabel, slice_label
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from tests.flows.test_desired import FULL, a_job

PREFIXES = list(ip_network("10.64.0.0/29").subnets(new_prefix=32))
STEPS = st.lists(st.tuples(st.sets(st.sampled_from(PREFIXES)), st.booleans()), max_size=6)
OWNERS = ("alice", "bob", "carol")


@given(st.sets(st.sampled_from(PREFIXES)), STEPS)
def test_a_net_has_what_is_other_at_the_end(begin: set[object], steps: list[tuple[set[object], bool]]) -> None:
    net, there = Net(), set(begin)
    for some, comes in steps:
        if comes:
            net.follow(some - there, ())  # type: ignore[arg-type]
            there |= some
        else:
            net.follow((), some & there)  # type: ignore[arg-type]
            there -= some
    assert net.added == there - begin
    assert net.removed == begin - there


def test_what_goes_and_comes_in_one_step_is_no_change() -> None:
    net = Net()
    net.follow(PREFIXES[:2], PREFIXES[1:3])  # type: ignore[arg-type]
    assert (net.added, net.removed) == ({PREFIXES[0]}, {PREFIXES[2]})


def jobs(owners: list[int]) -> dict[int, Placed]:
    decider = Decider(load(FULL))
    found = {}
    for number, owner in enumerate(owners, 1):
        job = a_job(number, owner=OWNERS[owner], ipv4_block=ip_network("10.64.0.0/28") if number < 16 else None)
        found[number] = Placed(job, decider.decide(job.facts))
    return found


def shown(prefixes: LabelledPrefixes, placed: dict[int, Placed]) -> dict[object, list[object]]:
    """The prefixes of every label that there may be, in order."""
    labels = {slice_label(each) for each in (*placed.values(), *jobs([0, 1, 2]).values())}
    return {label: sorted(prefixes.prefixes(label), key=str) for label in labels}


@given(st.lists(st.integers(0, 2), min_size=1, max_size=20), st.data())
def test_blocks_that_move_have_the_labels_of_now(owners: list[int], data: st.DataObject) -> None:
    before = jobs(owners)
    after = jobs([data.draw(st.integers(0, 2)) for _ in owners])
    moved, kept, whole = LabelledPrefixes(), LabelledPrefixes(), LabelledPrefixes()
    fill(before.values(), [(moved, slice_label), (kept, slice_label)])
    fill(after.values(), [(whole, slice_label)])
    first = shown(kept, before)
    # A number that is not there is passed over.
    steps = sum(1 for _ in move_blocks(after, [*after, 99], [(moved, slice_label, True), (kept, slice_label, False)]))
    assert steps == min(1, len(owners)) + max(0, len(owners) - 15)
    assert shown(moved, after) == shown(whole, after)
    assert shown(kept, before) == first


@given(st.lists(st.integers(0, 2), min_size=1, max_size=20))
def test_jobs_that_enter_one_by_one_are_as_all_at_once(owners: list[int]) -> None:
    placed = jobs(owners)
    one, whole = LabelledPrefixes(), LabelledPrefixes()
    fill(placed.values(), [(whole, slice_label)])
    for each in placed.values():
        enter(one, each, slice_label)
        enter(one, each, slice_label)
    assert shown(one, placed) == shown(whole, placed)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=20), st.integers(1, 20), st.integers(0, 2))
def test_the_change_of_a_job_is_the_difference_of_all(owners: list[int], number: int, owner: int) -> None:
    placed = jobs(owners)
    number = min(number, len(owners))
    other = jobs([*owners[: number - 1], owner, *owners[number:]])
    prefixes = LabelledPrefixes()
    fill(placed.values(), [(prefixes, slice_label)])
    before = shown(prefixes, placed)
    found = relabel(prefixes, placed[number], other[number], slice_label)
    after = shown(prefixes, other)
    for label in before.keys() | after.keys():
        old, new = set(before.get(label, ())), set(after.get(label, ()))
        net = found.get(label, Net())
        assert (net.added, net.removed) == (new - old, old - new)

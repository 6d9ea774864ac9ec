"""The digest of a switch's flows is equal for equal flows, and for no others."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_switch import switchside
from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.model import Flow, FlowData, FlowKey, Meter, Output, match
from lark_controller.switches.openflow.dumps import FlowDigest, Held
from lark_controller.switches.openflow.oxm import WireError
from lark_controller.switches.openflow.replies import FlowRecord

KEYS = st.builds(
    FlowKey, st.integers(0, 3), st.integers(0, 3), st.integers(1, 5).map(lambda number: match(in_port=number))
)
DATA = st.builds(
    FlowData,
    st.sampled_from([cookie(Category.JOB, 1), cookie(Category.JOB, 2), cookie(Category.SLICE, 1)]),
    st.sampled_from([(), (Output(1),), (Output(2),)]),
    goto=st.sampled_from([None, 7]),
    metadata=st.sampled_from([None, (5, 7)]),
    meter=st.none(),
    idle_timeout=st.integers(0, 1),
    hard_timeout=st.integers(0, 1),
    flags=st.integers(0, 1),
)
PROGRAMS = st.dictionaries(KEYS, DATA, max_size=8)


def held(flows: Sequence[Flow], seed: int = 0, parts: int = 1, meters: Sequence[Meter] = ()) -> Held:
    """The digest of flows that come in any order, in several parts, with counters and durations of their own."""
    chance = random.Random(seed)
    counts = chance.randrange(1 << 40), chance.randrange(1 << 40), chance.random() * 1e6
    records = [FlowRecord(flow.key, flow.data, *counts) for flow in flows]
    chance.shuffle(records)
    digest = FlowDigest()
    for part in range(parts):
        digest.read(switchside.multipart_reply(1, 1, b"".join(map(switchside.flow_record, records[part::parts]))))
    return digest.held(meters)


@given(PROGRAMS, PROGRAMS, st.integers(1, 3), st.integers())
def test_equal_flows_alone_have_one_digest(
    one: dict[FlowKey, FlowData], other: dict[FlowKey, FlowData], parts: int, seed: int
) -> None:
    mine, theirs = ([Flow(*each) for each in program.items()] for program in (one, other))
    assert held(mine) == held(mine, seed, parts)
    assert (held(mine) == held(theirs, seed, parts)) == (one == other)


@pytest.mark.parametrize("category", [Category.REACTIVE, Category.LEARNED, Category.MARKER])
def test_flows_that_are_in_no_program_count_nothing(category: Category) -> None:
    own = Flow(FlowKey(0, 1, match(in_port=1)), FlowData(cookie(Category.JOB, 1)))
    passing = Flow(FlowKey(0, 2, match(in_port=2)), FlowData(cookie(category, 5)))
    foreign = Flow(FlowKey(0, 3, match(in_port=3)), FlowData(1 << 48))
    assert held([own, passing, foreign]) == held([own])


def test_meters_count() -> None:
    assert held([], meters=[Meter(1, 10, 1)]) != held([])
    assert held([], meters=[Meter(1, 10, 1), Meter(2, 5, 1)]) == held([], meters=[Meter(2, 5, 1), Meter(1, 10, 1)])


@pytest.mark.parametrize("record", [b"\0", bytes(56), (57).to_bytes(2) + bytes(54), (55).to_bytes(2) + bytes(60)])
def test_records_that_do_not_fit_are_garbage(record: bytes) -> None:
    with pytest.raises(WireError):
        FlowDigest().read(bytes(16) + record)

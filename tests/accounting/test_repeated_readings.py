"""A reading that is the one before takes a short way, and has the same effect as the long one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_controller.accounting import ledger as ledger_module
from lark_controller.accounting.readings import (
    CountKind,
    FlowReading,
    PortReading,
    QueueReading,
    TransferCounts,
    WorkerCounts,
)
from lark_controller.accounting.usage import Rate
from tests.accounting.test_ledger import job, opened
from tests.fixtures.databases import NOW

PORTS = st.sampled_from([PortReading(*(0,) * 6), PortReading(9, 900, 5, 500), PortReading(9, 900, 8, 800, 1, 2)])
FLOWS = st.lists(
    st.builds(FlowReading, st.sampled_from([*CountKind, 99]), st.integers(0, 2), st.sampled_from([0, 100, 2000])),
    max_size=3,
    unique_by=lambda reading: reading.kind,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.sampled_from([0.0, 3.0, 10.0]), PORTS, FLOWS),
        st.tuples(st.just("again"), st.sampled_from([0.0, 3.0, 10.0])),
        st.tuples(st.just("gone"), FLOWS),
        st.tuples(st.just("queues"), st.integers(0, 3), st.integers(0, 9)),
        st.tuples(st.just("moved"), st.integers(0, 3)),
        st.tuples(st.just("report"), PORTS),
        st.tuples(st.just("write")),
    ),
    max_size=25,
)


def play(steps: list[Any]) -> list[Any]:
    """The state of a ledger after each step."""
    ledger, now, last, states = opened(), NOW, (PortReading(*(0,) * 6), list[FlowReading]()), []
    ledger.begin(job(2), "")
    for step in steps:
        match step:
            case ("read", pause, port, flows):
                now, last = now + pause, (port, flows)
                ledger.read(1, now, port, flows)
            case ("again", pause):
                now += pause
                ledger.read(1, now, *last)
            case ("gone", flows):
                for reading in flows:
                    ledger.flow_gone(1, reading)
            case ("queues", dropped, waited):
                ledger.queues(1, QueueReading(dropped, dropped, waited, 0))
            case ("moved", count):
                ledger.transferred(1, now, TransferCounts(count, count, 0, 0, count), None)
            case ("report", port):
                ledger.report(1, now, WorkerCounts(port), final=False)
            case _:
                ledger.wrote(ledger.entries(ledger.changed()))
        states.append(
            (
                ledger.usage(1), dict(ledger.rates()), dict(ledger.sums()), ledger.recent(1), ledger.dropping(9),
                ledger.changed(), ledger.flowing("user", 9), dict(ledger.access_points()), ledger.entries([1]),
            )
        )  # fmt: skip
    return states


@given(STEPS)
def test_the_short_way_has_the_effect_of_the_long_one(steps: list[Any]) -> None:
    short = play(steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_module, "is_as_it_was", lambda *_: False)
        assert play(steps) == short


def test_a_job_that_moves_nothing_more_has_no_rate_from_the_next_reading_on() -> None:
    ledger = opened()
    busy = PortReading(10, 1000, 0, 0)
    ledger.read(1, NOW + 10, busy, (), 10.0)
    ledger.read(1, NOW + 20, PortReading(20, 3000, 0, 0))
    assert ledger.rates()["group_cms"] == Rate(outward=1600)
    ledger.read(1, NOW + 30, PortReading(20, 3000, 0, 0))
    assert [rate.outward for _, rate in ledger.recent(1)] == [800, 1600, 0]
    assert not any(ledger.rates()["group_cms"])


def test_the_wans_rate_is_no_more_than_the_whole() -> None:
    """Its flows were read ahead of the port: what was held over comes with the next reading."""
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(0, 0, 0, 0), (), 10.0)
    ledger.read(1, NOW + 20, PortReading(20, 2000, 0, 0), [FlowReading(CountKind.WAN_OUT, 0, 0)])
    ledger.read(1, NOW + 30, PortReading(21, 2100, 0, 0), [FlowReading(CountKind.WAN_OUT, 21, 2100)])
    assert ledger.rates()["group_cms"] == Rate(outward=80, wan_outward=80)

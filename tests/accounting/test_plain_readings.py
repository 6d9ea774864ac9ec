"""Readings of many jobs that are taken together have the effect of each by itself."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.readings import (
    CountKind,
    FlowReading,
    PortReading,
    QueueReading,
    TransferCounts,
    WorkerCounts,
)
from tests.accounting.test_ledger import job
from tests.fixtures.databases import NOW

# Of two users in two groups, on two hosts.
JOBS: Final = (1, 4, 7, 10)
# Each of the counters goes on by so much; 1 << 63 is more than any sum.
COUNTS: Final = st.sampled_from([0, 0, 1, 9, 3_000_000, 2**40, 2**55, 1 << 63])
PORTS: Final = st.tuples(COUNTS, COUNTS, COUNTS, COUNTS, st.sampled_from([0, 0, 0, 5]), st.sampled_from([0, 0, 0, 5]))
FLOWS: Final = st.lists(
    st.tuples(
        st.sampled_from([*CountKind, 6, 99]), st.sampled_from([0, 1, 8]), st.sampled_from([0, 700, 2**40, 2**56])
    ),
    max_size=4,
)
STEPS: Final = st.lists(
    st.one_of(
        st.tuples(
            st.just("read"), st.sampled_from([-1.0, 0.0, 3.0, 5.0, 10.0, 10.001]),
            st.dictionaries(st.sampled_from(JOBS), st.tuples(PORTS, FLOWS), min_size=1),
        ),
        st.tuples(st.sampled_from(["anew", "gone", "queues", "moved", "report", "last", "leaves", "close", "begin"]),
                  st.sampled_from(JOBS)),
        st.tuples(st.just("write")),
    ),
    max_size=25,
)  # fmt: skip


def begin(ledger: Ledger, number: int) -> None:
    ledger.begin(job(number), f"treated_{number % 2}")


def seen(ledger: Ledger) -> list[Any]:
    """All that a ledger shows of its jobs."""
    return [
        [ledger.usage(number) for number in JOBS], [ledger.recent(number) for number in JOBS], ledger.states(JOBS),
        dict(ledger.rates()), dict(ledger.sums()), dict(ledger.access_points()), ledger.dropping(9),
        *(ledger.flowing(by, 9) for by in ("group", "user", "host", "access_point", "job")),
        ledger.changed(), ledger.ended(), sorted(ledger.entries(JOBS), key=lambda entry: entry.number),
    ]  # fmt: skip


class Pool:
    """A ledger with some jobs, whose switch reads all of them at a time."""

    def __init__(self, together: bool) -> None:
        self.together, self.ledger, self.now = together, Ledger(), NOW
        self.ports = {number: [0] * 6 for number in JOBS}
        self.flows = {number: dict[int, list[int]]() for number in JOBS}
        for number in JOBS[1:]:
            begin(self.ledger, number)

    def read(self, pause: float, more: dict[int, Any]) -> None:
        """Let counters go on, or begin anew where they would be more than there is room for; and read all of these."""
        self.now += pause
        readings: list[Any] = []
        for number, (port, flows) in more.items():
            counted = self.ports[number] = [
                (old + new) % (1 << 64) for old, new in zip(self.ports[number], port, strict=True)
            ]
            for kind, packets, size in flows:
                old = self.flows[number].get(kind, [0, 0])
                self.flows[number][kind] = [(old[0] + packets) % (1 << 64), (old[1] + size) % (1 << 64)]
            found = [(int(kind), *self.flows[number][kind]) for kind in dict.fromkeys(kind for kind, _, _ in flows)]
            readings.append((number, PortReading(*counted), found, self.now - NOW))
        if self.together:
            self.ledger.read_all(self.now, readings)
        else:
            for number, counts, found, age in readings:
                self.ledger.read(number, self.now, counts, found, age)

    def step(self, event: str, number: int) -> None:
        ledger, now = self.ledger, self.now
        match event:
            case "anew":
                self.ports[number] = [0] * 6
            case "gone":
                for kind, counts in self.flows[number].items():
                    ledger.flow_gone(number, FlowReading(kind, *counts))
                self.flows[number].clear()
            case "queues":
                ledger.queues(number, QueueReading(max(0, int(now - NOW)), 1, 5, 0))
            case "moved":
                ledger.transferred(number, now, TransferCounts(9, 9, 0, 0, max(0, int(now - NOW))), None)
            case "report" | "last":
                ledger.report(number, now, WorkerCounts(PortReading(*self.ports[number])), final=event == "last")
            case "leaves":
                ledger.leaves(number)
            case "close":
                ledger.close(number, now)
            case "begin":
                begin(ledger, number)


def play(steps: list[Any], together: bool) -> list[Any]:
    """The state of a pool's ledger after each step."""
    pool, states = Pool(together), []
    for step in steps:
        match step:
            case ("read", pause, more):
                pool.read(pause, more)
            case ("write",):
                pool.ledger.wrote(pool.ledger.entries(pool.ledger.changed()))
            case (event, number):
                pool.step(event, number)
        states.append(seen(pool.ledger))
    return states


@given(STEPS)
def test_readings_together_are_each_by_itself(steps: list[Any]) -> None:
    assert play(steps, together=True) == play(steps, together=False)

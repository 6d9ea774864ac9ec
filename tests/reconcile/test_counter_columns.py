"""A switch's counters by columns have the effect of its counters one by one."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from os_ken.ofproto import ofproto_v1_3 as ofp

from fake_switch import switchside
from lark_controller.accounting.ledger import Ledger
from lark_controller.flows.cookies import COUNT_BITS, Category, cookie, count_cookie
from lark_controller.flows.placement import Placed
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from lark_controller.reconcile import counters
from lark_controller.reconcile.core_ports import CorePorts
from lark_controller.reconcile.counter_columns import switch_reading
from lark_controller.reconcile.counters import FEW, CounterReader
from lark_controller.reconcile.switch import SwitchState
from lark_controller.switches.openflow import columns, replies
from tests.fixtures.databases import a_run
from tests.reconcile.test_counters import NO_PAIRS

NUMBERS = st.sampled_from([1, 2, 3, 9, 1 << 31])
PORTS = st.integers(1, 6)
COUNTS = st.sampled_from([0, 5, 1 << 40, (1 << 64) - 1])
COOKIES = st.one_of(
    st.builds(lambda number, kind: cookie(Category.COUNT, number << COUNT_BITS | kind), NUMBERS, st.integers(0, 7)),
    st.sampled_from([0, (1 << 64) - 1, cookie(Category.JOB, 1), cookie(Category.COUNT, 1) ^ 1 << 60]),
)


def port_part(ports: list[tuple[int, ...]]) -> bytes:
    records = b"".join(struct.pack("!I4x6Q48xII", port, *counts, 9, 0) for port, *counts in ports)
    return switchside.multipart_reply(1, ofp.OFPMP_PORT_STATS, records)


def flow_part(flows: list[tuple[int, int, int]]) -> bytes:
    records = b"".join(struct.pack("!H22xQQQ8x", 56, *each) for each in flows)
    return switchside.multipart_reply(1, ofp.OFPMP_FLOW, records)


@given(
    st.dictionaries(PORTS, NUMBERS).filter(lambda jobs: len({*jobs.values()}) == len(jobs)),
    st.lists(st.lists(st.tuples(PORTS, *[COUNTS] * 6), max_size=8), max_size=3),
    st.lists(st.lists(st.tuples(COOKIES, COUNTS, COUNTS), max_size=12), max_size=3),
    st.sets(COOKIES, max_size=2),
)
def test_readings_are_those_one_by_one(
    jobs: dict[int, int], ports: list[Any], flows: list[Any], removed: set[int]
) -> None:
    """Ports and flows of nobody, those that come twice, and parts without any change nothing in that."""
    port_parts, flow_parts = list(map(port_part, ports)), list(map(flow_part, flows))
    records = [record for part in port_parts for record in replies.port_records(part)]
    counts = [count for part in flow_parts for count in replies.flow_counts(part)]
    one_by_one = counters._job_readings(jobs, records, counts, removed)
    reading = switch_reading(
        jobs, list(map(columns.port_columns, port_parts)), list(map(columns.flow_columns, flow_parts)), removed
    )
    assert list(reading.jobs(range(len(reading.numbers)))) == one_by_one


class Gone(AbstractSet[int]):
    """Cookies of flows that went at all switches together: very many, of which each look is counted."""

    def __init__(self) -> None:
        self.looks = 0

    def __contains__(self, cookie: object) -> bool:
        self.looks += 1
        return cookie != count_cookie(2, 1)

    def __len__(self) -> int:
        return 1 << 40

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("gone through one by one")


def test_flows_that_went_elsewhere_cost_nothing() -> None:
    """While one switch answers, the jobs of all others may end: the cost is that of what came from this one."""
    ports = columns.port_columns(port_part([(port, *[5] * 6) for port in (1, 2, 3)]))
    flows = columns.flow_columns(flow_part([(count_cookie(n, kind), n, kind) for n in (1, 2, 3) for kind in range(5)]))
    gone = Gone()
    reading = switch_reading({1: 1, 2: 2, 3: 3}, [ports], [flows], gone)
    assert gone.looks == len(flows)
    found = {number: counted for number, _, counted, _ in reading.jobs(range(3))}
    assert found == {1: [], 2: [(1, 2, 1)], 3: []}


def test_a_reading_of_very_many_jobs_is_taken_in_parts() -> None:
    jobs = {port: port + 7 for port in range(1, 1200)}
    ports = [port_part([(port, *[port] * 6) for port in range(first, first + 400)]) for first in (1, 401, 801)]
    reading = switch_reading(jobs, list(map(columns.port_columns, ports)), [])
    parts = list(reading.parts())
    assert [len(part.numbers) for part in parts] == [512, 512, 175]
    assert [each for part in parts for each in part.jobs(range(len(part.numbers)))] == list(
        reading.jobs(range(len(jobs)))
    )


class Switch:
    """A connection whose switch answers at once: jobs' ports come after each other, with four flows a job."""

    decoding = 0.0

    def __init__(self, jobs: int) -> None:
        self.jobs, self.turn = jobs, 0
        self.asked = list[str]()

    def answer(self, name: str, found: Any) -> asyncio.Future[Any]:
        self.asked.append(name)
        done = asyncio.get_running_loop().create_future()
        done.set_result(found)
        return done

    def ports(self) -> bytes:
        # In another order than the jobs, beside ports of nobody.
        return port_part([(port, *[self.turn * port * 1000] * 6) for port in reversed(range(1, 2 * self.jobs))])

    def flows(self) -> bytes:
        numbers = reversed(range(1, self.jobs + 1))
        return flow_part(
            [(count_cookie(n, kind), self.turn * n, self.turn * n * 9) for n in numbers for kind in range(5)]
        )

    def flow_counts(self, *_: object) -> asyncio.Future[Any]:
        return self.answer("flow_counts", replies.flow_counts(self.flows()))

    def port_records(self) -> asyncio.Future[Any]:
        return self.answer("port_records", replies.port_records(self.ports()))

    def flow_columns(self, *_: object) -> asyncio.Future[Any]:
        return self.answer("flow_columns", [columns.flow_columns(self.flows())])

    def port_columns(self) -> asyncio.Future[Any]:
        return self.answer("port_columns", [columns.port_columns(self.ports())])


@pytest.mark.parametrize("jobs", [FEW - 1, FEW, 40])
def test_a_switch_with_many_jobs_is_read_by_columns_to_the_same_effect(
    jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    decider = Decider(load("version: 1\n"))
    drops = cast("Any", Drops())

    async def read(few: int) -> tuple[list[str], list[Any]]:
        monkeypatch.setattr(counters, "FEW", few)
        ledger, switch, clock = Ledger(), Switch(jobs), iter(range(100))
        monkeypatch.setattr("lark_controller.reconcile.counters.time.time", lambda: now + 10 * next(clock))
        placed = []
        for number in range(1, jobs + 1):
            job = replace(a_run(number), number=number, created=now)
            placed.append(Placed(job, decider.decide(job.facts), 1, number))
            ledger.begin(job, "")
        switches = {1: SwitchState(1, link=cast("Any", switch), compared=True)}
        cores = CorePorts(switches, lambda _datapath: None)
        reader = CounterReader(ledger, switches, lambda _datapath: placed, drops, cores, NO_PAIRS)
        for switch.turn in (1, 2, 2, 3, 1):
            await reader.poll(1)
        shown = [ledger.usage(number) for number in range(1, jobs + 1)]
        return switch.asked, [shown, ledger.rates(), ledger.sums(), ledger.flowing("user", 9), ledger.dropping(9)]

    asked, found = asyncio.run(read(FEW))
    assert {*asked} == ({"flow_counts", "port_records"} if jobs < FEW else {"flow_columns", "port_columns"})
    assert found == asyncio.run(read(1 << 20))[1]


class Drops:
    """The flows that drop, which nobody looks at here."""

    async def look(self, _datapath: int, *, drops: bool) -> None:
        """Nothing is read."""

"""Counters of switches that an instance which stands by keeps: read as a slave's, and nothing is written."""

from __future__ import annotations

import asyncio
import struct
import time

import pytest

from fake_switch.stored import StoredSwitch
from fake_switch.switch import FakeSwitch
from lark_controller.flows.cookies import CATEGORY_MASK, count_cookie
from lark_controller.switches.openflow.replies import PortInfo, flow_ages, port_stats
from lark_controller.switches.openflow.server import _TURNS
from tests.fixtures.openflow import Recorder, add, connected, flow, scenario, serving
from tests.switches.test_kept import standing_by, until

PORTS = {number: PortInfo(number, f"p{number}", "02:00:00:00:00:09", True, False) for number in range(1, 400)}
ALL = count_cookie(0), CATEGORY_MASK


def soon() -> float:
    """A time in which all may have their turns."""
    return time.monotonic() + 60.0


def test_ports_and_counting_flows_are_read_and_nothing_is_written() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder, generation=1) as active, standing_by() as standby:
            fake = StoredSwitch(1, PORTS)
            link = await connected(active, recorder, fake)
            made = [flow(number) for number in range(1, 300)]
            counting = [each._replace(data=each.data._replace(cookie=count_cookie(7, 1))) for each in made[:200]]
            assert (await link.apply(add(*counting, *made[200:]))).complete
            more = fake.another()
            await standby.keeps(more)
            more.busy = True
            began = time.monotonic()
            # Answers of 20 and 40 kB: more than is kept of what a switch sends of itself.
            found = await standby.server.read_counters([1, 2], *ALL, 5.0, soon())
            assert set(found) == {1}
            read = found[1]
            assert read is not None
            assert read.at - read.took >= began
            assert len(read.flows) == 200
            assert {cookie for cookie, *_ in read.flows} == {count_cookie(7, 1)}
            assert all(0 < packets <= more.packets() and age >= 0.0 for _, packets, _, age in read.flows)
            assert {each.number for each in read.ports} == set(PORTS)
            assert all(each.age is not None and each.rx_packets > 0 for each in read.ports)
            assert (more.flow_mods, more.refused_as_slave, more.barriers) == (0, 0, 0)
            # And again nothing is kept of what it sends of itself.
            assert not standby.server.kept[1].connection.known

    scenario(play)


def test_a_switch_that_does_not_answer_or_goes_holds_up_no_other() -> None:
    async def play() -> None:
        async with standing_by() as standby:
            silent, gone, good = StoredSwitch(1, {}), StoredSwitch(2, {}), StoredSwitch(3, {})
            await standby.keeps(silent, gone, good)
            silent._multipart = lambda *_: None  # type: ignore[method-assign]
            silent._answers = silent._all_answers()
            gone._multipart = lambda *_: gone.disconnect()  # type: ignore[method-assign]
            gone._answers = gone._all_answers()
            found = await standby.server.read_counters([1, 2, 3], *ALL, 0.2, soon())
            assert set(found) == {3}

    scenario(play)


def test_all_switches_of_an_order_have_one_time_together() -> None:
    async def play() -> None:
        async with standing_by() as standby:
            # As many as are asked at a time do not answer, and one after them would.
            silent = [StoredSwitch(number, {}) for number in range(1, _TURNS + 1)]
            await standby.keeps(*silent, StoredSwitch(_TURNS + 1, {}))
            for each in silent:
                each._multipart = lambda *_: None  # type: ignore[method-assign]
                each._answers = each._all_answers()
            numbers = range(1, _TURNS + 2)
            found = await standby.server.read_counters(numbers, *ALL, 0.2, time.monotonic() + 0.3)
            # It can be ordered again at once, and the silent ones cannot.
            assert found == {_TURNS + 1: None}
            found = await standby.server.read_counters(numbers, *ALL, 0.2, soon())
            assert set(found) == {_TURNS + 1}
            assert found[_TURNS + 1] is not None

    scenario(play)


def test_a_takeover_in_the_middle_of_a_reading_goes_on_as_if_there_was_none() -> None:
    async def play() -> None:
        async with standing_by() as standby:
            fake = StoredSwitch(1, PORTS)
            await standby.keeps(fake)
            answers, held = fake._multipart, list[tuple[int, bytes]]()
            fake._multipart = lambda *asked: held.append(asked)  # type: ignore[method-assign]
            fake._answers = fake._all_answers()
            reading = asyncio.create_task(standby.server.read_counters([1], *ALL, 5.0, soon()))
            await until(lambda: len(held) == 2)
            standby.leads(2)
            standby.serves()
            fake._multipart = answers  # type: ignore[method-assign]
            fake._answers = fake._all_answers()
            for asked in held:
                answers(*asked)
            link = await standby.link(1)
            await reading
            assert link.connection.known
            assert len(link.features.ports) == len(PORTS)
            assert (await link.apply(add(flow(1)))).complete
            # It is the active one's own from now on.
            assert await standby.server.read_counters([1], *ALL, 5.0, soon()) == {}

    scenario(play)


def test_what_is_no_answer_closes_the_connection() -> None:
    async def play() -> None:
        async with standing_by() as standby:
            fake = FakeSwitch(1, {1: "p1"})
            await standby.keeps(fake)
            fake._multipart = lambda xid, message: fake.send_raw(  # type: ignore[method-assign]
                bytes([4, 19]) + (20).to_bytes(2) + xid.to_bytes(4) + (1).to_bytes(2) + bytes(10)
            )
            fake._answers = fake._all_answers()
            assert await standby.server.read_counters([1], *ALL, 5.0, soon()) == {}
            await until(fake.closed.is_set)

    scenario(play)


ALL_ONES = (1 << 32) - 1


@pytest.mark.parametrize(
    ("seconds", "nanoseconds", "age"),
    [(7, 500_000_000, 7.5), (7, ALL_ONES, 7.0), (ALL_ONES, 0, 0.0), (ALL_ONES, ALL_ONES, 0.0)],
)
def test_a_duration_that_a_switch_does_not_have_makes_nothing_older(seconds: int, nanoseconds: int, age: float) -> None:
    record = struct.pack("!HBxII12xQQQHH4x", 56, 0, seconds, nanoseconds, 5, 6, 7, 1, 4)
    assert flow_ages(bytes(16) + record) == [(5, 6, 7, age)]
    port = struct.pack("!I4x12QII", 3, *range(12), seconds, nanoseconds)
    assert [each.age for each in port_stats(bytes(16) + port)] == [None if seconds == ALL_ONES else age]

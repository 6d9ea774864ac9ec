"""Reading counters while flows come and go: no packet is counted twice, in whatever order messages are handled."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace
from typing import Any, cast

import pytest

from lark_common.errors import SwitchError
from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.readings import CountKind, PortReading
from lark_controller.accounting.shares.messages import Order, ReadSwitch, answer_bytes
from lark_controller.accounting.shares.offers import PATIENCE, SILENCE, Offers, Taken
from lark_controller.accounting.shares.steps import Ages, step
from lark_controller.flows.cookies import count_cookie
from lark_controller.flows.model import FlowKey
from lark_controller.flows.placement import Placed
from lark_controller.jobs.job import Job
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from lark_controller.reconcile.core_ports import CorePorts
from lark_controller.reconcile.counters import LATE, SHARE, CounterReader
from lark_controller.reconcile.switch import SwitchState
from lark_controller.switches.openflow.replies import FlowCount, FlowRemoved, PortCounters, PortRecord
from tests.fixtures.databases import a_run

PORT, PACKETS, BYTES = 3, 121, 59_620
WHOLE = PortCounters(PORT, 400, 0, 300_000, 0, 0, 0, 1.0)
RECORD: PortRecord = (*WHOLE[:7], 1, 0)
GONE = FlowRemoved(FlowKey(0, 1, ()), count_cookie(1, CountKind.WAN_OUT), 2, PACKETS, BYTES, 1.0)


class NoPairs:
    """The counters of reserved flows where there are none; ``looked`` are the switches that they were looked for at."""

    def __init__(self) -> None:
        self.looked: list[int] = []

    async def look(self, datapath: int) -> None:
        """Nothing is read."""
        self.looked.append(datapath)


class NoDrops:
    """The flows that drop, where none does."""

    async def look(self, _datapath: int, *, drops: bool) -> None:
        """Nothing is read."""
        assert not drops


NO_PAIRS = cast("Any", NoPairs())
NO_DROPS = cast("Any", NoDrops())


class Link:
    """A switch's connection whose answers come when the test says so."""

    decoding = 0.0

    def __init__(self) -> None:
        self.flows: list[asyncio.Future[list[FlowCount]]] = []
        # Each with its answer.
        self.ports: list[tuple[asyncio.Future[Any], PortCounters | PortRecord]] = []

    def flow_counts(self, *_: object) -> asyncio.Future[list[FlowCount]]:
        self.flows.append(asyncio.get_running_loop().create_future())
        return self.flows[-1]

    def port_counters(self, *_: object) -> asyncio.Future[list[PortCounters]]:
        self.ports.append((asyncio.get_running_loop().create_future(), WHOLE))
        return self.ports[-1][0]

    def port_records(self) -> asyncio.Future[list[PortRecord]]:
        self.ports.append((asyncio.get_running_loop().create_future(), RECORD))
        return self.ports[-1][0]

    def answer(self) -> None:
        """Answer all requests with what was counted before the flow went."""
        for flows in self.flows:
            flows.set_result([(GONE.cookie, PACKETS, BYTES)])
        for ports, found in self.ports:
            ports.set_result([found])


def reading_of(ledger: Ledger, jobs: list[Placed]) -> tuple[Link, CounterReader]:
    """A switch's connection, and what reads the counters of these jobs there."""
    link = Link()
    switches = {1: SwitchState(1, link=cast("Any", link), compared=True)}
    cores = CorePorts(switches, lambda _datapath: None)
    return link, CounterReader(ledger, switches, lambda _datapath: jobs, NO_DROPS, cores, NO_PAIRS)


@pytest.mark.parametrize("closed", [True, False])
def test_a_change_of_policy_opens_no_account_of_a_job_that_is_over(closed: bool) -> None:
    ledger = Ledger()
    job = replace(a_run(1), number=1)
    placed = Placed(job, Decider(load("version: 1\n")).decide(job.facts), 1, PORT)

    async def scenario() -> None:
        link, reader = reading_of(ledger, [])
        ledger.begin(job, "")
        # It was there when the change looked for the jobs that it is about.
        there = {1: placed}
        changed = list(there)
        reader.end(1, there.pop(1))
        if closed:
            link.answer()
            await until_closed(ledger)
            await reader.regroup(changed, there)
        else:
            await reader.regroup(changed, there)
            link.answer()
            await until_closed(ledger)

    asyncio.run(scenario())
    assert not ledger.has_open(1)
    assert [entry.final for entry in ledger.entries(ledger.changed())] == [True]


def test_rates_end_where_a_switch_that_is_connected_does_not_answer() -> None:
    ledger = Ledger()
    job = replace(a_run(1), number=1, created=time.time() - 10)
    placed = Placed(job, Decider(load("version: 1\n")).decide(job.facts), 1, PORT)

    async def scenario() -> None:
        link, reader = reading_of(ledger, [placed])
        ledger.begin(job, "")
        reading = asyncio.create_task(reader.poll(1))
        await asyncio.sleep(0)
        link.answer()
        await reading
        assert (len(ledger.flowing("job", 9)), ledger.unread()) == (1, 0)
        reading = asyncio.create_task(reader.poll(1))
        await asyncio.sleep(0)
        for asked in (link.flows[-1], link.ports[-1][0]):
            asked.set_exception(SwitchError("no answer within 10 s"))
        with pytest.raises(SwitchError):
            await reading

    asyncio.run(scenario())
    assert ledger.flowing("job", 9) == ()
    assert ledger.unread() == 1


async def until_closed(ledger: Ledger) -> None:
    """Let what is under way go on until no account is open; what has not happened after many turns never does."""
    for _ in range(100):
        if not ledger.has_open(1):
            return
        await asyncio.sleep(0)


@pytest.mark.parametrize("removed_first", [True, False])
@pytest.mark.parametrize("reading", ["last", "round"])
def test_a_flow_that_goes_while_its_answer_is_under_way_counts_once(reading: str, removed_first: bool) -> None:
    ledger = Ledger()
    job = replace(a_run(1), number=1)
    placed = Placed(job, Decider(load("version: 1\n")).decide(job.facts), 1, PORT)

    async def scenario() -> None:
        link, reader = reading_of(ledger, [placed])
        ledger.begin(job, "")
        tasks = []
        if reading == "last":
            reader.end(1, placed)
        else:
            tasks.append(asyncio.create_task(reader.poll(1)))
            await asyncio.sleep(0)
        # The switch is read before any task that was made meanwhile has its turn.
        if removed_first:
            reader.flow_removed(GONE)
        link.answer()
        if not removed_first:
            reader.flow_removed(GONE)
        await asyncio.gather(*tasks)
        for _ in range(10):
            await asyncio.sleep(0)

    asyncio.run(scenario())
    used = ledger.usage(1)
    assert used is not None
    assert (used.usage.wan_packets_out, used.usage.wan_bytes_out) == (PACKETS, BYTES)


@pytest.mark.parametrize("decoding", [0.0, 0.1])
def test_a_round_takes_longer_where_readings_would_take_too_much_of_the_loop(
    monkeypatch: pytest.MonkeyPatch, decoding: float
) -> None:
    """The pauses between readings follow from the time that the readings took, decoding included."""
    ledger, spent, pauses, rounds = Ledger(), 0.0, list[float](), 3
    placed = [
        Placed(
            replace(a_run(number), number=number), Decider(load("version: 1\n")).decide(a_run(1).facts), number, PORT
        )
        for number in (1, 2, 3)
    ]

    def processor() -> float:
        nonlocal spent
        spent += 0.005
        return spent

    class Answering(Link):
        def port_records(self) -> asyncio.Future[list[PortRecord]]:
            asked = super().port_records()
            self.decoding += decoding
            self.answer()
            self.flows.clear()
            self.ports.clear()
            return asked

    async def scenario() -> None:
        switches = {number: SwitchState(number, link=cast("Any", Answering()), compared=True) for number in (1, 2, 3)}
        cores = CorePorts(switches, lambda _datapath: None)
        for each in placed:
            ledger.begin(each.job, "")
        at = {each.datapath: [each] for each in placed}
        reader = CounterReader(ledger, switches, lambda number: at[number], NO_DROPS, cores, NO_PAIRS, processor)
        over = asyncio.Event()

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 4 * rounds:
                over.set()
                await asyncio.Event().wait()
            for _ in range(20):
                await pause(0)

        pause = asyncio.sleep
        monkeypatch.setattr("lark_controller.reconcile.counters.asyncio.sleep", sleep)
        running = asyncio.create_task(reader.run(0.3))
        await over.wait()
        running.cancel()

    asyncio.run(scenario())
    polls = [pause for number, pause in enumerate(pauses) if number % 4 != 3]
    # The first has nothing before it; each further one leaves the others as much as the poll before has taken.
    assert polls[0] == pytest.approx(0.1)
    assert all(pause >= (SHARE - 1) * (0.005 + decoding) for pause in polls[1:])
    assert (max(polls) > 0.11) == bool(decoding)


class Pool:
    """A switch with one job, whose counters one that stands by may read."""

    def __init__(self, job: Job | None = None) -> None:
        self.now = 100.0
        self.link = Link()
        job = job or replace(a_run(1), number=1)
        self.placed = [Placed(job, Decider(load("version: 1\n")).decide(job.facts), 1, PORT)]
        self.switches = {1: SwitchState(1, link=cast("Any", self.link), compared=True)}
        self.ledger = Ledger()
        self.ledger.begin(job, "")
        self.ledger.read(1, time.time() - 10.0, PortReading(1, 100, 0, 0), [], 1.0)
        self.counted = Counter[str]()
        self.pairs: Any = NoPairs()
        self.reader = CounterReader(
            self.ledger, self.switches, lambda _: list(self.placed), NO_DROPS,
            CorePorts(self.switches, lambda _datapath: None), cast("Any", self),
            offers=Offers(clock=lambda: self.now),
            count=lambda result: self.counted.update([result]),
        )  # fmt: skip

    async def look(self, datapath: int) -> None:
        """Reads the counters of reserved flows."""
        await self.pairs.look(datapath)

    def ordered(self) -> Order:
        """An order with the switch, once the loop has offered it."""
        self.reader.offers.order("b")
        assert self.reader._offered(1)
        order = self.reader.offers.order("b")
        assert [each.datapath for each in order.switches] == [1]
        return order

    def answer(self, order: Order, packets: int = 400) -> list[Taken]:
        """The answer of one that has read so many packets."""
        (job,) = order.switches[0].jobs
        made = step(job.state, order.at, Ages(PortReading(packets, 750 * packets, 0, 0), 1e6, [], 1e6))
        assert made is not None
        taken = self.reader.offers.answered("b", answer_bytes(order.token, 0.0, [ReadSwitch(1, 0.0, (made,))]))
        assert taken is not None
        return taken

    async def take(self, taken: list[Taken]) -> None:
        """Take in an answer, and answer what the active one asks the switch for then."""
        self.reader.taken(taken)
        for _ in range(10):
            await asyncio.sleep(0)
        if self.link.ports:
            self.link.answer()
            for _ in range(10):
                await asyncio.sleep(0)

    @property
    def packets(self) -> int:
        used = self.ledger.usage(1)
        assert used is not None
        return used.usage.packets_out


def test_readings_of_one_that_stands_by_are_taken_in() -> None:
    pool = Pool()
    order = pool.ordered()
    # It is offered once.
    assert pool.reader._offered(1)
    assert pool.reader.offers.order("c").switches == ()
    asyncio.run(pool.take(pool.answer(order)))
    assert (pool.packets, pool.counted) == (400, {"taken": 1})
    assert pool.link.ports == []
    # The queues of reserved flows are read by the active one alone.
    assert pool.pairs.looked == [1]


@pytest.mark.parametrize("change", ["link", "gone", "port", "compared", "lent"])
def test_readings_of_a_switch_that_is_another_by_now_are_none_and_it_is_read_here(change: str) -> None:
    pool = Pool()
    taken = pool.answer(pool.ordered())
    match change:
        case "link":
            pool.link = Link()
            pool.switches[1].link = cast("Any", pool.link)
        case "gone":
            del pool.switches[1]
        case "port":
            pool.placed = [replace(pool.placed[0], port=PORT + 1)]
        case "compared":
            pool.switches[1].compared = False
        case "lent":
            pool.reader._lent.clear()
    asyncio.run(pool.take(taken))
    read = change in ("link", "lent")
    # Of one that is gone or not compared yet nothing is to be had; at the other port there is none.
    assert pool.packets == (400 if read else 1)
    assert pool.counted == ({"changed": 1} if change in ("gone", "compared") else {"changed": 1, "own": 1})
    assert pool.pairs.looked == ([] if change in ("gone", "compared") else [1])


def test_an_account_that_has_changed_meanwhile_is_read_here() -> None:
    pool = Pool()

    async def play() -> None:
        taken = pool.answer(pool.ordered())
        pool.reader.flow_removed(GONE)
        await pool.take(taken)

    asyncio.run(play())
    assert (pool.packets, pool.counted) == (400, {"changed": 1, "own": 1})


@pytest.mark.parametrize("reading", ["last", "round"])
def test_an_answer_under_way_here_may_be_older_and_is_no_counter_that_began_anew(reading: str) -> None:
    """The switch has answered this instance before it answered the other one, whose answer is handled first."""
    pool = Pool()

    async def play() -> None:
        taken, tasks = pool.answer(pool.ordered(), packets=500), list[asyncio.Task[None]]()
        if reading == "last":
            pool.reader.end(1, pool.placed[0])
        else:
            tasks.append(asyncio.create_task(pool.reader.poll(1)))
            await asyncio.sleep(0)
        await pool.take(taken)
        await asyncio.gather(*tasks)

    asyncio.run(play())
    assert pool.packets == 400
    assert pool.counted["changed"] == 1
    assert pool.counted["taken"] == 0


def test_nothing_is_offered_while_an_answer_about_one_of_its_jobs_is_under_way() -> None:
    pool = Pool()

    async def play() -> None:
        pool.reader.offers.order("b")
        pool.reader.end(1, pool.placed[0])
        assert not pool.reader._offered(1)

    asyncio.run(play())


def test_after_a_reading_that_was_late_the_next_is_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its time the switch may have made a flow anew, and the removal of the one before is on its way yet."""
    pool = Pool()

    async def read(seconds: float) -> bool:
        loop, took = asyncio.get_running_loop(), 0.0
        now = loop.time()
        with monkeypatch.context() as patch:
            patch.setattr(loop, "time", lambda: now + took)
            task = asyncio.create_task(pool.reader.poll(1))
            await asyncio.sleep(0)
            took = seconds
            pool.link.answer()
            await task
        pool.link.flows.clear()
        pool.link.ports.clear()
        return pool.reader._offered(1)

    async def play() -> list[bool]:
        pool.reader.offers.order("b")
        return [await read(seconds) for seconds in (LATE + 0.1, LATE - 0.1)]

    assert asyncio.run(play()) == [False, True]


def test_a_switch_that_is_offered_is_not_read_here_as_well_where_nobody_asks_any_more() -> None:
    pool = Pool()
    pool.reader.offers.order("b")
    assert pool.reader._offered(1)
    pool.now += SILENCE + 0.1
    assert not pool.reader.offers.wanted(1)
    assert pool.reader._offered(1)


def test_what_nobody_has_read_in_time_is_read_here() -> None:
    pool = Pool()

    async def play() -> None:
        pool.ordered()
        pool.now += PATIENCE
        await pool.reader._pause(0.01)
        await asyncio.sleep(0)
        assert len(pool.link.ports) == 1
        pool.link.answer()
        for _ in range(10):
            await asyncio.sleep(0)

    asyncio.run(play())
    assert (pool.packets, pool.counted) == (400, {"left": 1, "own": 1})
    assert pool.reader._lent == {}


def test_a_switch_without_jobs_or_with_one_that_is_not_read_yet_is_offered_to_nobody() -> None:
    pool = Pool()
    pool.reader.offers.order("b")
    second = replace(a_run(2), number=2)
    pool.ledger.begin(second, "")
    pool.placed.append(replace(pool.placed[0], job=second, port=PORT + 1))
    assert not pool.reader._offered(1)
    pool.ledger.read(2, time.time() - 10.0, PortReading(1, 100, 0, 0), [], 1.0)
    assert pool.reader._offered(1)
    pool.reader._lent.clear()
    pool.placed.clear()
    assert not pool.reader._offered(1)
    assert not pool.reader._offered(2)
    # Nor is one offered while nobody asks.
    pool.now += 100.0
    pool.placed += Pool().placed
    assert not pool.reader._offered(1)

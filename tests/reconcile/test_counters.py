"""Reading counters while flows come and go: no packet is counted twice, in whatever order messages are handled."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.readings import CountKind
from lark_controller.flows.cookies import count_cookie
from lark_controller.flows.model import FlowKey
from lark_controller.flows.placement import Placed
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from lark_controller.reconcile.core_ports import CorePorts
from lark_controller.reconcile.counters import SHARE, CounterReader
from lark_controller.reconcile.switch import SwitchState
from lark_controller.switches.openflow.replies import FlowCount, FlowRemoved, PortCounters
from tests.fixtures.databases import a_run

PORT, PACKETS, BYTES = 3, 121, 59_620
WHOLE = PortCounters(PORT, 400, 0, 300_000, 0, 0, 0, 1.0)
GONE = FlowRemoved(FlowKey(0, 1, ()), count_cookie(1, CountKind.WAN_OUT), 2, PACKETS, BYTES, 1.0)


class NoPairs:
    """The counters of reserved flows where there are none."""

    async def look(self, datapath: int) -> None:
        """Nothing is read."""


NO_PAIRS = cast("Any", NoPairs())


class Link:
    """A switch's connection whose answers come when the test says so."""

    decoding = 0.0

    def __init__(self) -> None:
        self.flows: list[asyncio.Future[list[FlowCount]]] = []
        self.ports: list[asyncio.Future[list[PortCounters]]] = []

    def flow_counts(self, *_: object) -> asyncio.Future[list[FlowCount]]:
        self.flows.append(asyncio.get_running_loop().create_future())
        return self.flows[-1]

    def port_counters(self, *_: object) -> asyncio.Future[list[PortCounters]]:
        self.ports.append(asyncio.get_running_loop().create_future())
        return self.ports[-1]

    def answer(self) -> None:
        """Answer all requests with what was counted before the flow went."""
        for flows in self.flows:
            flows.set_result([(GONE.cookie, PACKETS, BYTES)])
        for ports in self.ports:
            ports.set_result([WHOLE])


@pytest.mark.parametrize("removed_first", [True, False])
@pytest.mark.parametrize("reading", ["last", "round"])
def test_a_flow_that_goes_while_its_answer_is_under_way_counts_once(reading: str, removed_first: bool) -> None:
    ledger = Ledger()
    job = replace(a_run(1), number=1)
    placed = Placed(job, Decider(load("version: 1\n")).decide(job.facts), 1, PORT)

    async def scenario() -> None:
        link = Link()
        switches = {1: SwitchState(1, link=cast("Any", link), compared=True)}
        cores = CorePorts(switches, lambda _datapath: None)
        reader = CounterReader(ledger, switches, lambda _datapath: [placed], cast("Any", None), cores, NO_PAIRS)
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
    """What the pauses leave for others follows from what the readings took, decoding included."""
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
        def port_counters(self, *_: object) -> asyncio.Future[list[PortCounters]]:
            asked = super().port_counters()
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
        reader = CounterReader(
            ledger, switches, lambda number: at[number], cast("Any", None), cores, NO_PAIRS, processor
        )
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

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
from lark_controller.reconcile.counters import CounterReader
from lark_controller.reconcile.switch import SwitchState
from lark_controller.switches.openflow.replies import FlowCount, FlowRemoved, PortCounters
from tests.fixtures.databases import a_run

PORT, PACKETS, BYTES = 3, 121, 59_620
WHOLE = PortCounters(PORT, 400, 0, 300_000, 0, 0, 0, 1.0)
GONE = FlowRemoved(FlowKey(0, 1, ()), count_cookie(1, CountKind.WAN_OUT), 2, PACKETS, BYTES, 1.0)


class Link:
    """A switch's connection whose answers come when the test says so."""

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
            flows.set_result([FlowCount(GONE.cookie, PACKETS, BYTES)])
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
        reader = CounterReader(ledger, switches, lambda _datapath: [placed], cast("Any", None), cores)
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

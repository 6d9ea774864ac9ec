"""The delivery of reserved flows is read at switches while somebody asks, and taken from workers' reports."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lark_common.deliveries import Delivered as Reading
from lark_common.errors import SwitchError
from lark_controller.api.workers import Delivered
from lark_controller.qos.delivery import Counters
from lark_controller.qos.reservation import Reservation, ReservationKind
from lark_controller.reconcile import deliveries
from lark_controller.reconcile.calls import LoopCalls
from lark_controller.reconcile.deliveries import FlowDeliveries
from lark_controller.reconcile.reconciler import Reconciler
from lark_controller.services.flow_deliveries import DeliveryWatch
from lark_controller.switches.openflow.replies import QueueCounters
from tests.worker.pool import eventually

DATAPATH = 0xE1


def flow(number: int, job: str = "sender") -> Reservation:
    return Reservation(number, f"{number:016x}", ReservationKind.FLOW, 10_000, "one", "two", {}, job, "peer")


class Switch:
    """A switch that counts for two reserved flows; the second one's queue stands at two ports."""

    def __init__(self) -> None:
        self.asked, self.sent, self.fault = 0, 0, False

    async def queue_stats(self) -> list[QueueCounters]:
        self.asked += 1
        await asyncio.sleep(0)
        if self.fault:
            raise SwitchError("no answer")
        counted = [(1, 0x8001, self.sent), (1, 0x8002, 10), (2, 0x8002, 5), (1, 1, 999)]
        return [QueueCounters(port, queue, size, 0, 0) for port, queue, size in counted]


class Loop:
    """The parts of the reconcile loop that are looked at: a job at a switch, and one at a worker's own queues."""

    def __init__(self) -> None:
        self.switch = Switch()
        sender = SimpleNamespace(id="sender", number=1, host="One", reserved=(SimpleNamespace(number=7),))
        ruled = SimpleNamespace(id="ruled", number=2, host="Two", reserved=(SimpleNamespace(number=9),))
        placed = {
            1: SimpleNamespace(job=sender, datapath=DATAPATH),
            2: SimpleNamespace(job=ruled, datapath=None),
        }
        self.directory = SimpleNamespace(by_id={"sender": sender, "ruled": ruled})
        self.desired = SimpleNamespace(placed=placed, ruled_at=lambda host: [placed[2]])
        self.switches = {DATAPATH: SimpleNamespace(link=self.switch)}
        self.flows = {0x8001: 7, 0x8002: 8}
        self.queues = SimpleNamespace(reserved_flows=lambda datapath: self.flows)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    at = [100.0]
    monkeypatch.setattr(deliveries, "time", SimpleNamespace(monotonic=lambda: at[0]))
    return at


def read(found: FlowDeliveries, *flows: Reservation) -> dict[str, Reading]:
    return asyncio.run(found.read(flows))


def test_a_switchs_queues_are_read_at_most_once_a_second_for_all_who_ask(now: list[float]) -> None:
    loop = Loop()
    found = FlowDeliveries(cast("Reconciler", loop))

    async def together() -> list[dict[str, Reading]]:
        return await asyncio.gather(*(found.read([flow(7), flow(8)]) for _ in range(5)))

    first = asyncio.run(together())
    assert loop.switch.asked == 1
    assert first == [first[0]] * 5
    assert {id_: each.total for id_, each in first[0].items()} == {f"{7:016x}": 0, f"{8:016x}": 15}
    now[0] += 0.5
    read(found, flow(7))
    assert loop.switch.asked == 1
    now[0] += 0.5
    loop.switch.sent = 2_000_000
    (last,) = read(found, flow(7)).values()
    assert (last.total, last.rate, last.seconds) == (2_000_000, 2_000_000.0, 1.0)


def test_one_who_gives_up_takes_the_answer_from_nobody(now: list[float]) -> None:
    found = FlowDeliveries(cast("Reconciler", Loop()))

    async def together() -> list[dict[str, Reading] | BaseException]:
        asking = [asyncio.create_task(found.read([flow(7)])) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking[1].cancel()
        return await asyncio.gather(*asking, return_exceptions=True)

    first, given_up, last = asyncio.run(together())
    assert isinstance(given_up, asyncio.CancelledError)
    assert isinstance(first, dict)
    assert first == last
    assert first.keys() == {f"{7:016x}"}


def test_a_switch_that_is_away_or_does_not_answer_leaves_what_was_read(now: list[float]) -> None:
    loop = Loop()
    found = FlowDeliveries(cast("Reconciler", loop))
    read(found, flow(7))
    now[0], loop.switch.fault = 102.0, True
    asked = loop.switch.asked
    for _ in range(50):
        assert read(found, flow(7))[f"{7:016x}"].at == 100.0
    # All who ask share the failure.
    assert loop.switch.asked == asked + 1
    loop.switches[DATAPATH].link = None
    now[0] = 104.0
    assert read(found, flow(7)) == {}
    # Nor is a flow counted whose queues have no effect, and one whose sender is no live job.
    loop.switches[DATAPATH].link, loop.flows = loop.switch, {}
    now[0] = 106.0
    assert read(found, flow(7), flow(5, "gone")) == {}


def test_a_workers_report_counts_its_own_jobs_flows_alone(now: list[float]) -> None:
    loop = Loop()
    found = FlowDeliveries(cast("Reconciler", loop))

    def report(sent: int) -> None:
        counted = Delivered(10_000_000, Counters(now[0], sent, 0))
        names = [("ruled", "eth0/9"), ("ruled", "eth0"), ("ruled", "eth0/7"), ("sender", "eth0/7"), ("ruled", "eth1/9")]
        found.reported("two", dict.fromkeys(names, counted))

    assert read(found, flow(9, "ruled")) == {}
    report(1000)
    now[0] += 10
    report(6000)
    (last,) = read(found, flow(9, "ruled")).values()
    assert (last.total, last.rate, last.seconds) == (12_000, 1000.0, 10.0)
    assert found._of.keys() == {"two"}
    found.reported("two", {})
    assert read(found, flow(9, "ruled")) == {}
    now[0] += deliveries.FORGOTTEN + 1
    found.reported("three", {})
    assert not found._of


class Calls:
    """Carries coroutines out on the calling thread."""

    def run(self, work: Any, timeout: float) -> Any:
        return asyncio.run(work)


def test_those_who_wait_are_answered_once_there_is_more_and_a_rate_of_the_last_second(now: list[float]) -> None:
    loop = Loop()
    watch = DeliveryWatch(cast("LoopCalls", Calls()), FlowDeliveries(cast("Reconciler", loop)), pace=0.001)
    first = watch.seen([flow(7)], "", 0)
    assert [(each.delivered, each.delivered_bytes) for each in first.items] == [(None, 0)]
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(watch.seen([flow(7)], first.version, 60)))
    waiting.start()
    asked = loop.switch.asked

    def passes() -> bool:
        now[0] += 1.0
        return loop.switch.asked > asked + 2

    eventually(passes)
    assert not answers
    loop.switch.sent = 1_250_000

    def is_answered() -> bool:
        now[0] += 1.0
        return bool(answers)

    eventually(is_answered)
    waiting.join()
    (shown,) = answers[0].items
    assert answers[0].version != first.version
    assert shown.delivered_bytes == 1_250_000
    assert shown.delivered is not None
    assert shown.delivered_seconds is not None


def test_waiting_ends_with_the_controller() -> None:
    watch = DeliveryWatch(cast("LoopCalls", Calls()), FlowDeliveries(cast("Reconciler", Loop())), pace=60)
    version = watch.seen([], "", 0).version
    waiting = threading.Thread(target=lambda: watch.seen([], version, 600))
    waiting.start()
    watch.close()
    waiting.join(60)
    assert not waiting.is_alive()


class Port(str):
    """The name of a port that counts how often one is compared with another."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Port.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


class Queue(str):
    """The name of a worker's queue, whose port is a :class:`Port`."""

    __slots__ = ()

    def partition(self, separator: str) -> tuple[str, str, str]:
        port, between, number = str(self).partition(separator)
        return Port(port), between, number


def test_a_report_of_many_ports_costs_in_proportion() -> None:
    """A worker may name as many as its report has room for."""

    def compared(count: int) -> int:
        found = FlowDeliveries(cast("Reconciler", Loop()))
        counted = Delivered(1, Counters(1.0, 0, 0))
        Port.compared = 0
        found.reported("two", {("ruled", Queue(f"port{number}/9")): counted for number in range(count)})
        return Port.compared

    assert compared(400) <= 3 * max(1, compared(200))

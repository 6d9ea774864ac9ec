"""Counters that one which stands by reads: what it answers to orders, and to no order."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from lark_controller.accounting.readings import CountKind, PortReading
from lark_controller.accounting.shares.messages import Order, OrderedJob, OrderedSwitch, answer_of, order_bytes
from lark_controller.accounting.shares.offers import UNSURE
from lark_controller.api.metrics import Metrics
from lark_controller.flows.cookies import Category, cookie, count_cookie
from lark_controller.services.counter_reading import LATER, SOON, CounterReading, steps_of
from lark_controller.switches.openflow.newcomer import ReadCounters
from lark_controller.switches.openflow.replies import PortCounters
from tests.accounting.test_ledger import opened
from tests.fixtures.databases import NOW

OLD = 1e6
BEFORE = PortReading(10, 1000, 20, 2000)


def ordered() -> OrderedSwitch:
    """A switch with a job at port 3."""
    ledger = opened()
    ledger.read(1, NOW, BEFORE, [], 1.0)
    (state,) = ledger.states([1])
    assert state
    return OrderedSwitch(5, (OrderedJob(1, 3, state),))


def read(*flows: tuple[int, int, int, float], age: float | None = OLD, port: int = 3) -> ReadCounters:
    ports = [PortCounters(1, 9, 9, 9, 9, 0, 0, OLD), PortCounters(port, 11, 21, 1100, 2100, 0, 0, age)]
    return ReadCounters(ports, list(flows), time.monotonic(), 0.0)


WAN = count_cookie(1, CountKind.WAN_OUT)


class Kept:
    """Switches that are kept, with counters as a test has them."""

    def __init__(self, found: dict[int, ReadCounters | None]) -> None:
        self.found = found
        self.asked: list[list[int]] = []

    def read_counters(self, datapaths: list[int], *_: Any) -> dict[int, ReadCounters | None]:
        self.asked.append(datapaths)
        now = time.monotonic()
        return {
            each: None if (known := self.found[each]) is None else known._replace(at=now + 0.25)
            for each in datapaths
            if each in self.found
        }


def test_an_order_is_answered_with_the_next_question() -> None:
    switch, answers = ordered(), list[bytes]()
    order = Order(b"t" * 16, NOW + 10, (switch, *(OrderedSwitch(number, switch.jobs) for number in (6, 7, 8, 9))))
    given = [order_bytes(order), order_bytes(Order(b"u" * 16, NOW)), None, b"no order"]

    def ask(answer: bytes) -> bytes | None:
        answers.append(answer)
        return given.pop(0)

    slow = read((WAN, 1, 100, OLD))._replace(took=UNSURE + 0.01)
    kept = Kept({5: read((WAN, 1, 100, OLD)), 7: read(age=2.0), 8: slow, 9: None})
    metrics = Metrics()
    reading = CounterReading(cast("Any", kept), ask, metrics)
    assert [reading.turn() for _ in range(4)] == [SOON, SOON, LATER, LATER]
    assert kept.asked == [[5, 6, 7, 8, 9]]
    assert (answers[0], answers[2:]) == (b"", [b"", b""])
    answer = answer_of(answers[1], order.at)
    # Of one that is not kept there is nothing. One with a port that is new has no steps, nor has one whose answer took
    # so long that nobody can say when it was read, or one that had no turn.
    assert [(each.datapath, len(each.steps)) for each in answer.switches] == [(5, 1), (7, 0), (8, 0), (9, 0)]
    assert answer.held >= answer.switches[0].after - 0.25
    (step,) = answer.switches[0].steps
    assert step.at == pytest.approx(NOW + 10.25, abs=0.2)
    assert step.rate.outward == pytest.approx(80, abs=2)
    assert metrics.counters_read_for_active._value.get() == 1


@pytest.mark.parametrize(
    "found",
    [
        read(port=4),
        read(age=None),
        read((WAN, 1, 100, 3.0)),
        read((WAN, 1, 100, OLD), (WAN, 2, 200, OLD)),
        # Of another flow of the job all are as young as the youngest.
        read((WAN, 1, 100, OLD), (count_cookie(1, CountKind.WAN_IN), 1, 100, 3.0)),
    ],
)
def test_a_switch_with_one_reading_that_is_not_plain_has_no_steps(found: ReadCounters) -> None:
    assert steps_of(ordered(), NOW + 10, found) == ()


def test_flows_of_other_jobs_and_kinds_count_for_nobody() -> None:
    others = (count_cookie(2), 9, 900, 0.0), (cookie(Category.JOB, 1), 9, 900, 0.0)
    (step,) = steps_of(ordered(), NOW + 10, read((WAN, 1, 100, OLD), *others))
    assert step.rate[:4] == (80, 80, 0, 80)

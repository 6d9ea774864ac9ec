"""Counters that an instance which stands by reads for the active one, by the connections that it keeps as a slave's.

It asks the active one for an order, reads the switches in it, calculates each account's next step, and brings these
with its next question. It keeps nothing of either, and writes nothing anywhere.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Final

from lark_common.threads import TurnThread
from lark_controller.accounting.shares.messages import (
    LONGEST_ORDER,
    GarbledError,
    Order,
    OrderedSwitch,
    ReadSwitch,
    answer_bytes,
    order_of,
)
from lark_controller.accounting.shares.offers import UNSURE
from lark_controller.accounting.shares.steps import Ages, Step, step
from lark_controller.api.metrics import Metrics
from lark_controller.flows.cookies import CATEGORY_MASK, count_cookie, counted_by
from lark_controller.reconcile.counters import port_reading
from lark_controller.switches.openflow.loop_thread import KeptSwitches
from lark_controller.switches.openflow.newcomer import ReadCounters

# Seconds between two questions where there was little to read, and after one that nobody answered: an active instance
# of an earlier release has no such orders.
SOON: Final = 0.25
LATER: Final = 10.0
# Seconds for a switch's answer, and for those of all switches of an order.
SWITCH_SECONDS: Final = 1.0
ORDER_SECONDS: Final = 2.0
_LATELY: Final = 60.0


class CounterReading:
    """Reads on its ``thread``. ``ask`` brings the active instance an answer, and returns its next order; None where
    there is none to be had."""

    def __init__(self, kept: KeptSwitches, ask: Callable[[bytes], bytes | None], metrics: Metrics) -> None:
        self._kept = kept
        self._ask = ask
        self._read = metrics.counters_read_for_active
        # The order that is to be answered: its token, when it came, and what was read.
        self._done: tuple[bytes, float, list[ReadSwitch]] | None = None
        # The times at which it has read, and how many switches.
        self._lately: deque[tuple[float, int]] = deque()
        # The active instance reads itself what is not answered.
        words = "counters could not be read for the active controller"
        self.thread = TurnThread("lark-counters", self.turn, words, first=SOON, later=LATER)

    def lately(self) -> int:
        """The number of switches that it has read in the last minute; from any thread."""
        since = time.monotonic() - _LATELY
        return sum(count for at, count in tuple(self._lately) if at >= since)

    def turn(self) -> float:
        """Answer the last order, and read the switches of the next; returns the seconds until the next turn."""
        done, self._done = self._done, None
        data = self._ask(b"" if done is None else answer_bytes(done[0], time.monotonic() - done[1], done[2]))
        if data is None:
            return LATER
        began = time.monotonic()
        try:
            order = order_of(data)
        except GarbledError:
            return LATER
        if not order.switches:
            return SOON
        datapaths = [switch.datapath for switch in order.switches]
        until = began + ORDER_SECONDS
        found = self._kept.read_counters(datapaths, count_cookie(0), CATEGORY_MASK, SWITCH_SECONDS, until)
        read = list(_steps(order, began, found))
        count = sum(bool(each.steps) for each in read)
        self._read.inc(count)
        self._lately.append((began, count))
        while self._lately[0][0] < began - _LATELY:
            self._lately.popleft()
        self._done = order.token, began, read
        # A request costs as much as a switch: what is offered meanwhile comes in one.
        return 0.0 if sum(switch.size for switch in order.switches) > LONGEST_ORDER // 2 else SOON


def _steps(order: Order, began: float, found: Mapping[int, ReadCounters | None]) -> Iterator[ReadSwitch]:
    for switch in order.switches:
        if switch.datapath not in found:
            continue
        read = found[switch.datapath]
        # Of answers that took longer it is not known when they were counted.
        if read is None or read.took > UNSURE:
            yield ReadSwitch(switch.datapath, 0.0, ())
        else:
            after = read.at - began
            yield ReadSwitch(switch.datapath, after, steps_of(switch, order.at + after, read))


def steps_of(switch: OrderedSwitch, at: float, found: ReadCounters) -> tuple[Step, ...]:
    """The steps of a switch's jobs by one reading at ``at``; none where that of one is not plain."""
    ports = {counters.number: counters for counters in found.ports}
    flows: dict[int, list[tuple[int, int, int]]] = {}
    youngest: dict[int, float] = {}
    for cookie, packets, size, age in found.flows:
        if (whose := counted_by(cookie)) is not None:
            number, kind = whose
            flows.setdefault(number, []).append((kind, packets, size))
            youngest[number] = min(age, youngest.get(number, inf))
    steps = []
    for job in switch.jobs:
        if (port := ports.get(job.port)) is None:
            return ()
        counts = flows.get(job.number, ())
        made = step(job.state, at, Ages(port_reading(port), port.age, counts, youngest.get(job.number, inf)))
        if made is None:
            return ()
        steps.append(made)
    return tuple(steps)

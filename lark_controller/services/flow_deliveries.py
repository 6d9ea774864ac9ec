"""Waits for what reserved flows deliver. Called by REST threads.

While somebody waits the counters are read once a second, for all who wait together; else they are not read at all.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

from lark_common.deliveries import Delivered
from lark_common.turns import aside
from lark_controller.api.reservations import FlowDelivery, Seen
from lark_controller.qos.reservation import Reservation
from lark_controller.qos.topology import KILO
from lark_controller.reconcile.calls import LOOP_TIMEOUT, LoopCalls
from lark_controller.reconcile.deliveries import FlowDeliveries

# Seconds between two readings while somebody waits; and those that a rate is of at most where it is of the last second.
PACE: Final = 1.0
LAST: Final = 2.5
_MEGA: Final = 1e6


class DeliveryWatch:
    """Readings of reserved flows, and those who wait for others; thread-safe."""

    def __init__(self, loop: LoopCalls, deliveries: FlowDeliveries, pace: float = PACE) -> None:
        self._loop, self._deliveries, self._pace = loop, deliveries, pace
        self._closed = threading.Event()

    def seen(self, flows: Sequence[Reservation], after: str, wait: float) -> Seen[FlowDelivery]:
        """The deliveries of these flows, once they have delivered more than at the version ``after`` and their rates
        are of the last second or two; after ``wait`` seconds in any case. Raises SwitchError."""
        end = time.monotonic() + wait
        while True:
            read = self._loop.run(self._deliveries.read(flows), LOOP_TIMEOUT)
            items = tuple(_delivery(each, read.get(each.id)) for each in flows)
            found = Seen(_version(items), items)
            left = end - time.monotonic()
            if left <= 0 or self._closed.is_set() or (found.version != after and _is_recent(read)):
                return found
            with aside():
                self._closed.wait(min(self._pace, left))

    def close(self) -> None:
        """Answer all who wait: the controller stops."""
        self._closed.set()


def _delivery(flow: Reservation, read: Delivered | None) -> FlowDelivery:
    if read is None:
        return FlowDelivery(flow.id, flow.job, flow.peer, flow.kbps / KILO, None, None, None, None)
    rate = None if read.rate is None else round(read.rate * 8 / _MEGA, 6)
    age = round(max(time.monotonic() - read.at, 0.0), 3)
    return FlowDelivery(flow.id, flow.job, flow.peer, flow.kbps / KILO, rate, round(read.seconds, 3), read.total, age)


def _is_recent(read: Mapping[str, Delivered]) -> bool:
    """True where no rate is of longer than the last seconds, or missing though the flow is counted."""
    return all(each.rate is not None and each.seconds <= LAST for each in read.values())


def _version(items: Sequence[FlowDelivery]) -> str:
    """A word that is another where more was delivered, or a flow is another."""
    shown = [(each.reservation, each.promised, each.delivered_bytes) for each in items]
    return hashlib.blake2b(repr(shown).encode(), digest_size=12).hexdigest()

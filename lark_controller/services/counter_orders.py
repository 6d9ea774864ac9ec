"""Orders of the active instance to those that stand by, to read switches' counters. Called by REST threads."""

from __future__ import annotations

from lark_controller.accounting.shares.messages import GarbledError, order_bytes
from lark_controller.api.metrics import Metrics
from lark_controller.reconcile.reconciler import Reconciler
from lark_controller.switches.openflow.loop_thread import OpenFlow


class CounterOrders:
    """Hands out what the reconcile loop offers, and hands it the answers. Thread-safe."""

    def __init__(self, openflow: OpenFlow, reconciler: Reconciler, metrics: Metrics) -> None:
        self._openflow = openflow
        self._counters = reconciler.counters
        self._results = metrics.counters_read

    def exchange(self, reader: str, answer: bytes) -> bytes:
        """Take an instance's answer to its last order (``b""``: it had none), and give it the next. Raises
        GarbledError."""
        offers = self._counters.offers
        if answer:
            try:
                taken = offers.answered(reader, answer)
            except GarbledError:
                self._results.labels("refused").inc()
                raise
            if taken is None:
                self._results.labels("late").inc()
            if taken:
                self._openflow.hand_over(self._counters.taken, taken)
        return order_bytes(offers.order(reader))

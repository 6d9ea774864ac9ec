"""The rules that workers enforce for their jobs without a port on a switch. Called by REST threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lark_common.scitags import Marks
from lark_common.worker_rules import UNTOLD, WaysOut
from lark_controller.api.audit import Happening
from lark_controller.api.workers import Delivered, RuledWorker, WorkerStatus
from lark_controller.reconcile.calls import LoopCalls
from lark_controller.reconcile.confirmations import RulesAt
from lark_controller.reconcile.deliveries import FlowDeliveries
from lark_controller.reconcile.guarantees import Guarantees
from lark_controller.reconcile.reconciler import Reconciler
from lark_controller.services.scitags import Scitags


class Workers:
    """Operations on workers. Thread-safe."""

    def __init__(
        self,
        loop: LoopCalls,
        reconciler: Reconciler,
        guarantees: Guarantees,
        deliveries: FlowDeliveries,
        note: Callable[[Happening], None],
        scitags: Scitags,
    ) -> None:
        self._loop = loop
        self._reconciler = reconciler
        self._guarantees = guarantees
        self._deliveries = deliveries
        self._note = note
        self._scitags = scitags

    def rules(self, host: str, after: str, timeout: float) -> WorkerStatus:
        """A worker's rules, once their revision is another than ``after``; after ``timeout`` seconds in any case."""
        states = self._reconciler.workers.states
        if timeout <= 0:
            return self._loop.call(lambda: self._status(host, after))
        return self._loop.hold(
            timeout,
            lambda waiter: states.when_changed(host, after, waiter),
            lambda waiter: states.stop_waiting(host, waiter),
            lambda: self._status(host, after),
        )

    def confirmed(
        self,
        host: str,
        revision: str,
        refused: Mapping[str, str],
        late: Sequence[str] = (),
        out: WaysOut = UNTOLD,
    ) -> WorkerStatus:
        """Note that a worker has a revision in place, but for the jobs that it refuses (id, reason) and those not made
        yet; ``out`` are its interfaces that lead away."""

        def note() -> WorkerStatus:
            self._reconciler.workers.confirmed(host, revision, refused, late, out)
            self._reconciler.act()
            return self._status(host, revision)

        return self._loop.call(note)

    def ruled(self) -> tuple[RuledWorker, ...]:
        """The workers that have jobs without a port on a switch."""
        return self._loop.call(
            lambda: tuple(
                RuledWorker(host, jobs, self._reconciler.confirmations.waiting_for(RulesAt(host)))
                for host, jobs in self._reconciler.desired.ruled.counts().items()
            )
        )

    def delivered(self, host: str, queues: Mapping[tuple[str, str], Delivered]) -> int:
        """Take in the deliveries of a worker's own queues; returns the number of guarantees that were missed."""
        at = max((each.counted.at for each in queues.values()), default=None)

        def note() -> tuple[int, list[Happening]]:
            if at is not None and self._reconciler.workers.is_overtaken(host, at):
                return 0, []
            self._deliveries.reported(host, queues)
            self._reconciler.pair_counters.reported(host, queues)
            return self._guarantees.reported(host, queues)

        missed, new = self._loop.call(note)
        for each in new:
            self._note(each)
        return missed

    def marks(self, host: str, job_ids: Sequence[str]) -> Marks:
        """The marks of these live jobs of a worker, and the receivers of reports of their flows."""
        return self._scitags.of_host(host, job_ids)

    def release(self) -> None:
        """Answer all workers that wait for changes. Raises SwitchError."""
        self._loop.call(self._reconciler.workers.states.release)

    def _status(self, host: str, after: str) -> WorkerStatus:
        """A worker's rules; left out where their revision is ``after``. On the loop's thread."""
        states, desired = self._reconciler.workers.states, self._reconciler.desired
        revision, rules = states.revision(host), RulesAt(host)
        waiting = tuple(
            placed.job.id
            for placed in desired.ruled_at(host)
            if self._reconciler.confirmations.awaits(placed.job.number, rules)
        )
        changed = None if revision == after else self._reconciler.workers.rules(host)
        return WorkerStatus(host, revision, changed, waiting)

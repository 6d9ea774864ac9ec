"""The rules that workers enforce for their jobs without a port on a switch. Called by REST threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lark_controller.api.workers import HostStatus
from lark_controller.reconcile.awaited import RulesAt
from lark_controller.reconcile.calls import LoopCalls
from lark_controller.reconcile.reconciler import Reconciler


class Workers:
    """Operations on workers. Thread-safe."""

    def __init__(self, loop: LoopCalls, reconciler: Reconciler) -> None:
        self._loop = loop
        self._reconciler = reconciler

    def rules(self, host: str, after: str, timeout: float) -> HostStatus:
        """A worker's rules, once their revision is another than ``after``; after ``timeout`` seconds in any case."""
        states = self._reconciler.workers.states
        if timeout > 0:
            self._loop.hold(
                timeout,
                lambda waiter: states.when_changed(host, after, waiter),
                lambda waiter: states.stop_waiting(host, waiter),
            )
        return self._loop.call(lambda: self._status(host, after))

    def confirmed(self, host: str, revision: str, refused: Mapping[str, str], late: Sequence[str] = ()) -> HostStatus:
        """A worker has a revision in place, but for the jobs that it refuses (id, reason) and those not made yet."""

        def note() -> HostStatus:
            self._reconciler.workers.confirmed(host, revision, refused, late)
            return self._status(host, revision)

        return self._loop.call(note)

    def release(self) -> None:
        """Answer workers that wait for changes now. Raises SwitchError."""
        self._loop.call(self._reconciler.workers.states.release)

    def _status(self, host: str, after: str) -> HostStatus:
        """A worker's rules; left out where their revision is ``after``. On the loop's thread."""
        states, pool = self._reconciler.workers.states, self._reconciler.pool
        revision, rules = states.revision(host), RulesAt(host)
        waiting = tuple(
            placed.job.id
            for placed in pool.ruled_at(host)
            if self._reconciler.confirmations.awaits(placed.job.number, rules)
        )
        return HostStatus(host, revision, None if revision == after else pool.host_rules(host), waiting)

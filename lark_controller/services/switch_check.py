"""The periodic full check of a switch: its flows, the guarantees of its queues, the drops at a core; and of workers
that do not follow their rules.

Called by a thread of :mod:`.background`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress

from lark_common.errors import SwitchError
from lark_controller.api.audit import Happening
from lark_controller.reconcile.calls import LOOP_TIMEOUT
from lark_controller.reconcile.core_drops import CoreDrops
from lark_controller.reconcile.drift import check
from lark_controller.reconcile.guarantees import Guarantees
from lark_controller.reconcile.pace import Pace
from lark_controller.reconcile.reconciler import Reconciler
from lark_controller.switches.openflow.loop_thread import OpenFlow


class SwitchCheck:
    """Checks one switch at a time. Errors end a check; the next one comes in the same interval."""

    def __init__(
        self,
        openflow: OpenFlow,
        reconciler: Reconciler,
        guarantees: Guarantees,
        core_drops: CoreDrops,
        note: Callable[[Happening], None],
    ) -> None:
        self._openflow = openflow
        self._reconciler = reconciler
        self._guarantees = guarantees
        self._core_drops = core_drops
        self._note = note

    def datapaths(self) -> dict[int, float | None]:
        """The switches to check: when each was compared in full last, in seconds of the monotonic clock; None for one
        that nothing but its marker vouches for."""
        states = list(self._reconciler.switches.items())
        return {datapath: None if state.trusted else state.compared_at for datapath, state in states}

    def check(self, datapath: int) -> None:
        """Check a switch, connected or not."""
        # Cancelled: the controller stops during the check.
        with suppress(SwitchError, FutureTimeoutError, CancelledError):
            self._openflow.call(check(self._reconciler, datapath)).result(LOOP_TIMEOUT)
            missed = self._openflow.call(self._guarantees.look(datapath)).result(LOOP_TIMEOUT)
            for each in missed:
                self._note(each)
            self._openflow.call(self._core_drops.look(datapath)).result(LOOP_TIMEOUT)

    def note_late(self) -> None:
        """Let the jobs wait of workers that have been behind their rules for too long, and note the missed guarantees
        that are over since their jobs are."""

        async def note() -> None:
            # All workers at once, where they cannot reach this controller.
            pace = Pace()
            for _ in self._reconciler.workers.note_late(time.monotonic()):
                self._reconciler.act()
                await pace.step()
            for each in self._guarantees.ended():
                self._note(each)

        with suppress(FutureTimeoutError, CancelledError):
            self._openflow.call(note()).result(LOOP_TIMEOUT)

"""Plain Linux gateways: jobs whose external IPv4 address no core translates wait until a gateway has it.

Used by the reconcile loop, on its thread. A gateway keeps what it has while it is away, as a switch does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lark_common.runs import Address, Network
from lark_controller.api.external import Translation
from lark_controller.flows.placement import Placed
from lark_controller.jobs.job import JobState
from lark_controller.reconcile.confirmations import TRANSLATED
from lark_controller.reconcile.state import LoopState

NOT_YET: Final = "no gateway has confirmed the external address yet"


class Gateways:
    """The networks of gateways' pools, and what gateways have confirmed."""

    def __init__(self, loop: LoopState) -> None:
        self._loop = loop
        self._pools: tuple[Network, ...] = ()
        # By the job's number.
        self._has: dict[int, Translation] = {}

    def expect(self, placed: Placed) -> None:
        """Set whether a job waits for a gateway."""
        number, seen = placed.job.number, self._loop.confirmations
        wanted = Translation.of(placed.job)
        if next(self._loop.desired.translating(placed), None) is not None:
            wanted = None
        if wanted is not None and self._has.get(number) != wanted:
            self._has.pop(number, None)
            seen.blocked(number, TRANSLATED, self._why(wanted.external))
        else:
            if wanted is None:
                self._has.pop(number, None)
            seen.confirmed(number, TRANSLATED)

    def served(self, pools: tuple[Network, ...]) -> None:
        """Go over to other networks of gateways' pools."""
        self._pools = pools
        directory = self._loop.directory
        for number in self._loop.confirmations.lost(TRANSLATED, NOT_YET):
            if (placed := self._loop.desired.placed.get(number)) is None:
                continue
            self.expect(placed)
            # After this controller's start the store's states stand until gateways have had time to confirm.
            state, _ = directory.standing(number)
            if state is not JobState.ENFORCED:
                self._loop.dirty.job(number)

    def confirmed(self, found: Iterable[tuple[str, Translation]]) -> None:
        """Note the translations that a gateway has, each with the id of its job."""
        for job_id, has in found:
            job = self._loop.directory.by_id.get(job_id)
            placed = None if job is None else self._loop.desired.placed.get(job.number)
            if placed is None:
                continue
            self._has[placed.job.number] = has
            self.expect(placed)
            self._loop.dirty.job(placed.job.number)

    def forget(self, number: int) -> None:
        """Forget a job that is over."""
        self._has.pop(number, None)

    def _why(self, address: Address) -> str:
        return NOT_YET if any(address in each for each in self._pools) else f"no gateway that serves {address} is there"

"""Names of external addresses: added to their zones and removed from them, by turns on a thread of its own.

What is to be done is in the database, so it is done after a crash, too, and by whichever controller is the active one.
An address stands whatever becomes of its name; a name that leads to a closed address is taken out of its zone.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

from lark_common.errors import NameServerError
from lark_common.log import WARNING, event
from lark_common.threads import StoppableThread
from lark_controller.api.external import ExternalStanding, ExternalState
from lark_controller.jobs.external import Association
from lark_controller.jobs.external_names import NameState, pause_after
from lark_controller.services.attempts import Attempts
from lark_controller.services.dns_updates import DnsUpdates
from lark_controller.store import Store
from lark_controller.switches.fence import Fence

# Seconds between two looks into the database, and names of one look.
POLL: Final = 0.5
_AT_A_TIME: Final = 100
# Names whose attempts in a row are counted.
_MOST_FAILED: Final = 10_000
# Of an update's time, after which another attempt may follow.
_ATTEMPT: Final = 3.0


class Addresses(Protocol):
    """The external addresses of live jobs, as far as names follow them."""

    @property
    def changes(self) -> int:
        """A number that grows with each change of them."""

    def named(self) -> list[Association]:
        """Those with names."""

    def standing(self, association: Association) -> ExternalStanding:
        """The state of one in the network."""


class ExternalNames:
    """The thread that brings names to what the store has; nothing is sent once the ``fence`` is shut."""

    def __init__(self, store: Store, dns: DnsUpdates, fence: Fence | None, addresses: Addresses) -> None:
        self._store = store.external_addresses
        self._dns = dns
        self._fence = fence
        self._addresses = addresses
        # The associations whose names are withheld; None until the store has been asked. ``_seen``: the changes of
        # addresses that have been followed.
        self._withheld: dict[int, Association] | None = None
        self._seen = -1
        # Attempts in a row that have failed, by the association's number; at 0 those that found no server.
        self._failed: dict[int, int] = {}
        self._thread = StoppableThread("lark-names", self._work)
        self._attempts = Attempts("names are not brought to the DNS", "names are brought to the DNS again")

    @property
    def threads(self) -> tuple[StoppableThread, ...]:
        """The threads that live from start to stop."""
        return (self._thread,)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what is left is done by the next controller."""
        self._thread.stop(patience=self._dns.timeout + 1.0)

    def _work(self) -> None:
        while not self._thread.pause(POLL):
            self._attempts.succeed(self.turn)

    def turn(self) -> None:
        """Withhold the names of closed addresses; add and remove what is due. Raises StoreError."""
        if self._is_over():
            return
        self._follow()
        for each in self._store.names_due(time.time(), _AT_A_TIME):
            if self._is_over() or not self._one(each):
                return

    def _is_over(self) -> bool:
        return self._thread.stopping or (self._fence is not None and self._fence.is_shut)

    def _follow(self) -> None:
        """Withhold the names of addresses that are closed, and offer those that are open again. Raises StoreError."""
        if self._withheld is None:
            self._withheld = {each.number: each for each in self._store.names_withheld()}
        changes = self._addresses.changes
        for each in self._addresses.named() if changes != self._seen else ():
            state, reason = self._addresses.standing(each)
            if state is ExternalState.CLOSED and each.number not in self._withheld:
                self._store.withhold_name(each.number, time.time(), reason)
                self._withheld[each.number] = each
        self._seen = changes
        for each in list(self._withheld.values()):
            state, _ = self._addresses.standing(each)
            if state is ExternalState.OPEN:
                self._store.offer_name(each.number, time.time())
            if state in (ExternalState.OPEN, ExternalState.OVER):
                del self._withheld[each.number]

    def _pause(self, number: int) -> float:
        """The seconds after one more attempt that has failed."""
        if len(self._failed) > _MOST_FAILED:
            self._failed.clear()
        self._failed[number] = failed = self._failed.get(number, 0) + 1
        return pause_after(failed)

    def _one(self, each: Association) -> bool:
        """Add or remove one name; False where the server is away."""
        began = time.time()
        # Written first: a controller that is no more the active one gets no further than this.
        deadline = began + _ATTEMPT * self._dns.timeout
        attempt = self._store.begin_name(each.number, each.name_state, began, deadline)
        if not attempt:
            return True
        try:
            if each.name_state is NameState.PENDING:
                self._dns.add(each, deadline)
                self._store.name_added(each.number, time.time())
            else:
                self._dns.remove(each, deadline)
                self._store.name_removed(each.number, time.time())
        except NameServerError as error:
            now = time.time()
            next_attempt = now + self._pause(0 if error.away else each.number)
            if not each.name_reason:
                event("a name waits", level=WARNING, name=each.name, state=each.name_state, reason=str(error))
            untouched = attempt if error.untouched else 0
            self._store.name_failed(each.number, each.name_state, str(error), now, next_attempt, untouched)
            if error.away:
                self._store.names_put_off(str(error), now, next_attempt)
            return not error.away
        self._failed.pop(0, None)
        self._failed.pop(each.number, None)
        event("name", name=each.name, address=each.address, job=each.job, was=each.name_state)
        return True

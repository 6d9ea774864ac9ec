"""The runs about which the store gave no answer: what it has of them is found out once it answers again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final

from lark_common.errors import StoreError
from lark_common.runs import Address
from lark_controller.jobs.job import Job
from lark_controller.qos.reservation import Reservation, ReservationKind
from lark_controller.services.feed import Feed
from lark_controller.store import Store

# A job's flows have a limit of their own, far below this.
_FLOWS: Final = 1 << 20


class Unanswered:
    """Runs whose last change was written or not, and those that it would have ended.

    Memory has the state before it. Without a look a job that the store has ended would keep its flows and addresses
    until the next start, and an address that the store has given away would be given to another.
    ``found`` is called with a run's id, the run as the store has it (None: it has none), and its reserved flows; the
    feed's lock is held then.
    """

    def __init__(
        self, store: Store, feed: Feed, found: Callable[[str, Job | None, Iterable[Reservation]], None]
    ) -> None:
        self._store = store
        self._feed = feed
        self._found = found
        # The number of the last doubt about each run, by id.
        self._doubts: dict[str, int] = {}
        self._numbers = count()

    def note(self, changed: Iterable[Job | str]) -> None:
        """Note runs that were posted, and ids of those that were ended. The caller holds the feed's lock."""
        slots: set[str] = set()
        addresses: set[Address] = set()
        ids: set[str] = set()
        for each in changed:
            if isinstance(each, str):
                ids.add(each)
                continue
            ids.add(each.id)
            slots.add(each.run.slot)
            addresses.update(each.addresses)
        for job in self._feed.live():
            if job.run.slot in slots or not addresses.isdisjoint(job.addresses):
                ids.add(job.id)
        self._doubts.update((each, next(self._numbers)) for each in ids)

    @contextmanager
    def noted(self, *changed: Job | str) -> Iterator[None]:
        """Note them where the store fails in between. The caller holds the feed's lock."""
        try:
            yield
        except StoreError:
            self.note(changed)
            raise

    def look_again(self) -> None:
        """Find out what the store has. Raises StoreError; the rest is found out at the next call."""
        with self._feed.lock:
            doubts = dict(self._doubts)
        if not doubts:
            return
        # The server may still carry out what it has not answered.
        self._store.settle()
        # Ends first: a run that lives may have the address of one that it has ended.
        for ends in (True, False):
            for job_id, number in doubts.items():
                with self._feed.lock:
                    if self._doubts.get(job_id) != number:
                        # There is another doubt since then, and what has begun since may not be over.
                        continue
                    stored = self._store.runs.find(job_id)
                    if ends and stored is not None and stored.live:
                        continue
                    flows = self._store.reservations.page(
                        job_id, self._feed.clock.earliest(), None, _FLOWS
                    ).reservations
                    self._found(job_id, stored, [each for each in flows if each.kind is ReservationKind.FLOW])
                    del self._doubts[job_id]

"""The runs about which the store gave no answer: what it has of them is found out once it answers again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from threading import Lock
from typing import Final

from lark_common.errors import StoreError
from lark_common.runs import Address
from lark_controller.jobs.job import Job
from lark_controller.qos.reservation import Reservation, ReservationKind
from lark_controller.services.described_job import place_of
from lark_controller.services.feed import Feed
from lark_controller.store import Store

# A job's flows have a limit of their own, far below this.
_FLOWS: Final = 1 << 20


class DoubtError(StoreError):
    """It is not known yet what the store has of another run."""


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
        # The number of the last doubt about each run, by id; and those of them that were posted, as they are to be.
        self._doubts: dict[str, int] = {}
        self._posted: dict[str, Job] = {}
        self._numbers = count()
        self._looking = Lock()

    def note(self, changed: Iterable[Job | str]) -> None:
        """Note runs that were posted, and ids of those that were ended. The caller holds the feed's lock."""
        slots: set[str] = set()
        addresses: set[Address] = set()
        # In one order, so that what is asked of the store does not depend on hashes.
        ids: dict[str, None] = {}
        for each in changed:
            if isinstance(each, str):
                ids[each] = None
                continue
            ids[each.id] = None
            self._posted[each.id] = each
            slots.add(each.run.slot)
            addresses.update(each.addresses)
        for job in self._feed.live():
            if job.run.slot in slots or not addresses.isdisjoint(job.addresses):
                ids[job.id] = None
        self._doubts.update((each, next(self._numbers)) for each in ids)

    def check(self, job: Job) -> None:
        """Raise DoubtError where another run, of which it is not known whether it lives, may have the slot, the port or
        an address of one that is posted: memory would have both, and the end of the one take the other's. The caller
        holds the feed's lock."""
        for job_id in self._doubts:
            other = self._posted.get(job_id) or self._feed.directory.by_id.get(job_id)
            if other is None or job_id == job.id:
                continue
            at_port = job.port is not None and (place_of(other), other.port) == (place_of(job), job.port)
            if at_port or other.run.slot == job.run.slot or not set(other.addresses).isdisjoint(job.addresses):
                raise DoubtError(f"The database has not answered yet whether job {other.called} lives; ask again.")

    @contextmanager
    def noted(self, *changed: Job | str) -> Iterator[None]:
        """Note them where the store fails in between. The caller holds the feed's lock."""
        try:
            yield
        except StoreError:
            self.note(changed)
            raise

    def look_again(self) -> None:
        """Find out what the store has; nothing where another thread is about to. Raises StoreError; the rest is found
        out at the next call."""
        # Where the database is slow, callers are not to wait for each other's looks, one after the other.
        if not self._looking.acquire(blocking=False):
            return
        try:
            self._look()
        finally:
            self._looking.release()

    def _look(self) -> None:
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
                    self._posted.pop(job_id, None)

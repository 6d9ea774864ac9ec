"""The reservations about which the store gave no answer: what it has of them is found out once it answers again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from lark_common.errors import UnansweredError
from lark_controller.qos.reservation import Reservation
from lark_controller.store import Store


class UnansweredReservations:
    """Reservations that were made, changed or released, or not.

    ``take`` is called with each that the store has, ``over`` with each that it has no more; ``lock`` is held then.
    """

    def __init__(
        self,
        store: Store,
        lock: AbstractContextManager[object],
        take: Callable[[Reservation], object],
        over: Callable[[Reservation], object],
    ) -> None:
        self._store = store
        self._lock = lock
        self._take = take
        self._over = over
        # Those that were to be changed or released, as they were before, by id.
        self._changed: dict[str, Reservation] = {}
        # The number of flows that were to be reserved. The store gives them their ids.
        self._made = 0

    @contextmanager
    def made(self) -> Iterator[None]:
        """Note that a flow was to be reserved, where the store gives no answer. The caller holds the lock."""
        try:
            yield
        except UnansweredError:
            self._made += 1
            raise

    @contextmanager
    def changed(self, before: Iterable[Reservation]) -> Iterator[None]:
        """Note what was to be changed or released, as it was ``before``, where the store gives no answer. The caller
        holds the lock."""
        try:
            yield
        except UnansweredError:
            self._changed.update((each.id, each) for each in before)
            raise

    def forget(self, reservation_id: str) -> Reservation | None:
        """Forget the doubt about one, because the store has answered since; returns the reservation as it was before.
        The caller holds the lock."""
        return self._changed.pop(reservation_id, None)

    def look_again(self, now: float) -> None:
        """Find out what the store has. To be called without the lock. Raises StoreError."""
        changed, made = dict(self._changed), self._made
        if not changed and not made:
            return
        # The server may still carry out what it has not answered.
        self._store.settle()
        with self._lock:
            for each in changed.values():
                # Of another doubt since then it is not known that it is over.
                if self._changed.get(each.id) is each:
                    stored = self._store.reservations.find(each.id, now)
                    if stored is None:
                        self._over(each)
                    else:
                        self._take(stored)
                    del self._changed[each.id]
            if made:
                for each in self._store.reservations.flows(now):
                    self._take(each)
                self._made -= made

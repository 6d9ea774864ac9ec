"""The reserved flows past their end: others get their bandwidth once their queues are gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from lark_common.log import event
from lark_controller.qos.reservation import Reservation
from lark_controller.services.own_changes import OwnChanges
from lark_controller.store import Store


class PastReservations:
    """Reserved flows past their end. ``holds`` is true while the queue of one may still stand."""

    def __init__(
        self,
        store: Store,
        lock: AbstractContextManager[object],
        own_changes: OwnChanges,
        holds: Callable[[Reservation], bool],
    ) -> None:
        self._store, self._lock, self._own_changes, self._holds = store, lock, own_changes, holds
        # Those that were added since the last sweep, and True for each whose end has a line.
        self._added: list[tuple[Reservation, bool]] = []
        # Those whose queues may still stand, by id; and the ids of those whose end has no line.
        self._leaving: dict[str, Reservation] = {}
        self._quiet: set[str] = set()

    def add(self, reservation: Reservation) -> None:
        """Take a flow that is over. The caller holds the lock."""
        has_line = self._own_changes.has_line(reservation.job)
        self._own_changes.count(reservation.job, has_line)
        self._added.append((reservation, has_line))

    def sweep(self, past: float) -> int:
        """Release those without a queue any more, of those that were over at ``past``; returns how many. One thread
        calls this. Raises StoreError."""
        with self._lock:
            added, self._added = self._added, []
        for each, has_line in added:
            self._leaving[each.id] = each
            if has_line:
                event("reservation over", job=each.job, reservation=each.id)
            else:
                self._quiet.add(each.id)
        self._leaving = {each.id: each for each in self._leaving.values() if self._holds(each)}
        swept = self._store.reservations.sweep(time.time(), self._leaving, self._quiet, past=past)
        self._quiet &= self._leaving.keys()
        return swept

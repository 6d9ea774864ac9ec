"""Puts the treatment of jobs' transfers into the kernel: limits, marks and blocks of this worker's own connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from lark_common import log
from lark_common.transfers import Treatment
from lark_worker.errors import NetworkError
from lark_worker.network.commands import run
from lark_worker.records.known_jobs import Key
from lark_worker.rules.events import TableWatch
from lark_worker.rules.table import Table, change, delete
from lark_worker.transfers import limits
from lark_worker.transfers.inet_diag import Connection, Name

# Seconds until a kernel that did not take the table is given it again.
AGAIN_SECONDS: Final = 5.0


class Enforcement:
    """The table of one worker, of this ``name``. :meth:`apply` is called by one thread; ``wake`` asks for that call.

    ``trouble`` is why the treatments are not in place, and is empty where they are.
    """

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self._name = name
        self._wake = wake
        # None: not known, as at the start, when a service before this one may have left a table.
        self._lock = threading.Lock()
        self._held: Table | None = None
        self._stands = True
        self._in_place: Mapping[Key, Treatment] = {}
        self._ended: set[Name] = set()
        self._cannot_end = False
        self._not_before = 0.0
        self.trouble = ""
        self._watch = TableWatch(name, self._deleted)

    def start(self) -> None:
        """Notice from now on when somebody deletes the table."""
        self._watch.start()

    def stop(self) -> None:
        """Notice nothing more; the table stays, for the service that comes next."""
        self._watch.stop()

    def in_place(self, key: Key) -> Treatment | None:
        """The treatment that a starter's transfers have now; None where the kernel has none for them."""
        return None if self.trouble else self._in_place.get(key)

    def apply(
        self,
        treatments: Mapping[Key, Treatment],
        connections: Sequence[tuple[Key, Connection]],
        end: Callable[[Connection], None],
    ) -> None:
        """Treat these connections; ``end`` ends a blocked one, and raises OSError where that cannot be."""
        if time.monotonic() < self._not_before:
            return
        try:
            desired = limits.table(self._name, treatments, connections) if treatments else None
            with self._lock:
                self._put(desired)
        except NetworkError as error:
            if not treatments:
                # Nothing is claimed, and a kernel without nf_tables has nothing left over.
                self._held, self._stands, self.trouble, self._in_place = None, False, "", {}
                return
            self._held, self._stands, self._not_before = None, True, time.monotonic() + AGAIN_SECONDS
            if self.trouble != (trouble := f"its kernel does not take the rules (nf_tables): {error}"[:1000]):
                log.event("transfers are not under the policy", level=log.WARNING, reason=error)
            self.trouble = trouble
            return
        self.trouble, self._in_place = "", dict(treatments)
        self._end([each for key, each in connections if treatments[key].block], end)

    def _put(self, desired: Table | None) -> None:
        if desired is None:
            if self._stands:
                # First, so that the kernel's notice of this is nobody else's doing.
                self._held = None
                run(["nft", "-f", "-"], delete(limits.FAMILY, self._name))
                self._stands = False
            return
        if desired == self._held:
            return
        script = change(desired, self._held)
        if self._held is None and self._stands:
            # The table of a service before this one is replaced in the same transaction.
            script = delete(limits.FAMILY, self._name) + script
        run(["nft", "-f", "-"], script)
        self._held, self._stands = desired, True

    def _end(self, blocked: Sequence[Connection], end: Callable[[Connection], None]) -> None:
        new = [each for each in blocked if each.name not in self._ended]
        self._ended = {each.name for each in blocked}
        for each in new:
            try:
                end(each)
            except OSError as error:
                # Nothing of it passes all the same; it stays until TCP gives it up.
                if not self._cannot_end:
                    log.event("a blocked transfer's connection cannot be ended", level=log.WARNING, reason=error)
                self._cannot_end = True

    def _deleted(self, family: str) -> None:
        with self._lock:
            if family != limits.FAMILY or self._held is None:
                return
            try:
                run(["nft", "list", "chain", family, self._name, "sent"])
            except NetworkError:
                log.event("somebody deleted the table of transfers; it is made again", level=log.WARNING)
                self._held, self._stands = None, False
                self._wake()

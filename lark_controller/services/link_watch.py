"""Waits for changes of links and of reserved paths. Called by REST threads.

A change wakes those who wait; what they are then shown is read once for all of them. However many changes there are,
nobody is shown them more often than once in :data:`SETTLE` seconds.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeVar

from lark_common.turns import aside
from lark_controller.api.reservations import LinkStatus, PathStatus, Seen
from lark_controller.qos.reservation import Reservation
from lark_controller.qos.topology import KILO

T = TypeVar("T")

# Seconds for which those who wait share what was read.
SETTLE: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Reading:
    """Links and paths (by the sender's host) as they were after so many changes; ``at`` is of the monotonic clock."""

    changes: int
    at: float
    links: Seen[LinkStatus]
    paths: Mapping[str, Seen[PathStatus]]


class LinkWatch:
    """Readings of links and paths, and those who wait for others; thread-safe.

    ``links`` reads the links; ``flows`` the reserved flows that live jobs send, by the job's host. Both may raise
    StoreError, and so does every reading here. ``unenforced`` is the reason why a flow is not enforced.
    """

    def __init__(
        self,
        links: Callable[[], tuple[LinkStatus, ...]],
        flows: Callable[[], Mapping[str, Iterable[Reservation]]],
        unenforced: Callable[[Reservation], str],
        settle: float = SETTLE,
    ) -> None:
        self._links, self._flows, self._unenforced, self._settle = links, flows, unenforced, settle
        self._changed = threading.Condition()
        self._changes = 0
        self._open = True
        self._reading: _Reading | None = None
        self._one = threading.Lock()

    def bump(self) -> None:
        """Note a change; waits for nothing."""
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Answer all who wait: the controller stops."""
        with self._changed:
            self._open = False
            self._changed.notify_all()

    def links(self, after: str, wait: float) -> Seen[LinkStatus]:
        """The links, once they are others than those of the version ``after``; after ``wait`` seconds in any case."""
        return self._seen(lambda reading: reading.links, after, wait)

    def paths(self, host: str, after: str, wait: float) -> Seen[PathStatus]:
        """The reserved paths from a host's jobs, in the same way."""
        return self._seen(lambda reading: reading.paths.get(host.lower(), NOTHING), after, wait)

    def _seen(self, choose: Callable[[_Reading], Seen[T]], after: str, wait: float) -> Seen[T]:
        end = time.monotonic() + wait
        reading = self._read(fresh=wait <= 0)
        while (found := choose(reading)).version == after:
            if not self._awaits(reading.changes, end):
                break
            # Those who wait are woken by every change, and look no more often than they may.
            if (rest := min(reading.at + self._settle, end) - time.monotonic()) > 0:
                with aside():
                    time.sleep(rest)
            reading = self._read(fresh=False)
        return found

    def _awaits(self, changes: int, end: float) -> bool:
        """Wait for a change beyond so many; False where none came in time."""
        with self._changed, aside():
            while self._open and self._changes == changes:
                left = end - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
            return self._open and time.monotonic() < end

    def _read(self, fresh: bool) -> _Reading:
        """The links and paths now; without ``fresh`` up to ``settle`` seconds old, but never older than any before."""
        with aside():
            self._one.acquire()
        try:
            # Read first: a change that comes while the rest is read is beyond this reading.
            with self._changed:
                changes = self._changes
            known, now = self._reading, time.monotonic()
            if not fresh and known is not None and (known.changes == changes or now - known.at < self._settle):
                return known
            links = self._links()
            left = {_key(each): each.best_effort for each in links}
            paths = {host: self._shown(flows, left) for host, flows in self._flows().items()}
            self._reading = _Reading(changes, now, Seen(_version(links), links), MappingProxyType(paths))
            return self._reading
        finally:
            self._one.release()

    def _shown(self, flows: Iterable[Reservation], left: Mapping[str, float]) -> Seen[PathStatus]:
        found = tuple(
            PathStatus(
                each.id,
                each.number,
                each.job or "",
                each.peer,
                each.destination,
                each.kbps / KILO,
                min((max(left[key], 0.0) for key in each.holds if key in left), default=None),
                self._unenforced(each),
            )
            for each in sorted(flows, key=lambda each: each.number)
        )
        return Seen(_version(found), found)


def _key(link: LinkStatus) -> str:
    """The channel's name in what a reservation holds."""
    return f"{link.name} {link.source}>{link.target}" if link.source else link.name


def _version(items: tuple[object, ...]) -> str:
    """A word that is another for other values, and the same on every controller for the same ones."""
    return hashlib.blake2b(repr(items).encode(), digest_size=12).hexdigest()


NOTHING: Final[Seen[PathStatus]] = Seen(_version(()), ())

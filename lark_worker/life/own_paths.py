"""A job's own reserved paths, and the links of the site: as they are now, or once they are others.

A job sees its own paths alone; which job asks is the socket's to say.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final

from lark_common.deliveries import Delivered
from lark_worker.controller_link import ControllerLink
from lark_worker.life.own_reservations import ControllerAnswer
from lark_worker.life.shared_wait import PAUSE, SharedWait
from lark_worker.records.records import Record

# The members of a path that a job is shown; another version where one of them is another.
_SHOWN: Final = ("reservation", "peer", "destination", "rate", "free", "pending")
_LINKS: Final = "links"
# Those by which deliveries have another version, and seconds between two looks at the counters.
_COUNTED: Final = ("reservation", "rate", "delivered_bytes")
_LOOK: Final = 0.5
_MEGA: Final = 1e6

# The delivery of a job's reserved flow, by the reservation's number; and the numbers of all flows of the worker.
Counters = Callable[[Record, int, Iterable[int]], Delivered | None]


class OwnPaths:
    """Links and paths for this worker's jobs; thread-safe. Every call raises AwayError where the controller cannot be
    asked."""

    def __init__(self, link: ControllerLink, counters: Counters, pause: float = PAUSE, look: float = _LOOK) -> None:
        self._link, self._counters, self._pause, self._look = link, counters, pause, look
        self._lock = threading.Lock()
        # The waits by subject: the links, or the paths of a host's jobs.
        self._shared: dict[str, SharedWait] = {}
        self._stopped = False
        self._ended = threading.Event()

    def links(self, after: str, wait: float) -> ControllerAnswer:
        """The capacity that each link has left, once that is another than at ``after``, or after ``wait`` seconds."""

        def ask(version: str, seconds: float) -> ControllerAnswer:
            return self._link.passed(lambda client: client.watch_links(version, seconds))

        def versions(document: dict[str, Any]) -> Mapping[str, str]:
            return {_LINKS: str(document.get("version", ""))}

        shared = self._of(_LINKS, lambda: SharedWait(ask, versions, pause=self._pause))
        return _until_changed(shared, _LINKS, after, wait, lambda: ask(after, 0.0))

    def paths(self, record: Record, after: str, wait: float) -> ControllerAnswer:
        """The flows that a job has reserved, in the same way."""
        host = record.machine

        def ask(version: str, seconds: float) -> ControllerAnswer:
            return self._link.passed(lambda client: client.watch_paths(host, version, seconds))

        def versions(document: dict[str, Any]) -> Mapping[str, str]:
            return {job: _version(paths) for job, paths in _by_job(document).items()}

        def shown() -> ControllerAnswer:
            status, document = ask("", 0.0)
            if status != HTTPStatus.OK:
                return status, document
            own = _by_job(document).get(record.id, [])
            # The delivered bytes are others at every moment, and so no part of the version.
            return status, {"version": _version(own), "paths": self._with_delivered(record, own, document)}

        shared = self._of(f"host {host}", lambda: SharedWait(ask, versions, _version([]), self._pause))
        return _until_changed(shared, record.id, after, wait, shown)

    def delivered(self, record: Record, after: str, wait: float) -> ControllerAnswer:
        """The flows that a job has reserved with what they have delivered, once that is more than at ``after``; after
        ``wait`` seconds in any case. The controller is asked for the flows once; the counters are this worker's."""
        end = time.monotonic() + wait
        status, document = self._link.passed(lambda client: client.watch_paths(record.machine))
        if status != HTTPStatus.OK:
            return status, document
        own = _by_job(document).get(record.id, [])
        while True:
            flows = self._with_delivered(record, own, document)
            version = _version([{name: each[name] for name in _COUNTED} for each in flows])
            left = end - time.monotonic()
            if version != after or left <= 0 or self._ended.wait(min(self._look, left)):
                return status, {"version": version, "flows": flows}

    def _with_delivered(
        self, record: Record, own: list[dict[str, Any]], document: dict[str, Any]
    ) -> list[dict[str, Any]]:
        numbers = {each.get("reservation"): each.get("number") for each in _paths(document)}
        known = [number for number in numbers.values() if isinstance(number, int)]
        return [{**each, **self._delivered(record, numbers.get(each["reservation"]), known)} for each in own]

    def _delivered(self, record: Record, number: object, known: list[int]) -> dict[str, float | None]:
        found = self._counters(record, number, known) if isinstance(number, int) else None
        if found is None:
            return {"delivered": None, "delivered_seconds": None, "delivered_bytes": None, "age": None}
        return {
            "delivered": None if found.rate is None else round(found.rate * 8 / _MEGA, 6),
            "delivered_seconds": round(found.seconds, 3),
            "delivered_bytes": found.total,
            "age": round(max(time.monotonic() - found.at, 0.0), 3),
        }

    def stop(self) -> None:
        """Answer all who wait."""
        self._ended.set()
        with self._lock:
            self._stopped = True
            waits = list(self._shared.values())
        for each in waits:
            each.stop()

    def _of(self, name: str, make: Callable[[], SharedWait]) -> SharedWait:
        with self._lock:
            if name not in self._shared:
                self._shared[name] = make()
                if self._stopped:
                    self._shared[name].stop()
            return self._shared[name]


def _until_changed(
    shared: SharedWait, part: str, after: str, wait: float, ask: Callable[[], ControllerAnswer]
) -> ControllerAnswer:
    end = time.monotonic() + wait
    while True:
        # Before it is asked: a change that comes while the answer is under way is beyond these.
        answers = shared.answers
        status, document = ask()
        if status != HTTPStatus.OK or document.get("version") != after:
            return status, document
        if wait <= 0 or not shared.until(part, after, answers, end):
            return status, document


def _by_job(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The paths of each job, as it is shown them."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in _paths(document):
        if isinstance(job := each.get("job"), str):
            found.setdefault(job, []).append({name: each.get(name) for name in _SHOWN})
    return found


def _paths(document: dict[str, Any]) -> list[dict[str, Any]]:
    paths = document.get("paths")
    return [each for each in paths if isinstance(each, dict)] if isinstance(paths, list) else []


def _version(paths: list[dict[str, Any]]) -> str:
    return hashlib.blake2b(json.dumps(paths).encode(), digest_size=12).hexdigest()

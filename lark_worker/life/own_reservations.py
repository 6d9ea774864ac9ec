"""Reservations that a job makes for its own flows: requested with the worker's token, for that job alone.

The controller's answers go back to the job as they are, its problem documents included.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any, Final

from lark_common.errors import AdError
from lark_worker.controller_link import ControllerLink
from lark_worker.errors import CallerError
from lark_worker.records.records import Record

# The source by which a job names itself.
SELF: Final = "self"
WISH: Final = frozenset({"source", "destination", "rate", "duration", "steady"})
CHANGE: Final = frozenset({"rate", "duration", "steady"})

# HTTP status and JSON document.
ControllerAnswer = tuple[int, dict[str, Any]]


class OwnReservations:
    """Reservations of this worker's jobs. Every call raises AwayError where the controller cannot be asked."""

    def __init__(self, link: ControllerLink) -> None:
        self._link = link

    def reserve(self, record: Record, body: bytes, wait: float) -> ControllerAnswer:
        """Reserve a flow that the job sends. Raises AdError for a body that is none, CallerError for another source."""
        wish = read(body, WISH)
        if wish.get("source", SELF) not in (SELF, record.id):
            raise CallerError("a job reserves what it sends itself: leave source out, or write self")
        status, answer = self._link.passed(
            lambda client: client.reserve(
                record.id,
                wish.get("destination", ""),
                wish.get("rate", 0),
                wish.get("duration"),
                wait,
                steady=wish.get("steady", False),
            )
        )
        return (HTTPStatus.CREATED if status == HTTPStatus.OK else status), answer

    def show(self, record: Record, reservation_id: str, wait: float = 0.0) -> ControllerAnswer:
        """One of the job's own reservations, once it is enforced, or after ``wait`` seconds. Raises CallerError for any
        other."""
        status, answer = self._link.passed(lambda client: client.reservation(reservation_id, wait))
        if status == HTTPStatus.OK and answer.get("job") != record.id:
            raise CallerError(f"{reservation_id} is no reservation of this job")
        return status, answer

    def change(self, record: Record, reservation_id: str, body: bytes) -> ControllerAnswer:
        """Change one of them. Raises AdError, CallerError."""
        change = read(body, CHANGE)
        status, answer = self.show(record, reservation_id)
        if status != HTTPStatus.OK:
            return status, answer
        return self._link.passed(lambda client: client.change_reservation(reservation_id, **change))

    def release(self, record: Record, reservation_id: str) -> ControllerAnswer:
        """Release one of them. Raises CallerError."""
        status, answer = self.show(record, reservation_id)
        if status != HTTPStatus.OK:
            return status, answer
        return self._link.passed(lambda client: client.release(reservation_id))


def read(body: bytes, accepted: frozenset[str]) -> dict[str, Any]:
    """A request's JSON object. Raises AdError for anything else, and for members that are not accepted."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not found.keys() <= accepted:
        raise AdError("", f"a JSON object with {', '.join(sorted(accepted))} is accepted")
    return found

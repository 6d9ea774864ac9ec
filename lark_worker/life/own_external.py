"""The external address that a job asks for while it runs: requested with the worker's token, for that job alone.

The controller's answers go back to the job as they are, its problem documents included.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from lark_common.errors import AdError
from lark_worker.controller_link import ControllerLink
from lark_worker.errors import CallerError
from lark_worker.life.own_reservations import ControllerAnswer, read
from lark_worker.records.records import Record

_WISH: Final = frozenset({"open", "seconds", "family", "name", "reservation"})


class OwnExternalAddresses:
    """External addresses of this worker's jobs. Every call raises AwayError where the controller cannot be asked."""

    def __init__(self, link: ControllerLink) -> None:
        self._link = link

    def associate(self, record: Record, body: bytes, wait: float) -> ControllerAnswer:
        """Give the job an external address; it keeps the one that it has. Raises AdError for a body that is none."""
        wish = read(body, _WISH) if body else {}
        opened = wish.get("open", [])
        if not isinstance(opened, list) or not all(isinstance(each, str) for each in opened):
            raise AdError("", "open: a list of words is accepted, as tcp/80")
        name, reservation = wish.get("name"), wish.get("reservation")
        if not isinstance(name, str | None) or not isinstance(reservation, str | None):
            raise AdError("", "name, reservation: a word is accepted, as web or 8f14e45fceea167a")
        return self._link.passed(
            lambda client: client.associate_external_address(
                record.id, opened, wish.get("seconds"), wait, wish.get("family"), name, reservation
            )
        )

    def show(self, record: Record, association_id: str) -> ControllerAnswer:
        """The address that was given to the job under an id. Raises CallerError for another job's."""
        status, answer = self._link.passed(lambda client: client.external_address(association_id))
        if status == HTTPStatus.OK and answer.get("job") != record.id:
            raise CallerError(f"{association_id} is no external address of this job")
        return status, answer

    def pools(self, _record: Record) -> ControllerAnswer:
        """The state of each pool, which every job may know."""
        return self._link.passed(lambda client: {"pools": client.external_pools()})

    def release(self, record: Record, association_id: str) -> ControllerAnswer:
        """Release it. Raises CallerError."""
        status, answer = self.show(record, association_id)
        if status != HTTPStatus.OK:
            return status, answer
        return self._link.passed(lambda client: client.release_external_address(association_id))

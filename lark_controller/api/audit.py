"""The audit trail, as REST shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple, Protocol

from lark_controller.api.described import At


class Happening(NamedTuple):
    """Something that happened by itself, and that the audit trail is to have: about a job's id, a datapath id or
    ``controller``."""

    subject: str
    action: str
    detail: str = ""


class AuditEntry(NamedTuple):
    """A change, with its time (seconds since 1970) and actor. ``subject`` is a job id, a datapath id, ``policy``,
    ``controller`` or ``joins``."""

    number: Annotated[int, "Its number"]
    at: Annotated[At, "Its time"]
    actor: Annotated[str, "A token's name, or the controller"]
    action: Annotated[str, "The action"]
    subject: Annotated[str, "A job id, a datapath id, policy, controller or joins"]
    detail: Annotated[str, "Details of it"] = ""
    name: Annotated[str | None, "A job's CLUSTER.PROC, or a switch's name; null of anything else"] = None
    kind: Annotated[str | None, "job or switch: what has that name; null of anything else"] = None


@dataclass(frozen=True, slots=True)
class AuditPage:
    """One page of the audit trail, newest first, and the cursor of the next page."""

    entries: tuple[AuditEntry, ...]
    next_cursor: str | None = None


class AuditControls(Protocol):
    """Operations on the audit trail. Thread-safe; raises StoreError where the database is away."""

    def page(self, subject: str | None, cursor: str | None, limit: int) -> AuditPage:
        """A page of the trail, newest first. Raises NotFoundError for a cursor that is none."""

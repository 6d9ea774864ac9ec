"""The audit trail, as REST shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

from lark_controller.api.described import At


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A change, with its time (seconds since 1970) and actor. ``subject`` is a job id, ``policy`` or a datapath id."""

    number: Annotated[int, "Its number"]
    at: Annotated[At, "When"]
    actor: Annotated[str, "Who: a token's name, or the controller"]
    action: Annotated[str, "What"]
    subject: Annotated[str, "A job id, policy or a datapath id"]
    detail: Annotated[str, "More of it"] = ""


@dataclass(frozen=True, slots=True)
class AuditPage:
    """One page of the audit trail, newest first, and the cursor of the next page."""

    entries: tuple[AuditEntry, ...]
    next_cursor: str | None = None


class AuditControls(Protocol):
    """Operations on the audit trail. Thread-safe; raises StoreError where the database is away."""

    def page(self, subject: str | None, cursor: str | None, limit: int) -> AuditPage:
        """A page of the trail, newest first. Raises NotFoundError for a cursor that is none."""

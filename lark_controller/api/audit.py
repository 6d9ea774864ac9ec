"""The audit trail, as REST shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """What changed, when (seconds since 1970) and by whom. ``subject`` is a job id, ``policy`` or a datapath id."""

    number: int
    at: float
    actor: str
    action: str
    subject: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class AuditPage:
    """One page of the audit trail, newest first, and the cursor of the next page."""

    entries: tuple[AuditEntry, ...]
    next_cursor: str | None = None


class AuditControls(Protocol):
    """Operations on the audit trail. Thread-safe; raises StoreError where the database is away."""

    def page(self, subject: str | None, cursor: str | None, limit: int) -> AuditPage:
        """A page of the trail, newest first. Raises NotFoundError for a cursor that is none."""

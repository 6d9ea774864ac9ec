"""Policy versions, plans and the audit trail, as REST shows them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """A policy that was put in force: its text, digest (SHA-256), when (seconds since 1970) and by whom."""

    version: int
    text: str
    digest: str
    at: float
    actor: str


@dataclass(frozen=True, slots=True)
class JobChange:
    """A job that a new policy would treat otherwise; ``changes`` are sentences."""

    job_id: str
    owner: str
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SwitchPlan:
    """What a new policy would change on one switch; ``sample`` holds the first lines, ``+ …`` and ``- …``."""

    datapath: str
    name: str
    added: int
    changed: int
    removed: int
    total: int
    max_rules: int = 0
    sample: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What a policy file would change on the running pool. ``refusals`` say why it could not be put in force."""

    digest: str
    jobs_examined: int
    jobs_changed: int
    jobs: tuple[JobChange, ...] = ()
    switches: tuple[SwitchPlan, ...] = ()
    refusals: tuple[str, ...] = ()


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

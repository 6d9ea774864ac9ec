"""``/v1/audit``: what changed, when, and by whom."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from lark_controller.api.audit import AuditEntry
from lark_controller.rest.api import operation, resource
from lark_controller.rest.bodies import next_url
from lark_controller.rest.context import current
from lark_controller.rest.job_words import named_job, subject_of
from lark_controller.rest.own_jobs import own_user, shown_entries
from lark_controller.rest.problems import Problem
from lark_controller.rest.schemas.answers import AuditPageSchema
from lark_controller.rest.schemas.queries import AuditQuery
from lark_controller.rest.tokens import Scope

_ID: Final = re.compile(r"[0-9a-f]{16}")

blueprint = resource("audit", "Changes, each with its time and actor.")


@operation(
    blueprint,
    "GET",
    "/audit",
    name="list_audit_entries",
    scopes=(Scope.READ, Scope.SELF),
    query=AuditQuery,
    answers={200: AuditPageSchema},
    problems=(404, 409, 422),
)
def index(query: dict[str, Any]) -> dict[str, object]:
    """List the audit trail, newest first. With the scope ``self`` that of one of the user's own jobs, the subject."""
    subject = query.get("subject")
    if own_user() is not None:
        subject = named_job(_needed(subject))
    elif subject is not None:
        subject = subject_of(subject)
    page = current().controls.audit.page(subject, query.get("cursor"), query["limit"])
    jobs, switches = _names({each.subject for each in page.entries})
    entries = [_named(each, jobs, switches) for each in shown_entries(page.entries)]
    return {"entries": entries, "next": next_url(page.next_cursor), "next_cursor": page.next_cursor}


def _needed(subject: str | None) -> str:
    if subject is None:
        wrong = {"parameter": "subject", "problem": "with the scope self, one of your jobs is to be named"}
        raise Problem(422, f"subject: {wrong['problem']}", "parameters", errors=[wrong])
    return subject


def _named(entry: AuditEntry, jobs: Mapping[str, str], switches: Mapping[str, str]) -> AuditEntry:
    """An entry with the name of its job or switch."""
    if entry.subject in jobs:
        return entry._replace(name=jobs[entry.subject], kind="job")
    name = switches.get(entry.subject)
    return entry if name is None else entry._replace(name=name, kind="switch")


def _names(subjects: set[str]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The names of the jobs and of the switches among the subjects of entries."""
    controls = current().controls
    ids = {each for each in subjects if _ID.fullmatch(each)}
    jobs = controls.jobs.names(ids)
    return jobs, controls.switches.names(ids - set(jobs))

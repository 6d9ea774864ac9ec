"""``/v1/audit``: what changed, when, and by whom."""

from __future__ import annotations

from typing import Any

from lark_controller.rest.api import operation, resource
from lark_controller.rest.bodies import next_url
from lark_controller.rest.context import current
from lark_controller.rest.job_words import subject_of
from lark_controller.rest.schemas.answers import AuditPageSchema
from lark_controller.rest.schemas.queries import AuditQuery
from lark_controller.rest.tokens import Scope

blueprint = resource("audit", "Changes, each with its time and actor.")


@operation(
    blueprint,
    "GET",
    "/audit",
    name="list_audit_entries",
    scopes=(Scope.READ,),
    query=AuditQuery,
    answers={200: AuditPageSchema},
    problems=(404, 409, 422),
)
def index(query: dict[str, Any]) -> dict[str, object]:
    """List the audit trail, newest first."""
    subject = query.get("subject")
    subject = None if subject is None else subject_of(subject)
    page = current().controls.audit.page(subject, query.get("cursor"), query["limit"])
    return {"entries": page.entries, "next": next_url(page.next_cursor), "next_cursor": page.next_cursor}

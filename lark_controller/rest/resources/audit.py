"""``/v1/audit``: what changed, when, and by whom."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from lark_common.errors import NotFoundError
from lark_controller.rest.api import operation, resource
from lark_controller.rest.bodies import next_url
from lark_controller.rest.context import current
from lark_controller.rest.job_words import subject_of
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
    names = _names({each.subject for each in page.entries})
    entries = [replace(each, name=names.get(each.subject)) for each in page.entries]
    return {"entries": entries, "next": next_url(page.next_cursor), "next_cursor": page.next_cursor}


def _names(subjects: set[str]) -> Mapping[str, str]:
    """The names of the jobs and switches among the subjects of entries."""
    controls = current().controls
    ids = {each for each in subjects if _ID.fullmatch(each)}
    found = dict(controls.jobs.names(ids))
    for datapath in ids - set(found):
        with suppress(NotFoundError):
            found[datapath] = controls.switches.find(datapath).name
    return found

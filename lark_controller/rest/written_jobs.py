"""Answers about jobs, sent without what a library looks for around them: posts, ends and renewals come hundreds of
times a second, lists have a thousand jobs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from flask import Response
from werkzeug.datastructures import Headers

from lark_controller.accounting.usage import JobUsage
from lark_controller.api.jobs import Confirmation
from lark_controller.jobs.job import Job
from lark_controller.rest.json_portions import listed
from lark_controller.rest.schemas.answers import JobSchema, WaitingSchema
from lark_controller.rest.schemas.usage import JobUsageSchema

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment


job_members: Final = JobSchema().members
_usage_members: Final = JobUsageSchema().members
_WAITING: Final = WaitingSchema(many=True)


def registered_members(confirmation: Confirmation) -> dict[str, Any]:
    """The members of ``RegisteredSchema``."""
    waiting = _WAITING.dump(confirmation.waiting)
    return {**job_members(confirmation.job), "confirmed": list(confirmation.confirmed), "waiting": waiting}


def listed_members(job: Job, used: JobUsage | None, isolated: bool) -> dict[str, Any]:
    """The members of ``ListedJobSchema``."""
    usage = None if used is None else _usage_members(used)
    return {**job_members(job), "isolated": isolated, "usage": usage}


class _Written(Response):
    """An answer whose headers are sent as they are: its length is known, and its location is a path in ASCII."""

    def get_wsgi_headers(self, environ: WSGIEnvironment) -> Headers:
        """As of a response; Flask would parse and put together the location, and copy all headers."""
        return self.headers


def written(members: object) -> Response:
    """An answer in JSON."""
    return _Written(_text(members), content_type="application/json")


def written_page(jobs: Iterable[Mapping[str, Any]], rest: Mapping[str, str | None]) -> Response:
    """An answer in JSON with a list of ``jobs`` and other members, put together in portions, so that those who go ahead
    wait for one of them at most."""
    return _Written(f'{{"jobs":[{listed(jobs, _text, ",")}],{_text(rest)[1:]}', content_type="application/json")


def _text(members: object) -> str:
    return json.dumps(members, separators=(",", ":"))

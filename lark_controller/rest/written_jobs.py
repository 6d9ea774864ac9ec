"""Answers about jobs, sent without what a library looks for around them: posts, ends and renewals come hundreds of
times a second, lists have a thousand jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from flask import Response

from lark_controller.accounting.usage import JobUsage
from lark_controller.api.jobs import Confirmation
from lark_controller.jobs.job import Job
from lark_controller.rest.json_portions import answer, encode, listed
from lark_controller.rest.schemas.answers import JobSchema, WaitingSchema
from lark_controller.rest.schemas.usage import JobUsageSchema

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


def written_page(jobs: Iterable[Mapping[str, Any]], rest: Mapping[str, str | None]) -> Response:
    """An answer in JSON with a list of ``jobs`` and other members, put together in portions, so that those who go ahead
    wait for one of them at most."""
    return answer(f'{{"jobs":[{listed(jobs)}],{encode(rest)[1:]}')

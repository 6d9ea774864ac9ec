"""``/v1/jobs``: register, renew, end, find."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import Any, Final

from flask import Response, request
from marshmallow import Schema

from lark_common.classads import ads
from lark_common.errors import NotFoundError
from lark_common.runs import EndedBy, RunKey, number_in_word
from lark_common.turns import by_portions
from lark_controller.api.jobs import Confirmation, JobDetail, JobFilter
from lark_controller.jobs.job import Job
from lark_controller.rest.api import operation, resource
from lark_controller.rest.auth import require_host, require_host_of
from lark_controller.rest.bodies import next_url, parse_json, printable, read, read_json, read_kept_text, valid_job_id
from lark_controller.rest.context import NOTES, NOTES_A_SECOND, actor, current
from lark_controller.rest.hook_answer import lines
from lark_controller.rest.job_words import named_job, read_now
from lark_controller.rest.json_portions import written
from lark_controller.rest.media_types import preferred
from lark_controller.rest.own_jobs import own_user, require_own, shown_detail, shown_job
from lark_controller.rest.problems import Problem
from lark_controller.rest.schemas.answers import (
    BothAdsSchema,
    ExitAdSchema,
    ForgerySchema,
    JobDetailSchema,
    JobPageSchema,
    JobSchema,
    Joined,
    LimitSchema,
    NotedSchema,
    RegisteredSchema,
)
from lark_controller.rest.schemas.queries import (
    EndQuery,
    FreshQuery,
    JobQuery,
    RegisterQuery,
)
from lark_controller.rest.tokens import Scope
from lark_controller.rest.written_jobs import listed_members, registered_members, written_page

blueprint = resource("jobs", "One run of an HTCondor job on one slot.")


# Bytes of a line in the audit trail that comes from a worker.
MAX_NOTE = 1024

_JSON_ACCEPTED: Final = frozenset({"*/*", "application/json", "application/json, text/plain;q=0.5"})
_TEXT = {"type": "string", "description": "The job ad, a line ------, the machine ad, in either ClassAd syntax"}
_CLAIM = {"type": "string", "description": "The claim, and the fact"}
_LIMIT = {"type": "string", "description": "The limit, and what the job loses by it"}
# Made once: each schema that is made is garbage that refers to itself.
_EXIT_AD: Final = ExitAdSchema()


def _note(schema: Schema) -> str:
    """The line that this caller may have written into the audit trail. Raises Problem, 429 beyond the rate."""
    detail = printable(" ".join(_read_one(MAX_NOTE, schema).split()))
    if short := current().noting():
        words = f"More than {NOTES} notes at once, or {NOTES_A_SECOND:g} a second, are not written."
        raise Problem(429, words, "rate", {"Retry-After": str(math.ceil(short))})
    return detail


def _read_one(limit: int, schema: Schema, empty: bool = False) -> str:
    """The body, a text or a JSON object of one text. Raises Problem."""
    if request.mimetype == "application/json" and (request.content_length or not empty):
        (text,) = read_json(limit, schema).values()
        return str(text)
    return read_kept_text(limit, ("application/json", "text/plain"), empty)


@operation(
    blueprint,
    "POST",
    "/jobs",
    name="register_job",
    scopes=(Scope.HOOK,),
    query=RegisterQuery,
    bodies={"application/json": BothAdsSchema, "text/plain": _TEXT},
    answers={201: RegisteredSchema, 200: RegisteredSchema},
    texts={201: ("text/plain",), 200: ("text/plain",)},
    problems=(400, 409, 413, 415, 422),
)
def register(query: dict[str, Any]) -> Response:
    """Register a run.

    The same run again answers 200 and is the same job. ``wait`` waits for the switches' confirmation; switches that
    have not confirmed by then are named in ``waiting``. When too many requests wait already, the answer comes at once.
    A job that cannot have the external address that it asks for is refused; one that is ``running`` runs without it.
    """
    context = current()
    started = time.perf_counter()
    check_wait(query)
    body, media = read(context.settings.max_ads_bytes, ("text/plain", "application/json"))
    if media == "application/json":
        parse_json(body)
    job_ad, machine_ad = ads.parse_post(body, media, context.settings.max_ads_bytes)
    require_host(machine_ad.machine)
    run = RunKey(job_ad.global_job_id, job_ad.started, machine_ad.slot)
    with suppress(NotFoundError):
        # The same run, by its ads, may be another host's.
        require_host_of(context, run.id)
    registered = context.controls.jobs.register(job_ad, machine_ad, actor(), query["running"])
    confirmation = confirm(registered.job.id, query["wait"])
    response = _answer(confirmation)
    response.status_code = 201 if registered.created else 200
    response.headers["Location"] = f"/v1/jobs/{registered.job.id}"
    context.metrics.post_seconds.observe(time.perf_counter() - started)
    return response


@operation(
    blueprint,
    "GET",
    "/jobs",
    name="list_jobs",
    scopes=(Scope.READ, Scope.SELF),
    query=JobQuery,
    answers={200: JobPageSchema},
    problems=(404, 422),
)
def index(query: dict[str, Any]) -> Response:
    """List jobs."""
    require_own(query.get("owner"), "owner")
    state = None if query["state"] == "any" else query["state"]
    cluster = query.get("cluster")
    chosen = JobFilter(
        query.get("owner") if own_user() is None else own_user(),
        query.get("group"),
        query.get("host"),
        state,
        query.get("global_job_id"),
        newest=query["order"] == "newest",
        user=query.get("user"),
        numbered=None if cluster is None else number_in_word(cluster),
    )
    page = current().controls.jobs.page(chosen, query.get("cursor"), query["limit"])
    usages = current().controls.usage.of_jobs(page.jobs)
    isolated = set(current().controls.jobs.isolated(page.jobs))
    jobs = (
        listed_members(shown_job(job), usages.get(job.number), job.number in isolated) for job in by_portions(page.jobs)
    )
    return written_page(jobs, {"next": next_url(page.next_cursor), "next_cursor": page.next_cursor})


@operation(
    blueprint,
    "GET",
    "/jobs/<job_id>",
    name="show_job",
    scopes=(Scope.HOOK, Scope.READ, Scope.SELF),
    query=FreshQuery,
    answers={200: JobDetailSchema},
    problems=(404, 409, 422, 502),
)
def show(query: dict[str, Any], job_id: str) -> Joined:
    """Show a job, live or ended.

    Besides its id, CLUSTER.PROC names it, or CLUSTER where that has one job, with the access point where two have it,
    GlobalJobId, or the first digits of its id; 409 lists the jobs that have that name.
    """
    context = current()
    known = named_job(job_id)
    require_host_of(context, known)
    if query["fresh"]:
        read_now(known)
    return joined(shown_detail(context.controls.jobs.detail(known)))


@operation(
    blueprint,
    "POST",
    "/jobs/<job_id>/renew",
    name="renew_job",
    scopes=(Scope.HOOK,),
    answers={200: JobSchema},
    problems=(404,),
)
def renew(job_id: str) -> Job:
    """Renew a job's lease."""
    known = valid_job_id(job_id)
    require_host_of(current(), known)
    return current().controls.jobs.renew(known)


@operation(
    blueprint,
    "DELETE",
    "/jobs/<job_id>",
    name="end_job",
    scopes=(Scope.HOOK,),
    query=EndQuery,
    bodies={"application/json": ExitAdSchema, "text/plain": {"type": "string", "description": "The exit ad"}},
    body_required=False,
    answers={200: JobSchema},
    problems=(400, 404, 413, 415, 422),
)
def end(query: dict[str, Any], job_id: str) -> Job:
    """End a job. An ended job may be ended again."""
    context = current()
    known = valid_job_id(job_id)
    require_host_of(context, known)
    exit_ad = _read_one(context.settings.max_ads_bytes, _EXIT_AD, empty=True)
    return context.controls.jobs.end(known, actor(), exit_ad, EndedBy(query["by"]))


@operation(
    blueprint,
    "POST",
    "/jobs/<job_id>/forgery",
    name="report_forgery",
    scopes=(Scope.HOOK,),
    bodies={"application/json": ForgerySchema, "text/plain": _CLAIM},
    answers={200: NotedSchema},
    problems=(400, 404, 413, 415, 422),
)
def forgery(job_id: str) -> dict[str, str]:
    """Note in the audit trail that a worker refused a forged ad.

    Nothing else changes; the job need not be known.
    """
    known = valid_job_id(job_id)
    with suppress(NotFoundError):
        require_host_of(current(), known)
    current().controls.jobs.forged(known, actor(), _note(ForgerySchema()))
    return {"subject": known, "action": "forged ad"}


@operation(
    blueprint,
    "POST",
    "/jobs/<job_id>/limited",
    name="report_limit",
    scopes=(Scope.HOOK,),
    bodies={"application/json": LimitSchema, "text/plain": _LIMIT},
    answers={200: NotedSchema},
    problems=(400, 404, 413, 415, 422),
)
def limited(job_id: str) -> dict[str, str]:
    """Note that a live job has met a limit of its worker: in the audit trail and the problems of its switch."""
    known = valid_job_id(job_id)
    require_host_of(current(), known)
    current().controls.jobs.limited(known, actor(), _note(LimitSchema()))
    return {"subject": known, "action": "limit met"}


@operation(
    blueprint,
    "DELETE",
    "/jobs/<job_id>/quarantine",
    name="lift_quarantine",
    scopes=(Scope.OPERATE,),
    answers={200: JobSchema},
    problems=(404, 409),
)
def lift(job_id: str) -> Any:
    """End a job's quarantine.

    Later contradictions of the pool do not quarantine this run again. A job that is in no quarantine is
    left as it is, and the answer is 409.
    """
    return current().controls.jobs.lift(named_job(job_id), actor())


def joined(detail: JobDetail) -> Joined:
    """A job with its confirmation as one value."""
    return Joined(detail, detail.confirmation, detail.job)


def check_wait(query: dict[str, Any]) -> None:
    """Raises Problem 422 where ``wait`` is beyond the setting."""
    limit = current().settings.wait_limit
    if query["wait"] > limit:
        wrong = {"parameter": "wait", "problem": f"a number of seconds from 0 to {limit:g} is accepted"}
        raise Problem(422, f"wait: {wrong['problem']}", "parameters", errors=[wrong])


def confirm(job_id: str, wait: float, *, of_flows: bool = False) -> Confirmation:
    """Wait for the switches' confirmation, of a job or of what it has reserved; not at all where too many requests wait
    already."""
    context = current()
    if not wait:
        return context.controls.jobs.confirm(job_id, 0.0)
    with context.waits.place() as free:
        if not free:
            context.metrics.waits_refused.inc()
        return context.controls.jobs.confirm(job_id, wait if free else 0.0, of_flows=of_flows)


def _answer(confirmation: Confirmation) -> Response:
    accepted = request.headers.get("Accept", "*/*")
    # Weights are compared where the header is not one of those that most clients send.
    if accepted not in _JSON_ACCEPTED and (
        accepted == "text/plain" or preferred(("application/json", "text/plain")) == "text/plain"
    ):
        return Response(lines(confirmation), content_type="text/plain; charset=utf-8")
    return written(registered_members(confirmation))

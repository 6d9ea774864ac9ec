"""``/v1/usage`` and ``/v1/rates``: what jobs have used, and use now; what workers have counted."""

from __future__ import annotations

import csv
import dataclasses
import io
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from flask import Response
from marshmallow import fields, validate

from lark_controller.accounting.buckets import NAMES, width_for
from lark_controller.accounting.readings import PortReading, QueueReading, WorkerCounts
from lark_controller.api.jobs import JobFilter
from lark_controller.api.usage import AdvisedPair, UsageFilter, UsageRow
from lark_controller.rest.api import operation, resource
from lark_controller.rest.auth import require_host_of
from lark_controller.rest.bodies import next_url, read_json, valid_job_id
from lark_controller.rest.context import actor, current
from lark_controller.rest.job_words import named_job, read_now
from lark_controller.rest.media_types import preferred
from lark_controller.rest.own_jobs import own_user, require_own
from lark_controller.rest.problems import Problem
from lark_controller.rest.schemas.advice import AdviceSchema, PairsSchema
from lark_controller.rest.schemas.members import meta
from lark_controller.rest.schemas.queries import WORD, FreshQuery, PageQuery, PairsQuery
from lark_controller.rest.schemas.times import Moment
from lark_controller.rest.schemas.usage import (
    CountedSchema,
    CountersSchema,
    FlowingListSchema,
    RecentListSchema,
    UsagePageSchema,
    UsageRowSchema,
)
from lark_controller.rest.tokens import Scope

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

blueprint = resource("usage", "The network use of jobs.")

SUBJECTS = ("group", "user", "host", "job")
# Rates are kept by access point too, the history is not.
MOVING = (*SUBJECTS, "access_point")
# Which choices a list by each subject can make: what is added up by host has forgotten whose it was.
_CHOICES = {"group": {"group"}, "user": {"user", "group"}, "host": {"host"}, "job": {"group", "user", "host"}}
_DAY = 86_400.0
_MAX_COUNTERS = 4096
_WAN = ("wan_bytes_in", "wan_bytes_out", "wan_packets_in", "wan_packets_out")
_POLICY = ("policy_drops_in", "policy_drops_out")
# In the order of QueueReading.
_QUEUES = ("queue_drops_in", "queue_drops_out", "waited_in", "waited_out")


class UsageQuery(PageQuery):
    """The use that is asked for."""

    limit = fields.Integer(
        strict=False,
        load_default=1000,
        validate=validate.Range(1, 10_000),
        metadata=meta("Rows, 1 to 10000"),
    )
    by = fields.String(load_default="group", validate=validate.OneOf(SUBJECTS), metadata=meta("Subject of a row"))
    start = Moment(
        data_key="from", metadata=meta("Begin: ISO 8601, or seconds since 1970; a day before `to` if not given")
    )
    end = Moment(data_key="to", metadata=meta("End; now if not given"))
    bucket = fields.String(
        load_default="none",
        validate=validate.OneOf([*NAMES, "none"]),
        metadata=meta("Rows by minute, hour or day; none: one row for the whole stretch"),
    )
    group = fields.String(
        validate=WORD, metadata=meta("AcctGroup in any case, with its subgroups (by group, user or job)")
    )
    user = fields.String(validate=WORD, metadata=meta("User (by user or job)"))
    host = fields.String(validate=WORD, metadata=meta("Machine (by host or job)"))
    together = fields.Boolean(
        load_default=False, metadata=meta("One row for each bucket, of all subjects that are chosen (not by job)")
    )
    format = fields.String(validate=validate.OneOf(("json", "csv")), metadata=meta("csv, whatever `Accept` has"))


class RatesQuery(PageQuery):
    """The subjects of rates."""

    class Meta:
        """Rates change while they are read: there is no next page."""

        exclude = ("cursor",)

    by = fields.String(load_default="group", validate=validate.OneOf(MOVING), metadata=meta("Subject of a row"))


@operation(
    blueprint,
    "GET",
    "/usage",
    name="list_usage",
    scopes=(Scope.READ, Scope.SELF),
    query=UsageQuery,
    answers={200: UsagePageSchema},
    texts={200: ("text/csv",)},
    problems=(404, 422),
)
def usage(query: dict[str, Any]) -> Any:
    """The history of use.

    What was counted in the last minute may not be in it yet: `counted` is the time until which all is.
    """
    chosen = _chosen(query) if own_user() is None else _own(query)
    page = current().controls.usage.page(chosen, query.get("cursor"), query["limit"])
    following = next_url(page.next_cursor)
    accepted = query.get("format") or preferred(("application/json", "text/csv"))
    if accepted in ("csv", "text/csv"):
        answer = Response(_csv(page.rows), content_type="text/csv; charset=utf-8")
        if following:
            answer.headers["Link"] = f'<{following}>; rel="next"'
        return answer
    return {
        "start": page.start,
        "end": page.end,
        "bucket_seconds": page.seconds,
        "counted": page.counted,
        "known_since": page.known_since,
        "rows": page.rows,
        "next": following,
        "next_cursor": page.next_cursor,
    }


@operation(
    blueprint,
    "GET",
    "/rates",
    name="list_rates",
    scopes=(Scope.READ,),
    query=RatesQuery,
    answers={200: FlowingListSchema},
    problems=(422,),
)
def rates(query: dict[str, Any]) -> dict[str, object]:
    """List the rates of live jobs now, the most first."""
    controls = current().controls
    found = controls.usage.flowing(query["by"], query["limit"])
    # An ad's ClusterId may be another than that of its GlobalJobId: a job is found by the first.
    names = controls.jobs.full_names([each.name for each in found]) if query["by"] == "job" else {}
    rows = [dataclasses.replace(each, job_name=names.get(each.name)) for each in found]
    drops = controls.drops
    return {"rates": rows, "away": drops.away(), "uncounted": drops.uncounted(), "unread": drops.unread()}


@operation(
    blueprint,
    "GET",
    "/jobs/<job_id>/rates",
    name="list_job_rates",
    scopes=(Scope.READ, Scope.SELF),
    answers={200: RecentListSchema},
    problems=(404, 409),
)
def recent(job_id: str) -> dict[str, object]:
    """List a live job's last rates.

    Of an ended job, and of one that this controller has not read yet, there is nothing.
    """
    found = current().controls.usage.recent(named_job(job_id))
    return {"rates": [{"at": at, "rate": rate} for at, rate in found]}


@operation(
    blueprint,
    "GET",
    "/jobs/<job_id>/advice",
    name="show_advice",
    scopes=(Scope.HOOK, Scope.READ, Scope.SELF),
    query=FreshQuery,
    answers={200: AdviceSchema},
    problems=(404, 409, 422),
)
def advice(query: dict[str, Any], job_id: str) -> dict[str, object]:
    """Show what a job asked for against what it used and lost, and what to ask for.

    Of a live job that is what is known so far.
    """
    known = named_job(job_id)
    require_host_of(current(), known)
    if query["fresh"]:
        read_now(known)
    controls = current().controls.usage
    return {"job": known, **_members(controls.advice(known)), "pairs": controls.pairs_summary(known)}


@operation(
    blueprint,
    "GET",
    "/jobs/<job_id>/pairs",
    name="list_pairs",
    scopes=(Scope.READ, Scope.SELF),
    query=PairsQuery,
    answers={200: PairsSchema},
    problems=(404, 409, 422),
)
def pairs(query: dict[str, Any], job_id: str) -> dict[str, object]:
    """List where a job sends with bandwidth reserved for that, with advice for each such pair.

    For an application a parallel job may be named as a whole (`103.0`).
    """
    known = named_job(job_id, any_node=query["application"])
    found = current().controls.usage.pairs(known, query["application"])
    return {
        "job": known,
        **_members(found),
        "pairs": [_members(each) | _members(each.advice) | {"peer": _shown_peer(each)} for each in found.pairs],
    }


@operation(
    blueprint,
    "POST",
    "/jobs/<job_id>/counters",
    name="report_counters",
    scopes=(Scope.HOOK,),
    bodies={"application/json": CountersSchema},
    answers={200: CountedSchema},
    problems=(400, 404, 413, 415, 422),
)
def counters(job_id: str) -> dict[str, bool]:
    """Take a worker's counts of a job since the job's start.

    Every post has the whole sums, so one that is lost or comes twice changes nothing. The four of `wan` go
    together, and so do the two of `policy_drops` and the four of its queues.
    """
    known = valid_job_id(job_id)
    require_host_of(current(), known)
    sent = read_json(_MAX_COUNTERS, CountersSchema())
    for names in (_WAN, _POLICY, _QUEUES):
        given = [name for name in names if name in sent]
        if given and len(given) < len(names):
            wrong = [{"parameter": name, "problem": "needed beside " + given[0]} for name in names if name not in sent]
            raise Problem(422, f"{wrong[0]['parameter']}: {wrong[0]['problem']}", "parameters", errors=wrong)
    port = PortReading(
        sent["packets_out"], sent["bytes_out"], sent["packets_in"], sent["bytes_in"],
        sent.get("rate_drops_out", 0), sent.get("rate_drops_in", 0),
    )  # fmt: skip
    wan = (sent[_WAN[0]], sent[_WAN[1]], sent[_WAN[2]], sent[_WAN[3]]) if _WAN[0] in sent else None
    drops = (sent[_POLICY[0]], sent[_POLICY[1]]) if _POLICY[0] in sent else None
    queues = QueueReading(*(sent[name] for name in _QUEUES)) if _QUEUES[0] in sent else None
    new_within, interval = (sent[name] / 1000 if name in sent else None for name in ("new_within", "interval"))
    counts = WorkerCounts(port, wan, drops, queues, new_within, interval)
    return {"counted": current().controls.usage.counted(known, counts, sent["final"])}


def _members(found: DataclassInstance) -> dict[str, object]:
    return {each.name: getattr(found, each.name) for each in dataclasses.fields(found)}


def _shown_peer(pair: AdvisedPair) -> str | None:
    return pair.peer if pair.own_peer or own_user() is None else None


def _chosen(query: dict[str, Any]) -> UsageFilter:
    by = query["by"]
    wrong = [
        {"parameter": name, "problem": f"use by {by} is not kept by {name}"}
        for name in ("group", "user", "host")
        if name in query and name not in _CHOICES[by]
    ]
    if by == "job" and query["bucket"] != "none":
        wrong.append({"parameter": "bucket", "problem": "use by job is kept for the whole job"})
    if by == "job" and query["together"]:
        wrong.append({"parameter": "together", "problem": "use by job is listed job by job"})
    end = query.get("end", time.time())
    start = query.get("start", max(0.0, end - _DAY))
    if start > end:
        wrong.append({"parameter": "from", "problem": "a time before `to` is accepted"})
    if wrong:
        raise Problem(422, f"{wrong[0]['parameter']}: {wrong[0]['problem']}", "parameters", errors=wrong)
    bucket = None if query["bucket"] == "none" else query["bucket"]
    seconds = width_for(start, end, bucket)
    if by != "job":
        start, end = start - start % seconds, end + -end % seconds
    group, user, host = (query.get(name) for name in ("group", "user", "host"))
    return UsageFilter(by, start, end, seconds, bucket, group, user, host, query["together"])


def _own(query: dict[str, Any]) -> UsageFilter:
    """The choice of a request with the scope self: the use of its user, or of that user's jobs. Raises Problem 403."""
    owner = own_user() or ""
    if query["by"] not in ("user", "job"):
        raise Problem(403, f"by: the token {actor()} shows use by user and by job.", "scope")
    newest = current().controls.jobs.page(JobFilter(owner, state=None, newest=True), None, 1).jobs
    # Use is kept by User, which is the Owner with a domain.
    user = next((job.user for job in newest if job.user.partition("@")[0] == owner), owner)
    if query.get("user") != user:
        require_own(query.get("user"), "user")
    return _chosen(query | {"user": user})


def _csv(rows: Iterable[UsageRow]) -> str:
    """The members of the JSON rows, in the same order; an empty field is null."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(UsageRowSchema().fields))
    writer.writeheader()
    schema = UsageRowSchema(many=True)
    for row in schema.dump(rows):
        writer.writerow({name: _safe(value) for name, value in row.items()})
    return text.getvalue()


def _safe(value: object) -> object:
    """Quotes a field that a spreadsheet would take for a formula, since users choose their groups' names."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value

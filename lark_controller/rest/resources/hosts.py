"""``/v1/hosts``: the leases of a worker's jobs, and the rules that it enforces for those without a port on a switch."""

from __future__ import annotations

import json
from typing import Any, Final

from flask import Response

from lark_common.worker_rules import to_json
from lark_controller.api.workers import Delivered, HostStatus
from lark_controller.qos.delivery import Counters
from lark_controller.rest.api import operation, resource
from lark_controller.rest.auth import require_host
from lark_controller.rest.bodies import read, read_json, refuse_malformed_json
from lark_controller.rest.context import actor, current
from lark_controller.rest.problems import Problem
from lark_controller.rest.schemas.queries import RulesQuery
from lark_controller.rest.schemas.times import iso
from lark_controller.rest.schemas.worker_rules import DeliveredAnswerSchema, DeliveredSchema, HostSchema, RenewedSchema
from lark_controller.rest.tokens import Scope
from lark_controller.rest.written_jobs import written

blueprint = resource("hosts", "The rules that workers enforce for their jobs without a port on a switch.")

MAX_REASON: Final = 1024
MAX_UPLINKS: Final = 64
# 10 Tb/s: no link has more.
MAX_SPEED: Final = 10_000_000

_EXPECTED: Final = 'The body is not {"revision": …, "refused": {id: reason}, "late": [id, …], "uplinks": {name: Mb/s}}.'
_CONFIRMATION: Final = {
    "type": "object",
    "properties": {
        "revision": {"type": "string", "description": "The revision that is in place"},
        "refused": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "Jobs that the worker cannot enforce the policy for: id, reason",
        },
        "late": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Ids of jobs whose networks are still to be made; they wait on",
        },
        "uplinks": {
            "type": "object",
            "additionalProperties": {"type": ["number", "null"]},
            "description": "The worker's interfaces that lead away from it: name, speed in Mb/s (null: not known)",
        },
    },
    "required": ["revision"],
    "additionalProperties": False,
}

_LEASES: Final = {
    "type": "object",
    "properties": {"jobs": {"type": "array", "items": {"type": "string"}, "description": "Ids of the jobs that run"}},
    "required": ["jobs"],
    "additionalProperties": False,
}


@operation(
    blueprint,
    "GET",
    "/hosts/<host>/rules",
    name="watch_worker_rules",
    scopes=(Scope.HOOK, Scope.READ),
    query=RulesQuery,
    answers={200: HostSchema},
    problems=(422,),
)
def show(query: dict[str, Any], host: str) -> dict[str, object]:
    """Show a worker's rules.

    With ``after`` and ``wait`` the answer comes when there is another revision; when too many workers wait already, it
    comes at once.
    """
    context = current()
    require_host(host)
    if not query["wait"]:
        return _answer(context.controls.workers.rules(host, query["after"], 0.0))
    with context.polls.place() as free:
        return _answer(context.controls.workers.rules(host, query["after"], query["wait"] if free else 0.0))


@operation(
    blueprint,
    "PUT",
    "/hosts/<host>/rules",
    name="confirm_worker_rules",
    scopes=(Scope.HOOK,),
    bodies={"application/json": _CONFIRMATION},
    answers={200: HostSchema},
    problems=(400, 413, 415),
)
def confirm(host: str) -> dict[str, object]:
    """Confirm that a worker has a revision of its rules in place."""
    context = current()
    require_host(host)
    body, _ = read(context.settings.max_ads_bytes, ("application/json",))
    refuse_malformed_json(body)
    given = json.loads(body)
    if not isinstance(given, dict) or given.keys() - {"revision", "refused", "late", "uplinks"}:
        raise Problem(400, _EXPECTED)
    refused, late, uplinks = given.get("refused", {}), given.get("late", []), given.get("uplinks", {})
    if (
        not isinstance(given.get("revision"), str)
        or not isinstance(refused, dict)
        or not all(isinstance(reason, str) and len(reason) <= MAX_REASON for reason in refused.values())
        or not isinstance(late, list)
        or not all(isinstance(job_id, str) for job_id in late)
        or not isinstance(uplinks, dict)
        or len(uplinks) > MAX_UPLINKS
        or not all(_is_speed(speed) for speed in uplinks.values())
    ):
        raise Problem(400, _EXPECTED)
    return _answer(context.controls.workers.confirmed(host, given["revision"], refused, late, uplinks))


def _is_speed(value: object) -> bool:
    """True if a value is a speed in Mb/s, or null."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MAX_SPEED)


@operation(
    blueprint,
    "POST",
    "/hosts/<host>/leases",
    name="renew_worker_jobs",
    scopes=(Scope.HOOK,),
    bodies={"application/json": _LEASES},
    answers={200: RenewedSchema},
    problems=(400, 413, 415),
    direct=True,
)
def renew(host: str) -> Response:
    """Renew the leases of a worker's jobs.

    Jobs that do not live on this worker are listed as ``missing``; they are to be posted again.
    """
    context = current()
    require_host(host)
    body, _ = read(context.settings.max_ads_bytes, ("application/json",))
    refuse_malformed_json(body)
    given = json.loads(body)
    jobs = given.get("jobs") if isinstance(given, dict) and given.keys() == {"jobs"} else None
    if not isinstance(jobs, list) or not all(isinstance(job_id, str) for job_id in jobs):
        raise Problem(400, 'The body is not {"jobs": [id, …]}.')
    renewed = context.controls.jobs.renew_all(host, jobs, actor())
    return written({"lease_until": iso(renewed.lease_until), "missing": list(renewed.missing)})


@operation(
    blueprint,
    "POST",
    "/hosts/<host>/delivered",
    name="report_delivered",
    scopes=(Scope.HOOK,),
    bodies={"application/json": DeliveredSchema},
    answers={200: DeliveredAnswerSchema},
    problems=(400, 413, 415, 422),
)
def delivered(host: str) -> dict[str, int]:
    """Take the counters of a worker's own queues.

    Two of these posts in turn tell which guarantees of its jobs were missed meanwhile.
    """
    context = current()
    require_host(host)
    said = read_json(context.settings.max_ads_bytes, DeliveredSchema())
    at = said["at"] / 1000
    found = {
        (each["job"], each["queue"]): Delivered(
            each["promised"], Counters(at, each["sent"], each["dropped"], None, each["waited"] / 1000)
        )
        for each in said["queues"]
    }
    return {"missed": context.controls.workers.delivered(host, found)}


def _answer(status: HostStatus) -> dict[str, object]:
    rules = None if status.rules is None else to_json(status.rules)
    return {"host": status.host, "revision": status.revision, "rules": rules, "waiting": status.waiting}

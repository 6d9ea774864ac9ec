"""``/v1/hosts``: the leases of a worker's jobs, and the rules that it enforces for those without a port on a switch."""

from __future__ import annotations

from typing import Any

from flask import Response

from lark_common.worker_rules import to_json
from lark_controller.api.workers import Delivered, WorkerStatus
from lark_controller.qos.delivery import Counters
from lark_controller.rest.api import operation, resource
from lark_controller.rest.auth import require_host
from lark_controller.rest.bodies import read_json
from lark_controller.rest.context import actor, current
from lark_controller.rest.schemas.queries import RulesQuery
from lark_controller.rest.schemas.times import iso
from lark_controller.rest.schemas.worker_rules import (
    ConfirmationSchema,
    DeliveredAnswerSchema,
    DeliveredSchema,
    HostSchema,
    LeasesSchema,
    RenewedSchema,
)
from lark_controller.rest.tokens import Scope
from lark_controller.rest.written_jobs import written

blueprint = resource("hosts", "The rules that workers enforce for their jobs without a port on a switch.")


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
    with context.polling() as free:
        return _answer(context.controls.workers.rules(host, query["after"], query["wait"] if free else 0.0))


@operation(
    blueprint,
    "PUT",
    "/hosts/<host>/rules",
    name="confirm_worker_rules",
    scopes=(Scope.HOOK,),
    bodies={"application/json": ConfirmationSchema},
    answers={200: HostSchema},
    problems=(400, 413, 415, 422),
)
def confirm(host: str) -> dict[str, object]:
    """Confirm that a worker has a revision of its rules in place."""
    context = current()
    require_host(host)
    sent = read_json(context.settings.max_ads_bytes, ConfirmationSchema())
    report = sent["refused"], sent["late"], sent["uplinks"]
    return _answer(context.controls.workers.confirmed(host, sent["revision"], *report))


@operation(
    blueprint,
    "POST",
    "/hosts/<host>/leases",
    name="renew_worker_jobs",
    scopes=(Scope.HOOK,),
    bodies={"application/json": LeasesSchema},
    answers={200: RenewedSchema},
    problems=(400, 413, 415, 422),
    direct=True,
)
def renew(host: str) -> Response:
    """Renew the leases of a worker's jobs.

    Jobs that do not live on this worker are listed as ``missing``; they are to be posted again.
    """
    context = current()
    require_host(host)
    sent = read_json(context.settings.max_ads_bytes, LeasesSchema())
    renewed = context.controls.jobs.renew_all(host, sent["jobs"], actor())
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
    sent = read_json(context.settings.max_ads_bytes, DeliveredSchema())
    at = sent["at"] / 1000
    found = {
        (each["job"], each["queue"]): Delivered(
            each["promised"], Counters(at, each["sent"], each["dropped"], None, each["waited"] / 1000)
        )
        for each in sent["queues"]
    }
    return {"missed": context.controls.workers.delivered(host, found)}


def _answer(status: WorkerStatus) -> dict[str, object]:
    rules = None if status.rules is None else to_json(status.rules)
    return {"host": status.host, "revision": status.revision, "rules": rules, "waiting": status.waiting}

"""``/v1/hosts``: the leases of a worker's jobs, and the rules that it enforces for those without a port on a switch."""

from __future__ import annotations

from typing import Any, Final

from flask import Response

from lark_common.runs import NetworkType
from lark_common.scitags import to_json as marks_to_json
from lark_common.transfers import treatment_of
from lark_common.worker_rules import WayOut, WaysOut, to_json
from lark_controller.accounting.readings import TransferCounts
from lark_controller.api.jobs import Renewed
from lark_controller.api.usage import TransferReport
from lark_controller.api.workers import Delivered, WorkerStatus
from lark_controller.qos.delivery import Counters
from lark_controller.rest.api import operation, resource
from lark_controller.rest.auth import require_host
from lark_controller.rest.bodies import printable, read_json
from lark_controller.rest.context import current
from lark_controller.rest.job_words import named_host
from lark_controller.rest.json_portions import written
from lark_controller.rest.schemas.queries import RulesQuery
from lark_controller.rest.schemas.worker_rules import (
    ConfirmationSchema,
    DeliveredAnswerSchema,
    DeliveredSchema,
    HostSchema,
    LeasesSchema,
    MarksSchema,
    RenewedSchema,
    TransfersAnswerSchema,
    TransfersSchema,
    WorkerUseSchema,
)
from lark_controller.rest.tokens import Scope

blueprint = resource("hosts", "The rules that workers enforce for their jobs without a port on a switch.")

# Made once: each schema that is made is garbage that refers to itself.
_LEASES: Final = LeasesSchema()


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
    known = named_host(host)
    if not query["wait"]:
        return _answer(context.controls.workers.rules(known, query["after"], 0.0))
    with context.polling() as free:
        return _answer(context.controls.workers.rules(known, query["after"], query["wait"] if free else 0.0))


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
    ways = (WayOut(NetworkType(each["network_type"]), frozenset(each["uplinks"])) for each in sent["ways"])
    refused = {job: printable(reason) for job, reason in sent["refused"].items()}
    report = refused, sent["late"], WaysOut(sent["uplinks"], tuple(ways))
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
)
def renew(host: str) -> Renewed:
    """Renew the leases of a worker's jobs.

    Jobs that do not live on this worker are listed as ``missing``; they are to be posted again.
    """
    context = current()
    require_host(host)
    sent = read_json(context.settings.max_ads_bytes, _LEASES)
    return context.controls.jobs.renew_all(host, sent["jobs"])


@operation(
    blueprint,
    "POST",
    "/hosts/<host>/use",
    name="show_worker_use",
    scopes=(Scope.HOOK,),
    bodies={"application/json": LeasesSchema},
    answers={200: WorkerUseSchema},
    problems=(400, 413, 415, 422),
)
def use(host: str) -> Response:
    """Show the WAN's part of the use of a worker's jobs, by the last readings of their counters.

    Jobs that do not live on this worker, or are not accounted, are left out.
    """
    context = current()
    require_host(host)
    sent = read_json(context.settings.max_ads_bytes, _LEASES)
    found = context.controls.usage.of_host(host, sent["jobs"])
    return written(
        {
            "jobs": [
                {"job": job, "wan_bytes_in": each.usage.wan_bytes_in, "wan_bytes_out": each.usage.wan_bytes_out}
                for job, each in found.items()
            ]
        }
    )


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


@operation(
    blueprint,
    "POST",
    "/hosts/<host>/transfers",
    name="report_transfers",
    scopes=(Scope.HOOK,),
    bodies={"application/json": TransfersSchema},
    answers={200: TransfersAnswerSchema},
    problems=(400, 413, 415, 422),
)
def transfers(host: str) -> dict[str, object]:
    """Take what HTCondor has moved for a worker's jobs outside of their networks.

    Every post has the whole sums, so one that is lost or comes twice changes nothing.
    """
    context = current()
    require_host(host)
    sent = read_json(context.settings.max_ads_bytes, TransfersSchema())
    moved = {each["job"]: _transfer(each) for each in sent["jobs"]}
    answer = context.controls.usage.transferred(host, moved)
    treatments = answer.treatments
    return {
        "missing": sorted(answer.missing),
        "local": [str(network) for network in answer.local],
        "treatments": None if treatments is None else {job: each.to_json() for job, each in treatments.items()},
        "scitags": answer.scitags,
    }


@operation(
    blueprint,
    "POST",
    "/hosts/<host>/scitags",
    name="show_marks",
    scopes=(Scope.HOOK,),
    bodies={"application/json": LeasesSchema},
    answers={200: MarksSchema},
    problems=(400, 413, 415, 422),
)
def marks(host: str) -> dict[str, object]:
    """Show the marks of jobs' flows (SciTags) and the receivers of reports.

    The worker sends the fireflies itself.
    """
    context = current()
    require_host(host)
    sent = read_json(context.settings.max_ads_bytes, _LEASES)
    return marks_to_json(context.controls.workers.marks(host, sent["jobs"]))


def _transfer(sent: dict[str, Any]) -> TransferReport:
    within, interval = (sent[name] / 1000 if name in sent else None for name in ("within", "interval"))
    counts = TransferCounts(*(sent[name] for name in TransferCounts._fields))
    treatment = None if sent["treatment"] is None else treatment_of(sent["treatment"])
    return TransferReport(counts, within, treatment, printable(sent["trouble"]), interval)


def _answer(status: WorkerStatus) -> dict[str, object]:
    rules = None if status.rules is None else to_json(status.rules)
    return {"host": status.host, "revision": status.revision, "rules": rules, "waiting": status.waiting}

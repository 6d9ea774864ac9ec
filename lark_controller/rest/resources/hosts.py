"""``/v1/hosts``: the rules that workers enforce for their jobs without a port on a switch."""

from __future__ import annotations

import json
from typing import Any, Final

from lark_common.worker_rules import to_json
from lark_controller.api.workers import HostStatus
from lark_controller.rest.api import operation, resource
from lark_controller.rest.bodies import read, refuse_malformed_json
from lark_controller.rest.context import current
from lark_controller.rest.problems import Problem
from lark_controller.rest.schemas.queries import RulesQuery
from lark_controller.rest.schemas.worker_rules import HostSchema
from lark_controller.rest.tokens import Scope

blueprint = resource("hosts", "The rules that workers enforce for their jobs without a port on a switch.")

MAX_REASON: Final = 1024

_EXPECTED: Final = 'The body is not {"revision": …, "refused": {id: reason}, "late": [id, …]}.'
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
    },
    "required": ["revision"],
    "additionalProperties": False,
}


@operation(
    blueprint,
    "GET",
    "/hosts/<host>/rules",
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
    if not query["wait"]:
        return _answer(context.controls.workers.rules(host, query["after"], 0.0))
    with context.polls.place() as free:
        return _answer(context.controls.workers.rules(host, query["after"], query["wait"] if free else 0.0))


@operation(
    blueprint,
    "PUT",
    "/hosts/<host>/rules",
    scopes=(Scope.HOOK,),
    bodies={"application/json": _CONFIRMATION},
    answers={200: HostSchema},
    problems=(400, 413, 415),
)
def confirm(host: str) -> dict[str, object]:
    """Say that a worker has a revision of its rules in place."""
    context = current()
    body, _ = read(context.settings.max_ads_bytes, ("application/json",))
    refuse_malformed_json(body)
    given = json.loads(body)
    if not isinstance(given, dict) or given.keys() - {"revision", "refused", "late"}:
        raise Problem(400, _EXPECTED)
    refused, late = given.get("refused", {}), given.get("late", [])
    if (
        not isinstance(given.get("revision"), str)
        or not isinstance(refused, dict)
        or not all(isinstance(reason, str) and len(reason) <= MAX_REASON for reason in refused.values())
        or not isinstance(late, list)
        or not all(isinstance(job_id, str) for job_id in late)
    ):
        raise Problem(400, _EXPECTED)
    return _answer(context.controls.workers.confirmed(host, given["revision"], refused, late))


def _answer(status: HostStatus) -> dict[str, object]:
    rules = None if status.rules is None else to_json(status.rules)
    return {"host": status.host, "revision": status.revision, "rules": rules, "waiting": status.waiting}

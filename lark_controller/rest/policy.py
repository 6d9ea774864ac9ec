"""``/v1/policy``: the policy in force, and what another would change."""

from __future__ import annotations

from typing import Any

from flask import Response, jsonify, request

from lark_controller.policies.schema import schema as policy_schema
from lark_controller.rest.api import operation, resource
from lark_controller.rest.bodies import read_text
from lark_controller.rest.context import actor, current
from lark_controller.rest.schemas import PlanSchema, PolicyCheckSchema, PolicySchema
from lark_controller.rest.tokens import Scope

blueprint = resource("policy", "What the site's operators want of the network.")

_TYPES = ("application/yaml", "text/plain", "application/x-yaml", "text/yaml")
_YAML = {"type": "string", "description": "A policy, YAML"}
_BODIES = {"application/yaml": _YAML, "text/plain": _YAML}


@operation(
    blueprint,
    "GET",
    "/policy",
    scopes=(Scope.READ,),
    answers={200: PolicySchema},
    texts={200: ("application/yaml",)},
)
def show() -> Any:
    """Show the policy in force; with ``Accept: application/yaml`` its text alone."""
    policy = current().controls.policy()
    wanted = request.accept_mimetypes.best_match(("application/json", *_TYPES), default="application/json")
    if wanted == "application/json":
        return policy
    return Response(policy.text, content_type=f"{wanted}; charset=utf-8")


@operation(
    blueprint,
    "PUT",
    "/policy",
    scopes=(Scope.OPERATE,),
    bodies=_BODIES,
    answers={200: PolicySchema},
    problems=(400, 409, 413, 415, 422, 502),
)
def replace() -> Any:
    """Put a policy in force. A bad one changes nothing."""
    return current().controls.put_policy(_text(), actor())


@operation(
    blueprint,
    "POST",
    "/policy/check",
    scopes=(Scope.READ,),
    bodies=_BODIES,
    answers={200: PolicyCheckSchema},
    problems=(400, 413, 415),
)
def check() -> dict[str, object]:
    """Find every mistake in a policy."""
    mistakes = current().controls.check_policy(_text())
    return {"valid": not mistakes, "mistakes": mistakes}


@operation(
    blueprint,
    "POST",
    "/policy/plan",
    scopes=(Scope.READ,),
    bodies=_BODIES,
    answers={200: PlanSchema},
    problems=(400, 413, 415, 422),
)
def plan() -> Any:
    """Say what a policy would change on the running pool, before it does."""
    return current().controls.plan_policy(_text())


@operation(
    blueprint,
    "GET",
    "/policy/schema",
    scopes=(Scope.READ,),
    answers={200: None},
    texts={200: ("application/schema+json",)},
)
def schema() -> Response:
    """The JSON Schema of policies, for editors."""
    response = jsonify(policy_schema())
    response.content_type = "application/schema+json"
    return response


def _text() -> str:
    return read_text(current().settings.max_body_bytes, _TYPES)

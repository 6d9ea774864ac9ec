"""``/v1/policy``: the policy in force, and what another would change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from flask import Response, request

from lark_controller.policies.schema import schema as policy_schema
from lark_controller.rest.api import Described, operation, resource
from lark_controller.rest.bodies import next_url, read_json, read_text
from lark_controller.rest.context import actor, current
from lark_controller.rest.json_portions import written
from lark_controller.rest.media_types import preferred
from lark_controller.rest.problems import Problem
from lark_controller.rest.schemas.answers import (
    Joined,
    PlanSchema,
    PolicyCheckSchema,
    PolicyDifferenceSchema,
    PolicyHistorySchema,
    PolicySchema,
    PolicyTextSchema,
)
from lark_controller.rest.schemas.queries import DifferenceQuery, PageQuery
from lark_controller.rest.tokens import Scope

blueprint = resource("policy", "The site's policy: its versions, the one in force, checks and plans.")

_TYPES = ("application/yaml", "text/plain", "application/x-yaml", "text/yaml")
_YAML = {"type": "string", "description": "A policy, YAML"}
_BODIES: dict[str, Described] = {"application/json": PolicyTextSchema, "application/yaml": _YAML, "text/plain": _YAML}


@operation(
    blueprint,
    "GET",
    "/policy",
    name="show_policy",
    scopes=(Scope.READ,),
    answers={200: PolicySchema},
    texts={200: ("application/yaml",)},
)
def show() -> Any:
    """Show the policy in force; with ``Accept: application/yaml`` its text alone."""
    policy = current().controls.policy.version
    accepted = preferred(("application/json", *_TYPES))
    tag = {"ETag": f'"{policy.digest}"'}
    if accepted == "application/json":
        return policy, 200, tag
    return Response(policy.text, content_type=f"{accepted}; charset=utf-8", headers=tag)


@operation(
    blueprint,
    "PUT",
    "/policy",
    name="put_policy",
    scopes=(Scope.OPERATE,),
    bodies=_BODIES,
    answers={200: PolicySchema},
    problems=(400, 409, 412, 413, 415, 422, 502),
)
def replace() -> Any:
    """Put a policy in force. A bad one changes nothing.

    With ``If-Match: "DIGEST"`` it is put in place of the policy of that digest alone; where another is in force by
    now, nothing changes either (412).
    """
    return current().controls.policy.put(_text(), actor(), _instead_of())


@operation(
    blueprint,
    "GET",
    "/policy/versions",
    name="list_policy_versions",
    scopes=(Scope.READ,),
    query=PageQuery,
    answers={200: PolicyHistorySchema},
    problems=(404, 422),
)
def versions(query: dict[str, Any]) -> dict[str, object]:
    """List the versions of the policy, newest first: when each was put in force, and by whom."""
    page = current().controls.policy.history(query.get("cursor"), query["limit"])
    return {"versions": page.versions, "next": next_url(page.next_cursor), "next_cursor": page.next_cursor}


@operation(
    blueprint,
    "GET",
    "/policy/versions/<int:version>",
    name="show_policy_version",
    scopes=(Scope.READ,),
    answers={200: PolicySchema},
    problems=(404,),
)
def show_version(version: int) -> Any:
    """Show a version of the policy, in force or not."""
    return current().controls.policy.past(version)


@operation(
    blueprint,
    "GET",
    "/policy/difference",
    name="compare_policy_versions",
    scopes=(Scope.READ,),
    query=DifferenceQuery,
    answers={200: PolicyDifferenceSchema},
    problems=(404, 422),
)
def difference(query: dict[str, Any]) -> Joined:
    """Show how two versions of the policy differ; the second is the one in force by default."""
    old, new, found = current().controls.policy.compare(query["old"], query.get("new"))
    return Joined(found, SimpleNamespace(old=old, new=new))


@operation(
    blueprint,
    "POST",
    "/policy/versions/<int:version>/restore",
    name="restore_policy_version",
    scopes=(Scope.OPERATE,),
    answers={200: PolicySchema},
    problems=(400, 404, 409, 412, 422, 502),
)
def restore(version: int) -> Any:
    """Put the text of an earlier version in force again, as a new version; ``If-Match`` as for PUT."""
    return current().controls.policy.restore(version, actor(), _instead_of())


@operation(
    blueprint,
    "POST",
    "/policy/check",
    name="check_policy",
    scopes=(Scope.READ,),
    bodies=_BODIES,
    answers={200: PolicyCheckSchema},
    problems=(400, 413, 415, 422),
)
def check() -> dict[str, object]:
    """Find every mistake in a policy."""
    text = _text()
    mistakes = current().controls.policy.mistakes(text)
    warnings = () if mistakes else current().controls.policy.warnings(text)
    return {"valid": not mistakes, "mistakes": mistakes, "warnings": warnings}


@operation(
    blueprint,
    "POST",
    "/policy/plan",
    name="plan_policy",
    scopes=(Scope.READ,),
    bodies=_BODIES,
    answers={200: PlanSchema},
    problems=(400, 413, 415, 422),
)
def plan() -> Any:
    """Show the changes that a policy would make on the running pool."""
    return current().controls.policy.plan(_text())


@operation(
    blueprint,
    "GET",
    "/policy/schema",
    name="show_policy_schema",
    scopes=(Scope.READ,),
    answers={200: None},
    texts={200: ("application/schema+json",)},
)
def schema() -> Response:
    """The JSON Schema of policies, for editors."""
    response = written(policy_schema())
    response.content_type = "application/schema+json"
    return response


def _instead_of() -> str | None:
    """The digest in If-Match; None where there is none, or any policy may be replaced."""
    tags = request.if_match
    if not tags or tags.star_tag:
        return None
    digests = tags.as_set()
    if len(digests) != 1:
        raise Problem(400, "If-Match names more than one policy; one digest in quotation marks is accepted.")
    return str(next(iter(digests)))


def _text() -> str:
    limit = current().settings.max_body_bytes
    if request.mimetype == "application/json":
        text: str = read_json(limit, PolicyTextSchema())["text"]
        return text
    return read_text(limit, ("application/json", *_TYPES))

"""``/v1/groups``: the accounting groups of the policy in force."""

from __future__ import annotations

from lark_controller.rest.api import operation, resource
from lark_controller.rest.context import current
from lark_controller.rest.schemas.answers import GroupListSchema
from lark_controller.rest.tokens import Scope

blueprint = resource("groups", "The accounting groups of the policy in force.")


@operation(
    blueprint, "GET", "/groups", name="list_groups", scopes=(Scope.HOOK, Scope.READ), answers={200: GroupListSchema}
)
def index() -> dict[str, object]:
    """List the groups, and the access points for whose transfers the policy has a capacity."""
    controls = current().controls
    usage, unread = controls.usage, controls.drops.unread()
    return {"groups": usage.groups(), "access_points": usage.access_points(), "unread": unread}

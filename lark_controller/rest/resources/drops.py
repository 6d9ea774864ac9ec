"""``/v1/drops``: the packets that are dropped now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lark_controller.api.drops import DropList
from lark_controller.rest.api import operation, resource
from lark_controller.rest.context import current
from lark_controller.rest.job_words import job_among
from lark_controller.rest.own_jobs import own_user, shown_down, shown_drop
from lark_controller.rest.schemas.answers import DropListSchema
from lark_controller.rest.schemas.queries import DropQuery
from lark_controller.rest.tokens import Scope

blueprint = resource("drops", "The packets that are dropped now.")


@operation(
    blueprint,
    "GET",
    "/drops",
    name="list_drops",
    scopes=(Scope.READ, Scope.SELF),
    query=DropQuery,
    answers={200: DropListSchema},
    problems=(404, 409, 422),
)
def index(query: dict[str, Any]) -> DropList:
    """List what is dropped now, the most first: from whom, to where, by which rule, how fast."""
    drops, job = current().controls.drops, job_among(query)
    found = drops.now(query["limit"], own_user()) if job is None else drops.of_job(query["limit"], job)
    return replace(found, drops=tuple(map(shown_drop, found.drops)), down=tuple(map(shown_down, found.down)))

"""``/v1/explain``: why a packet reaches its destination, or does not."""

from __future__ import annotations

from typing import Any

from lark_common.errors import NotFoundError
from lark_controller.jobs.job import JobState
from lark_controller.rest.api import operation, resource
from lark_controller.rest.context import current
from lark_controller.rest.job_words import is_address, job_or_address
from lark_controller.rest.own_jobs import own_user
from lark_controller.rest.schemas.answers import ExplanationSchema
from lark_controller.rest.schemas.queries import ExplainQuery
from lark_controller.rest.tokens import Scope

blueprint = resource("explain", "The reason why a packet reaches its destination, or does not.")


@operation(
    blueprint,
    "GET",
    "/explain",
    name="explain",
    scopes=(Scope.READ, Scope.SELF),
    query=ExplainQuery,
    answers={200: ExplanationSchema},
    problems=(404, 409, 422, 502),
)
def show(query: dict[str, Any]) -> Any:
    """Explain, step by step, what happens to a packet from one address or job to another.

    With the scope ``self`` one of them is a live job of the user, and the answer has nothing of others' jobs.
    """
    context = current()
    src, dst = job_or_address(query["src"]), job_or_address(query["dst"])
    try:
        with context.waiting() as timeout:
            return context.controls.switches.explain(src, dst, timeout, own_user())
    except NotFoundError:
        for end in (src, dst):
            _require_live(end)
        raise


def _require_live(end: str) -> None:
    """Raises NotFoundError for a job that is over, under the name that its user has for it, and for one that is
    unknown."""
    if is_address(end):
        return
    job = current().controls.jobs.detail(end).job
    if not job.live:
        over = f"was refused ({job.reason})" if job.state is JobState.REFUSED else "has ended"
        raise NotFoundError(f"job {job.called} {over}: nothing passes for it; accepted are live jobs and addresses")

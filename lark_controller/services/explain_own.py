"""The part of an explanation that a user without rights gets: the verdict, and what concerns the user's own jobs.

The whole explanation names the other job, its user, its slot, rules with their predicates, and switches with their
flows. Here the verdict stands alone, which the packet itself would tell, and of rules those that apply to own jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lark_common.errors import NotFoundError
from lark_common.runs import Address
from lark_controller.api.switches import Explanation, Step
from lark_controller.flows.placement import Placed
from lark_controller.services.explain import waits_for_gateway
from lark_controller.services.explain_ends import Ends, external_steps

_REASONS: Final = {
    "forwarded": "the network passes it on",
    "dropped": "the network drops it",
    "unknown": "not every switch on its way could be asked",
}


def require_end_of(ends: Ends, owner: str) -> None:
    """Raises NotFoundError where neither end is a live job of the user."""
    if not any(_is_own(placed, owner) for placed in (ends.src_job, ends.dst_job)):
        raise NotFoundError(f"neither {ends.src} nor {ends.dst} is the address of a live job of {owner}")


def explained_to(owner: str, ends: Ends, whole: Explanation) -> Explanation:
    """The explanation for a user who sees own jobs alone."""
    steps = [
        *_who(ends, ends.src, ends.src_job, owner),
        *_who(ends, ends.dst, ends.dst_job, owner),
        *external_steps(ends, owner),
    ]
    reason = _REASONS[whole.verdict]
    if whole.verdict == "dropped" and (by := _closed(ends, owner)) is not None:
        reason = f"{reason}: {by}"
    if whole.verdict == "forwarded":
        reason += ends.where_it_comes_by(owner)
    if ends.gateway and waits_for_gateway(ends, whole):
        reason = ends.gateway
    elif (until := ends.until_confirmed()) and whole.reason.endswith(until):
        reason += ends.until_confirmed(owner)
    return Explanation(whole.src, whole.dst, whole.verdict, reason, tuple(steps))


def _is_own(placed: Placed | None, owner: str) -> bool:
    return placed is not None and placed.job.owner == owner


def _closed(ends: Ends, owner: str) -> str | None:
    """A reason in an own job for which nothing of it passes."""
    for placed in (ends.src_job, ends.dst_job):
        if placed is not None and placed.job.owner == owner and placed.decision.isolated:
            return f"nothing of job {ends.called(placed.job, owner)} passes"
    return None


def _who(ends: Ends, address: Address, placed: Placed | None, owner: str) -> Iterator[Step]:
    if placed is None or placed.job.owner != owner:
        yield Step("directory", f"{address} is no address of a live job of {owner}")
        return
    job, called = placed.job, ends.called(placed.job, owner)
    yield Step("directory", f"{address} is job {called} ({job.id}) on {job.run.slot}, {job.state}")
    if placed.decision.quarantine:
        yield Step("pool", f"job {called} is quarantined: the pool contradicts its registration")
    if not placed.decision.because:
        yield Step("policy", f"no rule applies to job {called}")
    for because in placed.decision.because:
        where = f" (policy line {because.line})" if because.line else ""
        met = ", ".join(f"{name} = {value}" for name, value in because.values)
        yield Step(
            "policy",
            f"job {called}: {because.kind} rule {because.position}{where} applies{f': met {met}' if met else ''}",
        )

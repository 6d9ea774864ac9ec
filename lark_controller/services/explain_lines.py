"""The lines of the policy for drops by flows that are of no rule of their own: all jobs with slices, or with one-way
connectivity, share these, and the job that the packet is from or for says which rule it is. Pure."""

from __future__ import annotations

from lark_controller.flows.cookies import OWNER_TAG, Category, parse
from lark_controller.flows.drop_sources import is_inward
from lark_controller.flows.model import FlowData, FlowKey
from lark_controller.flows.placement import Placed
from lark_controller.flows.tables import Edge
from lark_controller.policies.model import RuleKind
from lark_controller.services.explain_ends import Ends

_SLICING = (Edge.SLICE_FROM, Edge.SLICE_TO)


def flow_line(ends: Ends, key: FlowKey, data: FlowData) -> str:
    """The line of the rule by which a flow of a worker's switch drops a packet, as a clause; ``""`` where it does not,
    or its origin has the line."""
    parts = parse(data.cookie)
    if parts.owner != OWNER_TAG or data.goto not in (None, Edge.DROPS) or data.actions:
        return ""
    # A slice's flow of its own has its rule; the controller's answer to a switch has none.
    slicing = parts.category == Category.SLICE and parts.number == 0
    if slicing or (parts.category == Category.REACTIVE and key.table in _SLICING):
        return rule_line(ends, RuleKind.SLICE, inward=key.table == Edge.SLICE_TO)
    if parts.category == Category.CONNECTIVITY:
        return rule_line(ends, RuleKind.CONNECTIVITY, inward=is_inward(key))
    return ""


def rule_line(ends: Ends, kind: RuleKind, *, inward: bool) -> str:
    """The line of the rule of this kind that drops what is for a job (``inward``) or from it, as a clause; ``""`` where
    none is known. Where the job has no slice it is the other's."""
    own, other = (ends.dst_job, ends.src_job) if inward else (ends.src_job, ends.dst_job)
    line = _line(own, kind)
    if not line and kind is RuleKind.BLOCK:
        line = _line(own, RuleKind.CONNECTIVITY)
    if not line and kind is RuleKind.SLICE:
        line = _line(other, kind)
    return f" (policy line {line})" if line else ""


def _line(placed: Placed | None, kind: RuleKind) -> int:
    found = () if placed is None else placed.decision.because
    return next((because.line for because in found if because.kind is kind), 0)

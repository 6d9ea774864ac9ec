"""The flows of an edge that drop packets for all of its jobs together, and the kind of rule of each. Pure.

A job without any network has flows of its own that drop; these here are shared, so their counters give the drops of
each rule, and the counting flows behind them those of each job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from lark_controller.flows import tables as t
from lark_controller.flows.cookies import Category, cookie, parse
from lark_controller.flows.edge.program import rules
from lark_controller.flows.model import FlowKey
from lark_controller.flows.tables import Edge
from lark_controller.policies.model import Decision, Policy, RuleKind, WanAction

_KINDS: Final = {
    Category.SLICE: RuleKind.SLICE,
    Category.WAN: RuleKind.WAN,
    Category.CONNECTIVITY: RuleKind.CONNECTIVITY,
}
_WHOLE: Final = (1 << 64) - 1
_CATEGORY: Final = 0xFFFFFF << 40
# Cookies and masks of the shared flows of some kinds. Two categories that differ in one bit are one request;
# slices' flows of their own are thousands, and none of them drops.
_SHARED: Final = {
    RuleKind.SLICE: (cookie(Category.SLICE), _WHOLE),
    RuleKind.WAN: (cookie(Category.WAN), _CATEGORY),
    RuleKind.CONNECTIVITY: (cookie(Category.CONNECTIVITY), _WHOLE),
}
_TOGETHER: Final = frozenset((RuleKind.WAN, RuleKind.CONNECTIVITY))
_WAN_AND_CONNECTIVITY: Final = (
    cookie(Category.WAN) & cookie(Category.CONNECTIVITY),
    _CATEGORY & ~(cookie(Category.WAN) ^ cookie(Category.CONNECTIVITY)),
)
_INWARD: Final = t.TO_WAN.mask | t.TO_MUTE.mask | t.TO_TRACKED.mask | t.TO_SLICED.mask


class DropSource(NamedTuple):
    """The reason for drops: a kind of rule, the position of a WAN rule (else 0), and the direction."""

    kind: RuleKind
    position: int
    inward: bool


def drop_sources(policy: Policy, *, tracks: bool) -> Mapping[FlowKey, DropSource]:
    """The shared flows of an edge that drop; ``tracks``: it tracks connections."""
    found = {}
    for flow in rules(policy, tracks=tracks):
        parts = parse(flow.data.cookie)
        kind = _KINDS.get(Category(parts.category))
        if kind is not None and flow.data.goto == Edge.DROPS:
            position = parts.number if kind is RuleKind.WAN else 0
            found[flow.key] = DropSource(kind, position, is_inward(flow.key))
    return found


def is_inward(key: FlowKey) -> bool:
    """True for a shared flow that drops what is for a job, false for one that drops what a job sends."""
    return any(name == "metadata" and mask & _INWARD for name, _, mask in key.match)


def cookies_of(sources: Iterable[DropSource]) -> tuple[tuple[int, int], ...]:
    """The cookies and masks that choose the shared flows of some reasons, in as few as there can be."""
    kinds = {source.kind for source in sources}
    together = kinds >= _TOGETHER
    apart = tuple(_SHARED[kind] for kind in sorted(kinds - _TOGETHER if together else kinds))
    return (*apart, _WAN_AND_CONNECTIVITY) if together else apart


def may_drop(decision: Decision, policy: Policy, inward: bool, *, ruled: bool = False) -> Iterator[DropSource]:
    """The shared flows that may drop what a job sends, or (``inward``) what is sent to it; ``ruled``: its worker
    enforces the rules. Of a job that is isolated none: it has flows of its own for that."""
    if decision.isolated:
        return
    if decision.slice is not None or (policy.slices and not ruled):
        yield DropSource(RuleKind.SLICE, 0, inward)
    rule = next((each for each in policy.wans if each.position == decision.wan), None) if decision.wan else None
    if rule is not None and rule.action is WanAction.DROP:
        yield DropSource(RuleKind.WAN, rule.position, inward)
    if decision.one_way and decision.outbound == inward:
        yield DropSource(RuleKind.CONNECTIVITY, 0, inward)


def are_several(decision: Decision, policy: Policy) -> bool:
    """True where more than one rule may drop a job's packets in the same direction, so that the flows' counters say
    which of them did."""
    # Of most jobs that is seen at once: they have a slice alone.
    if not decision.wan and not decision.one_way:
        return False
    return any(len(tuple(may_drop(decision, policy, inward))) > 1 for inward in (False, True))

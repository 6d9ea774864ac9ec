"""The flows of an edge that drop packets for all of its jobs together, and the kind of rule of each. Pure.

A job without any network has flows of its own that drop; these here are shared, so their counters give the drops of
each rule, and the counting flows behind them those of each job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from lark_controller.flows import tables as t
from lark_controller.flows.cookies import Category, cookie, parse
from lark_controller.flows.edge.program import rules
from lark_controller.flows.model import FlowKey
from lark_controller.flows.tables import Edge
from lark_controller.policies.model import Policy, RuleKind

_KINDS: Final = {
    Category.SLICE: RuleKind.SLICE,
    Category.WAN: RuleKind.WAN,
    Category.CONNECTIVITY: RuleKind.CONNECTIVITY,
}
_WHOLE: Final = (1 << 64) - 1
_CATEGORY: Final = 0xFFFFFF << 40
# The cookies of the shared flows that may drop, with their masks.
COOKIES: Final = (
    (cookie(Category.SLICE), _WHOLE),
    (cookie(Category.WAN), _CATEGORY),
    (cookie(Category.CONNECTIVITY), _WHOLE),
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
            inward = any(name == "metadata" and mask & _INWARD for name, _, mask in flow.key.match)
            position = parts.number if kind is RuleKind.WAN else 0
            found[flow.key] = DropSource(kind, position, inward)
    return found

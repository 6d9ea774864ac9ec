"""A marker: the flow that shows that an edge holds a program whole, confirmed, and which one. Pure.

It matches no packet. Its cookie and its match carry the fingerprint of the program, the number of its flows, and what
the switch's handshake found out by trying. Whoever changes flows takes the marker away first, so a switch that has one
holds what it held when the marker was set, unless somebody else has changed it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from lark_controller.flows.cookies import CATEGORY_MASK, NUMBER_BITS, Category, cookie, parse
from lark_controller.flows.fingerprint import BITS
from lark_controller.flows.model import Flow, FlowData, FlowKey, Match, match

# Cookie and mask that choose markers.
MARKERS: Final = cookie(Category.MARKER), CATEGORY_MASK
# No frame has this source: the first bit of a source address is 0 (IEEE 802.3, 3.2.3).
NO_SOURCE: Final = 0xFFFFFFFFFFFF
# The fingerprint of a core's marker, which stands for no program: it shows what the handshake found out, and no more.
NO_PROGRAM: Final = 0
MOST_RULES: Final = (1 << 16) - 1
# Of a fingerprint, so many bits are in the cookie, beside two for the findings; the others are in the match.
_LOW_BITS: Final = NUMBER_BITS - 2
_HIGH_BITS: Final = BITS - _LOW_BITS


class Marker(NamedTuple):
    """The contents of a marker: the fingerprint of the program, the number of its flows (at most MOST_RULES), and
    whether NORMAL and connection tracking work on the switch."""

    fingerprint: int
    rules: int
    normal: bool
    tracks: bool

    def flow(self, table: int) -> Flow:
        """The marker as a flow in a table."""
        low = self.fingerprint & (1 << _LOW_BITS) - 1
        number = self.normal << NUMBER_BITS - 1 | self.tracks << NUMBER_BITS - 2 | low
        carried = self.rules << _HIGH_BITS | self.fingerprint >> _LOW_BITS
        key = FlowKey(table, 0, match(eth_src=NO_SOURCE, eth_dst=carried))
        return Flow(key, FlowData(cookie(Category.MARKER, number)))


def read_marker(found: Match, value: int) -> Marker | None:
    """The marker of a flow's match and cookie; None where it is none."""
    parts = parse(value)
    terms = {term.name: term.value for term in found}
    if parts.category != Category.MARKER or terms.keys() != {"eth_src", "eth_dst"}:
        return None
    rules, high = divmod(terms["eth_dst"], 1 << _HIGH_BITS)
    flags, low = divmod(parts.number, 1 << _LOW_BITS)
    return Marker(high << _LOW_BITS | low, rules, bool(flags & 2), bool(flags & 1))

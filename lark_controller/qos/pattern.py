"""RequestMpiBandwidth: the rates between a parallel job's nodes, out of its submit file. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Final

from lark_common.errors import AdError
from lark_controller.policies.rates import ACCEPTED_MEGABITS, megabits
from lark_controller.qos.topology import requested_rate

ATTRIBUTE: Final = "RequestMpiBandwidth"
ACCEPTED: Final = (
    'accepted: "all RATE", "ring RATE", "neighbours 2x4 RATE" or "neighbours 2x4 periodic RATE", or a table such as '
    '"0>1 RATE, 1>0 RATE", with RATE as 40Mbit, or in Mb/s; "steady" at the end'
)
# Flows of a pattern. Each is a reservation, and any user may ask for them.
MOST: Final = 4_096
_STEADY: Final = "steady"
# Each with a length of its own at most, so that numbers stay numbers.
_GRID: Final = re.compile(r"[0-9]{1,6}(?:x[0-9]{1,6}){0,7}")
_ROW: Final = re.compile(r"([0-9]{1,6})\s*>\s*([0-9]{1,6})\s+(\S+)")

# kb/s by the nodes from and to.
Rates = Mapping[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class NodePattern:
    """The flows between a job's nodes. ``steady``: each has its rate and no more."""

    text: str
    rates: Rates
    steady: bool


def node_pattern(text: str, nodes: int) -> NodePattern:
    """The pattern of a job of so many nodes. Raises AdError."""
    words = text.split()
    steady = words[-1:] == [_STEADY]
    words = words[:-1] if steady else words
    kind = words[0] if words else ""
    rates = _KINDS[kind](words[1:], nodes) if kind in _KINDS else _table(" ".join(words), nodes)
    _check_count(len(rates))
    return NodePattern(text, MappingProxyType(rates), steady)


def _check_count(flows: int) -> None:
    """Raise AdError for too many flows; before they are made, since all posts wait while one is booked."""
    if flows > MOST:
        raise AdError(ATTRIBUTE, f"{flows} flows; at most {MOST} are accepted")


def _all(words: list[str], nodes: int) -> dict[tuple[int, int], int]:
    rate = _only_rate(words)
    _check_count(nodes * (nodes - 1))
    return {(here, there): rate for here in range(nodes) for there in range(nodes) if here != there}


def _ring(words: list[str], nodes: int) -> dict[tuple[int, int], int]:
    rate = _only_rate(words)
    return {(here, (here + 1) % nodes): rate for here in range(nodes)} if nodes > 1 else {}


def _neighbours(words: list[str], nodes: int) -> dict[tuple[int, int], int]:
    periodic = words[1:2] == ["periodic"]
    if len(words) != 2 + periodic or not _GRID.fullmatch(words[0]):
        raise AdError(ATTRIBUTE, ACCEPTED)
    rate, sides = _rate(words[-1]), [int(side) for side in words[0].split("x")]
    if prod(sides) != nodes:
        raise AdError(ATTRIBUTE, f"a grid of {words[0]} has {prod(sides)} nodes, and the job has {nodes}")
    # In a line of two both neighbours are one node, also where it is closed to a ring.
    _check_count(sum(nodes // side * 2 * (side if periodic and side > 2 else side - 1) for side in sides))
    found: dict[tuple[int, int], int] = {}
    for here in range(nodes):
        stride = nodes
        for side in sides:
            stride //= side
            place = here // stride % side
            for step in (-1, 1):
                if periodic or 0 <= place + step < side:
                    there = here + ((place + step) % side - place) * stride
                    if there != here:
                        # Both neighbours may be the same node.
                        found[here, there] = found.get((here, there), 0) + rate
    return found


def _table(text: str, nodes: int) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    for row in text.split(","):
        parts = _ROW.fullmatch(row.strip())
        if parts is None:
            raise AdError(ATTRIBUTE, f"{row.strip()[:60]!a} is not understood; {ACCEPTED}")
        here, there = int(parts[1]), int(parts[2])
        if max(here, there) >= nodes:
            raise AdError(ATTRIBUTE, f"there is no node {max(here, there)}; the job has nodes 0 to {nodes - 1}")
        if here == there or (here, there) in found:
            raise AdError(ATTRIBUTE, f"{here}>{there} is a node to itself, or stands twice")
        found[here, there] = _rate(parts[3])
    return found


def _only_rate(words: list[str]) -> int:
    if len(words) != 1:
        raise AdError(ATTRIBUTE, ACCEPTED)
    return _rate(words[0])


def _rate(text: str) -> int:
    """A rate in kb/s."""
    kbps = requested_rate(megabits(text) or 0)
    if not kbps:
        raise AdError(ATTRIBUTE, f"{text[:60]!a} is no rate; accepted: {ACCEPTED_MEGABITS}")
    return kbps


_KINDS: Final[Mapping[str, Callable[[list[str], int], dict[tuple[int, int], int]]]] = MappingProxyType(
    {"all": _all, "ring": _ring, "neighbours": _neighbours}
)

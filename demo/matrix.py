"""The connections between all ends, as the policy's words let one expect them and as pings find them, in IPv4 and IPv6.

The expected ones are derived here from the rules as a person reads them, without any code of the controller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from demo.topology import Topology
from demo.watch import Watch
from lab.namespaces import Host

AT_ONCE = 40
CLOSED = "-"
REACHED = "yes"


@dataclass(frozen=True, slots=True)
class End:
    """One who asks or is asked: a job (``owner``), an unregistered port (``stray``), or an address of the outside."""

    name: str
    short: str
    host: Host
    ipv4: str
    ipv6: str
    owner: str = ""
    outside: bool = False
    stray: bool = False

    @property
    def addresses(self) -> tuple[str, str]:
        """Its IPv4 and its IPv6 address."""
        return self.ipv4, self.ipv6


@dataclass(frozen=True, slots=True)
class Rules:
    """The policy in words that a person would use; ``registered`` False is before and after the jobs."""

    registered: bool = True
    blocked: frozenset[str] = frozenset()
    no_wan: Mapping[str, frozenset[str]] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)

    def cell(self, source: End, target: End) -> str:
        """The expected result between two ends: closed, reached, or the WAN link that carries it."""
        ends = [end for end in (source, target) if not end.outside]
        owners = {end.owner for end in ends}
        if not self.registered or any(end.stray for end in ends) or owners & self.blocked:
            return CLOSED
        if len(ends) == 2:
            return REACHED if len(owners) == 1 else CLOSED
        outside = source if source.outside else target
        (owner,) = owners
        if owner in self.no_wan and outside.name not in self.no_wan[owner]:
            return CLOSED
        return REACHED if source.outside else self.links.get(owner, "wan")


Pair = tuple[End, End]
Cells = dict[Pair, tuple[str, str]]


def pairs(ends: Sequence[End]) -> list[Pair]:
    """Every question: each end to each other, the outside's own addresses left out."""
    return [(a, b) for a in ends for b in ends if a != b and not (a.outside and b.outside)]


def expect(ends: Sequence[End], rules: Rules) -> Cells:
    """The expected result of every pair in IPv4 and IPv6."""
    return {(a, b): (cell := rules.cell(a, b), cell) for a, b in pairs(ends)}


def measure(topology: Topology, ends: Sequence[End], expected: Cells) -> Cells:
    """The measured result of every pair. Address resolution is forgotten first: it is part of every measurement."""
    for host in {id(end.host): end.host for end in ends}.values():
        topology.net.forget_neighbours(host)
    asked = [(a, b, version) for a, b in pairs(ends) for version in (0, 1)]
    watch = Watch(topology)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda each: _answers(topology, each, expected), asked))
    carried = watch.finish()
    texts = {}
    for (a, b, version), reached in zip(asked, found, strict=True):
        links = carried.get((a.addresses[version], b.addresses[version]), frozenset()) if b.outside else frozenset()
        texts[a, b, version] = _text(reached, links, b.outside)
    return {(a, b): (texts[a, b, 0], texts[a, b, 1]) for a, b in pairs(ends)}


def _answers(topology: Topology, question: tuple[End, End, int], expected: Cells) -> bool:
    source, target, version = question
    ask = source.host, source.addresses[version], target.addresses[version]
    reached = topology.ping(*ask, tries=2, wait=0.5)
    if not reached and expected[source, target][version] != CLOSED:
        # A busy machine may lose or delay a packet; a switch that refuses does so every time.
        reached = topology.ping(*ask, tries=5, wait=3.0)
    return reached


def _text(reached: bool, links: frozenset[str], outside: bool) -> str:
    if not outside:
        return REACHED if reached else CLOSED
    via = "+".join(sorted(links))
    if reached:
        return via or REACHED
    # A request that got out is no refusal, whether or not the answer came back.
    return f"out:{via}" if via else CLOSED


def render(ends: Sequence[End], expected: Cells, measured: Cells) -> list[str]:
    """Both matrices beside each other, as aligned lines."""
    sides = [
        [[end.short for end in ends], *([_cell(matrix, a, b) for b in ends] for a in ends)]
        for matrix in (expected, measured)
    ]
    # A cell that is not as expected may be longer than any other.
    widths = [[max(len(row[column]) for row in side) for column in range(len(ends))] for side in sides]
    labels = ["from \\ to", *(f"{end.name} {end.short}" for end in ends)]
    label_width = max(map(len, labels))
    lines = []
    for number, label in enumerate(labels):
        name, _, short = ("from \\ to", "", "") if number == 0 else label.rpartition(" ")
        start = f"{name}{short.rjust(label_width - len(name))}"
        halves = [
            "  ".join(cell.ljust(width) for cell, width in zip(side[number], width_, strict=True))
            for side, width_ in zip(sides, widths, strict=True)
        ]
        lines.append(f"{start}   {halves[0]}  |  {halves[1]}".rstrip())
    measured_at = lines[0].index("|") + 3
    return ["EXPECTED".rjust(label_width + 11).ljust(measured_at) + "MEASURED", *lines]


def _cell(cells: Cells, source: End, target: End) -> str:
    if (source, target) not in cells:
        return ""
    four, six = cells[source, target]
    four, six = four.replace("wan-fast", "fast"), six.replace("wan-fast", "fast")
    return four if four == six else f"{four}/{six}"


def differences(expected: Cells, measured: Cells) -> list[str]:
    """The cells that are not as expected, in words."""
    return [
        f"{a.name} to {b.name} by IPv{number}: {measured[a, b][version]}, expected {expected[a, b][version]}"
        for a, b in expected
        for version, number in ((0, 4), (1, 6))
        if expected[a, b][version] != measured[a, b][version]
    ]

"""The answers of ``lark explain`` for every cell of a matrix, compared with what the switches do."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

from demo.matrix import CLOSED, REACHED, Cells, End, Pair
from demo.service import Service


def verdicts(service: Service, cells: Cells) -> dict[tuple[End, End, int], tuple[str, str]]:
    """The verdict and the reason for each pair, in IPv4 (0) and IPv6 (1), over REST."""
    asked = [(a, b, version) for a, b in cells for version in (0, 1)]

    def ask(question: tuple[End, End, int]) -> tuple[str, str]:
        source, target, version = question
        found = service.client.explain(source.addresses[version], target.addresses[version])
        return found["verdict"], found["reason"]

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(asked, pool.map(ask, asked), strict=True))


def disagreements(found: dict[tuple[End, End, int], tuple[str, str]], measured: Cells) -> list[str]:
    """The cells where explanation and packets differ: passed or not, or by which WAN link."""
    wrong = []
    for (source, target, version), (verdict, reason) in found.items():
        cell = measured[source, target][version]
        passes = cell != CLOSED
        link = cell if passes and cell != REACHED else ""
        if (verdict == "forwarded") != passes or (link and not reason.endswith(f" {link}")):
            wrong.append(
                f"{source.name} to {target.name} by IPv{'46'[version]}: explain has {verdict}, {reason}; "
                f"the packets say {cell}"
            )
    return wrong


def examples(found: dict[tuple[End, End, int], tuple[str, str]]) -> dict[str, list[Pair]]:
    """The pairs that are refused in IPv4, by what decides: names of switches and jobs' ids in the reason left out."""
    kinds: dict[str, list[Pair]] = {}
    for (source, target, version), (verdict, reason) in found.items():
        if verdict == "dropped" and version == 0:
            kind = re.sub(r"^\w+ |\b[0-9a-f]{16}\b|\b\d+\.\d+\b|slot\S+", "", reason)
            kinds.setdefault(kind, []).append((source, target))
    return kinds


def last_line(explanation: str) -> str:
    """The outcome, from the last line of the command's output."""
    return explanation.strip().splitlines()[-1]

"""The difference of two policy texts, line by line (the algorithm of Myers, 1986), for operators who read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

# Texts with more changes than this are shown as replaced in one piece: the time of a comparison grows with this number.
MOST_CHANGES: Final = 400
# Unchanged lines around a change.
CONTEXT: Final = 3


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference of two texts: how many lines came and went, and a unified diff without a header."""

    added: Annotated[int, "Lines that the new text has more"]
    removed: Annotated[int, "Lines that it has no longer"]
    diff: Annotated[str, "A unified diff, empty where the texts are equal"]


def compare(old: str, new: str) -> Comparison:
    """Compare two texts by their lines."""
    before, after = _lines(old), _lines(new)
    shorter = min(len(before), len(after))
    head = next((at for at in range(shorter) if before[at] != after[at]), shorter)
    tail = next((at for at in range(shorter - head) if before[-1 - at] != after[-1 - at]), shorter - head)
    signs = " " * head + _signs(before[head : len(before) - tail], after[head : len(after) - tail]) + " " * tail
    return Comparison(signs.count("+"), signs.count("-"), _unified(before, after, signs))


def _lines(text: str) -> list[str]:
    *lines, rest = text.split("\n")
    # As other programs write it, so that texts are equal where they have the same digest.
    return [*lines, f"{rest}\n\\ No newline at end of file"] if rest else lines


def _signs(before: list[str], after: list[str]) -> str:
    """A sign a line: ``-`` for one of ``before`` alone, ``+`` for one of ``after`` alone, a space for one of both."""
    trail: list[dict[int, int]] = []
    reach = {1: 0}
    for changes in range(min(len(before) + len(after), MOST_CHANGES) + 1):
        trail.append(reach.copy())
        for diagonal in range(-changes, changes + 1, 2):
            down = _is_down(reach, diagonal, changes)
            x = reach[diagonal + 1] if down else reach[diagonal - 1] + 1
            while x < len(before) and x - diagonal < len(after) and before[x] == after[x - diagonal]:
                x += 1
            reach[diagonal] = x
            if x >= len(before) and x - diagonal >= len(after):
                return _way_back(trail, len(before), len(after))
    return "-" * len(before) + "+" * len(after)


def _is_down(reach: dict[int, int], diagonal: int, changes: int) -> bool:
    return diagonal == -changes or (diagonal != changes and reach[diagonal - 1] < reach[diagonal + 1])


def _way_back(trail: list[dict[int, int]], x: int, y: int) -> str:
    signs: list[str] = []
    for changes in range(len(trail) - 1, -1, -1):
        reach = trail[changes]
        came = x - y + 1 if _is_down(reach, x - y, changes) else x - y - 1
        from_x = reach[came]
        from_y = from_x - came
        while x > from_x and y > from_y:
            signs.append(" ")
            x, y = x - 1, y - 1
        if changes:
            signs.append("+" if x == from_x else "-")
        x, y = from_x, from_y
    return "".join(reversed(signs))


def _unified(before: list[str], after: list[str], signs: str) -> str:
    """The hunks of a unified diff: each change with some lines of context, and where it stands in both texts."""
    shown: list[str] = []
    x = y = 0
    changed = [at for at, sign in enumerate(signs) if sign != " "]
    near: set[int] = set()
    for at in changed:
        near.update(range(max(0, at - CONTEXT), min(len(signs), at + CONTEXT + 1)))
    start, first = -1, (0, 0)
    for at, sign in enumerate(signs):
        if at in near:
            if start < 0:
                start, first = len(shown), (x, y)
                shown.append("")
            shown.append(sign + (after[y] if sign == "+" else before[x]))
        x, y = x + (sign != "+"), y + (sign != "-")
        if start >= 0 and at + 1 not in near:
            shown[start] = f"@@ -{_span(first[0], x)} +{_span(first[1], y)} @@"
            start = -1
    return "".join(f"{line}\n" for line in shown)


def _span(first: int, end: int) -> str:
    length = end - first
    return f"{first + (length > 0)},{length}"

"""From a counter's readings to what it counted, across restarts and wraps. Pure.

A switch's counters go on for as long as the port or flow lives; a port that is made anew begins at 0, and counters of
old hardware have 32 bits. A reading that fell is one or the other: where every counter of the port begins anew, all of
them fall together (those that counted anything), while a wrap takes one of them, from the end of its range to the
beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import sub
from typing import Final

_RANGES: Final = (1 << 32, 1 << 64)


def counted(before: Sequence[int], now: Sequence[int]) -> tuple[int, ...]:
    """The counts of one port or flow between two readings, ``before`` and ``now``, in the same order.

    Counters that began anew count from 0. Their counts between ``before`` and their restart are lost; and
    of a restart after which all counters are past ``before`` again, nothing shows.
    """
    grown = tuple(map(sub, now, before))
    if min(grown) >= 0:
        return grown
    wraps = [_wrapped(old, new) for old, new in zip(before, now, strict=True)]
    fell = [new < old for old, new in zip(before, now, strict=True)]
    went_on = any(old and not down for old, down in zip(before, fell, strict=True))
    if went_on and all(wrap is not None for wrap, down in zip(wraps, fell, strict=True) if down):
        return tuple(
            new - old if wrap is None else new + wrap - old for old, new, wrap in zip(before, now, wraps, strict=True)
        )
    return tuple(now)


def _wrapped(old: int, new: int) -> int | None:
    """The range of a counter that went over its end: it was in the last quarter and is in the first now."""
    if new >= old:
        return None
    for size in _RANGES:
        if old < size:
            return size if old >= size - size // 4 and new < size // 4 else None
    return None

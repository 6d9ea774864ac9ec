"""Sums of rows, column by column. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

K = TypeVar("K")


def added(rows: Mapping[K, Sequence[Sequence[int]]]) -> dict[K, tuple[int, ...]]:
    """The sums of each key's rows. Columns are added up in C: thousands of rows come together."""
    return {
        key: tuple(some[0]) if len(some) == 1 else tuple(map(sum, zip(*some, strict=True)))
        for key, some in rows.items()
    }

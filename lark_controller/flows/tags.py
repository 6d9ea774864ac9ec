"""Slice tags: the small numbers that stand for slices in a switch's metadata. Pure, and without memory.

Tags are a switch's own: only slices with a job there need one. They are a function of the set of slices alone (a hash,
and in the rare case of a collision the next free number in sorted order), so the same jobs give the same flows in
whatever order they came.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

from lark_controller.flows.tables import TAG_BITS
from lark_controller.policies.model import SliceKey


@lru_cache(maxsize=16_384)
def _digest(key: SliceKey) -> int:
    text = f"{key.rule}\n{key.value}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


def assign_tags(keys: Iterable[SliceKey], bits: int = TAG_BITS) -> dict[SliceKey, int]:
    """A tag from 1 to 2**bits - 1 for each slice, all different. Raises ValueError with more slices than tags."""
    size = (1 << bits) - 1
    wanted = sorted(set(keys))
    if len(wanted) > size:
        raise ValueError(f"{len(wanted)} slices on one switch; {size} is the most that metadata can tell apart")
    taken: dict[int, SliceKey] = {}
    for key in wanted:
        place = _digest(key) % size
        while place in taken:
            place = (place + 1) % size
        taken[place] = key
    return {key: place + 1 for place, key in taken.items()}


@dataclass(slots=True)
class LocalJobs:
    """The sums of a switch's own jobs: their numbers, how many of each slice, the slices' tags."""

    numbers: set[int] = field(default_factory=set)
    slices: dict[SliceKey, int] = field(default_factory=dict)
    assigned: dict[SliceKey, int] = field(default_factory=dict)
    stale: bool = False

    @property
    def tags(self) -> dict[SliceKey, int]:
        """The slices' tags, assigned when they are asked for."""
        if self.stale:
            self.assigned, self.stale = assign_tags(self.slices), False
        return self.assigned

    def moved(self, leaves: SliceKey | None, comes: SliceKey | None) -> frozenset[SliceKey]:
        """The slices whose tag would come, go or change if a job left one slice and came into another."""
        counts = dict(self.slices)
        for key, step in ((leaves, -1), (comes, 1)):
            if key is not None:
                counts[key] = counts.get(key, 0) + step
        keys = {key for key, count in counts.items() if count > 0}
        if keys == self.tags.keys():
            return frozenset()
        tags = assign_tags(keys)
        return frozenset(key for key in keys | self.tags.keys() if tags.get(key) != self.tags.get(key))

    def copy(self) -> LocalJobs:
        """The same sums, to be changed apart."""
        return LocalJobs(set(self.numbers), dict(self.slices), self.assigned, self.stale)

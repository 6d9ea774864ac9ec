"""Slice tags: the small numbers that stand for slices in a switch's metadata. Pure, and without memory.

Tags are a switch's own: only slices with a job there need one. They are a function of the set of slices alone (a hash,
and in the rare case of a collision the next free number in sorted order), so the same jobs give the same flows in
whatever order they came.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

from lark_controller.flows.tables import TAG_BITS
from lark_controller.policies.model import SliceKey


@lru_cache(maxsize=16_384)
def _digest(key: SliceKey) -> int:
    text = f"{key.rule}\n{key.value}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


def natural_tag(key: SliceKey, bits: int = TAG_BITS) -> int:
    """The tag of a slice where no other slice has it."""
    return _digest(key) % ((1 << bits) - 1) + 1


def assign_tags(keys: Iterable[SliceKey], bits: int = TAG_BITS) -> dict[SliceKey, int]:
    """A tag from 1 to 2**bits - 1 for each slice, all different. Raises ValueError with more slices than tags."""
    size = (1 << bits) - 1
    ordered = sorted(set(keys))
    if len(ordered) > size:
        raise ValueError(f"{len(ordered)} slices on one switch; {size} is the most that metadata can tell apart")
    taken: dict[int, SliceKey] = {}
    for key in ordered:
        place = _digest(key) % size
        while place in taken:
            place = (place + 1) % size
        taken[place] = key
    return {key: place + 1 for place, key in taken.items()}


@dataclass(slots=True)
class LocalJobs:
    """The sums of a switch's own jobs: their numbers, how many of each slice, the slices' tags.

    ``crowded`` is True where a tag may not be its slice's own. While none is, a slice comes and goes by itself. Tags
    are kept over the next such change alone after they were ``asked`` for: each copies all, and at a start, or where
    a switch is placed anew, there may be thousands before anybody asks.
    """

    numbers: set[int] = field(default_factory=set)
    slices: dict[SliceKey, int] = field(default_factory=dict)
    assigned: dict[SliceKey, int] = field(default_factory=dict)
    crowded: bool = False
    stale: bool = False
    asked: bool = False

    @property
    def tags(self) -> dict[SliceKey, int]:
        """The slices' tags, assigned when they are asked for."""
        self.asked = True
        if self.stale:
            self.assigned, self.stale = assign_tags(self.slices), False
            self.crowded = any(natural_tag(key) != tag for key, tag in self.assigned.items())
        return self.assigned

    def moved(self, leaves: SliceKey | None, comes: SliceKey | None) -> frozenset[SliceKey]:
        """The slices whose tag would come, go or change if a job left one slice and came into another."""
        gone = leaves is not None and leaves != comes and self.slices.get(leaves) == 1
        new = comes is not None and comes not in self.slices
        if not gone and not new:
            return frozenset()
        tags = self.tags
        # One that finds its own place free pushes no other away, and where each has its own none comes back to it.
        if (not gone or not self.crowded) and (comes is None or not new or natural_tag(comes) not in tags.values()):
            return frozenset(key for key, moves in ((leaves, gone), (comes, new)) if moves and key is not None)
        counts = dict(self.slices)
        for key, step in ((leaves, -1), (comes, 1)):
            if key is not None:
                counts[key] = counts.get(key, 0) + step
        keys = {key for key, count in counts.items() if count > 0}
        after = assign_tags(keys)
        return frozenset(key for key in keys | tags.keys() if after.get(key) != tags.get(key))

    def begin(self, key: SliceKey) -> None:
        """Give a slice that has its first job here a tag."""
        if not self._follows():
            return
        if (tag := natural_tag(key)) in self.assigned.values():
            self.stale = True
        else:
            # Others may hold the tags of before.
            self.assigned = self.assigned | {key: tag}

    def end(self, key: SliceKey) -> None:
        """Take the tag of a slice that has no job here any more."""
        if not self._follows():
            return
        if self.crowded:
            self.stale = True
        else:
            self.assigned = self.assigned.copy()
            del self.assigned[key]

    def _follows(self) -> bool:
        """True where the tags are to follow a slice that comes or goes, and not to be assigned anew when they are asked
        for."""
        self.stale = self.stale or not self.asked
        self.asked = False
        return not self.stale

    def copy(self) -> LocalJobs:
        """The same sums, to be changed apart."""
        return LocalJobs(set(self.numbers), dict(self.slices), self.assigned, self.crowded, self.stale, self.asked)


class JobsByEdge:
    """The jobs that belong to each edge, and the edges where each slice has a job."""

    def __init__(self) -> None:
        self._at: dict[int, LocalJobs] = {}
        self._edges: dict[SliceKey, set[int]] = {}
        # Those that a copy has as well: they are copied before they change, so that a copy itself takes little time.
        self._shared: set[int] = set()

    def at(self, datapath: int | None) -> LocalJobs:
        """The jobs of an edge."""
        found = None if datapath is None else self._at.get(datapath)
        return LocalJobs() if found is None else found

    def edges(self) -> Iterator[int]:
        """The edges that have jobs."""
        return (datapath for datapath, local in self._at.items() if local.numbers)

    def edges_of(self, key: SliceKey) -> Set[int]:
        """The edges that have jobs of a slice."""
        return self._edges.get(key, frozenset())

    def add(self, datapath: int, number: int, key: SliceKey | None) -> None:
        """Add a job to an edge; ``key`` is the slice that needs a tag there for it."""
        local = self._own(datapath)
        local.numbers.add(number)
        if key is not None:
            before = local.slices.get(key, 0)
            local.slices[key] = before + 1
            if not before:
                self._edges.setdefault(key, set()).add(datapath)
                local.begin(key)

    def add_all(self, datapath: int, numbers: Iterable[int]) -> None:
        """:meth:`add` of jobs of which none needs a tag there."""
        self._own(datapath).numbers.update(numbers)

    def take(self, datapath: int, number: int, key: SliceKey | None) -> None:
        """Take a job from its edge, with the slice with which it was added."""
        local = self._own(datapath)
        local.numbers.discard(number)
        if key is None:
            return
        local.slices[key] -= 1
        if not local.slices[key]:
            del local.slices[key]
            edges = self._edges[key]
            edges.discard(datapath)
            if not edges:
                del self._edges[key]
            local.end(key)

    def _own(self, datapath: int) -> LocalJobs:
        """The jobs of an edge, to be changed."""
        local = self._at.get(datapath)
        if local is None:
            local = self._at[datapath] = LocalJobs()
        elif datapath in self._shared:
            self._shared.discard(datapath)
            local = self._at[datapath] = local.copy()
        return local

    def copy(self) -> JobsByEdge:
        """The same jobs, to be changed apart."""
        other = JobsByEdge()
        other._at = dict(self._at)
        self._shared, other._shared = set(self._at), set(self._at)
        other._edges = {key: set(edges) for key, edges in self._edges.items()}
        return other

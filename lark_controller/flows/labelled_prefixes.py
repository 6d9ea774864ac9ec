"""Addresses with labels as few aligned prefixes for each label, kept up to date one address at a time. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from lark_controller.flows.prefixes import FULL, Delta, Prefix, PrefixSet, pack, unpack

# Up to this size the addresses of a block are looked up one by one; above, the live addresses are gone through.
_ENUMERABLE: Final = 1 << 12


@dataclass(slots=True)
class _Block:
    """A block that at least one live address came from, with the live addresses inside, from any source."""

    prefix: Prefix
    users: int = 0
    members: dict[int, None] = field(default_factory=dict)
    labels: dict[Hashable, int] = field(default_factory=dict)

    @property
    def whole(self) -> Hashable:
        """The one label that every live address in the block has, or None."""
        return next(iter(self.labels)) if len(self.labels) == 1 else None

    def join(self, key: int, label: Hashable) -> None:
        self.members[key] = None
        self.labels[label] = self.labels.get(label, 0) + 1

    def join_all(self, keys: list[int], labels: Mapping[int, Hashable | None]) -> None:
        """Take in many live addresses, which mostly have one label."""
        self.members.update(dict.fromkeys(keys))
        here = [labels[key] for key in keys]
        # Two labels are compared by identity first, and hashing one takes as long as all else for an address.
        counts = {here[0]: len(here)} if here.count(here[0]) == len(here) else Counter(here)
        for label, count in counts.items():
            self.labels[label] = self.labels.get(label, 0) + count

    def leave(self, key: int, label: Hashable) -> None:
        del self.members[key]
        self.labels[label] -= 1
        if not self.labels[label]:
            del self.labels[label]


class LabelledPrefixes:
    """The prefixes that hold the addresses of each label, where addresses may come from reserved blocks.

    A block counts as a whole for a label while every live address in it, from that block or not, has that label;
    otherwise each of its halves counts so, down to single addresses. An address with the label None is live and belongs
    to no label, so it breaks the blocks that it is in. The cover of a label depends on what is there alone, never on
    the order in which it came. Every live address is covered by its own label's prefixes and by no other's. A change
    costs at most the live addresses of the largest block around the address, the first of a block of more than 4,096
    all live addresses. Mutable, for one thread.

    The covers of labels that are ``unasked`` are not kept, and their changes not returned, until one is asked for.
    """

    __slots__ = ("_block_of", "_blocks", "_labels", "_lengths", "_sets", "_shared", "_unasked", "changes")

    def __init__(self, unasked: Iterable[Hashable] = ()) -> None:
        self._unasked = set(unasked)
        # Grows wherever a cover may change: while it is the same, all covers are.
        self.changes = 0
        self._labels: dict[int, Hashable] = {}
        # The block that each address came from, by its prefix, so that a copy of this one is one of its references.
        self._block_of: dict[int, Prefix] = {}
        self._blocks: dict[int, _Block] = {}
        self._lengths: dict[int, int] = {}
        self._sets: dict[Hashable, PrefixSet] = {}
        # Blocks that a copy has as well: they are copied before they change, so that a copy itself takes little time.
        self._shared: set[int] = set()

    def __len__(self) -> int:
        return len(self._labels)

    def copy(self) -> LabelledPrefixes:
        """The same addresses and labels, to be changed apart."""
        other = LabelledPrefixes(self._unasked)
        other._labels, other._lengths = dict(self._labels), dict(self._lengths)
        other._block_of = dict(self._block_of)
        other._blocks = dict(self._blocks)
        self._shared, other._shared = set(self._blocks), set(self._blocks)
        other._sets = {label: each.copy() for label, each in self._sets.items()}
        return other

    def covers(self) -> LabelledPrefixes:
        """The covers that are kept without the addresses that they are of, so they cannot be changed."""
        other = LabelledPrefixes()
        other._sets = {label: each.copy() for label, each in self._sets.items()}
        return other

    def digest(self, label: Hashable) -> bytes:
        """A digest of a label's cover; empty for a label without addresses."""
        found = self._cover(label)
        return b"" if found is None else found.digest()

    def labels(self) -> tuple[Hashable, ...]:
        """The labels that have an address, and whose covers are kept."""
        return tuple(self._sets)

    def prefixes(self, label: Hashable) -> tuple[Prefix, ...]:
        """The cover of a label, sorted; empty for a label without addresses."""
        found = self._cover(label)
        return () if found is None else tuple(sorted(found))

    def cover(self, label: Hashable) -> PrefixSet:
        """A copy of a label's cover."""
        found = self._cover(label)
        return PrefixSet() if found is None else found.copy()

    def count(self, label: Hashable) -> int:
        """The number of prefixes in the cover of a label."""
        found = self._cover(label)
        return 0 if found is None else len(found)

    def _cover(self, label: Hashable) -> PrefixSet | None:
        """The cover of a label, which is kept from now on; None for a label without addresses."""
        if label in self._unasked:
            self._unasked.discard(label)
            alone = {key for key, of in self._labels.items() if of == label}
            elements = list[int]()
            for block in self._blocks.values():
                if label in block.labels and self._holding(block.prefix)[0] is block:
                    alone.difference_update(block.members)
                    elements += [pack(prefix) for named, prefix in self._parts(block) if named == label]
            if alone or elements:
                self._sets[label] = PrefixSet.of([*alone, *elements])
        return self._sets.get(label)

    def put(
        self, address: tuple[int, int], block: Prefix | None, label: Hashable | None
    ) -> list[tuple[Hashable, Delta]]:
        """Add an address (version, value), or change its block and label; returns the changes of the covers.

        Raises ValueError for a block that does not hold the address.
        """
        single = Prefix(address[0], address[1], FULL[address[0]])
        if block is not None and not block.covers(single):
            raise ValueError(f"block {block} does not hold {single}")
        key = pack(single)
        old = self._block_of.get(key)
        live = key in self._labels
        if live and self._labels[key] == label and old == block:
            return []
        around = [each.prefix for each in self._around(single)]
        outermost = min([*around, block or single], key=lambda each: each.length)
        whole = self._blocks.get(pack(outermost))
        if not live and whole is not None and whole.labels.keys() == {label}:
            self._join(key, single, block, label)
            return []
        part = None
        if whole is not None and (block == outermost or self._stays(whole, key)):
            part = self._part(whole, key)
        before = self._elements(outermost) if part is None else self._elements_of(part, key)
        if live:
            self._leave(key, single)
        self._join(key, single, block, label)
        return self._change(before, self._elements(outermost) if part is None else self._elements_of(part, key))

    def fill(self, entries: Iterable[tuple[int, Prefix | None, Hashable | None]]) -> None:
        """:meth:`put` of many addresses, each :func:`packed`, into an empty set; covers are calculated once, at last.
        Raises ValueError for a block that does not hold its address."""
        assert not self._labels, "only an empty set is filled"
        self.changes += 1
        # Addresses that were there already, those out of no block, and those out of each.
        again, alone = list[tuple[int, Prefix | None, Hashable | None]](), list[int]()
        out_of: dict[Prefix, tuple[_Block, list[int]]] = {}
        labels, block_of = self._labels, self._block_of
        for key, prefix, label in entries:
            if key in labels:
                again.append((key, prefix, label))
                continue
            if prefix is None:
                alone.append(key)
            else:
                if (found := out_of.get(prefix)) is None:
                    found = out_of[prefix] = self._begin(prefix), []
                found[1].append(key)
                block_of[key] = found[0].prefix
            labels[key] = label
        for prefix, (_, keys) in out_of.items():
            # Between two of one version in the block there is none out of it.
            others = [key for key in keys if key & 1 != (prefix.version == 6)]
            for key in (*others, min(keys), max(keys)):
                if not _is_in(prefix, key):
                    raise ValueError(f"block {prefix} does not hold {unpack(key)}")
        outermost: dict[int, _Block] = {}
        elements: dict[Hashable, list[int]] = {}
        around = {prefix: self._holding(prefix) for prefix in out_of}
        split = {each.prefix for chain in around.values() for each in chain[:-1]}
        for prefix, (block, keys) in out_of.items():
            block.users = len(keys)
            if prefix in split:
                # Which of the blocks inside hold an address is looked up for each.
                alone += keys
                continue
            for each in around[prefix]:
                each.join_all(keys, self._labels)
            outermost[id(around[prefix][0])] = around[prefix][0]
        for key in alone:
            chain = self._around(unpack(key)) if self._lengths else []
            for each in chain:
                each.join(key, self._labels[key])
            if chain:
                outermost[id(chain[0])] = chain[0]
            elif (label := labels[key]) is not None and label not in self._unasked:
                elements.setdefault(label, []).append(key)
        for each in outermost.values():
            for named, element in self._parts(each):
                if named not in self._unasked:
                    elements.setdefault(named, []).append(pack(element))
        self._sets.update((label, PrefixSet.of(keys)) for label, keys in elements.items())
        for key, prefix, label in again:
            single = unpack(key)
            self.put((single.version, single.value), prefix, label)

    def _holding(self, prefix: Prefix) -> list[_Block]:
        """The blocks that hold the whole of a prefix, outermost first."""
        first = Prefix(prefix.version, prefix.value, FULL[prefix.version])
        return [each for each in self._around(first) if each.prefix.length <= prefix.length]

    def relabel(self, labels: Iterable[tuple[tuple[int, int], Hashable | None]]) -> None:
        """Give addresses that are there other labels, many at a time: what a block counts as is looked up once."""
        regions: dict[Prefix, list[tuple[int, Prefix, Hashable | None]]] = {}
        for address, label in labels:
            single = Prefix(address[0], address[1], FULL[address[0]])
            key = pack(single)
            if key in self._labels and self._labels[key] != label:
                around = self._around(single)
                regions.setdefault(around[0].prefix if around else single, []).append((key, single, label))
        for region, changes in regions.items():
            before = self._elements(region)
            for key, single, label in changes:
                old = self._labels[key]
                self._labels[key] = label
                for block in map(self._own, self._around(single)):
                    block.leave(key, old)
                    block.join(key, label)
            self._change(before, self._elements(region))

    def discard(self, address: tuple[int, int]) -> list[tuple[Hashable, Delta]]:
        """Take an address out; returns the changes of the covers. Nothing for an address that is not there."""
        single = Prefix(address[0], address[1], FULL[address[0]])
        key = pack(single)
        if key not in self._labels:
            return []
        around = self._around(single)
        if around and len(around[0].labels) == 1:
            unlabelled = self._labels[key] is None
            if unlabelled or (len(around[0].members) > 1 and self._stays(around[0], key)):
                self._leave(key, single)
                return []
        if around and self._stays(around[0], key):
            part = self._part(around[0], key)
            before = self._elements_of(part, key)
            self._leave(key, single)
            return self._change(before, self._elements_of(part, key))
        outermost = around[0].prefix if around else single
        before = self._elements(outermost)
        self._leave(key, single)
        return self._change(before, self._elements(outermost))

    def _stays(self, block: _Block, key: int) -> bool:
        """True where the block goes on being one when the address leaves it."""
        return block.users > (1 if self._block_of.get(key) == block.prefix else 0)

    def _around(self, single: Prefix) -> list[_Block]:
        """The blocks that hold an address, outermost first."""
        version, value, full = single
        six = version == 6
        found = []
        for kind in sorted(self._lengths):
            if kind & 1 == six:
                shift = full - (kind >> 1)
                block = self._blocks.get((value >> shift << shift) << 9 | kind)
                if block is not None:
                    found.append(block)
        return found

    def _elements(self, region: Prefix) -> set[tuple[Hashable, Prefix]]:
        """The elements of a region: the parts of the outermost blocks there, and single addresses in no block."""
        block = self._blocks.get(pack(region))
        if block is not None:
            return self._parts(block)
        found: set[tuple[Hashable, Prefix]] = set()
        outermost: dict[int, _Block] = {}
        for key in self._live_in(region):
            around = self._around(unpack(key))
            if around:
                outermost[id(around[0])] = around[0]
            elif (label := self._labels[key]) is not None:
                found.add((label, unpack(key)))
        return found.union(*map(self._parts, outermost.values()))

    def _parts(self, block: _Block) -> set[tuple[Hashable, Prefix]]:
        """A whole block, or the largest of its halves, quarters, … in which all live addresses have one label."""
        if block.whole is not None:
            return {(block.whole, block.prefix)}
        return self._halves(block.prefix, sorted(block.members))

    def _part(self, block: _Block, key: int) -> tuple[Prefix, list[int]]:
        """The part of a block that alone counts as something else when one address comes, goes or has another label,
        and the other live addresses there: in all larger parts these have labels enough to split them."""
        version, value, length = block.prefix
        others = [each for each in block.members if each != key]
        while len(set(map(self._labels.__getitem__, others))) > 1:
            length += 1
            middle = value + (1 << (FULL[version] - length))
            upper = key >= middle << 9
            others = [each for each in others if (each >= middle << 9) == upper]
            value = middle if upper else value
        return Prefix(version, value, length), others

    def _elements_of(self, part: tuple[Prefix, list[int]], key: int) -> set[tuple[Hashable, Prefix]]:
        """The elements of a part, with its one address that changes where that is live."""
        prefix, others = part
        return self._halves(prefix, sorted([*others, key] if key in self._labels else others))

    def _halves(self, prefix: Prefix, addresses: list[int]) -> set[tuple[Hashable, Prefix]]:
        """The largest halves, quarters, … of a prefix in which all of these addresses, in order, have one label."""
        found: set[tuple[Hashable, Prefix]] = set()
        parts = [(prefix, addresses)]
        while parts:
            (version, value, length), members = parts.pop()
            labels = {self._labels[key] for key in members}
            if len(labels) > 1:
                middle = value + (1 << (FULL[version] - length - 1))
                at = bisect_left(members, middle << 9)
                parts.append((Prefix(version, value, length + 1), members[:at]))
                parts.append((Prefix(version, middle, length + 1), members[at:]))
            elif labels and (label := labels.pop()) is not None:
                found.add((label, Prefix(version, value, length)))
        return found

    def _live_in(self, region: Prefix) -> list[int]:
        """The live addresses in a region that is no block yet."""
        step = FULL[region.version] << 1 | (region.version == 6)
        if region.size <= min(_ENUMERABLE, len(self._labels) + 1):
            labels, value = self._labels, region.value
            return [key for offset in range(region.size) if (key := (value + offset) << 9 | step) in labels]
        return [key for key in self._labels if region.covers(unpack(key))]

    def _join(self, key: int, single: Prefix, block: Prefix | None, label: Hashable) -> None:
        if block is not None:
            named = self._blocks.get(pack(block))
            named = self._open(block) if named is None else self._own(named)
            named.users += 1
            self._block_of[key] = named.prefix
        self._labels[key] = label
        for around in map(self._own, self._around(single)):
            around.join(key, label)

    def _leave(self, key: int, single: Prefix) -> None:
        label = self._labels.pop(key)
        for around in map(self._own, self._around(single)):
            around.leave(key, label)
        prefix = self._block_of.pop(key, None)
        if prefix is not None:
            block = self._own(self._blocks[pack(prefix)])
            block.users -= 1
            if not block.users:
                self._close(block)

    def _open(self, prefix: Prefix) -> _Block:
        block = self._begin(prefix)
        for key in self._live_in(prefix):
            block.join(key, self._labels[key])
        return block

    def _begin(self, prefix: Prefix) -> _Block:
        """A block that holds nothing yet."""
        block = self._blocks[pack(prefix)] = _Block(prefix)
        kind = prefix.length << 1 | (prefix.version == 6)
        self._lengths[kind] = self._lengths.get(kind, 0) + 1
        return block

    def _own(self, block: _Block) -> _Block:
        """A block, to be changed."""
        if self._shared and (key := pack(block.prefix)) in self._shared:
            self._shared.discard(key)
            block = self._blocks[key] = _Block(block.prefix, block.users, dict(block.members), dict(block.labels))
        return block

    def _close(self, block: _Block) -> None:
        key = pack(block.prefix)
        del self._blocks[key]
        self._shared.discard(key)
        self._lengths[key & 0x1FF] -= 1
        if not self._lengths[key & 0x1FF]:
            del self._lengths[key & 0x1FF]

    def _change(
        self, before: set[tuple[Hashable, Prefix]], after: set[tuple[Hashable, Prefix]]
    ) -> list[tuple[Hashable, Delta]]:
        """Apply what a region counted as and counts as now; the net change of every label's cover."""
        self.changes += 1
        came: dict[Hashable, set[Prefix]] = {}
        went: dict[Hashable, set[Prefix]] = {}

        def follow(label: Hashable, delta: Delta) -> None:
            added, removed = came.setdefault(label, set()), went.setdefault(label, set())
            for prefix in delta.removed:
                if prefix in added:
                    added.discard(prefix)
                else:
                    removed.add(prefix)
            for prefix in delta.added:
                if prefix in removed:
                    removed.discard(prefix)
                else:
                    added.add(prefix)

        for label, prefix in before - after:
            if label not in self._unasked:
                follow(label, self._sets[label].remove(prefix))
        for label, prefix in after - before:
            if label not in self._unasked:
                follow(label, self._sets.setdefault(label, PrefixSet()).add(prefix))
        for label in came:
            if not self._sets[label]:
                del self._sets[label]
        deltas = [(label, Delta(tuple(sorted(came[label])), tuple(sorted(went[label])))) for label in came]
        return [(label, delta) for label, delta in deltas if delta]


def _is_in(prefix: Prefix, key: int) -> bool:
    """True where a prefix holds the address of a key."""
    shift = FULL[prefix.version] - prefix.length
    return prefix.version == (6 if key & 1 else 4) and key >> 9 >> shift << shift == prefix.value

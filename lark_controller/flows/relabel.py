"""The addresses of a job under their labels, and what that changes of the prefixes of each label. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from lark_controller.flows.labelled_prefixes import LabelledPrefixes
from lark_controller.flows.placement import Placed
from lark_controller.flows.prefixes import Prefix, packed, prefix_of
from lark_controller.policies.model import NO_SLICE, SliceKey

# Jobs that are looked at before other work may go ahead.
_LOOKED_AT: Final = 256
LabelOf = Callable[[Placed], SliceKey | int | None]
# Labelled prefixes that a desired state has from the one before, and whether the labels in them are taken over.
Followed = tuple[LabelledPrefixes, LabelOf, bool]


@dataclass(slots=True)
class Net:
    """Prefixes that came and went for one label, whatever detours there were in between."""

    added: set[Prefix] = field(default_factory=set)
    removed: set[Prefix] = field(default_factory=set)

    def follow(self, added: Iterable[Prefix], removed: Iterable[Prefix]) -> None:
        """Take in another step."""
        for prefix in removed:
            if prefix in self.added:
                self.added.discard(prefix)
            else:
                self.removed.add(prefix)
        for prefix in added:
            if prefix in self.removed:
                self.removed.discard(prefix)
            else:
                self.added.add(prefix)


def relabel(prefixes: LabelledPrefixes, old: Placed | None, new: Placed | None, label_of: LabelOf) -> dict[object, Net]:
    """Move a job's addresses to their new label; returns the prefixes that came and went for each label.

    Addresses without a label count too: a block that holds one is not a single prefix of the others' label.
    """
    nets: dict[object, Net] = {}
    gone = [] if old is None else _entries(old)
    come = [] if new is None else _entries(new)
    if gone == come and (old is None or new is None or label_of(old) == label_of(new)):
        return nets
    for address, _ in gone:
        for label, delta in prefixes.discard(address):
            nets.setdefault(label, Net()).follow(delta.added, delta.removed)
    for address, block in come:
        assert new is not None
        for label, delta in prefixes.put(address, block, label_of(new)):
            nets.setdefault(label, Net()).follow(delta.added, delta.removed)
    return {label: net for label, net in nets.items() if label is not None and (net.added or net.removed)}


def enter(prefixes: LabelledPrefixes, placed: Placed, label_of: LabelOf) -> None:
    """Put a job's addresses under its label, whether they have another by now, the same, or none."""
    for address, block in _entries(placed):
        prefixes.put(address, block, label_of(placed))


def fill(placed: Iterable[Placed], into: Iterable[tuple[LabelledPrefixes, LabelOf]]) -> None:
    """Put the addresses of all jobs under their labels in sets that are empty yet, which share them.

    A label depends on a job's decision alone.
    """
    # Jobs share blocks and decisions, and each of these is looked at once, by its identity.
    blocks: dict[int, Prefix] = {}
    decided: dict[int, Placed] = {}
    found: list[tuple[int, int, Prefix | None]] = []
    four, six = packed((4, 0)), packed((6, 0))
    for each in placed:
        job = each.job
        if not job.has_pool_address:
            continue
        decision = id(each.decision)
        if decision not in decided:
            decided[decision] = each
        for address, block, kind in ((job.ipv4, job.ipv4_block, four), (job.ipv6, job.ipv6_block, six)):
            if address is None:
                continue
            prefix = None if block is None else blocks.get(id(block))
            if block is not None and prefix is None:
                prefix = blocks[id(block)] = prefix_of(block)
            found.append((decision, int(address) << 9 | kind, prefix))
    for prefixes, label_of in into:
        labels = {decision: label_of(each) for decision, each in decided.items()}
        prefixes.fill((key, prefix, labels[decision]) for decision, key, prefix in found)


def move_blocks(placed: Mapping[int, Placed], numbers: Iterable[int], followed: Iterable[Followed]) -> Iterator[None]:
    """Put the addresses of jobs, which are there already, under the labels that they have now, in steps.

    A step is the jobs of one block, whose labels change together, or a look at where some are.
    """
    blocks: dict[object, list[int]] = {}
    for count, job in enumerate((placed[number].job for number in numbers if number in placed), 1):
        for address, block in job.blocks if job.has_pool_address else ():
            blocks.setdefault(block or address, []).append(job.number)
        if count % _LOOKED_AT == 0:
            yield
    for together in blocks.values():
        jobs = [placed[number] for number in together if number in placed]
        for prefixes, label_of, kept in followed:
            if kept:
                prefixes.relabel((address, label_of(each)) for each in jobs for address, _ in _entries(each))
        yield


def slice_label(placed: Placed) -> SliceKey | None:
    """The slice under which a job's addresses are reached, or NO_SLICE."""
    return None if placed.decision.isolated else placed.decision.slice or NO_SLICE


def slice_at_port(placed: Placed) -> SliceKey | None:
    """The slice that needs a tag where the job is attached."""
    return None if placed.port is None or placed.decision.isolated else placed.decision.slice


def _entries(placed: Placed) -> list[tuple[tuple[int, int], Prefix | None]]:
    if not placed.job.has_pool_address:
        return []
    return [((a.version, int(a)), None if b is None else prefix_of(b)) for a, b in placed.job.blocks]

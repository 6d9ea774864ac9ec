"""The cost of 200,000 jobs in prefixes, memory and time, with scattered addresses and with blocks.

    python bench/prefix_cost.py > table.md

Jobs arrive in random order; how many jobs a user has falls as 1/rank (Zipf). The table in docs/design/prefixes.md was
made by this.
"""

from __future__ import annotations

import gc
import random
import sys
import time
import tracemalloc
from collections.abc import Iterator
from ipaddress import IPv4Address

from lark_controller.flows.labelled_prefixes import LabelledPrefixes
from lark_controller.flows.prefixes import Prefix

JOBS = 200_000
SAMPLE = 5_000
FIRST = int(IPv4Address("10.0.0.0"))
Entry = tuple[int, Prefix | None, int]


def users(count: int, source: random.Random) -> list[int]:
    """The user of every job."""
    return source.choices(range(count), weights=[1 / rank for rank in range(1, count + 1)], k=JOBS)


def scattered(length: int, labels: list[int], source: random.Random) -> list[Entry]:
    """Every address drawn from a whole network of that prefix length."""
    values = source.sample(range(1 << (32 - length)), JOBS)
    return [(FIRST + value, None, label) for value, label in zip(values, labels, strict=True)]


def in_order(labels: list[int]) -> list[Entry]:
    """The next free address to whoever comes, as a DHCP server gives it."""
    return [(FIRST + offset, None, label) for offset, label in enumerate(labels)]


def blocks(length: int, labels: list[int], ended: float, source: random.Random) -> list[Entry]:
    """Blocks of that prefix length, the next free one to the user whose own is full; then a share of jobs has ended."""
    size = 1 << (32 - length)
    given, current = 0, dict[int, tuple[int, int]]()
    entries: list[Entry] = []
    for label in labels:
        base, used = current.get(label, (0, size))
        if used == size:
            base, used, given = FIRST + given * size, 0, given + 1
        entries.append((base + used, Prefix(4, base, length), label))
        current[label] = (base, used + 1)
    return source.sample(entries, int(len(entries) * (1 - ended)))


def measured(entries: list[Entry]) -> tuple[int, int, float, float, float]:
    """Prefixes of all users, of the largest, memory in MB, time of a change in µs, rules changed by a change."""
    gc.collect()
    tracemalloc.start()
    held = LabelledPrefixes()
    for address, block, label in entries:
        held.put((4, address), block, label)
    memory = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    counts = [held.count(label) for label in held.labels()]
    changed, begin = 0, time.perf_counter()
    for address, block, label in random.Random(2).sample(entries, SAMPLE):
        for _, delta in held.discard((4, address)) + held.put((4, address), block, label):
            changed += len(delta.added) + len(delta.removed)
    spent = (time.perf_counter() - begin) / (2 * SAMPLE) * 1e6
    return sum(counts), max(counts), memory, spent, changed / (2 * SAMPLE)


def rows() -> Iterator[str]:
    """The table, line by line."""
    yield "| addresses | users | prefixes | of the largest user | MB | µs a change | prefixes a change |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    source = random.Random(1)
    for count in (10, 500):
        labels = users(count, source)
        cases = [
            ("scattered over a /8", scattered(8, labels, source)),
            ("scattered over a /14 (76 % in use)", scattered(14, labels, source)),
            ("one after the other", in_order(labels)),
            ("blocks /28", blocks(28, labels, 0, source)),
            ("blocks /28, half of the jobs ended", blocks(28, labels, 0.5, source)),
            ("blocks /26", blocks(26, labels, 0, source)),
            ("blocks /26, half of the jobs ended", blocks(26, labels, 0.5, source)),
            ("blocks /24", blocks(24, labels, 0, source)),
        ]
        for name, entries in cases:
            total, largest, memory, spent, changed = measured(entries)
            yield f"| {name} | {count} | {total:,} | {largest:,} | {memory:.0f} | {spent:.0f} | {changed:.2f} |"


if __name__ == "__main__":
    for row in rows():
        sys.stdout.write(row + "\n")

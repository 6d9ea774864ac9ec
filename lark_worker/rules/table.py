"""A table of the kernel's packet filter as a value, and the one transaction that changes a table into another. Pure.

Syntax: nft(8). Equal parts of both tables are not touched, so that counters and connections go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

# Unread contents: different from everything.
UNREAD: Final = ("?",)


@dataclass(frozen=True, slots=True)
class Set:
    """A set or a map: its declaration (``type ipv4_addr; flags interval;``) and elements.

    ``keyed``: elements come and go one by one (a map of names); else all are replaced together, because intervals that
    overlap what goes in the same transaction are refused by some kernels.
    """

    declaration: str
    elements: tuple[str, ...] = ()
    keyed: bool = False

    @property
    def keyword(self) -> str:
        """``set`` or ``map``."""
        return "map" if self.keyed else "set"


@dataclass(frozen=True, slots=True)
class Chain:
    """A chain: its rules in order, and for a base chain its hook (``type filter hook … priority …;``)."""

    rules: tuple[str, ...] = ()
    hook: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of one family (bridge, inet)."""

    family: str
    name: str
    counters: frozenset[str] = frozenset()
    sets: Mapping[str, Set] = field(default_factory=lambda: MappingProxyType({}))
    chains: Mapping[str, Chain] = field(default_factory=lambda: MappingProxyType({}))


def change(desired: Table, held: Table | None) -> str:
    """The nft script that changes ``held`` (None: no such table) into ``desired``; ``""`` where they are equal."""
    before = Table(desired.family, desired.name) if held is None else held
    where = f"{desired.family} {desired.name}"
    lines = [*_declare(desired, before, where), *_fill(desired, before, where), *_drop(desired, before, where)]
    if held is None:
        lines.insert(0, f"add table {where}")
    return "".join(f"{line}\n" for line in lines)


def delete(family: str, name: str) -> str:
    """The script that removes a table, whether it is there or not."""
    return f"add table {family} {name}\ndelete table {family} {name}\n"


def _declare(desired: Table, before: Table, where: str) -> Iterator[str]:
    for name in sorted(desired.counters - before.counters):
        yield f"add counter {where} {name}"
    for name, each in desired.sets.items():
        if name not in before.sets:
            yield f"add {each.keyword} {where} {name} {{ {each.declaration} }}"
    for name, chain in desired.chains.items():
        if name not in before.chains:
            yield f"add chain {where} {name}" + (f" {{ {chain.hook} }}" if chain.hook else "")


def _fill(desired: Table, before: Table, where: str) -> Iterator[str]:
    # Chains first: a map's new element may lead to one. No packet sees the transaction half done.
    for name, chain in desired.chains.items():
        known = before.chains.get(name)
        if known is None or known.rules != chain.rules:
            if known is not None:
                yield f"flush chain {where} {name}"
            for rule in chain.rules:
                yield f"add rule {where} {name} {rule}"
    for name, each in desired.sets.items():
        there = before.sets.get(name)
        held = () if there is None else there.elements
        if held == each.elements:
            continue
        if each.keyed and held != UNREAD:
            known_elements = set(held)
            gone = known_elements - set(each.elements)
            come = [text for text in each.elements if text not in known_elements]
            if gone:
                yield f"delete element {where} {name} {{ {', '.join(sorted(gone))} }}"
        else:
            come = list(each.elements)
            if held:
                yield f"flush {each.keyword} {where} {name}"
        if come:
            yield f"add element {where} {name} {{ {', '.join(come)} }}"


def _drop(desired: Table, before: Table, where: str) -> Iterator[str]:
    gone = [name for name in before.chains if name not in desired.chains]
    # Chains may refer to each other, so all are emptied before the first is deleted.
    for name in gone:
        yield f"flush chain {where} {name}"
    for name in gone:
        yield f"delete chain {where} {name}"
    for name, each in before.sets.items():
        if name not in desired.sets:
            yield f"delete {each.keyword} {where} {name}"
    for name in sorted(before.counters - desired.counters):
        yield f"delete counter {where} {name}"


def read(listed: Mapping[str, Any], family: str, name: str) -> Table:
    """The table of an ``nft -j list table``, with its parts' names alone; their contents count as unread."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for entry in listed["nftables"]:
        for kind, part in entry.items():
            found.setdefault(kind, []).append(part)
    sets = {part["name"]: Set("", UNREAD) for part in found.get("set", ())}
    maps = {part["name"]: Set("", UNREAD, keyed=True) for part in found.get("map", ())}
    return Table(
        family,
        name,
        frozenset(part["name"] for part in found.get("counter", ())),
        sets | maps,
        {part["name"]: Chain(UNREAD) for part in found.get("chain", ())},
    )


def braces(values: Iterable[object]) -> str:
    """An anonymous set of values."""
    return f"{{ {', '.join(map(str, values))} }}"

"""Marks the IPv6 packets that leave by transfers' connections, in the flow label (SciTags), in a table of the kernel's
packet filter of its own. The five bits that are the sender's entropy stay as they are."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from lark_common.runs import Address
from lark_common.scitags import LABEL_MASK, Scitag
from lark_worker.network.commands import run
from lark_worker.rules.table import delete

FAMILY: Final = "ip6"
# Connections whose packets are marked at a time.
MOST: Final = 4096
# Elements in a line of a script.
_AT_ONCE: Final = 256
# The kernel's first 32 bits of the header: version, traffic class, flow label.
_KEPT: Final = 0xFFFFFFFF & ~LABEL_MASK
_ENDS: Final = "ip6 saddr . tcp sport . ip6 daddr . tcp dport"
_TYPE: Final = "type ipv6_addr . inet_service . ipv6_addr . inet_service;"

# A connection's ends: this worker's address and port, and the other's.
Ends = tuple[Address, int, Address, int]


class FlowLabels:
    """The marks of connections in the kernel; not thread-safe. ``prefix`` begins the table's name."""

    def __init__(self, prefix: str) -> None:
        self.name = f"{prefix}_scitags"
        # None: a table of an earlier service may be there.
        self._held: Mapping[Ends, Scitag] | None = None
        self._marks: set[Scitag] = set()

    def __len__(self) -> int:
        """The number of connections whose packets are marked."""
        return len(self._held or ())

    def put(self, marked: Mapping[Ends, Scitag]) -> None:
        """Mark the packets of these IPv6 connections and of no others. Raises NetworkError; the next call begins
        anew then."""
        if marked == self._held:
            return
        held, self._held = self._held, None
        if not marked:
            run(["nft", "-f", "-"], delete(FAMILY, self.name))
            self._marks = set()
        else:
            marks = set(marked.values())
            fresh = marks if held is None else marks - self._marks
            lines = list(script(self.name, held or {}, marked, fresh))
            if held is None:
                lines = [delete(FAMILY, self.name), *lines]
            run(["nft", "-f", "-"], "".join(f"{line}\n" for line in lines))
            self._marks = fresh if held is None else self._marks | fresh
        self._held = dict(marked)


def script(
    name: str, held: Mapping[Ends, Scitag], desired: Mapping[Ends, Scitag], fresh: Collection[Scitag]
) -> Iterator[str]:
    """The lines for nft(8) that change a table's connections; ``fresh`` are the marks that it has no rule for yet."""
    where = f"{FAMILY} {name}"
    yield f"add table {where}"
    yield f"add chain {where} leaving {{ type filter hook postrouting priority 0; }}"
    for mark in sorted(fresh):
        yield f"add set {where} {_set(mark)} {{ {_TYPE} }}"
        yield f"add rule {where} leaving {_ENDS} @{_set(mark)} {set_label(mark)}"
    gone = {ends: mark for ends, mark in held.items() if desired.get(ends) != mark}
    come = {ends: mark for ends, mark in desired.items() if held.get(ends) != mark}
    for word, elements in (("delete", gone), ("add", come)):
        by_mark: dict[Scitag, list[str]] = {}
        for (local, from_port, remote, to_port), mark in elements.items():
            by_mark.setdefault(mark, []).append(f"{local} . {from_port} . {remote} . {to_port}")
        for mark, texts in sorted(by_mark.items()):
            for at in range(0, len(texts), _AT_ONCE):
                part = ", ".join(texts[at : at + _AT_ONCE])
                yield f"{word} element {where} {_set(mark)} {{ {part} }}"


def set_label(mark: Scitag) -> str:
    """The statement of nft(8) that writes a mark into a packet's header, and leaves the other bits."""
    return f"@nh,0,32 set @nh,0,32 & {_KEPT:#x} | {mark.label:#x}"


def _set(mark: Scitag) -> str:
    return f"mark_{mark.experiment}_{mark.activity}"

"""One address to one address at a plain Linux gateway, in nftables' inet family: maps of open ports, both ways. Pure.

The kernel's connection tracking translates, ICMP errors included; the maps say what new connections get, so an element
that comes or goes touches no other job's connection. What is established passes only as long as external address and
job belong together: ``came`` and ``left`` have these pairs, with a counter each, and whatever is in neither is dropped.

The kernel tracks the connections of all addresses in one table, which one of them could fill: each external address may
have so many from outside, and each address of jobs so many of its own, wherever they lead.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network
from typing import Final, NamedTuple

from lark_worker.rules.render import UNTRACKED, opened_a_second
from lark_worker.rules.table import Chain, Set, Table, braces

FAMILY: Final = "inet"
_PORTS: Final = "type ipv4_addr . inet_proto . inet_service : ipv4_addr; flags interval;"
_PROTOCOLS: Final = "type ipv4_addr . inet_proto : ipv4_addr;"
_WHOLE: Final = "type ipv4_addr : ipv4_addr;"
_PAIRS: Final = "type ipv4_addr . ipv4_addr : verdict; counter;"
_SETS: Final = {
    **dict.fromkeys(("in_ports", "out_ports"), _PORTS),
    **dict.fromkeys(("in_protocols", "out_protocols"), _PROTOCOLS),
    **dict.fromkeys(("in_whole", "out_whole"), _WHOLE),
    **dict.fromkeys(("came", "left"), _PAIRS),
}
# Connections by external address, and by the job's own for those that it opens: how many there are, and how fast they
# are opened. The kernel adds the elements, one for each address of which there is a connection.
COUNTED: Final = "type ipv4_addr; size 131072; flags dynamic;"
# A minute without a new connection fills a bucket again, so one that is forgotten is missed by nobody.
_RATES: Final = "type ipv4_addr; size 131072; flags dynamic,timeout; timeout 1m;"
_LIMITED: Final = {"in_open": COUNTED, "in_rate": _RATES, "out_open": COUNTED, "out_rate": _RATES}
_WITH_PORTS: Final = "meta l4proto { tcp, udp }"
_OPENED: Final = re.compile(r"(any|icmp)|(tcp|udp)(?:/([0-9]{1,5})(?:-([0-9]{1,5}))?)?")
_LAST_PORT: Final = 65535


class Mapped(NamedTuple):
    """An external address with the job's own, and what is open: words as ``tcp/80``, ``udp/5000-5010``, ``any``."""

    external: IPv4Address
    own: IPv4Address
    opened: tuple[str, ...]


def table(
    name: str,
    wan: str,
    pools: Collection[IPv4Network],
    jobs: Collection[IPv4Network],
    mapped: Collection[Mapped],
    connections: int = 0,
) -> Table:
    """The table of a gateway whose interface ``wan`` leads outside; ``pools`` are its addresses, ``jobs`` networks. An
    external address may have ``connections`` from outside open at a time, and a job as many of its own (0: any
    number)."""
    outside, ours, own = f'iifname "{wan}"', braces(pools), braces(jobs)
    chains = {
        # The two directions of connections from outside, and of those that a job has begun.
        "guarded": Chain(
            (
                "ct direction original ct status dnat ct original ip daddr . ip daddr vmap @came",
                "ct direction reply ct status dnat ct original ip daddr . ip saddr vmap @left",
                "ct direction original ct status snat ct reply ip daddr . ip saddr vmap @left",
                "ct direction reply ct status snat ct reply ip daddr . ip daddr vmap @came",
                "drop",
            )
        ),
        # Nobody sends with these addresses, and none comes with a job's from outside (BCP 38).
        "spoofed": Chain(
            (f"ip saddr {ours} drop", f"{outside} ip saddr {own} drop"), _hook("filter", "prerouting", -300)
        ),
        "inwards": Chain(
            (
                f"{outside} {_WITH_PORTS} dnat ip to ip daddr . meta l4proto . th dport map @in_ports",
                f"{outside} dnat ip to ip daddr . meta l4proto map @in_protocols",
                f"{outside} dnat ip to ip daddr map @in_whole",
            ),
            _hook("nat", "prerouting", -110),
        ),
        # Packets that no map has taken.
        "closed": Chain((f"ip daddr {ours} drop",), _hook("filter", "prerouting", -90)),
        # Before it is known where they lead: the gateway's own ports and other networks of jobs fill the table as well.
        "limited": Chain(
            (
                *_limited("in", f"ct status dnat ct original ip daddr {ours}", "ct original ip daddr", connections),
                *_limited("out", f"ip saddr {own}", "ip saddr", connections),
            ),
            _hook("filter", "prerouting", -80),
        ),
        "forwarded": Chain(
            (
                f"ct status dnat ct original ip daddr {ours} jump guarded",
                f"ct status snat ct reply ip daddr {ours} jump guarded",
            ),
            _hook("filter", "forward", -10),
        ),
        "outwards": Chain(
            (
                f'oifname "{wan}" {_WITH_PORTS} snat ip to ip saddr . meta l4proto . th sport map @out_ports',
                f'oifname "{wan}" snat ip to ip saddr . meta l4proto map @out_protocols',
                f'oifname "{wan}" snat ip to ip saddr map @out_whole',
            ),
            _hook("nat", "postrouting", 90),
        ),
    }
    elements = _elements(mapped)
    sets = {each: Set(declared, tuple(elements.get(each, ())), keyed=True) for each, declared in _SETS.items()}
    counted = {each: Set(declared) for each, declared in _LIMITED.items() if connections}
    return Table(FAMILY, name, frozenset(), sets | counted, chains)


def _limited(side: str, which: str, address: str, most: int) -> tuple[str, ...]:
    """The rules for packets that open connections, counted by an address of theirs in the sets of that side."""
    if not most:
        return ()
    opens = f"ct state new {UNTRACKED} {which}"
    rate = f"limit rate over {opened_a_second(most)}/second burst {most} packets"
    # The rate first, as in render.limited.
    return (
        f"{opens} update @{side}_rate {{ {address} {rate} }} drop",
        f"{opens} add @{side}_open {{ {address} ct count over {most} }} drop",
    )


def script(action: str, name: str, mapped: Collection[Mapped], but: Collection[Mapped]) -> str:
    """The nft script that lets the elements of these addresses come (``add``) or go (``delete``), ``but`` those that
    others have as well; ``""``: there is nothing to do."""
    kept = {each: set(elements) for each, elements in _elements(but).items()}
    lines = []
    for each, elements in _elements(mapped).items():
        if chosen := [element for element in elements if element not in kept.get(each, ())]:
            lines.append(f"{action} element {FAMILY} {name} {each} {braces(chosen)}\n")
    return "".join(lines)


def _elements(mapped: Iterable[Mapped]) -> dict[str, list[str]]:
    """The elements of each set that has any."""
    found: dict[str, list[str]] = {}
    for each in mapped:
        for side, key, value in (("in", each.external, each.own), ("out", each.own, each.external)):
            for protocol, span in _spans(each.opened):
                if protocol == "any":
                    found.setdefault(f"{side}_whole", []).append(f"{key} : {value}")
                elif span:
                    found.setdefault(f"{side}_ports", []).append(f"{key} . {protocol} . {span} : {value}")
                else:
                    found.setdefault(f"{side}_protocols", []).append(f"{key} . {protocol} : {value}")
        for pairs in ("came", "left"):
            found.setdefault(pairs, []).append(f"{each.external} . {each.own} : return")
    return found


def counted(listed: Collection[dict[str, object]]) -> Iterator[tuple[str, int, int]]:
    """External address, packets and bytes of each element in the ``nft -j list map`` of ``came`` or ``left``."""
    for entry in listed:
        match entry:
            case {
                "elem": {"val": {"concat": [str(external), *_]}, "counter": {"packets": int(one), "bytes": int(two)}}
            }:
                yield external, one, two


def opened(words: Collection[str]) -> tuple[str, ...] | None:
    """The words of what is open, as they are; None where one is no opening, since they become part of a script."""
    try:
        for word in words:
            _taken_apart(word)
    except ValueError:
        return None
    return tuple(words)


def _spans(words: Collection[str]) -> Iterator[tuple[str, str]]:
    """Protocols with spans of ports, ``""`` for all: each port once, since the kernel takes none that overlap."""
    found: dict[str, list[tuple[int, int]]] = {}
    for protocol, first, last in sorted(map(_taken_apart, words)):
        spans = found.setdefault(protocol, [])
        if spans and first <= spans[-1][1] + 1:
            spans[-1] = spans[-1][0], max(spans[-1][1], last)
        else:
            spans.append((first, last))
    for protocol, spans in found.items():
        for first, last in spans:
            span = f"{first}" if first == last else f"{first}-{last}"
            yield protocol, "" if (first, last) == (0, _LAST_PORT) else span


def _taken_apart(word: str) -> tuple[str, int, int]:
    match = _OPENED.fullmatch(word)
    if match is None:
        raise ValueError(f"{word[:40]!r} is no protocol with ports")
    protocol, first, last = match[1] or match[2], int(match[3] or 0), int(match[4] or match[3] or _LAST_PORT)
    if not first <= last <= _LAST_PORT:
        raise ValueError(f"{word[:40]!r} has no such ports")
    return protocol, first, last


def _hook(kind: str, hook: str, priority: int) -> str:
    return f"type {kind} hook {hook} priority {priority}; policy accept;"

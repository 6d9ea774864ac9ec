"""The packet filter's table that limits, marks and blocks jobs' transfers, by both ends of each connection. Pure.

It stands at the hooks where the worker's own packets leave and arrive, so it needs no interface: whether the host's
address is on a port, on a bridge or inside Open vSwitch changes nothing. A limit that jobs share is a chain that their
chains lead to: a rule is one bucket.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from lark_common.transfers import SharedRate, Treatment
from lark_worker.records.known_jobs import Key
from lark_worker.rules.table import Chain, Set, Table
from lark_worker.transfers.inet_diag import Connection

FAMILY: Final = "inet"
# Before the filters of the site, which see the mark.
_PRIORITY: Final = -150
# Bytes. A bucket that is smaller than a packet lets it pass never, and one that TCP hands over joined may have 512 KiB
# (GSO). The kernel adds what the rate gives in a second (nft_limit).
BURST: Final = 1 << 19
_FIELDS: Final = {4: ("ip", "ipv4_addr"), 6: ("ip6", "ipv6_addr")}


def table(name: str, treatments: Mapping[Key, Treatment], connections: Iterable[tuple[Key, Connection]]) -> Table:
    """The table for these starters' transfers, of which these connections are there now."""
    chains: dict[str, Chain] = {}
    for key, treatment in treatments.items():
        for way, rules in (("o", _sent(treatment)), ("i", _taken(treatment))):
            if found := tuple(rules):
                chains[_chain(way, key)] = Chain(found)
                shared = () if treatment.block else treatment.shared
                chains |= {_shared(way, each): Chain(tuple(_limit(each.rate))) for each in shared}
    # One chain for each pair of ends, since the kernel refuses a table with two: where ports were used again before the
    # end of their connection was seen, the later one's.
    chosen: dict[str, dict[str, str]] = {f"{way}{version}": {} for way in "oi" for version in _FIELDS}
    for key, each in connections:
        ends = f"{each.local} . {each.ports[0]} . {each.remote} . {each.ports[1]}"
        for way in "oi":
            if (chain := _chain(way, key)) in chains:
                chosen[f"{way}{each.remote.version}"][ends] = chain
    sets = {
        each: Set(
            "type {0} . inet_service . {0} . inet_service : verdict;".format(_FIELDS[int(each[1])][1]),
            tuple(f"{ends} : goto {chain}" for ends, chain in found.items()),
            keyed=True,
        )
        for each, found in chosen.items()
    }
    return Table(FAMILY, name, frozenset(), sets, {**chains, **_gates()})


def _gates() -> dict[str, Chain]:
    """The base chains. What comes in has the worker's end as its destination."""
    out = tuple(f"{ip} saddr . tcp sport . {ip} daddr . tcp dport vmap @o{n}" for n, (ip, _) in _FIELDS.items())
    into = tuple(f"{ip} daddr . tcp dport . {ip} saddr . tcp sport vmap @i{n}" for n, (ip, _) in _FIELDS.items())
    hook = "type filter hook {} priority {}; policy accept;"
    return {
        "sent": Chain(out, hook.format("output", _PRIORITY)),
        "taken": Chain(into, hook.format("input", _PRIORITY)),
    }


def _chain(way: str, key: Key) -> str:
    return f"{way}_{key[0]}_{key[1]}"


def _shared(way: str, limit: SharedRate) -> str:
    """The chain of a shared limit: its name is of any characters, and a chain's is not."""
    digest = hashlib.sha256(f"{limit.rate} {limit.name}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"s{way}_{digest[:24]}"


def _sent(treatment: Treatment) -> Iterator[str]:
    if treatment.block:
        yield "drop"
        return
    if treatment.dscp is not None:
        yield f"ip dscp set {treatment.dscp}"
        yield f"ip6 dscp set {treatment.dscp}"
    yield from _limited("o", treatment)


def _taken(treatment: Treatment) -> Iterator[str]:
    if treatment.block:
        yield "drop"
        return
    yield from _limited("i", treatment)


def _limited(way: str, treatment: Treatment) -> Iterator[str]:
    # Its own first: what is beyond that takes nothing of what others share.
    if treatment.rate is not None:
        yield from _limit(treatment.rate)
    for each in treatment.shared:
        yield f"jump {_shared(way, each)}"


def _limit(rate: int) -> Iterator[str]:
    yield f"limit rate over {max(1, rate // 8)} bytes/second burst {BURST} bytes drop"

"""Six jobs of four users, and ways to see from inside them who reaches whom and what."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from lab import jobs
from lab.boot import Lab
from lab.inside.topology import WAN_ADDRESSES
from lab.jobs import Running, Wish

GROUP = {"accounting_group": "group_cms.prod"}
ONE_WAY = {"+InboundConnectivity": "false"}
# alice has two jobs on one worker and one on the other; the others share both workers with her.
CAST = {
    "alice1": Wish("alice", worker="worker1"),
    "alice2": Wish("alice", worker="worker2"),
    "caller": Wish("alice", ONE_WAY, worker="worker1"),
    "bob": Wish("bob", worker="worker1"),
    "carol": Wish("carol", GROUP, worker="worker2"),
    "mallory": Wish("mallory", worker="worker2"),
}
PROTOCOLS = ("ping", "tcp", "udp")
Cast = Mapping[str, Running]
Reached = set[tuple[str, str]]


def addresses(cast: Cast, name: str) -> tuple[str, ...]:
    """A job's addresses, or a WAN host's."""
    if name in cast:
        return cast[name].ipv4, cast[name].ipv6
    return WAN_ADDRESSES[int(name.removeprefix("wan"))]


def matrix(cast: Cast, names: Iterable[str]) -> dict[tuple[str, str], set[str]]:
    """For every two jobs by what the first reaches the second: protocols with ``4`` or ``6``."""
    names = list(names)

    def one(source: str) -> Iterator[tuple[tuple[str, str], set[str]]]:
        targets = [
            (other, protocol, address)
            for other in names
            if other != source
            for protocol in PROTOCOLS
            for address in addresses(cast, other)
        ]
        answers = cast[source].reach([(protocol, address) for _, protocol, address in targets])
        for other in names:
            if other != source:
                yield (
                    (source, other),
                    {
                        f"{protocol}{6 if ':' in address else 4}"
                        for (target, protocol, address), answer in zip(targets, answers, strict=True)
                        if target == other and answer
                    },
                )

    with ThreadPoolExecutor(len(names)) as threads:
        return {pair: ways for found in threads.map(lambda name: list(one(name)), names) for pair, ways in found}


ALL_WAYS = {f"{protocol}{version}" for protocol in PROTOCOLS for version in (4, 6)}


def pairs(found: Mapping[tuple[str, str], set[str]]) -> Reached:
    """The pairs that reach each other, in the order asked. Fails where that depends on the protocol."""
    mixed = {pair: ways for pair, ways in found.items() if ways not in (ALL_WAYS, set())}
    assert not mixed, f"reached in some ways only: {mixed}"
    return {pair for pair, ways in found.items() if ways}


def wan_ways(job: Running, host: str) -> set[str]:
    """Through which ports of the core a WAN host is asked by a job, by HTTP over IPv4 and IPv6; nothing is ``-``."""
    answers = job.reach([("http", address) for address in WAN_ADDRESSES[int(host.removeprefix("wan"))]], seconds=4)
    found = set()
    for answer in answers:
        if answer:
            shown = json.loads(answer)
            assert shown["server"] == host
            assert shown["client"] in (job.ipv4, job.ipv6)
        found.add(json.loads(answer)["through"] if answer else "-")
    return found


def wan_matrix(cast: Cast, names: Iterable[str]) -> dict[str, tuple[set[str], set[str]]]:
    """:func:`wan_ways` to both WAN hosts, for every job."""
    names = list(names)
    with ThreadPoolExecutor(len(names)) as threads:
        found = threads.map(lambda name: (wan_ways(cast[name], "wan1"), wan_ways(cast[name], "wan2")), names)
        return dict(zip(names, found, strict=True))


def called_from(lab: Lab, host: str, cast: Cast, names: Iterable[str]) -> set[str]:
    """The jobs that a WAN host reaches in every way; fails where that depends on the protocol."""
    asked = [(name, protocol, address) for name in names for protocol in PROTOCOLS for address in addresses(cast, name)]
    answers = jobs.reach_from(lab, host, [(protocol, address) for _, protocol, address in asked])
    ways: dict[str, set[str]] = {name: set() for name, _, _ in asked}
    for (name, protocol, address), answer in zip(asked, answers, strict=True):
        if answer:
            ways[name].add(f"{protocol}{6 if ':' in address else 4}")
    return {name for name, _ in pairs({(name, ""): found for name, found in ways.items()})}


def dscp_at_core(lab: Lab, job: Running) -> set[int]:
    """The DSCP values of the packets of a job that come to the core, for either address family (one packet each)."""
    with ThreadPoolExecutor(2) as threads:
        return set(threads.map(lambda address: _dscp(lab, job, address), (job.ipv4, job.ipv6)))


def _dscp(lab: Lab, job: Running, address: str) -> int:
    capture = (
        'tcpdump -p -nn -l -x -c 1 -Q in -i lan "src host $1 and (tcp or udp)" 2>/tmp/dump.$$ >/tmp/packet.$$ & '
        "until grep -q listening /tmp/dump.$$; do sleep 0.05; done; echo ready; "
        "wait $!; cat /tmp/packet.$$; rm -f /tmp/dump.$$ /tmp/packet.$$"
    )
    target = WAN_ADDRESSES[1][":" in address]
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lab.on, "core", "timeout", "30", "sh", "-c", capture, "sh", address, timeout=40)
        while not waiting.done():
            job.reach([("http", target)])
        shown = waiting.result().stdout
    header = shown.split("0x0000:", 1)[1].split()[0]
    return int(header, 16) >> 6 & 0x3F if ":" in address else (int(header, 16) & 0xFF) >> 2

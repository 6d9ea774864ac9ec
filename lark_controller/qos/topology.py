"""The paths that reservations take through the declared network. Pure.

Rates are whole kb/s here: sums of whole numbers are exact, so that what is admitted and released leaves no rest.
Requested rates are rounded up, capacities rounded down.

Traffic takes a path with the fewest links. Where several have equally many, the switch's choice is not known, so a
reservation counts on every link of all of them: whichever way the packets take, they find room.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from lark_common.errors import PathError
from lark_common.runs import Address, Network
from lark_controller.policies.model import Duplex, HostSpec, LinkSpec, TopologySpec
from lark_controller.policies.topology import ACCESS, is_wan

KILO: Final = 1000
# 10 Tb/s in kb/s: no link has more, and sums of it stay far inside 64 bits.
MAX_RATE: Final = 10_000_000_000


def requested_rate(megabits: float) -> int:
    """A requested rate in kb/s, rounded up."""
    return math.ceil(round(megabits * KILO, 6))


def carried_rate(megabits: float) -> int:
    """A rate that a link carries, in kb/s, rounded down."""
    return math.floor(round(megabits * KILO, 6))


@dataclass(frozen=True, slots=True, order=True)
class Channel:
    """A unit of capacity: one direction of a full-duplex link, or a half-duplex link as a whole.

    ``source`` and ``target`` are ``""`` for a half-duplex link. ``capacity`` is kb/s.
    """

    link: str
    source: str
    target: str
    capacity: int

    @property
    def key(self) -> str:
        """The name under which reservations on it are counted."""
        return f"{self.link} {self.source}>{self.target}" if self.source else self.link


# The demand of a reservation on each channel, in kb/s, in path order.
Demand = tuple[tuple[Channel, int], ...]


def channel(link: LinkSpec, source: str, target: str) -> Channel:
    """The channel that a packet from end ``source`` to end ``target`` of a link takes."""
    capacity = carried_rate(link.capacity)
    if link.duplex is Duplex.HALF:
        return Channel(link.name, "", "", capacity)
    return Channel(link.name, source, target, capacity)


def channels(link: LinkSpec) -> tuple[Channel, ...]:
    """Both directions of a full-duplex link, or the one channel of a half-duplex link."""
    there, back = link.ends
    return tuple(dict.fromkeys((channel(link, there, back), channel(link, back, there))))


def access_link(spec: TopologySpec | None, host: str) -> HostSpec | LinkSpec | None:
    """The declaration of a host's access link; None where there is none."""
    if spec is None:
        return None
    node = host.lower()
    link = next((link for link in spec.links if node in link.ends), None)
    return link or spec.hosts.get(node, spec.default)


@dataclass(frozen=True)
class Topology:
    """The declared network, with the access links of workers by their machine ads (Mb/s by host in lower case)."""

    spec: TopologySpec
    workers: Mapping[str, float]

    def with_worker(self, host: str, megabits: float) -> Topology:
        """The same network with the capacity of a worker's access link from its machine ad."""
        return Topology(self.spec, {**self.workers, host.lower(): megabits})

    def learns_from(self, host: str) -> bool:
        """True if the machine ad gives the capacity of the access link of ``host``."""
        node = host.lower()
        spec = self.spec.hosts.get(node, self.spec.default)
        return spec is not None and spec.capacity is None and node not in self._graph

    def access(self, host: str) -> LinkSpec | None:
        """The access link of a host; None where the host is an end of a declared link. Raises PathError."""
        node = host.lower()
        if node in self._graph:
            return None
        spec = self.spec.hosts.get(node, self.spec.default)
        if spec is None:
            raise PathError(f"the policy's topology has no host {host}; name it under hosts, or give a default")
        return self._access(node, spec)

    def access_rate(self, host: str) -> float | None:
        """The capacity of a host's access link, Mb/s; None where it is not known."""
        link = access_link(self.spec, host)
        return self.workers.get(host.lower()) if link is None or link.capacity is None else link.capacity

    def _access(self, node: str, spec: HostSpec) -> LinkSpec:
        capacity = self.workers.get(node) if spec.capacity is None else spec.capacity
        if capacity is None:
            raise PathError(
                f"the capacity of the access link of {node} is not known; give topology.hosts.{spec.name} a capacity, "
                f"or the machine ad AvailBandwidth"
            )
        return LinkSpec(ACCESS + node, (node, spec.switch), capacity, spec.duplex)

    def host_at(self, address: Address) -> str | None:
        """The host that is declared with this address."""
        for node, spec in self.spec.hosts.items():
            if any(address in network for network in spec.addresses):
                return node
        return None

    def addresses(self, host: str) -> tuple[Network, ...]:
        """The addresses that are declared of a host; none where it is not declared."""
        spec = self.spec.hosts.get(host.lower())
        return () if spec is None else spec.addresses

    def has(self, node: str) -> bool:
        """True if a host, switch or WAN of that name is declared."""
        return node.lower() in self._graph or node.lower() in self.spec.hosts

    def called(self, name: str) -> str:
        """The host that a name means: its own, or its first part where one declared host alone has it. Raises
        PathError."""
        node = name.lower()
        if self.has(node) or "." in node:
            return node
        found = sorted(each for each in {*self._graph, *self.spec.hosts} if each.partition(".")[0] == node)
        if len(found) > 1:
            raise PathError(f"several hosts of the policy's topology are called {name}: {', '.join(found)}")
        return found[0] if found else node

    def path(self, source: str, target: str) -> tuple[Channel, ...]:
        """Every channel that a packet from one node to another may take, in order. Raises PathError.

        Nothing where both are one node: traffic inside a host takes no link.
        """
        start, end = source.lower(), target.lower()
        if start == end:
            return ()
        first, last = self.access(start), self.access(end)
        found: list[Channel] = []
        here, there = start, end
        if first is not None:
            here = first.ends[1]
            found.append(channel(first, start, here))
        if last is not None:
            there = last.ends[1]
        if here != there:
            found += self._between(here, there, source, target)
        if last is not None:
            found.append(channel(last, there, end))
        return tuple(found)

    def is_end(self, node: str) -> bool:
        """True if a node (in lower case) is an end of a declared link."""
        return node in self._graph

    def connected(self, nodes: Iterable[str]) -> frozenset[str]:
        """The nodes from which declared links lead to one of ``nodes``, and those themselves."""
        found = {node for node in nodes if node in self._graph}
        ahead = list(found)
        while ahead:
            beside = {other for _, other in self._graph[ahead.pop()]} - found
            found |= beside
            ahead += beside
        return frozenset(found)

    def flow(self, source: str, target: str, kbps: int) -> Demand:
        """The demand of a flow in one direction. Raises PathError."""
        return _demand((each, kbps) for each in self.path(source, target))

    def both_ways(self, source: str, target: str, kbps: int) -> Demand:
        """The demand of a guarantee towards and from a node: of a half-duplex link twice the rate. Raises PathError."""
        return _demand((each, kbps) for each in (*self.path(source, target), *self.path(target, source)))

    def host(self, host: str, kbps: int) -> Demand:
        """The demand of a job's guarantee on its worker's access link, both ways. Raises PathError."""
        node = host.lower()
        access = self.access(node)
        links = [link for link, _ in self._graph[node]] if access is None else [access]
        if len(links) != 1:
            raise PathError(f"{host} hangs on {len(links)} links, and none of them is its access link")
        there, back = links[0].ends
        return _demand([(channel(links[0], there, back), kbps), (channel(links[0], back, there), kbps)])

    @cached_property
    def wans(self) -> Sequence[str]:
        """The WANs at which links end, in order of their names."""
        return sorted({end for link in self.spec.links for end in link.ends if is_wan(end)})

    def declared(self, hosts: Iterable[str] = ()) -> tuple[LinkSpec, ...]:
        """All links whose capacity is known: declared ones, and access links of hosts that are named or have reported
        theirs, and of ``hosts``."""
        known = [self._access(node, spec) for node, spec in self.spec.hosts.items() if self._has_capacity(node, spec)]
        if (default := self.spec.default) is not None:
            nodes = {*self.workers, *(host.lower() for host in hosts)} - {*self.spec.hosts, *self._graph}
            known += [self._access(node, default) for node in sorted(nodes) if self._has_capacity(node, default)]
        return (*self.spec.links, *known)

    def _has_capacity(self, node: str, spec: HostSpec) -> bool:
        return spec.capacity is not None or node in self.workers

    @cached_property
    def _graph(self) -> dict[str, list[tuple[LinkSpec, str]]]:
        graph: dict[str, list[tuple[LinkSpec, str]]] = {}
        for link in self.spec.links:
            one, other = link.ends
            graph.setdefault(one, []).append((link, other))
            graph.setdefault(other, []).append((link, one))
        return graph

    @cached_property
    def _paths(self) -> dict[tuple[str, str], tuple[Channel, ...]]:
        """Paths between nodes of the graph, kept once they are calculated; the links never change."""
        return {}

    def _between(self, here: str, there: str, source: str, target: str) -> tuple[Channel, ...]:
        found = self._paths.get((here, there))
        if found is None:
            found = self._paths[here, there] = self._search(here, there)
        if not found:
            raise PathError(f"the policy's topology has no path from {source} to {target}")
        return found

    def _search(self, here: str, there: str) -> tuple[Channel, ...]:
        """The channels of all shortest paths, by their distance from ``here``."""
        away, left = self._distances(here), self._distances(there)
        length = away.get(there)
        if length is None:
            return ()
        on_path = [
            (away[node], channel(link, node, other))
            for node in away
            for link, other in self._graph[node]
            if node in left and other in left and away[node] + 1 + left[other] == length
        ]
        return tuple(each for _, each in sorted(on_path))

    def _distances(self, start: str) -> dict[str, int]:
        """Links from ``start`` to each node; no path leads through a WAN."""
        distances = {start: 0}
        waiting = deque([start])
        while waiting:
            node = waiting.popleft()
            if is_wan(node) and node != start:
                continue
            for _, other in self._graph.get(node, ()):
                if other not in distances:
                    distances[other] = distances[node] + 1
                    waiting.append(other)
        return distances


def _demand(parts: Iterable[tuple[Channel, int]]) -> Demand:
    total: dict[Channel, int] = {}
    for each, kbps in parts:
        total[each] = total.get(each, 0) + kbps
    return tuple(total.items())


def has_some_of(spec: TopologySpec, host: str, networks: Iterable[Network]) -> bool:
    """True where a host is declared with one of these addresses."""
    declared = spec.hosts.get(host.lower())
    return declared is not None and any(
        each.version == own.version and each.overlaps(own) for each in networks for own in declared.addresses
    )

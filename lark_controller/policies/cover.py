"""Networks, and which others lie in them: found by bisection, so that a list of thousands costs what it should."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from lark_common.runs import Network


class Cover:
    """Networks of both versions in the order in which they were added, each once."""

    def __init__(self) -> None:
        self._all: dict[Network, None] = {}
        # Those that lie in no other, in order of their addresses: two networks overlap only where one holds the other.
        self._outer: dict[int, list[Network]] = {4: [], 6: []}
        self._first: dict[int, list[int]] = {4: [], 6: []}

    @property
    def networks(self) -> tuple[Network, ...]:
        """All that were added."""
        return tuple(self._all)

    def add(self, network: Network) -> None:
        """Add a network."""
        self._all[network] = None
        if self.contains(network):
            return
        start, end = self._within(network)
        self._outer[network.version][start:end] = [network]
        self._first[network.version][start:end] = [int(network.network_address)]

    def contains(self, network: Network) -> bool:
        """True if every address of ``network`` is in one of these."""
        return self._holder(network) is not None

    def holds_all(self, network: Network) -> bool:
        """True if every address of ``network`` is in these, be they many."""
        start, end = self._within(network)
        outer = self._outer[network.version][start:end]
        return self.contains(network) or sum(each.num_addresses for each in outer) == network.num_addresses

    def overlapping(self, network: Network) -> Network | None:
        """One of these that shares an address with ``network``; None where none does."""
        holder = self._holder(network)
        if holder is not None:
            return holder
        start, end = self._within(network)
        return self._outer[network.version][start] if start < end else None

    def _holder(self, network: Network) -> Network | None:
        place = bisect_right(self._first[network.version], int(network.network_address)) - 1
        if place < 0:
            return None
        found = self._outer[network.version][place]
        holds = found.prefixlen <= network.prefixlen and network.network_address in found
        return found if holds else None

    def _within(self, network: Network) -> tuple[int, int]:
        """The first and last index of the networks that lie in ``network``."""
        first = self._first[network.version]
        return (
            bisect_left(first, int(network.network_address)),
            bisect_right(first, int(network.broadcast_address)),
        )

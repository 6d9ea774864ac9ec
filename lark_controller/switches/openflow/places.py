"""Divides places for connections among those who ask for them, by host and by network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, MutableMapping
from typing import NamedTuple, TypeVar

from lark_common.limits import network_of, networks_around

T = TypeVar("T")


class Peer(NamedTuple):
    """The other end of a connection: its address, and the part of the network that this is in."""

    network: str
    host: str

    @classmethod
    def at(cls, host: str) -> Peer:
        """The peer at an address."""
        return cls(network_of(host), host)

    @property
    def networks(self) -> tuple[str, ...]:
        """The networks that it is in, the widest first."""
        return (*networks_around(self.host), self.network)


class Places(MutableMapping[T, Peer]):
    """The peers of those that hold a place, the oldest first. They are counted as they come and go, since each
    connection of a flood may ask for the place of one of 16,384."""

    def __init__(self) -> None:
        self._peers: dict[T, Peer] = {}
        self._of_host: dict[str, dict[T, None]] = {}
        # Places of the hosts of each network, of each network, and of each with those around it.
        self._hosts: dict[str, Counter[str]] = {}
        self._networks: Counter[str] = Counter()
        self._within: Counter[str] = Counter()

    def __getitem__(self, holder: T) -> Peer:
        return self._peers[holder]

    def __iter__(self) -> Iterator[T]:
        return iter(self._peers)

    def __len__(self) -> int:
        return len(self._peers)

    def __setitem__(self, holder: T, peer: Peer) -> None:
        self.pop(holder, None)
        self._peers[holder] = peer
        self._of_host.setdefault(peer.host, {})[holder] = None
        self._hosts.setdefault(peer.network, Counter())[peer.host] += 1
        self._networks[peer.network] += 1
        self._within.update(peer.networks)

    def __delitem__(self, holder: T) -> None:
        peer = self._peers.pop(holder)
        del self._of_host[peer.host][holder]
        if not self._of_host[peer.host]:
            del self._of_host[peer.host]
        _less(self._hosts[peer.network], peer.host)
        if not self._hosts[peer.network]:
            del self._hosts[peer.network]
        _less(self._networks, peer.network)
        for network in peer.networks:
            _less(self._within, network)

    def to_make_room(self, newcomer: Peer) -> T | None:
        """The one that gives its place to a newcomer: the oldest of the host that has most places, of those in the
        network that has most. None unless the newcomer has fewer even then, counted with the widest network of its own
        that the other is not in: whoever has many networks must not take a place with each of them."""
        network, theirs = _most(self._networks)
        host, of_host = _most(self._hosts[network])
        oldest = next(iter(self._of_host[host]))
        if network == newcomer.network:
            own, theirs = self._hosts[network][newcomer.host], of_host
        else:
            others = self._peers[oldest].networks
            own = self._within[next(each for each in newcomer.networks if each not in others)]
        return oldest if own + 1 < theirs else None


def _most(counts: Counter[str]) -> tuple[str, int]:
    name = max(counts, key=counts.__getitem__)
    return name, counts[name]


def _less(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]

"""The connections that the server keeps: places by kind of peer and by address, so that no peer takes them all.

Peers are of three kinds, each with places of its own: this machine (loopback and Unix sockets), addresses from which a
valid token has come, and strangers. Where places are short, the connection goes that has waited longest without a
request, one that has shown no token first: who has something to ask is answered before it is that one.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

from lark_common import log

# A request's head, and all of it, must have arrived so many seconds after its first byte, however fast bytes come.
HEAD_SECONDS: Final = 10.0
REQUEST_SECONDS: Final = 30.0
# A connection without a request is closed after so many seconds; one that has shown no token yet earlier. So is one
# that takes nothing of its answer.
IDLE_SECONDS: Final = 60.0
STRANGER_SECONDS: Final = 15.0
# Addresses from which a valid token has come are remembered for a day since the last.
_KNOWN_SECONDS: Final = 86_400.0
_KNOWN: Final = 16_384
_SWEEP_SECONDS: Final = 1.0


class Peer(IntEnum):
    """The kinds of peers."""

    LOCAL = 0
    KNOWN = 1
    STRANGER = 2


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits the connections that may be open at a time, in all and for one address (of IPv6 one /64)."""

    total: int
    address: int


STRANGERS: Final = ConnectionLimits(250, 32)
# Known peers, and this machine: for so many requests as are answered at a time, twice, and never less than this.
_LEAST: Final = 1000


def places(threads: int) -> Mapping[Peer, ConnectionLimits]:
    """The places of a server that answers so many requests at a time."""
    most = max(_LEAST, 2 * threads)
    return {
        Peer.LOCAL: ConnectionLimits(most, most),
        Peer.KNOWN: ConnectionLimits(most, most // 4),
        Peer.STRANGER: STRANGERS,
    }


class ClientConnection(Protocol):
    """A connection as this module needs it."""

    authenticated: bool
    last_activity: float
    total_outbufs_len: int

    @property
    def answering(self) -> bool:
        """True if a request has arrived whole and is being answered."""

    @property
    def since(self) -> float | None:
        """The time (time.time) of the first byte of a request that has not arrived whole; None without one."""

    @property
    def in_head(self) -> bool:
        """True if not even the head of that request is there."""

    def handle_close(self) -> None:
        """Close the connection."""


class Admission:
    """The open connections of one server; thread-safe. ``admit`` and ``due`` are for the thread that serves them."""

    def __init__(self, places: Mapping[Peer, ConnectionLimits]) -> None:
        self._places = places
        self._lock = threading.Lock()
        self._open: dict[ClientConnection, tuple[Peer, str]] = {}
        self._by_address: Counter[tuple[Peer, str]] = Counter()
        self._by_kind: Counter[Peer] = Counter()
        self._known: OrderedDict[str, float] = OrderedDict()
        self._evicted: list[ClientConnection] = []
        self._swept = 0.0
        self._refused = 0

    def admit(self, channel: ClientConnection, host: str | None) -> bool:
        """Take in a new connection of an address (None: a Unix socket), if need be for an older one that waits."""
        address = _key(host)
        with self._lock:
            kind = self._kind(address)
            places = self._places[kind]
            if self._by_address[kind, address] >= places.address and not self._evict(kind, address):
                return self._refuse(address)
            if self._by_kind[kind] >= places.total and not self._evict(kind, None):
                return self._refuse(address)
            self._open[channel] = kind, address
            self._by_address[kind, address] += 1
            self._by_kind[kind] += 1
            return True

    def gone(self, channel: ClientConnection) -> None:
        """Frees the place of a closed connection."""
        with self._lock:
            self._remove(channel)

    def authenticated(self, channel: ClientConnection) -> None:
        """Notes that a request with a valid token came by a connection."""
        channel.authenticated = True
        with self._lock:
            held = self._open.get(channel)
            if held is None or held[1] == "":
                return
            kind, address = held
            self._known[address] = time.monotonic()
            self._known.move_to_end(address)
            if len(self._known) > _KNOWN:
                self._known.popitem(last=False)
            if kind is Peer.STRANGER:
                self._remove(channel)
                self._open[channel] = Peer.KNOWN, address
                self._by_address[Peer.KNOWN, address] += 1
                self._by_kind[Peer.KNOWN] += 1

    def due(self, now: float) -> list[ClientConnection]:
        """The connections to close now (``now`` as time.time): for newer ones, or because their time is over."""
        with self._lock:
            due, self._evicted = self._evicted, []
            if abs(now - self._swept) >= _SWEEP_SECONDS:
                self._swept = now
                due += [channel for channel in self._open if _over(channel, now)]
        return due

    def _kind(self, address: str) -> Peer:
        if address == "":
            return Peer.LOCAL
        known = self._known.get(address)
        return Peer.KNOWN if known is not None and time.monotonic() - known < _KNOWN_SECONDS else Peer.STRANGER

    def _evict(self, kind: Peer, address: str | None) -> bool:
        """Choose a connection to close: of this kind and address (None: any) the one that waits longest."""
        waiting = [
            channel
            for channel, (of, where) in self._open.items()
            if of is kind and address in (None, where) and not channel.answering
        ]
        if not waiting:
            return False
        chosen = min(waiting, key=lambda channel: (channel.authenticated, channel.last_activity))
        self._remove(chosen)
        self._evicted.append(chosen)
        return True

    def _remove(self, channel: ClientConnection) -> None:
        held = self._open.pop(channel, None)
        if held is None:
            return
        self._by_kind[held[0]] -= 1
        self._by_address[held] -= 1
        if not self._by_address[held]:
            del self._by_address[held]

    def _refuse(self, address: str) -> bool:
        self._refused += 1
        if self._refused & (self._refused - 1) == 0:
            log.event(
                "REST connections refused: too many at a time", level=log.WARNING, peer=address, times=self._refused
            )
        return False


def _over(channel: ClientConnection, now: float) -> bool:
    if channel.answering:
        return False
    if channel.since is not None:
        return now - channel.since > (HEAD_SECONDS if channel.in_head else REQUEST_SECONDS)
    idle = IDLE_SECONDS if channel.authenticated else STRANGER_SECONDS
    return now - channel.last_activity > idle


def _key(host: str | None) -> str:
    """The peer of an address: ``""`` for this machine, of IPv6 a /64, else itself."""
    if host is None:
        return ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    address = address if mapped is None else mapped
    if address.is_loopback:
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    return str(address)

"""The connections that the server keeps: places by kind of peer and by address, so that no peer takes them all.

Peers are of three kinds, each with places of its own: this machine (loopback and Unix sockets), addresses from which a
valid token has come, and strangers. Where places are short, the connection goes that has waited longest without a
request, one that has shown no token first: who has something to ask is answered before it is that one.
"""

from __future__ import annotations

import functools
import heapq
import ipaddress
import itertools
import random
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

from lark_common import log
from lark_common.limits import network_of

# A request's head, and all of it, must have arrived so many seconds after its first byte, however fast bytes come.
HEAD_SECONDS: Final = 10.0
REQUEST_SECONDS: Final = 30.0
# A connection without a request is closed after so many seconds; one that has shown no token yet earlier. So is one
# that takes nothing of its answer.
IDLE_SECONDS: Final = 60.0
STRANGER_SECONDS: Final = 15.0
# Bytes of answers that all connections together may leave untaken; beyond that the ones are closed that have taken none
# for longest.
MOST_UNSENT: Final = 64 << 20
# Addresses from which a valid token has come are remembered for a day since the last.
_KNOWN_SECONDS: Final = 86_400.0
_KNOWN: Final = 16_384
_SWEEP_SECONDS: Final = 1.0
# A stranger's connection that has lost its place is closed about so many seconds later; so many at most wait for that.
PARKED_SECONDS: Final = 5.0
MOST_PARKED: Final = 1024


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
        self._by_address: dict[tuple[Peer, str], dict[ClientConnection, None]] = {}
        self._by_kind: Counter[Peer] = Counter()
        self._known: OrderedDict[str, float] = OrderedDict()
        self._evicted: list[ClientConnection] = []
        self._parked: list[ClientConnection] = []
        self._swept = 0.0
        self._refused = 0

    def admit(self, channel: ClientConnection, host: str | None) -> bool:
        """Take in a new connection of an address (None: a Unix socket), if need be for an older one that waits."""
        address = peer_of(host)
        with self._lock:
            kind = self._kind(address)
            places = self._places[kind]
            if len(self._by_address.get((kind, address), ())) >= places.address and not self._evict(kind, address):
                return self._refuse(address)
            if self._by_kind[kind] >= places.total and not self._evict(kind, None):
                return self._refuse(address)
            self._put(channel, kind, address)
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
                self._put(channel, Peer.KNOWN, address)

    def due(self, now: float) -> list[ClientConnection]:
        """The connections to close now (``now`` as time.time): for newer ones, or because their time is over."""
        if not self._evicted and abs(now - self._swept) < _SWEEP_SECONDS:
            return []
        with self._lock:
            due, self._evicted = self._evicted, []
            if abs(now - self._swept) >= _SWEEP_SECONDS:
                self._swept = now
                due += [channel for channel in self._open if _over(channel, now)]
                due += self._slow()
        return due

    def _slow(self) -> list[ClientConnection]:
        """The connections to close so that answers which nobody takes do not fill the memory."""
        unsent = sum(channel.total_outbufs_len for channel in self._open)
        found = []
        if unsent > MOST_UNSENT:
            for channel in sorted(self._open, key=lambda channel: channel.last_activity):
                if channel.total_outbufs_len and not channel.answering:
                    found.append(channel)
                    unsent -= channel.total_outbufs_len
                    if unsent <= MOST_UNSENT:
                        break
        return found

    def to_park(self) -> list[ClientConnection]:
        """The connections of strangers that have lost their places to newer ones: not to be read any more."""
        if not self._parked:
            return self._parked
        with self._lock:
            parked, self._parked = self._parked, []
        return parked

    def _kind(self, address: str) -> Peer:
        if address == "":
            return Peer.LOCAL
        known = self._known.get(address)
        return Peer.KNOWN if known is not None and time.monotonic() - known < _KNOWN_SECONDS else Peer.STRANGER

    def _evict(self, kind: Peer, address: str | None) -> bool:
        """Choose a connection to close: of this kind and address (None: any) the one that waits longest."""
        if address is None:
            waiting = [channel for channel, (of, _) in self._open.items() if of is kind and not channel.answering]
        else:
            waiting = [channel for channel in self._by_address[kind, address] if not channel.answering]
        if not waiting:
            return False
        chosen = min(waiting, key=lambda channel: (channel.authenticated, channel.last_activity))
        self._remove(chosen)
        (self._parked if kind is Peer.STRANGER else self._evicted).append(chosen)
        return True

    def _put(self, channel: ClientConnection, kind: Peer, address: str) -> None:
        self._open[channel] = kind, address
        self._by_address.setdefault((kind, address), {})[channel] = None
        self._by_kind[kind] += 1

    def _remove(self, channel: ClientConnection) -> None:
        held = self._open.pop(channel, None)
        if held is None:
            return
        self._by_kind[held[0]] -= 1
        own = self._by_address[held]
        del own[channel]
        if not own:
            del self._by_address[held]

    def _refuse(self, address: str) -> bool:
        self._refused += 1
        if self._refused & (self._refused - 1) == 0:
            log.event(
                "REST connections refused: too many at a time", level=log.WARNING, peer=address, times=self._refused
            )
        return False


class Parking:
    """Connections of strangers that are no longer read. They are closed some seconds later, not all at a time: a
    stranger that connects again as soon as it is closed would take the time of all others."""

    def __init__(self, most: int = MOST_PARKED, spread: Callable[[], float] = random.random) -> None:
        self._most = most
        self._spread = spread
        self._numbers = itertools.count()
        self._waiting: list[tuple[float, int, ClientConnection]] = []

    def add(self, channel: ClientConnection, now: float) -> None:
        """Keep a connection for :data:`PARKED_SECONDS`, half as much more or less (``now`` as time.monotonic)."""
        until = now + PARKED_SECONDS * (0.5 + self._spread())
        heapq.heappush(self._waiting, (until, next(self._numbers), channel))

    def over(self, now: float) -> list[ClientConnection]:
        """The connections to close now."""
        found = []
        while self._waiting and (self._waiting[0][0] <= now or len(self._waiting) > self._most):
            found.append(heapq.heappop(self._waiting)[2])
        return found

    def all(self) -> list[ClientConnection]:
        """All of them, to be closed at once."""
        found = [channel for _, _, channel in sorted(self._waiting)]
        self._waiting.clear()
        return found


def _over(channel: ClientConnection, now: float) -> bool:
    if channel.answering:
        return False
    if channel.since is not None:
        return now - channel.since > (HEAD_SECONDS if channel.in_head else REQUEST_SECONDS)
    idle = IDLE_SECONDS if channel.authenticated else STRANGER_SECONDS
    return now - channel.last_activity > idle


def peer_of(host: str | None) -> str:
    """The peer of an address: ``""`` for this machine, else as limits count it."""
    return "" if host is None or _is_loopback(network := network_of(host)) else network


@functools.lru_cache(maxsize=_KNOWN)
def _is_loopback(network: str) -> bool:
    try:
        return ipaddress.ip_address(network).is_loopback
    except ValueError:
        return False

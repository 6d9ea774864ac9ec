"""Limits that keep one caller from the others' service: token buckets, places that requests occupy, time to read."""

from __future__ import annotations

import errno
import functools
import io
import ipaddress
import math
import socket
import sys
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

_KEYS: Final = 4096


@functools.lru_cache(maxsize=16_384)
def network_of(host: str) -> str:
    """The part of the network that limits count an address as: of IPv6 the /64, in which one machine may have as many
    addresses as it likes. What is no address is itself."""
    address = _address(host)
    if address is None:
        return host
    if isinstance(address, ipaddress.IPv4Address) or address.is_loopback:
        return str(address)
    return str(ipaddress.IPv6Network((address, 64), strict=False))


@functools.lru_cache(maxsize=16_384)
def networks_around(host: str) -> tuple[str, ...]:
    """The networks around :func:`network_of` that may be one owner's, the widest first: of IPv6 the /48 and the /56, of
    IPv4 the /24."""
    address = _address(host)
    if address is None or address.is_loopback:
        return ()
    lengths = (24,) if isinstance(address, ipaddress.IPv4Address) else (48, 56)
    return tuple(str(ipaddress.ip_network((address, length), strict=False)) for length in lengths)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = None if isinstance(address, ipaddress.IPv4Address) else address.ipv4_mapped
    return mapped or address


class Bucket:
    """A token bucket, full at first: fills at ``rate`` a second up to ``most``. For one thread; times are handed in."""

    __slots__ = ("_left", "_most", "_rate", "_since")

    def __init__(self, rate: float, most: float, now: float) -> None:
        self._rate = rate
        self._most = most
        self._left = most
        self._since = now

    def left(self, now: float) -> float:
        """The amount that is left now."""
        self._left = min(self._most, self._left + (now - self._since) * self._rate)
        self._since = now
        return self._left

    def take(self, amount: float, now: float) -> float:
        """Take an amount, whether it is there or not; returns the seconds until something is there again."""
        self._left = self.left(now) - amount
        return max(0.0, -self._left / self._rate)

    def until(self, amount: float = 1.0) -> float:
        """The seconds from the last call until there is that much; infinite where the rate is 0."""
        if self._left >= amount:
            return 0.0
        return (amount - self._left) / self._rate if self._rate else math.inf

    def take_whole(self, now: float, amount: float = 1.0) -> bool:
        """Take an amount if it is there."""
        if self.left(now) < amount:
            return False
        self._left -= amount
        return True


class Buckets:
    """A token bucket for each key: ``burst`` at once, then ``rate`` a second; thread-safe.

    At most ``keys`` are remembered, the ones used last; a forgotten one starts full again.
    """

    def __init__(
        self, rate: float, burst: float, keys: int = _KEYS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._keys = keys
        self._clock = clock
        self._lock = threading.Lock()
        self._of: OrderedDict[Hashable, Bucket] = OrderedDict()

    def take(self, key: Hashable, amount: float = 1.0) -> float:
        """Take an amount; 0 where it was there, else the seconds until it is."""
        with self._lock:
            # In the lock: a thread that waited for it must not come with a time from before another's.
            now = self._clock()
            bucket = self._of.get(key)
            if bucket is None:
                bucket = self._of[key] = Bucket(self._rate, self._burst, now)
            taken = bucket.take_whole(now, amount)
            self._of.move_to_end(key)
            if len(self._of) > self._keys:
                self._of.popitem(last=False)
            return 0.0 if taken else bucket.until(amount)

    def until(self, key: Hashable, amount: float = 1.0) -> float:
        """The seconds until an amount is there, of which nothing is taken."""
        with self._lock:
            bucket = self._of.get(key)
            if bucket is None:
                return 0.0
            bucket.left(self._clock())
            return bucket.until(amount)


class Places:
    """Places that callers occupy for a time, ``most`` for each; there is no queue for a place. Thread-safe."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._taken: Counter[Hashable] = Counter()

    def take(self, caller: Hashable = None, most: int | None = None) -> bool:
        """Occupy a place; False where the caller has ``most`` already. Each True is followed by one :meth:`give`."""
        with self._lock:
            free = self._taken[caller] < (self.most if most is None else most)
            if free:
                self._taken[caller] += 1
            return free

    def give(self, caller: Hashable = None) -> None:
        """Free a place that was taken."""
        with self._lock:
            self._taken[caller] -= 1
            if not self._taken[caller]:
                del self._taken[caller]

    @contextmanager
    def place(self, caller: Hashable = None, most: int | None = None) -> Iterator[bool]:
        """Occupy a place for the length of the block; False where none was free (the block runs all the same)."""
        taken = self.take(caller, most)
        try:
            yield taken
        finally:
            if taken:
                self.give(caller)


class WaitedPlaces:
    """Places that are waited for: ``most`` of each caller are occupied at once, the others wait. Thread-safe.

    The memory is that of the callers who wait or have a place.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._of: dict[Hashable, _Waited] = {}

    @contextmanager
    def place(self, caller: Hashable) -> Iterator[None]:
        """Wait for a place, and occupy it for the length of the block."""
        with self._lock:
            own = self._of.setdefault(caller, _Waited(threading.Semaphore(self._most)))
            own.wanted += 1
        try:
            with own.free:
                yield
        finally:
            with self._lock:
                own.wanted -= 1
                if not own.wanted:
                    del self._of[caller]


@dataclass(slots=True)
class _Waited:
    """The places of one caller, and how many of its threads wait or have one."""

    free: threading.Semaphore
    wanted: int = 0


class InTime(io.RawIOBase):
    """The other end's bytes, until ``end`` (of the monotonic clock) at the latest, ``idle`` seconds apart at most, and
    ``most`` of them."""

    def __init__(self, connection: socket.socket, end: float, idle: float = math.inf, most: int = sys.maxsize) -> None:
        super().__init__()
        self._connection, self._end, self._idle, self._left = connection, end, idle, most
        # Keeps the connection open for as long as it is read, whoever closes it meanwhile.
        self._file = connection.makefile("rb", buffering=0)

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """As of a file. Raises TimeoutError, and OSError (EMSGSIZE) where more has come than may."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("it has not come in time")
        self._connection.settimeout(min(self._idle, left))
        count = self._file.readinto(buffer)
        self._left -= count or 0
        if self._left < 0:
            raise OSError(errno.EMSGSIZE, "more has come than is accepted")
        return count

    def close(self) -> None:
        """Close the file; may be repeated."""
        self._file.close()
        super().close()

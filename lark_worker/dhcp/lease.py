"""A lease: the address, its times, and the server's options for the network. Kept on disk as JSON."""

from __future__ import annotations

import contextlib
import json
import math
import re
import struct
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any, Final

from lark_common import log
from lark_worker.dhcp.message import NOWHERE, Message, Option
from lark_worker.records.atomic_file import remove, write_atomically

FOREVER: Final = 0xFFFFFFFF
_DOMAIN: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")
# Routes of one lease that are taken; a message has room for hundreds, and each is a command.
_ROUTES: Final = 64
# Where the server names no such time (RFC 2131, section 4.4.5).
_T1, _T2 = 0.5, 0.875
# Seconds of a lease, and before its renewal, at least. Each may bring another address, which changes the job's network
# and its registration; dnsmasq gives none of less than two minutes.
SHORTEST: Final = 60.0
RENEWS_AFTER: Final = 30.0


@dataclass(frozen=True, slots=True)
class Route:
    """A route: ``gateway`` 0.0.0.0 is a network on the link itself."""

    network: IPv4Network
    gateway: IPv4Address


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease; times are seconds since 1970, ``expires`` infinite for a lease without end.

    ``renews`` (T1) is when its server is asked to renew it, ``rebinds`` (T2) when any server is.
    """

    address: IPv4Address
    length: int
    server: IPv4Address
    began: float
    renews: float
    rebinds: float
    expires: float
    routes: tuple[Route, ...] = ()
    nameservers: tuple[IPv4Address, ...] = ()
    domain: str = ""
    mtu: int = 0

    @property
    def interface(self) -> str:
        """The address with its prefix length."""
        return f"{self.address}/{self.length}"

    def same_network(self, other: Lease) -> bool:
        """True if both configure the interface alike."""
        mine, others = (
            (each.interface, each.routes, each.nameservers, each.domain, each.mtu) for each in (self, other)
        )
        return mine == others


def granted(message: Message, now: float) -> Lease:
    """The lease that an ACK grants, counted from ``now``, when it was requested. Raises ValueError where it is none."""
    options = message.options
    address = message.yours
    seconds = _number(options.get(Option.LEASE, b""))
    servers = _addresses(options.get(Option.SERVER, b""))
    if address == NOWHERE or address.is_multicast or address.is_loopback or len(servers) != 1:
        raise ValueError("address or server is missing")
    if seconds < SHORTEST:
        raise ValueError(f"{servers[0]} grants {seconds} s; at least {SHORTEST:g} s are accepted")
    lasts = math.inf if seconds == FOREVER else float(seconds)
    t1, t2 = (_number(options.get(option, b"")) for option in (Option.T1, Option.T2))
    renews = float(t1) if t1 else lasts * _T1
    rebinds = float(t2) if t2 else lasts * _T2
    if not RENEWS_AFTER <= renews <= rebinds <= lasts:
        renews, rebinds = lasts * _T1, lasts * _T2
    mask = options.get(Option.MASK, b"\xff\xff\xff\xff")
    length = IPv4Network((0, str(IPv4Address(mask)))).prefixlen
    domain = options.get(Option.DOMAIN, b"").rstrip(b"\0").decode("ascii", "replace")
    mtu = _number(options.get(Option.MTU, b""))
    return Lease(
        address, length, servers[0], now, now + renews, now + rebinds, now + lasts, _routes(options),
        _addresses(options.get(Option.NAMESERVERS, b"")), domain if _DOMAIN.fullmatch(domain) else "", mtu,
    )  # fmt: skip


def _number(value: bytes) -> int:
    return int.from_bytes(value, "big") if len(value) in (2, 4) else 0


def _addresses(value: bytes) -> tuple[IPv4Address, ...]:
    whole = len(value) // 4 * 4
    return tuple(IPv4Address(part) for (part,) in struct.iter_unpack("!4s", value[:whole]))


def _routes(options: Any) -> tuple[Route, ...]:
    """Classless static routes (RFC 3442): where a server names them, its routers option does not count."""
    value: bytes = options.get(Option.ROUTES, b"")
    found: list[Route] = []
    while value and len(found) < _ROUTES:
        length, significant = value[0], (value[0] + 7) // 8
        if length > 32 or len(value) < 5 + significant:
            raise ValueError("a route is cut off")
        network = IPv4Network((value[1 : 1 + significant].ljust(4, b"\0"), length), strict=False)
        found.append(Route(network, IPv4Address(value[1 + significant : 5 + significant])))
        value = value[5 + significant :]
    if not found:
        everything = IPv4Network("0.0.0.0/0")
        found = [Route(everything, router) for router in _addresses(options.get(Option.ROUTERS, b""))[:1]]
    return tuple(found)


class Cache:
    """The last lease of each slot's MAC address, one file each in ``directory``, written whole and renamed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def read(self, mac: str, now: float) -> Lease | None:
        """The lease of a MAC address, as long as it lasts."""
        lease = _read(self._path(mac))
        return lease if lease is not None and lease.expires > now else None

    def write(self, mac: str, lease: Lease) -> None:
        """Keep a lease. Raises OSError where the disk does not take it."""
        document = {name: _plain(value) for name, value in asdict(lease).items()}
        write_atomically(self._path(mac), json.dumps(document))

    def remove(self, mac: str) -> None:
        """Forget a lease; nothing happens where there is none."""
        with contextlib.suppress(FileNotFoundError):
            self._path(mac).unlink()

    def sweep(self, now: float) -> int:
        """Remove expired and unreadable leases; returns how many."""
        gone = 0
        for path in list(self._directory.iterdir()):
            lease = _read(path) if path.suffix == ".json" else None
            if lease is None or lease.expires <= now:
                remove(path)
                gone += 1
        if gone:
            log.event("expired leases removed", leases=gone)
        return gone

    def _path(self, mac: str) -> Path:
        return self._directory / f"{mac.replace(':', '')}.json"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, IPv4Address | IPv4Network) else value


def _read(path: Path) -> Lease | None:
    try:
        given: dict[str, Any] = json.loads(path.read_text("utf-8"))
        routes = tuple(Route(IPv4Network(each["network"]), IPv4Address(each["gateway"])) for each in given["routes"])
        began, renews, rebinds, expires = (float(given[name]) for name in ("began", "renews", "rebinds", "expires"))
        nameservers = tuple(IPv4Address(each) for each in given["nameservers"])
        return Lease(
            IPv4Address(given["address"]), int(given["length"]), IPv4Address(given["server"]), began, renews, rebinds,
            expires, routes, nameservers, str(given["domain"]), int(given["mtu"]),
        )  # fmt: skip
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None

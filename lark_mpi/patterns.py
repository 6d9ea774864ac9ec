"""Patterns of messages between ranks, and the rates between jobs that follow from them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import index
from typing import Final

from lark_mpi.errors import ReservationError

ETHERNET: Final = 14
IPV4: Final = 20
IPV6: Final = 40
# With time stamps, which Linux sends on every segment.
TCP: Final = 32
MTU: Final = 1500
# Below this no IPv4 link is; above it no packet.
SMALLEST_MTU, LARGEST_MTU = 576, 65535
# 10 Tb/s, the most that a controller reserves, in bytes a second.
MOST: Final = 1.25e12


class Pattern(StrEnum):
    """A pattern of messages: each rank sends to every other, to the next one, or to its neighbours in the
    communicator's topology."""

    ALL = "all"
    RING = "ring"
    NEIGHBOURS = "neighbours"


@dataclass(frozen=True, slots=True)
class Place:
    """The job that a rank is part of: its id, its worker's name at the controller, its addresses."""

    job: str
    host: str
    addresses: tuple[str, ...] = ()


def row(pattern: Pattern, rank: int, size: int, rate: float, neighbours: Iterable[int] = ()) -> dict[int, float]:
    """The rates that a rank sends by a pattern, bytes a second by destination rank. Raises ReservationError.

    A neighbour that is named twice is sent two streams, and so twice the rate.
    """
    if pattern is Pattern.ALL:
        receivers: Iterable[int] = range(size)
    elif pattern is Pattern.RING:
        receivers = ((rank + 1) % size,)
    else:
        receivers = neighbours
    sent: dict[int, float] = {}
    for receiver in receivers:
        sent[receiver] = sent[receiver] + rate if receiver in sent else rate
    return table(rank, size, sent)


def table(rank: int, size: int, rates: Mapping[int, float]) -> dict[int, float]:
    """Check the rates that a rank sends: without those to itself and those of 0. Raises ReservationError."""
    found: dict[int, float] = {}
    for each, rate in rates.items():
        try:
            receiver = index(each)
        except TypeError:
            raise ReservationError(f"a rank of {each!r}; whole numbers of 0 to {size - 1} are accepted") from None
        if not 0 <= receiver < size:
            raise ReservationError(f"there is no rank {receiver} to send to; 0 to {size - 1} are accepted")
        # Without math.isfinite, which fails at whole numbers of hundreds of digits.
        if not within(rate, 0, MOST):
            raise ReservationError(f"a rate of {rate!r} bytes a second; 0 to {MOST:g} are accepted")
        if receiver != rank and rate > 0:
            found[receiver] = float(rate)
    return found


def within(number: object, least: float, most: float) -> bool:
    """True for a number between two others, of whatever type; False for what is none."""
    try:
        return bool(least <= number <= most)  # type: ignore[operator]
    except TypeError:
        return False


def to_jobs(sent: Mapping[int, float], rank: int, places: Sequence[Place]) -> dict[str, float]:
    """The rates that a rank sends to other jobs on other hosts, bytes a second by job."""
    own, found = places[rank], dict[str, float]()
    for receiver, rate in sorted(sent.items()):
        there = places[receiver]
        if there.job != own.job and there.host != own.host:
            found[there.job] = found.get(there.job, 0.0) + rate
    return found


def together(sums: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The sum of several ranks' rates by job."""
    total: dict[str, float] = {}
    for each in sums:
        for job, rate in each.items():
            total[job] = total.get(job, 0.0) + rate
    return total


def headers(mtu: int, ipv6: bool) -> float:
    """Bytes on a link for each byte of the application, in full packets: (MTU + 14) / (MTU - IP - 32).

    14 are Ethernet's, IP is 20 or with IPv6 40, 32 are TCP's with its time stamps.
    """
    held = min(max(mtu, SMALLEST_MTU), LARGEST_MTU)
    return (held + ETHERNET) / (held - (IPV6 if ipv6 else IPV4) - TCP)


def megabits(rate: float, mtu: int, ipv6: bool) -> float:
    """An application's rate in bytes a second as a link's in Mb/s, rounded up to whole kb/s."""
    return max(1, math.ceil(round(rate * 8e-3 * headers(mtu, ipv6), 6))) / 1000


def application_rate(megabits_of_link: float, mtu: int, ipv6: bool) -> float:
    """A link's rate in Mb/s as the bytes a second that an application has of it."""
    return megabits_of_link * 125_000 / headers(mtu, ipv6)


def uses_ipv6(here: Place, there: Place) -> bool:
    """True if the packets between two jobs are IPv6: no IPv4 address is on both sides."""
    four = [any(":" not in address for address in place.addresses) for place in (here, there)]
    six = [any(":" in address for address in place.addresses) for place in (here, there)]
    return all(six) and not all(four)

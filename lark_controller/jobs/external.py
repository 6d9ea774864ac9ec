"""External addresses of jobs: the openings that are asked for, the choice of an address, and who holds which. Pure.

An external address belongs to one job at a time. Packets for it reach the job, and what the job sends in answer leaves
with it, on the protocols and ports that are open; nothing else is translated.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Final, NamedTuple, TypeVar

from lark_common.runs import Address, Network
from lark_controller.jobs.external_names import WANTED, NameState

K = TypeVar("K")

MAX_PORT: Final = 65535
# A request's openings, and the matches that all of them take: each is two flows on each core.
MOST_OPENINGS: Final = 16
MOST_MATCHES: Final = 64
# Addresses of one pool; all of them may be looked at for each request.
MOST_ADDRESSES: Final = 65536
# Protocols with ports, and those without.
WITH_PORTS: Final = ("tcp", "udp")
WITHOUT_PORTS: Final = ("icmp", "any")
ACCEPTED: Final = "tcp/PORT, udp/PORT, tcp/FIRST-LAST, tcp, udp, icmp or any"

_OPENING: Final = re.compile(r"([a-z]{1,8})(?:/([0-9]{1,5})(?:-([0-9]{1,5}))?)?")


class Opening(NamedTuple):
    """A protocol with its ports ``first`` to ``last``; without ports both are 0 (``any``: whatever IP carries)."""

    protocol: str
    first: int = 0
    last: int = 0

    def __str__(self) -> str:
        if self.protocol not in WITH_PORTS or (self.first, self.last) == (1, MAX_PORT):
            return self.protocol
        return f"{self.protocol}/{self.first}" + ("" if self.first == self.last else f"-{self.last}")

    def covers(self, other: Opening) -> bool:
        """True where everything of ``other`` is open by this one."""
        if self.protocol == "any":
            return True
        return self.protocol == other.protocol and self.first <= other.first and other.last <= self.last

    def matches(self) -> Iterator[tuple[int, int]]:
        """Values and masks that match the ports, as few as there can be; none where all are open or the protocol has
        none."""
        if self.protocol not in WITH_PORTS or (self.first, self.last) == (1, MAX_PORT):
            return
        start, end = self.first, self.last + 1
        while start < end:
            size = start & -start
            while size > end - start:
                size >>= 1
            yield start, MAX_PORT & ~(size - 1)
            start += size


def opening(text: str) -> Opening:
    """An opening out of its word. Raises ValueError with what is wrong."""
    found = _OPENING.fullmatch(text.strip().lower())
    protocol = found[1] if found is not None else ""
    if found is None or protocol not in (*WITH_PORTS, *WITHOUT_PORTS):
        raise ValueError(f"{text[:40]!r} is no protocol with ports; accepted: {ACCEPTED}")
    if found[2] is None:
        return Opening(protocol, 1, MAX_PORT) if protocol in WITH_PORTS else Opening(protocol)
    first, last = int(found[2]), int(found[3] or found[2])
    if protocol not in WITH_PORTS or not 1 <= first <= last <= MAX_PORT:
        raise ValueError(f"{text[:40]!r}: ports are 1 to {MAX_PORT}, of tcp or udp")
    return Opening(protocol, first, last)


def openings(words: Sequence[str]) -> tuple[Opening, ...]:
    """Openings out of their words, each once, in order. Raises ValueError."""
    if len(words) > MOST_OPENINGS:
        raise ValueError(f"{len(words)} openings; at most {MOST_OPENINGS} are accepted")
    found = tuple(sorted({opening(word) for word in words}))
    count = sum(len(list(each.matches())) or 1 for each in found)
    if count > MOST_MATCHES:
        raise ValueError(f"these ports take {count} matches of a switch; at most {MOST_MATCHES} are accepted")
    return found


def listed(text: str) -> tuple[Opening, ...]:
    """Openings of a text, separated by commas or spaces; none of an empty one. Raises ValueError."""
    words = text.replace(",", " ").split()[: MOST_OPENINGS + 1]
    if not words and text.strip():
        # No openings at all stand for all that the policy opens, which nobody asks for by a comma.
        raise ValueError(f"{text[:40]!r} is no protocol with ports; accepted: {ACCEPTED}")
    return openings(words)


def refused(wanted: Collection[Opening], allowed: Collection[Opening]) -> tuple[Opening, ...]:
    """The wanted openings of which the allowed ones, taken together, do not cover everything."""
    joined = _joined(allowed)
    return tuple(each for each in wanted if not any(one.covers(each) for one in joined))


def _joined(given: Collection[Opening]) -> list[Opening]:
    """Openings with ports that overlap or follow each other as one."""
    found: list[Opening] = []
    for each in sorted(given):
        before = found[-1] if found else None
        if before is not None and before.protocol == each.protocol and each.first <= before.last + 1:
            found[-1] = before._replace(last=max(before.last, each.last))
        else:
            found.append(each)
    return found


class External(NamedTuple):
    """An external address as switches need it, the address and its openings; its name in the DNS (``""``: none), and
    the number of its association, which is higher for later ones."""

    address: Address
    openings: tuple[Opening, ...]
    name: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class Association:
    """An external address of a job. Times are seconds since 1970.

    It ends with the job, at ``until`` (None: with the job alone), with the ``reservation`` of that number (None: there
    is none), or by a release; ``released`` is when it did, and ``free`` when the address may be given to the next job.
    ``number`` is the store's; ``id`` 16 hexadecimal digits.
    ``name`` is the address's name in the DNS (``""``: none), in ``zone``; ``name_reason`` is why it is not yet what
    it is to be.
    """

    number: int
    id: str
    address: Address
    pool: str
    job: str
    owner: str
    group: str
    openings: tuple[Opening, ...]
    created: float
    until: float | None = None
    reservation: int | None = None
    released: float | None = None
    free: float | None = None
    why: str = ""
    actor: str = ""
    name: str = ""
    zone: str = ""
    ttl: int = 0
    name_state: NameState = NameState.NONE
    name_reason: str = ""

    @property
    def place(self) -> tuple[str, int]:
        """The job's id and the family: a job has one of each."""
        return self.job, self.address.version

    @property
    def end(self) -> float:
        """The time at which it is over by itself; infinite where none is set."""
        return math.inf if self.until is None else self.until

    def live(self, now: float) -> bool:
        """True while packets are to pass by it."""
        return self.released is None and (self.until is None or now < self.until)

    @property
    def external(self) -> External:
        """The part that switches need."""
        return External(self.address, self.openings, self.name if self.name_state in WANTED else "", self.number)


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool: its addresses, those that are jobs', and those that rest between two jobs."""

    name: str
    total: int
    used: int
    quarantined: int

    @property
    def free(self) -> int:
        """Addresses that the next job may get."""
        return max(0, self.total - self.used - self.quarantined)


def names_of(pools: Mapping[str, tuple[Network, ...]]) -> Callable[[Address], str | None]:
    """The name of the pool that an IPv4 address is in (None: in none); no two pools have one address."""
    ranges = sorted((int(each[0]), int(each[-1]), name) for name, networks in pools.items() for each in networks)

    def name(address: Address) -> str | None:
        place = bisect_right(ranges, int(address), key=itemgetter(0)) - 1
        return ranges[place][2] if place >= 0 and int(address) <= ranges[place][1] else None

    return name


def renamed(held: Mapping[K, Association], pools: Mapping[str, tuple[Network, ...]]) -> dict[K, Association]:
    """Those of associations whose addresses are in a pool of another name, by that name; one of an address that is in
    no pool any more keeps the name."""
    name_of, found = names_of(pools), {}
    for key, each in held.items():
        name = name_of(each.address) if each.address.version == 4 else None
        if name not in (None, each.pool):
            found[key] = replace(each, pool=name)
    return found


def closed_sentence(closed: Mapping[Address, str]) -> str:
    """The reason in the state of a job whose external addresses are closed, each with its own."""
    return "; ".join(f"{_is_closed(address)}{why}" for address, why in closed.items())


def closed_by(sentence: str, address: Address) -> str:
    """The reason in such a sentence why an address is closed; ``""``: it names none."""
    return sentence.partition(_is_closed(address))[2].partition("; external address ")[0]


def _is_closed(address: Address) -> str:
    return f"external address {address} is closed: "


def size(networks: Sequence[Network]) -> int:
    """The addresses of a pool."""
    return sum(network.num_addresses for network in networks)


def rotated(networks: Sequence[Network], last: Address | None = None) -> Iterator[Address]:
    """The addresses of a pool in the order in which they are tried: after the ``last`` one given, then from the start.

    So an address rests as long as there are others.
    """
    position = next((place for place, network in enumerate(networks) if last is not None and last in network), None)
    if position is None or last is None:
        yield from chain(*networks)
        return
    network = networks[position]
    offset = int(last) - int(network.network_address) + 1
    yield from (network[at] for at in range(offset, network.num_addresses))
    yield from chain(*networks[position + 1 :], *networks[:position])
    yield from (network[at] for at in range(offset))

"""Addresses as few aligned prefixes, kept up to date one address at a time. Pure; integers throughout.

A switch matches a prefix in one rule, so what a group of jobs costs is the number of prefixes that its addresses make.
The cover is exact and minimal, as ``ipaddress.collapse_addresses`` makes it. docs/design/prefixes.md has the cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from hashlib import blake2b
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, collapse_addresses, ip_network
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from lark_common.runs import Address, Network

FULL: Final = {4: 32, 6: 128}
# Networks as integers: version, first address, mask.
Bounds: TypeAlias = tuple[tuple[int, int, int], ...]


class Prefix(NamedTuple):
    """An aligned block of addresses: IP version, first address, length in bits."""

    version: int
    value: int
    length: int

    @property
    def mask(self) -> int:
        """The network mask as an integer."""
        full = FULL[self.version]
        return ((1 << self.length) - 1) << (full - self.length)

    @property
    def size(self) -> int:
        """The number of addresses that it holds."""
        return 1 << (FULL[self.version] - self.length)

    def covers(self, other: Prefix) -> bool:
        """True where every address of ``other`` is in this prefix."""
        return self.version == other.version and self.length <= other.length and other.value & self.mask == self.value

    def __str__(self) -> str:
        address = IPv4Address(self.value) if self.version == 4 else IPv6Address(self.value)
        return f"{address}/{self.length}"


class Delta(NamedTuple):
    """The change of a cover: prefixes that came and prefixes that went."""

    added: tuple[Prefix, ...] = ()
    removed: tuple[Prefix, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


def minimal_cover(members: Iterable[Address | Network]) -> tuple[Network, ...]:
    """The fewest networks that hold exactly these addresses and networks, IPv4 first; from scratch, as an oracle."""
    four: list[IPv4Network] = []
    six: list[IPv6Network] = []
    for member in members:
        network = ip_network(member) if isinstance(member, (IPv4Address, IPv6Address)) else member
        if isinstance(network, IPv4Network):
            four.append(network)
        else:
            six.append(network)
    return (*collapse_addresses(four), *collapse_addresses(six))


def prefix_of(network: Network) -> Prefix:
    """A network as a prefix of integers."""
    return Prefix(network.version, int(network.network_address), network.prefixlen)


class PrefixSet:
    """A set of addresses as its minimal cover. Adding and removing cost O(prefix length).

    What is added or removed at a time must be in the set as a whole or not at all; it is added as often as you like
    and counts once. A member takes about 70 bytes for IPv4, 80 for IPv6. Mutable, for one thread.
    """

    __slots__ = ("_digest", "_lengths", "_members")

    def __init__(self) -> None:
        # A member is one integer (address, 8 bits of length, 1 of version), because a tuple costs three times as much.
        self._members: set[int] = set()
        self._lengths: dict[int, int] = {}
        self._digest: bytes | None = None

    @classmethod
    def of(cls, keys: Collection[int]) -> PrefixSet:
        """The set of many prefixes, each :func:`pack`-ed, of which none holds another: as if each had been added."""
        made = cls()
        members = made._members
        members.update(keys)
        for each in keys:
            key = each
            while key in members and key & 0x1FE:
                bit = 1 << (9 + FULL[6 if key & 1 else 4] - (key >> 1 & 0xFF))
                if key ^ bit not in members:
                    break
                members -= {key, key ^ bit}
                # One bit of the length less.
                key = (key & ~bit) - 2
                members.add(key)
        made._lengths.update(Counter(key & 0x1FF for key in members))
        return made

    def networks(self) -> tuple[Network, ...]:
        """The members as networks in order, IPv4 first."""
        keys = sorted(self._members)
        four = (IPv4Network((key >> 9, key >> 1 & 0xFF)) for key in keys if not key & 1)
        return (*four, *(IPv6Network((key >> 9, key >> 1 & 0xFF)) for key in keys if key & 1))

    def at_most(self, most: int) -> tuple[Network, ...]:
        """Networks that hold the members: these themselves, or where they are more than ``most`` (2 or more), as many.
        Those that lie in the smallest network together become one first, for as little else as possible to be in
        them."""
        if len(self._members) <= most:
            return self.networks()
        members = [sorted(key for key in self._members if key & 1 == six) for six in (0, 1)]
        # The bits of the address that neighbours do not share.
        apart = [[(one ^ other).bit_length() - 9 for one, other in pairwise(keys)] for keys in members]
        narrow = sorted((bits, six, place) for six in (0, 1) for place, bits in enumerate(apart[six], 1))
        joined = {(six, place) for _, six, place in narrow[: len(self._members) - most]}
        made: list[Network] = []
        for six, keys in enumerate(members):
            full, network = (FULL[6], IPv6Network) if six else (FULL[4], IPv4Network)
            ends: list[tuple[int, int]] = []
            for place, key in enumerate(keys):
                if (six, place) in joined:
                    # Of all pairs of neighbours in a network one alone shares just its bits: no third one is in it.
                    bits = max(ends[-1][1], apart[six][place - 1])
                    ends[-1] = key >> 9, bits
                else:
                    ends.append((key >> 9, full - (key >> 1 & 0xFF)))
            made += [network((value >> bits << bits, full - bits)) for value, bits in ends]
        return tuple(made)

    def __len__(self) -> int:
        return len(self._members)

    def copy(self) -> PrefixSet:
        """The same set, to be changed apart."""
        other = PrefixSet()
        other._members, other._lengths, other._digest = set(self._members), dict(self._lengths), self._digest
        return other

    def __iter__(self) -> Iterator[Prefix]:
        return (unpack(key) for key in self._members)

    def digest(self) -> bytes:
        """A digest of the members, calculated when it is asked for after a change; the same in every process."""
        if self._digest is None:
            self._digest = blake2b(repr(sorted(self._members)).encode(), digest_size=16).digest()
        return self._digest

    def covering(self, prefix: Prefix) -> Prefix | None:
        """The member that holds the whole of ``prefix``, or None."""
        version, value, length = prefix
        full = FULL[version]
        six = version == 6
        for kind in self._lengths:
            size = kind >> 1
            if kind & 1 == six and size <= length:
                shift = full - size
                if (value >> shift << shift) << 9 | kind in self._members:
                    return Prefix(version, value >> shift << shift, size)
        return None

    def add(self, prefix: Prefix) -> Delta:
        """Add the addresses of a prefix; merges with its buddy as long as there is one."""
        if self.covering(prefix) is not None:
            return Delta()
        version, value, length = prefix
        full = FULL[version]
        gone = []
        while length:
            bit = 1 << (full - length)
            buddy = Prefix(version, value ^ bit, length)
            if not self._take(buddy):
                break
            gone.append(buddy)
            value &= ~bit
            length -= 1
        whole = Prefix(version, value, length)
        self._put(whole)
        return Delta((whole,), tuple(gone))

    def remove(self, prefix: Prefix) -> Delta:
        """Take the addresses of a prefix out; splits the member that holds it. Nothing if none does."""
        member = self.covering(prefix)
        if member is None:
            return Delta()
        self._take(member)
        full = FULL[prefix.version]
        come = []
        for length in range(member.length + 1, prefix.length + 1):
            bit = 1 << (full - length)
            buddy = Prefix(prefix.version, (prefix.value ^ bit) & -bit, length)
            self._put(buddy)
            come.append(buddy)
        return Delta(tuple(come), (member,))

    def _put(self, prefix: Prefix) -> None:
        self._digest = None
        self._members.add(pack(prefix))
        kind = prefix.length << 1 | (prefix.version == 6)
        self._lengths[kind] = self._lengths.get(kind, 0) + 1

    def _take(self, prefix: Prefix) -> bool:
        key = pack(prefix)
        if key not in self._members:
            return False
        self._digest = None
        self._members.remove(key)
        kind = key & 0x1FF
        self._lengths[kind] -= 1
        if not self._lengths[kind]:
            del self._lengths[kind]
        return True


def packed(address: tuple[int, int]) -> int:
    """An address (version, value) as one integer."""
    version, value = address
    return value << 9 | FULL[version] << 1 | (version == 6)


def pack(prefix: Prefix) -> int:
    """The key of a prefix in sets: smaller and faster than the prefix itself."""
    return prefix.value << 9 | prefix.length << 1 | (prefix.version == 6)


def unpack(key: int) -> Prefix:
    """The prefix of a key."""
    return Prefix(6 if key & 1 else 4, key >> 9, key >> 1 & 0xFF)


def bounds(networks: Iterable[Network]) -> Bounds:
    """Networks as integers, to ask for many addresses whether they are :func:`within`."""
    return tuple((each.version, int(each.network_address), int(each.netmask)) for each in networks)


def within(address: Address, networks: Bounds) -> bool:
    """True where an address is in one of the networks."""
    version, value = address.version, int(address)
    return any(version == of and value & mask == first for of, first, mask in networks)

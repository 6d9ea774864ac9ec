"""Addresses that the controller gives to jobs, out of aligned blocks that belong to one group and user each.

Because a block holds jobs of one group and one user only, a switch needs a rule a block and not a rule a job. The next
block of the same group and user is the neighbour of those before and as large as all of them (a buddy), so that they
merge to one prefix, and a user with ``n`` jobs has opened a block some log(n) times: each time concerns every switch
with a job of that user. Users who have equally many jobs open theirs at different times, all before the last address is
given. So that rows have room to grow, the first block of a group and user is laid in the middle of
the widest gap (RFC 3531, section 3, bits counted from the left). All is arithmetic in memory:
:meth:`BlockAllocator.hold` notes at every start which addresses live jobs have, and out of which blocks.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from itertools import chain
from typing import Final, NamedTuple
from zlib import crc32

from lark_common.errors import AddressError
from lark_common.runs import Address, Network

# Blocks double up to so many addresses: what one address of another label in a block costs grows with its live ones.
LARGEST: Final = 1 << 10
# Blocks are larger than the policy's size as long as no more than this part of all networks is in use, so that no more
# than that can be reserved without a job.
_ROOMY: Final = 4
# From so many units on a tenant opens its next block before those that it has are full: after so large a part of their
# last addresses as follows from a digest of its name.
_AHEAD_FROM: Final = 4
_AHEAD: Final = 4

ATTRIBUTES: Final = {4: "LarkInnerAddressIPv4", 6: "LarkInnerAddressIPv6"}


class Tenant(NamedTuple):
    """The owner of a block."""

    group: str
    user: str


# Without a call of Python: a start asks for each address.
_tenant: Final[Callable[[Iterable[str]], Tenant]] = partial(tuple.__new__, Tenant)


class Assigned(NamedTuple):
    """An address and the block that it came from."""

    address: Address
    block: Network


def never_given(network: Network) -> tuple[Address, ...]:
    """The addresses of a network that no job may have: the first and last of an IPv4 network (RFC 919), and the first
    of an IPv6 network (the subnet-router anycast address, RFC 4291, 2.6.1)."""
    if network.prefixlen >= network.max_prefixlen - 1:
        return ()
    return (network[0], network[-1]) if network.version == 4 else (network[0],)


class BlockAllocator:
    """Gives addresses out of ``networks`` in blocks of the given prefix lengths (IPv4, IPv6), or twice, four times, …
    as large.

    ``reserved`` addresses (gateways), and those that no job may have (:func:`never_given`), are not given. A job takes
    an address of a block that its group and user have, or else of the block behind those; an address that was given
    back is given again only when its block has no other.
    """

    def __init__(
        self,
        networks: Iterable[Network],
        block_prefixes: tuple[int, int],
        reserved: Iterable[Address] = (),
    ) -> None:
        networks = tuple(networks)
        kept = (*reserved, *chain.from_iterable(map(never_given, networks)))
        self._spaces = {
            version: _AddressBlocks(
                version,
                [(int(each.network_address), each.prefixlen) for each in networks if each.version == version],
                prefix,
                [int(each) for each in kept if each.version == version],
            )
            for version, prefix in ((4, block_prefixes[0]), (6, block_prefixes[1]))
        }

    def assign(self, version: int, group: str, user: str) -> Assigned:
        """An address (and its block) for a job of ``user`` in ``group``. Raises AddressError where none is left."""
        return self._spaces[version].assign(Tenant(group, user))

    def hold(self, address: Address, block: Network | None, group: str, user: str) -> None:
        """Note that a live job has ``address``: assigned from ``block``, or (None) its own, not given here.

        The block of an address that was not given here is given to no tenant while the address is held. Raises
        AddressError where the address is held already.
        """
        self._spaces[address.version].hold(
            int(address), None if block is None else block.prefixlen, Tenant(group, user)
        )

    def keep(self, address: Address, block: Network | None, group: str, user: str) -> None:
        """:meth:`hold` of an address that nobody holds; others, and those outside of the networks, are left alone."""
        space, number = self._spaces[address.version], int(address)
        if number not in space.held and space.contains(number):
            space.hold(number, None if block is None else block.prefixlen, _tenant((group, user)))

    def release(self, address: Address) -> None:
        """Note that an address is free; an address that is not held stays free."""
        self._spaces[address.version].release(int(address))

    def holds(self, address: Address) -> bool:
        """True if a live job holds the address."""
        return int(address) in self._spaces[address.version].held


class _Block:
    """One block in use: the number and count of its units (blocks of the policy's size), who has it, which
    addresses were never given (``fresh`` on), and which came back, in order."""

    __slots__ = ("first", "fresh", "returned", "tenant", "units", "used")

    def __init__(self, tenant: Tenant, first: int, units: int, fresh: int) -> None:
        self.tenant = tenant
        self.first = first
        self.units = units
        self.fresh = fresh
        self.returned: deque[int] = deque()
        self.used = 0


@dataclass(slots=True)
class _Row:
    """A tenant's blocks: how many units and live addresses, the number behind the last, and those before it that were
    given back (a heap of first unit and units). ``spread`` is a number from 0 to 1, another for each tenant."""

    spread: float
    units: int = 0
    used: int = 0
    end: int = 0
    holes: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Range:
    """The blocks of one network: the number of the first, and how many bits count them."""

    first: int
    bits: int

    @property
    def size(self) -> int:
        return 1 << self.bits

    def number(self, position: int) -> int:
        """The block at a position of the order in which rows begin: 0, a half, a quarter, three quarters, …"""
        return self.first + _reversed(position, self.bits)

    def position(self, number: int) -> int:
        return _reversed(number - self.first, self.bits)


def _units(block: _Block) -> range:
    return range(block.first, block.first + block.units)


def _reversed(value: int, bits: int) -> int:
    return int(f"{value:0{bits}b}"[::-1], 2)


class _AddressBlocks:
    """The addresses of one version, as integers."""

    def __init__(self, version: int, networks: list[tuple[int, int]], prefix: int, reserved: list[int]) -> None:
        self.version = version
        self.bits = 32 if version == 4 else 128
        self.networks = sorted(networks)
        self.held: dict[int, bool] = {}
        self._shift = self.bits - prefix
        self._most = max(1, LARGEST >> max(0, self._shift))
        self._reserved = set(reserved)
        # By each of its units.
        self._blocks: dict[int, _Block] = {}
        # Blocks of a tenant with a free address, the one to take first at the front.
        self._open: dict[Tenant, OrderedDict[int, None]] = {}
        self._rows: dict[Tenant, _Row] = {}
        # Addresses in a unit that were not given here: such a unit goes to no tenant.
        self._foreign: dict[int, int] = {}
        # Units that were in use and are free again, by rank, the widest gap first; units from rank ``_next`` on were
        # never looked at. What an idle block gave last is remembered, so that the next job there does not get the
        # address that its neighbours may still have in their ARP caches.
        self._ranges = [_Range(first >> self._shift, self.bits - length - self._shift)
                        for first, length in self.networks if length <= prefix]  # fmt: skip
        self._roomy = sum(each.size for each in self._ranges) // _ROOMY
        self._free: list[tuple[int, int]] = []
        self._queued: set[int] = set()
        self._idle: dict[int, _Block] = {}
        self._next = (0, 0)

    def assign(self, tenant: Tenant) -> Assigned:
        while True:
            block = self._next_block(tenant)
            address = self._draw(block)
            if address is not None:
                self.held[address] = True
                self._count(block, 1)
                return Assigned(self._address(address), self._network(block))

    def hold(self, address: int, length: int | None, tenant: Tenant) -> None:
        """``length`` is that of the block out of which the address was given; None for an address of its own."""
        if address in self.held:
            raise AddressError(ATTRIBUTES[self.version], f"{self._address(address)} is held already")
        number = address >> self._shift
        block = self._blocks.get(number)
        if length is not None and self.contains(address) and number not in self._foreign:
            if block is None:
                units = 1 << max(0, self.bits - self._shift - length)
                first = number & -units
                if units > self._most or not self._are_free(first, units):
                    first, units = number, 1
                block = self._begin(first, units, tenant)
            if block.tenant == tenant:
                self.held[address] = True
                self._count(block, 1)
                return
        # Its own address, or a block that others have (after networks or block sizes changed): kept apart.
        self.held[address] = False
        self._foreign[number] = self._foreign.get(number, 0) + 1
        if block is not None:
            self._close(block)

    def release(self, address: int) -> None:
        given = self.held.pop(address, None)
        if given is None:
            return
        number = address >> self._shift
        block = self._blocks.get(number)
        if given and block is not None:
            self._count(block, -1)
            if address < block.fresh:
                block.returned.append(address)
        elif not given:
            self._foreign[number] -= 1
            if not self._foreign[number]:
                del self._foreign[number]
        if block is not None and block.used:
            if self._foreign.keys().isdisjoint(_units(block)):
                self._open.setdefault(block.tenant, OrderedDict())[block.first] = None
            return
        if block is not None:
            self._close(block)
            self._end(block)
            self._idle[block.first] = block
        for unit in (number,) if block is None else _units(block):
            if unit not in self._foreign and unit not in self._queued and (rank := self._rank(unit)) is not None:
                heapq.heappush(self._free, rank)
                self._queued.add(unit)

    def _draw(self, block: _Block) -> int | None:
        """A free address of a block, never given before where there is one; None closes the block."""
        end = (block.first + block.units) << self._shift
        while block.fresh < end:
            address = block.fresh
            block.fresh += 1
            if address not in self.held and address not in self._reserved:
                return address
        while block.returned:
            address = block.returned.popleft()
            if address not in self.held:
                return address
        self._close(block)
        if not block.used:
            # Nothing but reserved addresses: it stays out of use, and is no hole that its tenant could fill.
            self._end(block, hole=False)
        return None

    def _count(self, block: _Block, more: int) -> None:
        block.used += more
        self._rows[block.tenant].used += more

    def _next_block(self, tenant: Tenant) -> _Block:
        """The block that a tenant's next address comes from."""
        usable = self._open.get(tenant)
        if not usable:
            return self._take(tenant)
        row = self._rows[tenant]
        last = (row.units << self._shift) * (1 - row.spread / _AHEAD)
        if row.units >= _AHEAD_FROM and row.used >= last and not row.holes:
            units = self._as_many(row.end, 1 << (row.units.bit_length() - 1))
            if units >= _AHEAD_FROM:
                return self._begin(row.end, units, tenant)
        return self._blocks[next(iter(usable))]

    def _take(self, tenant: Tenant) -> _Block:
        """A free block, now the tenant's: the next of its row, or else the first of a new row in the widest gap."""
        row = self._rows.get(tenant)
        while row is not None and row.holes:
            first, units = heapq.heappop(row.holes)
            if self._are_free(first, units) and self._has_room(units):
                return self._begin(first, units, tenant)
            if units > 1:
                for half in (first, first + units // 2):
                    heapq.heappush(row.holes, (half, units // 2))
        wanted = 1 if row is None else 1 << (row.units.bit_length() - 1)
        if row is not None and (units := self._as_many(row.end, wanted)):
            return self._begin(row.end, units, tenant)
        while (rank := self._next_rank()) is not None:
            number = self._ranges[rank[0]].number(rank[1])
            if units := self._as_many(number, wanted):
                block = self._begin(number, units, tenant)
                self._rows[tenant].end = number + units
                return block
        raise AddressError(ATTRIBUTES[self.version], self._exhausted())

    def _as_many(self, first: int, wanted: int) -> int:
        """So many units, ``wanted`` at most, that are free from an aligned place on and fewer than would be scarce."""
        units = min(wanted, self._most)
        while units and (first % units or not self._are_free(first, units) or not self._has_room(units)):
            units >>= 1
        return units

    def _has_room(self, units: int) -> bool:
        return units == 1 or len(self._blocks) + units <= self._roomy

    def _are_free(self, first: int, units: int) -> bool:
        """True for units of one network that nobody has: between two networks there may be addresses of others."""
        begins, ends = self._rank(first), self._rank(first + units - 1)
        if begins is None or ends is None or begins[0] != ends[0]:
            return False
        return all(map(self._is_free, range(first, first + units)))

    def _next_rank(self) -> tuple[int, int] | None:
        """The lowest rank that is free, out of those given back and those never tried."""
        index, position = self._next
        while index < len(self._ranges) and position >= self._ranges[index].size:
            index, position = index + 1, 0
        self._next = index, position
        if self._free and self._free[0] < self._next:
            rank = heapq.heappop(self._free)
            self._queued.discard(self._ranges[rank[0]].number(rank[1]))
            return rank
        if index == len(self._ranges):
            return None
        self._next = index, position + 1
        return index, position

    def _is_free(self, number: int) -> bool:
        return number not in self._blocks and number not in self._foreign

    def _begin(self, first: int, units: int, tenant: Tenant) -> _Block:
        block = self._idle.pop(first, None)
        if block is None or block.units != units:
            block = _Block(tenant, first, units, first << self._shift)
        block.tenant = tenant
        self._blocks |= dict.fromkeys(_units(block), block)
        self._open.setdefault(tenant, OrderedDict())[first] = None
        row = self._rows.get(tenant)
        if row is None:
            row = self._rows[tenant] = _Row(crc32("\0".join(tenant).encode("utf-8", "surrogatepass")) / (1 << 32))
        # A hole that is filled does not move the end; at a start the blocks of a row come in any order.
        row.end = max(row.end, first + units) if row.units else first + units
        row.units += units
        return block

    def _end(self, block: _Block, *, hole: bool = True) -> None:
        """Takes a block from its tenant; a ``hole`` is filled before the tenant's row grows."""
        for unit in _units(block):
            del self._blocks[unit]
        row = self._rows[block.tenant]
        row.units -= block.units
        if not row.units:
            del self._rows[block.tenant]
        elif hole:
            heapq.heappush(row.holes, (block.first, block.units))

    def _close(self, block: _Block) -> None:
        usable = self._open.get(block.tenant)
        if usable is not None:
            usable.pop(block.first, None)
            if not usable:
                del self._open[block.tenant]

    def _rank(self, number: int) -> tuple[int, int] | None:
        """The order in which a block begins a row; None outside of the networks."""
        for index, network in enumerate(self._ranges):
            if network.first <= number < network.first + network.size:
                return index, network.position(number)
        return None

    def contains(self, address: int) -> bool:
        """True for an address of one of the networks."""
        for first, length in self.networks:  # noqa: SIM110  # a start asks for each job, and a generator takes longer
            if first <= address < first + (1 << (self.bits - length)):
                return True
        return False

    def _address(self, value: int) -> Address:
        return IPv4Address(value) if self.version == 4 else IPv6Address(value)

    def _network(self, block: _Block) -> Network:
        where = (block.first << self._shift, self.bits - self._shift - block.units.bit_length() + 1)
        return IPv4Network(where) if self.version == 4 else IPv6Network(where)

    def _exhausted(self) -> str:
        if not self.networks:
            return f"networks.jobs of the policy names no IPv{self.version} network to take an address from"
        names = ", ".join(f"{self._address(first)}/{length}" for first, length in self.networks)
        size = self.bits - self._shift
        return f"no address is left for this group and user in {names}: every block of /{size} is in use"

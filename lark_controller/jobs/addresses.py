"""Addresses that the controller gives to jobs, out of aligned blocks that belong to one group and user each.

Because a block holds jobs of one group and one user only, a switch needs a rule a block and not a rule a job. The next
block of the same group and user is the neighbour of the one before, so that blocks merge to larger prefixes: ``n``
blocks in a row that begins aligned are as many prefixes as ``n`` has ones in binary. So that rows have room to grow,
the first block of a group and user is laid in the middle of the widest gap (RFC 3531, section 3, bits counted from the
left). All is arithmetic in memory: :meth:`BlockAllocator.hold` notes at every start which addresses live jobs have.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, NamedTuple

from lark_common.errors import AddressError
from lark_common.runs import Address, Network

ATTRIBUTES: Final = {4: "LarkInnerAddressIPv4", 6: "LarkInnerAddressIPv6"}


class Tenant(NamedTuple):
    """The owner of a block."""

    group: str
    user: str


class Assigned(NamedTuple):
    """An address and the block that it came from."""

    address: Address
    block: Network


class BlockAllocator:
    """Gives addresses out of ``networks`` in blocks of the given prefix lengths (IPv4, IPv6).

    ``reserved`` addresses (gateways), and the first and last address of an IPv4 network (RFC 919) and the first of an
    IPv6 network (the subnet-router anycast address, RFC 4291, 2.6.1), are never given. A job takes an address of a
    block that its group and user have, or else of the block behind those; an address that was given back is given again
    only when its block has no other.
    """

    def __init__(
        self,
        networks: Iterable[Network],
        block_prefixes: tuple[int, int],
        reserved: Iterable[Address] = (),
    ) -> None:
        networks = tuple(networks)
        kept = tuple(reserved)
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
        self._spaces[address.version].hold(int(address), block is not None, Tenant(group, user))

    def release(self, address: Address) -> None:
        """Note that an address is free; an address that is not held stays free."""
        self._spaces[address.version].release(int(address))

    def holds(self, address: Address) -> bool:
        """True if a live job holds the address."""
        return int(address) in self._spaces[address.version].held


class _Block:
    """One block in use: who has it, which addresses were never given (``fresh`` on), and which came back, in order."""

    __slots__ = ("fresh", "returned", "tenant", "used")

    def __init__(self, tenant: Tenant, first: int) -> None:
        self.tenant = tenant
        self.fresh = first
        self.returned: deque[int] = deque()
        self.used = 0


@dataclass(slots=True)
class _Row:
    """A tenant's blocks: how many, the number behind the last, and those before it that were given back (a heap)."""

    blocks: int = 0
    end: int = 0
    holes: list[int] = field(default_factory=list)


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
        self._reserved = set(reserved)
        for first, length in self.networks:
            if length < self.bits - 1:
                self._reserved.add(first)
                if version == 4:
                    self._reserved.add(first + (1 << (self.bits - length)) - 1)
        self._blocks: dict[int, _Block] = {}
        # Blocks of a tenant with a free address, the one to take first at the front.
        self._open: dict[Tenant, OrderedDict[int, None]] = {}
        # The end of a tenant's row of blocks, and the number of its blocks.
        self._rows: dict[Tenant, _Row] = {}
        # Addresses in a block that were not given here: such a block has no tenant.
        self._foreign: dict[int, int] = {}
        # Blocks that were in use and are free again, by rank, the widest gap first; blocks from rank ``_next`` on were
        # never looked at. What an idle block gave last is remembered, so that the next job there does not get the
        # address that its neighbours may still have in their ARP caches.
        self._ranges = [_Range(first >> self._shift, self.bits - length - self._shift)
                        for first, length in self.networks if length <= prefix]  # fmt: skip
        self._free: list[tuple[int, int]] = []
        self._queued: set[int] = set()
        self._idle: dict[int, _Block] = {}
        self._next = (0, 0)

    def assign(self, tenant: Tenant) -> Assigned:
        while True:
            usable = self._open.get(tenant)
            number = next(iter(usable)) if usable else self._take(tenant)
            address = self._draw(number)
            if address is not None:
                self.held[address] = True
                self._blocks[number].used += 1
                return Assigned(self._address(address), self._block(number))

    def hold(self, address: int, given: bool, tenant: Tenant) -> None:
        if address in self.held:
            raise AddressError(ATTRIBUTES[self.version], f"{self._address(address)} is held already")
        number = address >> self._shift
        block = self._blocks.get(number)
        if given and self._contains(address) and number not in self._foreign:
            if block is None:
                block = self._blocks[self._begin(number, tenant)]
            if block.tenant == tenant:
                self.held[address] = True
                block.used += 1
                return
        # Its own address, or a block that others have (after networks or block sizes changed): kept apart.
        self.held[address] = False
        self._foreign[number] = self._foreign.get(number, 0) + 1
        if block is not None:
            self._close(block.tenant, number)

    def release(self, address: int) -> None:
        given = self.held.pop(address, None)
        if given is None:
            return
        number = address >> self._shift
        block = self._blocks.get(number)
        if given and block is not None:
            block.used -= 1
            if address < block.fresh:
                block.returned.append(address)
        elif not given:
            self._foreign[number] -= 1
            if not self._foreign[number]:
                del self._foreign[number]
        if block is not None and block.used:
            if number not in self._foreign:
                self._open.setdefault(block.tenant, OrderedDict())[number] = None
            return
        if block is not None:
            self._close(block.tenant, number)
            self._idle[number] = self._end(number)
        if number not in self._foreign and number not in self._queued and (rank := self._rank(number)) is not None:
            heapq.heappush(self._free, rank)
            self._queued.add(number)

    def _draw(self, number: int) -> int | None:
        """A free address of a block, never given before where there is one; None closes the block."""
        block = self._blocks[number]
        end = (number + 1) << self._shift
        while block.fresh < end:
            address = block.fresh
            block.fresh += 1
            if address not in self.held and address not in self._reserved:
                return address
        while block.returned:
            address = block.returned.popleft()
            if address not in self.held:
                return address
        self._close(block.tenant, number)
        if not block.used:
            # Nothing but reserved addresses: it stays out of use.
            self._end(number)
        return None

    def _take(self, tenant: Tenant) -> int:
        """A free block, now the tenant's: the next of its row, or else the first of a new row in the widest gap."""
        row = self._rows.get(tenant)
        while row is not None and row.holes:
            if self._is_free(hole := heapq.heappop(row.holes)):
                return self._begin(hole, tenant)
        if row is not None and self._is_free(row.end) and self._rank(row.end) is not None:
            return self._begin(row.end, tenant)
        while (rank := self._next_rank()) is not None:
            number = self._ranges[rank[0]].number(rank[1])
            if self._is_free(number):
                return self._begin(number, tenant)
        raise AddressError(ATTRIBUTES[self.version], self._exhausted())

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

    def _begin(self, number: int, tenant: Tenant) -> int:
        block = self._idle.pop(number, None) or _Block(tenant, number << self._shift)
        block.tenant = tenant
        self._blocks[number] = block
        self._open.setdefault(tenant, OrderedDict())[number] = None
        row = self._rows.setdefault(tenant, _Row())
        row.blocks += 1
        # A hole that is filled does not move the end; at a start the blocks of a row come in any order.
        row.end = number + 1 if row.blocks == 1 else max(row.end, number + 1)
        return number

    def _end(self, number: int) -> _Block:
        """Takes a block from its tenant."""
        block = self._blocks.pop(number)
        row = self._rows[block.tenant]
        row.blocks -= 1
        if not row.blocks:
            del self._rows[block.tenant]
        else:
            heapq.heappush(row.holes, number)
        return block

    def _close(self, tenant: Tenant, number: int) -> None:
        usable = self._open.get(tenant)
        if usable is not None:
            usable.pop(number, None)
            if not usable:
                del self._open[tenant]

    def _rank(self, number: int) -> tuple[int, int] | None:
        """The order in which a block begins a row; None outside of the networks."""
        for index, network in enumerate(self._ranges):
            if network.first <= number < network.first + network.size:
                return index, network.position(number)
        return None

    def _contains(self, address: int) -> bool:
        return any(first <= address < first + (1 << (self.bits - length)) for first, length in self.networks)

    def _address(self, value: int) -> Address:
        return IPv4Address(value) if self.version == 4 else IPv6Address(value)

    def _block(self, number: int) -> Network:
        where = (number << self._shift, self.bits - self._shift)
        return IPv4Network(where) if self.version == 4 else IPv6Network(where)

    def _exhausted(self) -> str:
        if not self.networks:
            return f"networks.jobs of the policy names no IPv{self.version} network to take an address from"
        names = ", ".join(f"{self._address(first)}/{length}" for first, length in self.networks)
        size = self.bits - self._shift
        return f"no address is left for this group and user in {names}: every block of /{size} is in use"

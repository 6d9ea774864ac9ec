"""Addresses that the controller gives to jobs, out of aligned blocks that belong to one group and user each.

Because a block holds jobs of one group and one user only, a switch needs a rule a block and not a rule a job. All is
arithmetic in memory: which addresses live jobs hold is told again at every start by :meth:`BlockAllocator.hold`.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, NamedTuple

from lark_common.errors import AddressError
from lark_common.runs import Address, Network

ATTRIBUTES: Final = {4: "LarkInnerAddressIPv4", 6: "LarkInnerAddressIPv6"}


class Tenant(NamedTuple):
    """Whose a block is."""

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
    block that its group and user have, or else of the lowest free block; an address that was given back is given again
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
        self._pools = {
            version: _Pool(
                version,
                [(int(each.network_address), each.prefixlen) for each in networks if each.version == version],
                prefix,
                [int(each) for each in kept if each.version == version],
            )
            for version, prefix in ((4, block_prefixes[0]), (6, block_prefixes[1]))
        }

    def assign(self, version: int, group: str, user: str) -> Assigned:
        """An address (and its block) for a job of ``user`` in ``group``. Raises AddressError where none is left."""
        return self._pools[version].assign(Tenant(group, user))

    def hold(self, address: Address, block: Network | None, group: str, user: str) -> None:
        """Note that a live job has ``address``: assigned from ``block``, or (None) its own, not given here.

        The block of an address that was not given here is given to nobody while the address is held. Raises
        AddressError where the address is held already.
        """
        self._pools[address.version].hold(int(address), block is not None, Tenant(group, user))

    def release(self, address: Address) -> None:
        """Note that an address is free; one that nobody holds stays free."""
        self._pools[address.version].release(int(address))

    def holds(self, address: Address) -> bool:
        """Whether a live job holds the address."""
        return int(address) in self._pools[address.version].held


class _Block:
    """One block in use: who has it, which addresses were never given (``fresh`` on), and which came back, in order."""

    __slots__ = ("fresh", "returned", "tenant", "used")

    def __init__(self, tenant: Tenant, first: int) -> None:
        self.tenant = tenant
        self.fresh = first
        self.returned: deque[int] = deque()
        self.used = 0


class _Pool:
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
        # Addresses in a block that were not given here: such a block is nobody's.
        self._foreign: dict[int, int] = {}
        # Blocks that were in use and are free again; blocks from (network, block) on were never in use.
        # What an idle block gave last is remembered, so that the next job there does not get the address that its
        # neighbours may still have in their ARP caches.
        self._free: list[int] = []
        self._queued: set[int] = set()
        self._idle: dict[int, _Block] = {}
        self._network = 0
        self._next = self.networks[0][0] >> self._shift if self.networks else 0

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
                block = self._begin(number, tenant)
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
            self._idle[number] = self._blocks.pop(number)
        if number not in self._foreign and number not in self._queued and self._was_passed(number):
            heapq.heappush(self._free, number)
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
            del self._blocks[number]
        return None

    def _take(self, tenant: Tenant) -> int:
        """The lowest free block, now the tenant's."""
        while self._free:
            number = heapq.heappop(self._free)
            self._queued.discard(number)
            if number not in self._blocks and number not in self._foreign:
                self._begin(number, tenant)
                return number
        while self._network < len(self.networks):
            first, length = self.networks[self._network]
            end = (first + (1 << (self.bits - length))) >> self._shift
            while self._next < end:
                number = self._next
                self._next += 1
                if number not in self._blocks and number not in self._foreign:
                    self._begin(number, tenant)
                    return number
            self._network += 1
            if self._network < len(self.networks):
                self._next = self.networks[self._network][0] >> self._shift
        raise AddressError(ATTRIBUTES[self.version], self._exhausted())

    def _begin(self, number: int, tenant: Tenant) -> _Block:
        block = self._idle.pop(number, None) or _Block(tenant, number << self._shift)
        block.tenant = tenant
        self._blocks[number] = block
        self._open.setdefault(tenant, OrderedDict())[number] = None
        return block

    def _close(self, tenant: Tenant, number: int) -> None:
        usable = self._open.get(tenant)
        if usable is not None:
            usable.pop(number, None)
            if not usable:
                del self._open[tenant]

    def _was_passed(self, number: int) -> bool:
        """Whether the search for blocks never in use has gone beyond this one (else it will be met there)."""
        for index, (first, length) in enumerate(self.networks):
            if first >> self._shift <= number < (first + (1 << (self.bits - length))) >> self._shift:
                return index < self._network or (index == self._network and number < self._next)
        return False

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

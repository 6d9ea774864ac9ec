"""Addresses out of aligned blocks: never twice, never a foreign block's, flat cost."""

from __future__ import annotations

import time
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, collapse_addresses, ip_address, ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark_common.errors import AddressError
from lark_common.runs import Address, Network
from lark_controller.jobs.addresses import Assigned, BlockAllocator

NET4 = ip_network("10.64.0.0/24")
NET6 = ip_network("2001:db8:64::/120")


def allocator(*networks: str, prefixes: tuple[int, int] = (28, 124), reserved: tuple[str, ...] = ()) -> BlockAllocator:
    return BlockAllocator([ip_network(each) for each in networks], prefixes, [ip_address(each) for each in reserved])


def test_first_addresses_of_each_version() -> None:
    space = allocator("10.64.0.0/24", "2001:db8:64::/120")
    assert space.assign(4, "g", "bob") == (IPv4Address("10.64.0.1"), IPv4Network("10.64.0.0/28"))
    assert space.assign(6, "g", "bob") == (IPv6Address("2001:db8:64::1"), IPv6Network("2001:db8:64::/124"))


def test_users_and_groups_have_blocks_of_their_own() -> None:
    space = allocator("10.64.0.0/24")
    blocks = [space.assign(4, group, user).block for group, user in (("g", "a"), ("g", "b"), ("h", "a"), ("g", "a"))]
    assert blocks[0] == blocks[3]
    assert len(set(blocks)) == 3


def test_network_broadcast_and_reserved_are_never_given() -> None:
    space = allocator("10.64.0.0/28", reserved=("10.64.0.1", "10.64.0.7"))
    given_out = {int(space.assign(4, "g", "a").address) & 15 for _ in range(12)}
    assert given_out == set(range(16)) - {0, 1, 7, 15}
    with pytest.raises(AddressError, match=r"in 10\.64\.0\.0/28: every block of /28 is in use"):
        space.assign(4, "g", "a")


def test_no_network_of_that_version() -> None:
    with pytest.raises(AddressError, match="no IPv6 network"):
        allocator("10.64.0.0/24").assign(6, "g", "a")


def test_a_freed_address_comes_back_last() -> None:
    space = allocator("10.64.0.0/24")
    first = space.assign(4, "g", "a").address
    space.release(first)
    seen = [space.assign(4, "g", "a").address for _ in range(14)]
    assert first not in seen
    assert space.assign(4, "g", "a").address == first


def test_a_block_goes_to_another_user_once_it_is_free() -> None:
    space = allocator("10.64.0.0/27", prefixes=(28, 124))
    mine = space.assign(4, "g", "a")
    space.assign(4, "g", "b")
    with pytest.raises(AddressError):
        space.assign(4, "g", "c")
    space.release(mine.address)
    again = space.assign(4, "g", "c")
    assert again.block == mine.block
    assert again.address != mine.address


def test_release_of_what_nobody_holds_changes_nothing() -> None:
    space = allocator("10.64.0.0/28")
    space.release(IPv4Address("10.64.0.3"))
    space.release(IPv4Address("192.0.2.3"))
    assert len({space.assign(4, "g", "a").address for _ in range(14)}) == 14


def test_a_static_address_keeps_its_block_from_everybody() -> None:
    space = allocator("10.64.0.0/27")
    space.hold(IPv4Address("10.64.0.5"), None, "g", "a")
    assert space.assign(4, "g", "a").block == ip_network("10.64.0.16/28")
    with pytest.raises(AddressError):
        space.assign(4, "g", "b")
    space.release(IPv4Address("10.64.0.5"))
    assert space.assign(4, "g", "b").block == ip_network("10.64.0.0/28")


def test_a_static_address_in_a_block_in_use_closes_it() -> None:
    space = allocator("10.64.0.0/27")
    assert space.assign(4, "g", "a").block == ip_network("10.64.0.0/28")
    space.hold(IPv4Address("10.64.0.9"), None, "h", "z")
    assert space.assign(4, "g", "a").block == ip_network("10.64.0.16/28")
    space.release(IPv4Address("10.64.0.9"))
    assert IPv4Address("10.64.0.9") in {space.assign(4, "g", "a").address for _ in range(26)}


def test_an_address_is_not_held_twice() -> None:
    space = allocator("10.64.0.0/28")
    taken = space.assign(4, "g", "a")
    assert space.holds(taken.address)
    with pytest.raises(AddressError, match=str(taken.address)):
        space.hold(taken.address, None, "g", "b")


def test_replay_gives_the_same_owners_their_blocks() -> None:
    space = allocator("10.64.0.0/24")
    live = [(*space.assign(4, "g", user), user) for user in ("a", "b", "a", "c")]
    again = allocator("10.64.0.0/24")
    for address, block, user in reversed(live):
        again.hold(address, block, "g", user)
    for _, block, user in live:
        assert again.assign(4, "g", user).block == block
    assert again.assign(4, "g", "d").block not in {block for _, block, _ in live}


def test_a_run_of_static_addresses_leaves_no_trace() -> None:
    space = allocator("10.64.0.0/27")
    space.release(space.assign(4, "g", "a").address)
    for _ in range(100):
        space.hold(IPv4Address("10.64.0.2"), None, "g", "b")
        space.release(IPv4Address("10.64.0.2"))
    assert len({space.assign(4, "g", "a").address for _ in range(30)}) == 30


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("assign"), st.sampled_from([4, 6]), st.sampled_from("abc"), st.sampled_from("xyz")),
        st.tuples(st.just("release"), st.integers(0, 300)),
        st.tuples(st.just("static"), st.sampled_from([4, 6]), st.integers(1, 63)),
        st.tuples(st.just("restart")),
    ),
    max_size=120,
)


@settings(max_examples=120, deadline=None)
@given(STEPS)
def test_no_address_twice_and_no_block_shared(steps: list[tuple[object, ...]]) -> None:
    networks: list[Network] = [ip_network("10.64.0.0/26"), ip_network("2001:db8::/122")]
    space = BlockAllocator(networks, (29, 125))
    live: dict[Address, tuple[Network | None, str, str]] = {}
    for step in steps:
        match step:
            case ("assign", int(version), str(group), str(user)):
                try:
                    address, block = space.assign(version, group, user)
                except AddressError:
                    used = {one for one in live if one.version == version}
                    # Full means: each of the 8 blocks is somebody else's, foreign, or has no address left.
                    blocks = {int(one) >> 3 for one in used}
                    assert len(blocks) == 8
                    continue
                assert address not in live
                assert address in block
                assert address != ip_address("10.64.0.0")
                assert address != ip_address("10.64.0.63")
                live[address] = (block, group, user)
                for other, (_, *tenant) in live.items():
                    if other in block:
                        assert live[other][0] == block
                        assert tenant == [group, user]
            case ("release", int(index)) if live:
                address = list(live)[index % len(live)]
                del live[address]
                space.release(address)
            case ("static", int(version), int(offset)):
                network = networks[0] if version == 4 else networks[1]
                address = network[offset]
                if address in live:
                    continue
                space.hold(address, None, "s", "s")
                live[address] = (None, "s", "s")
            case ("restart",):
                space = BlockAllocator(networks, (29, 125))
                for address, (held_block, group, user) in live.items():
                    space.hold(address, held_block, group, user)
    for address in live:
        assert space.holds(address)


@settings(max_examples=120, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["start", "start", "end", "restart"]), st.integers(0, 2), st.integers(1, 40)),
        max_size=40,
    )
)
def test_blocks_that_double_belong_to_one_tenant_each(steps: list[tuple[str, int, int]]) -> None:
    """No two tenants' blocks have an address in common, in whatever order jobs start and end."""
    networks: list[Network] = [ip_network("10.64.0.0/21")]
    space = BlockAllocator(networks, (29, 125))
    live: dict[Address, tuple[Network, str]] = {}
    for what, which, count in steps:
        for _ in range(count):
            if what == "start":
                address, block = space.assign(4, "g", f"user{which}")
                assert address not in live
                assert address in block
                live[address] = (block, f"user{which}")
            elif what == "end" and live:
                address = list(live)[which * len(live) // 3]
                del live[address]
                space.release(address)
        if what == "restart":
            space = BlockAllocator(networks, (29, 125))
            for address in sorted(live, key=lambda each: int(each) * (which + 7) % 1009):
                space.hold(address, live[address][0], "g", live[address][1])
        held = {(block, user) for block, user in live.values()}
        assert all(
            user == other or not block.overlaps(another) for block, user in held for another, other in held
        )  # fmt: skip


def test_two_hundred_thousand_jobs() -> None:
    space = allocator("10.0.0.0/8", "2001:db8::/64")
    started = time.process_time()
    held = [space.assign(4, f"group_{index % 40}", f"user{index % 1000}").address for index in range(200_000)]
    for address in held[::2]:
        space.release(address)
    again = [space.assign(4, f"group_{index % 40}", f"user{index % 1000}").address for index in range(0, 200_000, 2)]
    assert len(set(held[1::2]) | set(again)) == 200_000
    # Seconds of CPU, not of the clock: a scan of all jobs at each call would take hours.
    assert time.process_time() - started < 30


def prefixes_of(blocks: set[Network]) -> int:
    return len(list(collapse_addresses(block for block in blocks if isinstance(block, IPv4Network))))


@pytest.mark.parametrize(("jobs", "most"), [(14, 1), (64, 2), (1_000, 6), (4_000, 8)])
def test_a_users_blocks_merge_to_a_few_prefixes(jobs: int, most: int) -> None:
    """200 users who start jobs by turns: each one's blocks lie side by side, however many there are."""
    space = allocator("10.64.0.0/10", prefixes=(26, 122))
    held: dict[str, set[Network]] = {}
    for number in range(jobs * 50):
        user = f"user{number % 50}"
        held.setdefault(user, set()).add(space.assign(4, "g", user).block)
    assert max(map(prefixes_of, held.values())) <= most


def sizes(blocks: list[Network]) -> list[int]:
    """The prefix lengths of blocks in the order in which they were opened."""
    return [block.prefixlen for block in dict.fromkeys(blocks)]


@pytest.mark.parametrize(("version", "shortest"), [(4, 22), (6, 118)])
def test_blocks_double_up_to_1024_addresses(version: int, shortest: int) -> None:
    space = BlockAllocator([ip_network("10.64.0.0/14"), ip_network("2001:db8::/108")], (26, 122))
    first = shortest + 4
    blocks = [space.assign(version, "g", "a").block for _ in range(4_000)]
    opened = sizes(blocks)
    assert opened[:6] == [first, first, first - 1, first - 2, first - 3, shortest]
    assert set(opened[6:]) == {shortest}
    assert len(opened) <= 9
    assert len(list(collapse_addresses(dict.fromkeys(blocks)))) <= 2  # type: ignore[type-var]  # all of one version


def test_blocks_double_until_a_quarter_of_the_networks_is_in_use() -> None:
    space = allocator("10.64.0.0/20", prefixes=(28, 124))
    blocks = [space.assign(4, "g", "a").block for _ in range(4_000)]
    # 64 of 256 units, then one by one to the last.
    assert sizes(blocks) == [28, 28, 27, 26, 25, 24, 23, *[28] * 192][: len(set(blocks))]
    assert len(set(blocks)) > 190


def test_users_with_equally_many_jobs_open_their_blocks_at_different_times() -> None:
    """Each block that is opened concerns a thousand switches: 200 of them must not come one after the other."""
    space = allocator("10.64.0.0/10", prefixes=(26, 122))
    seen: set[Network] = set()
    opened: list[int] = []
    for number in range(300 * 2_000):
        block = space.assign(4, "g", f"user{number % 300}").block
        if block not in seen:
            seen.add(block)
            opened.append(number)
    # From 512 jobs of each user on.
    times = [number for number in opened if number > 300 * 512]
    windows = [sum(start <= number < start + 1_000 for number in times) for start in range(300 * 512, 600_000, 500)]
    assert max(windows) < 30


def test_a_reserved_block_goes_to_others_once_its_jobs_have_ended() -> None:
    space = allocator("10.64.0.0/20", prefixes=(28, 124))
    mine = [space.assign(4, "g", "a") for _ in range(100)]
    largest = min((each.block for each in mine), key=lambda block: block.prefixlen)
    for address, block in mine:
        if block == largest:
            space.release(address)
    mine = [each for each in mine if each.block != largest]
    theirs = {space.assign(4, "g", f"user{number}").block for number in range(256 - prefix_units(mine))}
    assert any(block.subnet_of(largest) for block in theirs)  # type: ignore[arg-type]  # all of one version
    with pytest.raises(AddressError):
        space.assign(4, "g", "one more")


def prefix_units(assigned: list[Assigned]) -> int:
    return sum(1 << (28 - block.prefixlen) for block in {each.block for each in assigned})


def test_a_row_fills_its_holes_before_it_grows() -> None:
    space = allocator("10.64.0.0/24")
    mine = [space.assign(4, "g", "a") for _ in range(60)]
    hole = mine[20].block
    for address, block in mine:
        if block == hole:
            space.release(address)
    assert space.assign(4, "g", "b").block != hole
    while (block := space.assign(4, "g", "a").block) in {mine[0].block, mine[-1].block}:
        pass
    assert block == hole


def test_rows_of_a_restarted_pool_go_on_side_by_side() -> None:
    space = allocator("10.64.0.0/16")
    live = [(*space.assign(4, "g", user), user) for _ in range(40) for user in "ab"]
    again = allocator("10.64.0.0/16")
    for address, block, user in reversed(live):
        again.hold(address, block, "g", user)
    held = {user: {block for _, block, other in live if other == user} for user in "ab"}
    for _ in range(30):
        for user, blocks in held.items():
            blocks.add(again.assign(4, "g", user).block)
    assert max(map(prefixes_of, held.values())) <= 3


@pytest.mark.parametrize("prefix", [26, 28])
def test_every_block_of_every_network_is_given_before_none_is_left(prefix: int) -> None:
    space = allocator("10.64.0.0/24", "10.66.0.0/25", prefixes=(prefix, 122))
    count = (256 + 128) >> (32 - prefix)
    assert len({space.assign(4, "g", f"user{number}").block for number in range(count)}) == count
    with pytest.raises(AddressError):
        space.assign(4, "g", "one more")


@pytest.mark.parametrize(
    ("network", "address", "block"),
    [
        ("10.64.0.8/32", "10.64.0.8", "10.64.0.8/32"),
        ("10.64.0.8/31", "10.64.0.9", "10.64.0.8/31"),
        ("2001:db8::8/127", "2001:db8::9", "2001:db8::8/127"),
    ],
)
def test_the_first_and_the_last_address_of_the_smallest_networks_are_jobs(
    network: str, address: str, block: str
) -> None:
    """RFC 3021 and RFC 6164: networks of two addresses have neither a network's nor a broadcast address."""
    length = ip_network(network).prefixlen
    space = allocator(network, prefixes=(length, length))
    held = ip_address(address)
    space.hold(held, ip_network(block), "g", "a")
    assert space.holds(held)
    others = [each for each in ip_network(block) if each != held]
    for other in others:
        assert space.assign(held.version, "g", "a") == (other, ip_network(block))
    with pytest.raises(AddressError, match="every block of"):
        space.assign(held.version, "g", "a")
    space.release(held)
    assert space.assign(held.version, "g", "a").address == held


def test_a_block_that_is_given_back_twice_is_free_once() -> None:
    space = allocator("10.64.0.0/29", prefixes=(30, 128))
    for _ in range(3):
        held = space.assign(4, "g", "a").address
        space.release(held)
    taken = {space.assign(4, "g", user).block for user in "ab"}
    assert len(taken) == 2
    with pytest.raises(AddressError):
        space.assign(4, "g", "c")


def test_a_tenant_that_comes_back_begins_in_the_widest_gap() -> None:
    """RFC 3531: a row that has ended is no reason to sit beside its place, which others may have by now."""
    space = allocator("10.64.0.0/24")
    first = space.assign(4, "g", "a")
    space.release(first.address)
    assert space.assign(4, "g", "b").block == first.block
    assert space.assign(4, "g", "a").block == IPv4Network("10.64.0.128/28")
    # While it has a block, the next is the one beside.
    blocks = {space.assign(4, "g", "a").block for _ in range(20)}
    assert blocks == {IPv4Network("10.64.0.128/28"), IPv4Network("10.64.0.144/28")}


@pytest.mark.parametrize("held", ["10.64.0.17", "10.65.0.17", "2001:db8::17"])
def test_a_held_address_of_any_network_keeps_its_tenants_block(held: str) -> None:
    space = allocator("10.64.0.0/24", "10.65.0.0/24", "2001:db8::/120", "2001:db9::/120")
    address = ip_address(held)
    block = ip_network((int(address) & ~15, 28 if address.version == 4 else 124))
    space.hold(address, block, "g", "a")
    assert space.assign(address.version, "g", "a").block == block
    assert space.assign(address.version, "g", "b").block != block


@pytest.mark.parametrize(("prefix", "reserved"), [(32, (1,)), (31, (2, 3)), (30, (4, 5, 6, 7)), (30, range(132, 136))])
def test_blocks_of_reserved_addresses_alone_are_left_out(prefix: int, reserved: Iterable[int]) -> None:
    left = {f"10.64.0.{last}" for last in reserved}
    space = allocator("10.64.0.0/24", prefixes=(prefix, 124), reserved=tuple(left))
    found = {str(space.assign(4, "g", "a").address) for _ in range(254 - len(left))}
    assert found == {str(each) for each in NET4.hosts()} - left
    with pytest.raises(AddressError, match="every block"):
        space.assign(4, "g", "a")


def test_a_block_that_grows_stays_inside_one_network() -> None:
    networks = [f"10.64.{each}.{last}/26" for each in range(64) for last in (0, 192)]
    space = allocator(*networks)
    inside = {each for network in networks for each in ip_network(network).hosts()}
    assert all(space.assign(4, "g", "a").address in inside for _ in range(len(inside)))
    with pytest.raises(AddressError, match="every block"):
        space.assign(4, "g", "a")


@pytest.mark.parametrize(("version", "attribute"), [(4, "LarkInnerAddressIPv4"), (6, "LarkInnerAddressIPv6")])
def test_a_refusal_names_the_attribute_and_every_network(version: int, attribute: str) -> None:
    networks = ("10.64.0.0/30", "10.65.0.0/30") if version == 4 else ("2001:db8::/126", "2001:db9::/126")
    space = allocator(*networks, prefixes=(30, 126))
    size = 30 if version == 4 else 126
    for user in "ab":
        space.assign(version, "g", user)
    with pytest.raises(AddressError) as caught:
        space.assign(version, "g", "c")
    assert str(caught.value) == (
        f"{attribute}: no address is left for this group and user in {networks[0]}, {networks[1]}: "
        f"every block of /{size} is in use"
    )
    address = ip_network(networks[0])[1]
    with pytest.raises(AddressError, match=f"^{attribute}: {address} is held already$"):
        space.hold(address, None, "g", "a")
    with pytest.raises(AddressError, match=f"^{attribute}: networks.jobs of the policy names no IPv{version} network"):
        allocator().assign(version, "g", "a")


def test_what_was_given_back_is_given_again_in_the_order_of_its_return() -> None:
    space = allocator("10.64.0.0/28")
    held = [space.assign(4, "g", "a").address for _ in range(14)]
    order = [held[5], held[2], held[9]]
    for address in order:
        space.release(address)
        space.release(address)
    assert [space.assign(4, "g", "a").address for _ in order] == order


def test_an_idle_block_goes_on_where_it_was() -> None:
    """Neighbours may still have the last address in their ARP caches."""
    space = allocator("10.64.0.0/28")
    first, second = (space.assign(4, "g", "a").address for _ in range(2))
    space.release(first)
    space.release(second)
    assert int(space.assign(4, "h", "b").address) == int(second) + 1


def test_addresses_of_nobody_beside_an_own_one_stay_free() -> None:
    """Two own addresses in one block: it is free once both have gone."""
    space = allocator("10.64.0.0/29", prefixes=(29, 125))
    for last in (1, 2):
        space.hold(ip_address(f"10.64.0.{last}"), None, "g", "a")
    for last in (1, 2):
        with pytest.raises(AddressError):
            space.assign(4, "g", "b")
        space.release(ip_address(f"10.64.0.{last}"))
    assert space.assign(4, "g", "b").block == ip_network("10.64.0.0/29")


def test_blocks_are_opened_when_the_others_are_full_and_from_256_addresses_on_some_time_before() -> None:
    """The place in the last quarter that follows from the user's name."""
    ahead = []
    for number in range(150):
        space = allocator("10.64.0.0/14", prefixes=(26, 122))
        opened: dict[Network, int] = {}
        for count in range(260):
            opened.setdefault(space.assign(4, "g", f"user{number}").block, count)
        # One address of the network itself is nobody's.
        assert list(opened.values())[:3] == [0, 63, 127]
        ahead.append(list(opened.values())[3])
    assert 191 <= min(ahead) < 200
    assert 250 < max(ahead) <= 255


def test_a_block_of_several_units_is_taken_as_a_whole_again() -> None:
    """After a restart: the first address that is held brings its whole block back, whichever part it is in."""
    space = allocator("10.64.0.0/22", prefixes=(28, 124))
    space.hold(IPv4Address("10.64.1.50"), IPv4Network("10.64.1.32/27"), "g", "a")
    given = space.assign(4, "g", "a")
    assert given.block == IPv4Network("10.64.1.32/27")
    others = {space.assign(4, "g", f"user{number}").block for number in range(15)}
    assert not any(block.overlaps(given.block) for block in others)
    # One that was smaller than blocks are now is a whole one of these.
    space = allocator("10.64.0.0/22", prefixes=(28, 124))
    space.hold(IPv4Address("10.64.3.9"), IPv4Network("10.64.3.8/30"), "g", "b")
    assert space.assign(4, "g", "b").block == IPv4Network("10.64.3.0/28")

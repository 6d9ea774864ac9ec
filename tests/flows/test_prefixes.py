"""Prefix covers: incremental against from scratch, on random histories in both address families."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Hashable
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, collapse_addresses
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark_common.runs import Network
from lark_controller.flows.labelled_prefixes import LabelledPrefixes
from lark_controller.flows.prefixes import Delta, Prefix, PrefixSet, minimal_cover, packed

BASE = {4: int(IPv4Address("10.64.0.0")), 6: int(IPv6Address("2001:db8:64::"))}
FULL = {4: 32, 6: 128}
Content = dict[tuple[int, int], tuple[Prefix | None, Hashable | None]]


def network(prefix: Prefix) -> Network:
    if prefix.version == 4:
        return IPv4Network((prefix.value, prefix.length))
    return IPv6Network((prefix.value, prefix.length))


def prefix_of(one: Network) -> Prefix:
    return Prefix(one.version, int(one.network_address), one.prefixlen)


def cover_of(elements: set[Prefix]) -> set[Prefix]:
    return {prefix_of(one) for one in minimal_cover(network(element) for element in elements)}


versions = st.sampled_from([4, 6])


@st.composite
def slots(draw: st.DrawFn) -> Prefix:
    """Disjoint elements near each other: every fourth group of four addresses is given out as a block."""
    version = draw(versions)
    offset = draw(st.integers(0, 63))
    if offset // 4 % 4 == 0:
        return Prefix(version, BASE[version] + (offset & ~3), FULL[version] - 2)
    return Prefix(version, BASE[version] + offset, FULL[version])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), slots()), max_size=120))
def test_incremental_cover_is_the_collapsed_one(history: list[tuple[bool, Prefix]]) -> None:
    one, content, followed = PrefixSet(), set[Prefix](), set[Prefix]()
    for add, element in history:
        delta = one.add(element) if add else one.remove(element)
        (content.add if add else content.discard)(element)
        assert set(delta.removed) <= followed
        followed -= set(delta.removed)
        assert not set(delta.added) & followed
        followed |= set(delta.added)
        assert set(one) == cover_of(content) == followed
        assert len(one) == len(followed)


def test_buddies_merge_and_split_over_the_whole_length() -> None:
    for version in (4, 6):
        whole = PrefixSet()
        for offset in range(256):
            whole.add(Prefix(version, BASE[version] + offset, FULL[version]))
        block = Prefix(version, BASE[version], FULL[version] - 8)
        assert list(whole) == [block]
        assert whole.add(Prefix(version, BASE[version] + 7, FULL[version])) == Delta()
        split = whole.remove(Prefix(version, BASE[version], FULL[version]))
        assert split.removed == (block,)
        assert len(split.added) == 8
        everything = PrefixSet()
        for half in (0, 1 << (FULL[version] - 1)):
            everything.add(Prefix(version, half, 1))
        assert list(everything) == [Prefix(version, 0, 0)]
        assert everything.remove(Prefix(version, 0, 0)) == Delta((), (Prefix(version, 0, 0),))


def test_prefixes_of_one_length_are_found_until_the_last_is_gone() -> None:
    for version in (4, 6):
        apart = [Prefix(version, BASE[version] + 4 * number, FULL[version]) for number in range(6)]
        content = PrefixSet()
        for prefix in apart:
            content.add(prefix)
        for number, prefix in enumerate(apart):
            assert content.remove(prefix) == Delta((), (prefix,))
            assert [content.covering(other) for other in apart] == [None] * (number + 1) + apart[number + 1 :]
            assert len(content) == len(apart) - number - 1


def test_blocks_of_one_length_count_until_the_last_is_gone() -> None:
    blocks = [Prefix(4, BASE[4] + 16 * number, 28) for number in range(4)]
    content = LabelledPrefixes()
    for block in blocks:
        content.put((4, block.value), block, "a")
    for number, block in enumerate(blocks):
        assert content.count("a") == len(content.prefixes("a"))
        content.discard((4, block.value))
        assert cover_of(set(content.prefixes("a"))) == cover_of(set(blocks[number + 1 :]))
        for other in blocks[number + 1 :]:
            content.put((4, other.value + 1), other, "b")
            assert content.prefixes("b") == (Prefix(4, other.value + 1, 32),)
            content.discard((4, other.value + 1))


def test_prefix_says_what_it_is() -> None:
    prefix = Prefix(4, BASE[4], 16)
    assert (str(prefix), prefix.mask, prefix.size) == ("10.64.0.0/16", 0xFFFF0000, 65536)
    assert prefix.covers(Prefix(4, BASE[4] + 5, 32))
    assert not prefix.covers(Prefix(4, BASE[4] + 65536, 32))
    assert not prefix.covers(Prefix(6, BASE[4], 128))
    assert Prefix(4, 0, 0).mask == 0


def test_minimal_cover_is_collapse_addresses() -> None:
    addresses = [IPv4Address("10.0.0.0"), IPv4Address("10.0.0.1"), IPv4Address("10.0.0.3")]
    assert minimal_cover([*addresses, IPv6Address("::1")]) == (
        *collapse_addresses([IPv4Network(a) for a in addresses]),
        IPv6Network("::1/128"),
    )


@settings(max_examples=100, deadline=None)
@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 9)))
def test_the_networks_of_a_set_are_its_minimal_cover(some: set[int], six: set[int]) -> None:
    cover = PrefixSet()
    for value in some:
        cover.add(Prefix(4, BASE[4] + value, 32))
    for value in six:
        cover.add(Prefix(6, value, 128))
    addresses = [IPv4Address(BASE[4] + value) for value in some] + [IPv6Address(value) for value in six]
    assert cover.networks() == minimal_cover(addresses)


def test_200000_scattered_addresses_take_less_than_60_mb() -> None:
    values = random.Random(7).sample(range(1 << 24), 200_000)
    tracemalloc.start()
    one = PrefixSet()
    for value in values:
        one.add(Prefix(4, value, 32))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(one) > 190_000
    assert used < 60e6


def expected(content: Content) -> dict[Hashable, set[Prefix]]:
    """The definition, word for word, without any history."""
    singles = {address: Prefix(*address, FULL[address[0]]) for address in content}
    elements: dict[Hashable, set[Prefix]] = {}
    for address, (_, label) in content.items():
        if label is not None:
            elements.setdefault(label, set()).add(singles[address])
    for part in {part for block, _ in content.values() if block is not None for part in parts_of(block)}:
        labels = {label for address, (_, label) in content.items() if part.covers(singles[address])}
        if len(labels) == 1 and None not in labels:
            elements[labels.pop()].add(part)
    return {label: cover_of(members) for label, members in elements.items()}


@cache
def parts_of(block: Prefix) -> frozenset[Prefix]:
    """A block, its halves, quarters, … down to single addresses."""
    lengths = range(block.length, FULL[block.version] + 1)
    return frozenset(prefix_of(part) for length in lengths for part in network(block).subnets(new_prefix=length))


@st.composite
def puts(draw: st.DrawFn) -> tuple[tuple[int, int], Prefix | None, Hashable | None, bool]:
    version = draw(versions)
    address = BASE[version] + draw(st.integers(0, 31))
    length = FULL[version] - draw(st.sampled_from([0, 1, 2, 2, 2, 3, 4]))
    bits = FULL[version] - length
    block = None if bits == 0 else Prefix(version, address >> bits << bits, length)
    return (version, address), block, draw(st.sampled_from(["a", "a", "b", "c", None])), draw(st.booleans())


@settings(max_examples=250, deadline=None)
@given(st.lists(puts(), max_size=40), st.lists(puts(), max_size=60))
def test_labelled_cover_depends_on_the_content_alone(
    filled: list[tuple[tuple[int, int], Prefix | None, Hashable | None, bool]],
    history: list[tuple[tuple[int, int], Prefix | None, Hashable | None, bool]],
) -> None:
    one, content = LabelledPrefixes(), Content({address: (block, label) for address, block, label, _ in filled})
    one.fill((packed(address), block, label) for address, block, label, _ in filled)
    followed = {label: set(one.prefixes(label)) for label in one.labels()}
    assert followed == expected(content)
    for address, block, label, put in history:
        if put or address not in content:
            content[address] = (block, label)
            deltas = one.put(address, block, label)
        else:
            del content[address]
            deltas = one.discard(address)
        assert len({changed for changed, _ in deltas}) == len(deltas)
        for changed, delta in deltas:
            covered = followed.setdefault(changed, set())
            assert delta
            assert set(delta.removed) <= covered
            covered -= set(delta.removed)
            assert not covered & set(delta.added)
            covered |= set(delta.added)
        want = expected(content)
        assert {label: members for label, members in followed.items() if members} == want
        assert {label: set(one.prefixes(label)) for label in one.labels()} == want
        assert {label: one.count(label) for label in one.labels()} == {key: len(each) for key, each in want.items()}
    assert len(one) == len(content)


@settings(max_examples=150, deadline=None)
@given(st.lists(puts(), max_size=30), st.lists(puts(), max_size=40), st.integers(0, 40), st.booleans())
def test_a_cover_that_is_asked_for_late_is_as_if_it_had_always_been_kept(
    filled: list[tuple[tuple[int, int], Prefix | None, Hashable | None, bool]],
    history: list[tuple[tuple[int, int], Prefix | None, Hashable | None, bool]],
    asked_at: int,
    copied: bool,
) -> None:
    one, kept = LabelledPrefixes(unasked="a"), LabelledPrefixes()
    for each in (one, kept):
        each.fill((packed(address), block, label) for address, block, label, _ in filled)
    for step, (address, block, label, put) in enumerate(history):
        if step == asked_at:
            one = one.copy() if copied else one
            assert one.prefixes("a") == kept.prefixes("a")
        deltas, wanted = (each.put(address, block, label) if put else each.discard(address) for each in (one, kept))
        assert dict(deltas) == {label: delta for label, delta in wanted if label != "a" or step >= asked_at}
        assert set(one.labels()) == set(kept.labels()) - ({"a"} if step < asked_at else set())
    assert all(one.prefixes(label) == kept.prefixes(label) for label in "abc")


@settings(max_examples=100, deadline=None)
@given(st.lists(puts(), max_size=20), st.lists(puts(), max_size=20), st.booleans())
def test_while_there_were_no_changes_all_covers_are_the_same(
    filled: list[tuple[tuple[int, int], Prefix | None, Hashable | None, bool]],
    history: list[tuple[tuple[int, int], Prefix | None, Hashable | None, bool]],
    relabelled: bool,
) -> None:
    one = LabelledPrefixes(unasked="c")
    known: dict[int, list[bytes]] = {one.changes: [b"", b"", b""]}
    one.fill((packed(address), block, label) for address, block, label, _ in filled)
    for address, block, label, put in history:
        assert known.setdefault(one.changes, found := [one.digest(each) for each in "abc"]) == found
        if relabelled:
            one.relabel([(address, label)])
        elif put:
            one.put(address, block, label)
        else:
            one.discard(address)


@settings(max_examples=100, deadline=None)
@given(st.lists(puts(), max_size=40))
def test_every_live_address_is_covered_by_its_own_label_alone(
    history: list[tuple[tuple[int, int], Prefix | None, Hashable | None, bool]],
) -> None:
    one = LabelledPrefixes()
    content = Content()
    for address, block, label, _ in history:
        one.put(address, block, label)
        content[address] = (block, label)
    for address, (_, label) in content.items():
        single = Prefix(*address, FULL[address[0]])
        covering = {other for other in one.labels() if any(each.covers(single) for each in one.prefixes(other))}
        assert covering == ({label} if label is not None else set())
    for address in content:
        one.discard(address)
    assert one.labels() == ()
    assert one.discard((4, 1)) == []


def test_a_block_is_one_prefix_until_labels_differ() -> None:
    one = LabelledPrefixes()
    block = Prefix(4, BASE[4], 28)
    assert one.put((4, BASE[4] + 1), block, "alice") == [("alice", Delta((block,), ()))]
    assert one.put((4, BASE[4] + 2), block, "alice") == []
    deltas = dict(one.put((4, BASE[4] + 3), block, "bob"))
    assert deltas["alice"].removed == (block,)
    # The other half of the block has no job, so it is nobody's.
    assert one.prefixes("alice") == (Prefix(4, BASE[4], 31), Prefix(4, BASE[4] + 2, 32))
    assert one.prefixes("bob") == (Prefix(4, BASE[4] + 3, 32),)
    one.discard((4, BASE[4] + 3))
    assert one.prefixes("alice") == (block,)
    assert one.prefixes("bob") == ()


def test_one_address_of_another_label_costs_a_large_block_a_prefix_for_each_bit() -> None:
    one = LabelledPrefixes()
    block = Prefix(4, BASE[4], 22)
    for offset in range(0, 1024, 3):
        one.put((4, BASE[4] + offset), block, "alice")
    one.put((4, BASE[4] + 301), block, None)
    covered = one.prefixes("alice")
    # Of 342 addresses that do not lie side by side; the gaps between them belong to nobody.
    assert len(covered) == 10
    assert all(any(each.covers(Prefix(4, BASE[4] + offset, 32)) for each in covered) for offset in range(0, 1024, 3))
    assert not any(each.covers(Prefix(4, BASE[4] + 301, 32)) for each in covered)
    one.discard((4, BASE[4] + 301))
    assert one.prefixes("alice") == (block,)


def test_a_change_in_a_block_of_many_labels_costs_no_count_of_the_whole_block() -> None:
    """A user may give jobs side by side other labels, and start and end them."""
    block, labels = Prefix(4, 10 << 24, 22), ("a", "b")
    found = LabelledPrefixes()
    for number in range(1024):
        found.put((4, block.value + number), block, labels[number % 2])
    counted = 0
    halves = found._halves

    def noted(prefix: Prefix, addresses: list[int]) -> set[tuple[Hashable, Prefix]]:
        nonlocal counted
        counted += len(addresses)
        return halves(prefix, addresses)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LabelledPrefixes, "_halves", lambda _, *passed: noted(*passed))
        for number in range(0, 1024, 64):
            found.discard((4, block.value + number))
            found.put((4, block.value + number), block, "a")
            found.put((4, block.value + number), block, None)
    assert counted <= 3 * 2 * 2 * 16


def test_a_block_with_a_live_address_of_no_label_does_not_count_as_a_whole() -> None:
    one = LabelledPrefixes()
    block = Prefix(6, BASE[6], 124)
    one.put((6, BASE[6]), block, "alice")
    one.put((6, BASE[6] + 9), block, None)
    assert one.prefixes("alice") == (Prefix(6, BASE[6], 125),)


def test_large_blocks_count_addresses_that_were_there_before() -> None:
    one = LabelledPrefixes()
    one.put((4, BASE[4] + 5), None, "bob")
    one.put((4, BASE[4] + 6), Prefix(4, BASE[4], 16), "alice")
    assert one.prefixes("alice") == (Prefix(4, BASE[4] + 6, 31),)
    one.discard((4, BASE[4] + 5))
    assert one.prefixes("alice") == (Prefix(4, BASE[4], 16),)


@settings(max_examples=150, deadline=None)
@given(st.lists(puts(), max_size=30), st.lists(st.tuples(puts(), st.booleans()), max_size=40))
def test_a_copy_and_what_it_is_of_change_apart(
    filled: list[tuple[tuple[int, int], Prefix | None, Hashable | None, bool]],
    history: list[tuple[tuple[tuple[int, int], Prefix | None, Hashable | None, bool], bool]],
) -> None:
    content: Content = {address: (block, label) for address, block, label, _ in filled}
    one = LabelledPrefixes()
    one.fill((packed(address), block, label) for address, block, label, _ in filled)
    pairs = [(one, content), (one.copy(), dict(content))]
    pairs.append((pairs[1][0].copy(), dict(content)))
    for count, ((address, block, label, put), first) in enumerate(history):
        prefixes, held = pairs[0 if first else 1 + count % 2]
        if put or address not in held:
            held[address] = (block, label)
            prefixes.put(address, block, label)
        elif count % 3:
            del held[address]
            prefixes.discard(address)
        else:
            held[address] = (held[address][0], label)
            prefixes.relabel([(address, label)])
        for each, its in pairs:
            assert {label: set(each.prefixes(label)) for label in each.labels()} == expected(its)


def test_an_address_outside_its_block_is_refused() -> None:
    with pytest.raises(ValueError, match=r"10\.64\.0\.0/28 does not hold 10\.64\.1\.0/32"):
        LabelledPrefixes().put((4, BASE[4] + 256), Prefix(4, BASE[4], 28), "alice")
    for address, block in (
        ((4, BASE[4] + 256), Prefix(4, BASE[4], 28)),
        ((4, BASE[4] + 1), Prefix(6, BASE[6], 125)),
    ):
        with pytest.raises(ValueError, match="does not hold"):
            LabelledPrefixes().fill([(packed(address), block, "alice")])


@settings(max_examples=200, deadline=None)
@given(st.sets(slots(), max_size=60), st.integers(2, 60))
def test_at_most_so_many_networks_hold_all_of_more_and_the_smallest_are_joined_first(
    elements: set[Prefix], most: int
) -> None:
    cover = cover_of(elements)
    whole = PrefixSet()
    for each in elements:
        whole.add(each)
    found = whole.at_most(most)
    assert len(found) == min(len(cover), most)
    made = {prefix_of(one) for one in found}
    assert all(any(one.covers(each) for one in made) for each in cover)
    assert not any(one.overlaps(other) for one in found for other in found if other is not one)
    if len(cover) <= most:
        assert made == cover
    # No two that are left lie in a smaller network together than those that were joined.
    joined = [FULL[one.version] - one.length for one in made - cover]
    ends = sorted(made)
    apart = [(one.value ^ other.value).bit_length() for one, other in pairwise(ends) if one.version == other.version]
    assert not joined or not apart or max(joined) <= min(apart)

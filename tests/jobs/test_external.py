"""External addresses: openings as words and as matches, and the next address of a pool."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_controller.jobs.external import (
    MAX_PORT,
    Association,
    Opening,
    PoolState,
    listed,
    opening,
    openings,
    refused,
    rotated,
)

PORTS = st.tuples(st.integers(1, MAX_PORT), st.integers(1, MAX_PORT)).map(sorted)
SMALL = (ip_network("198.51.100.0/30"), ip_network("198.51.100.9/32"))
ALL = [ip_address(f"198.51.100.{number}") for number in (0, 1, 2, 3, 9)]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("tcp/80", Opening("tcp", 80, 80)),
        (" UDP/5000-5010 ", Opening("udp", 5000, 5010)),
        ("tcp", Opening("tcp", 1, MAX_PORT)),
        ("icmp", Opening("icmp")),
        ("any", Opening("any")),
    ],
)
def test_an_opening_is_a_word_and_back(word: str, expected: Opening) -> None:
    assert opening(word) == expected
    assert opening(str(expected)) == expected


@pytest.mark.parametrize(
    "word",
    ["", "80", "http", "tcp/", "tcp/0", "tcp/65536", "tcp/9-8", "icmp/8", "any/1", "tcp/80-", "tcp/1-2-3", "x" * 99],
)
def test_what_is_no_opening_is_said(word: str) -> None:
    with pytest.raises(ValueError, match=r"accepted|ports are"):
        opening(word)


def test_so_many_are_accepted() -> None:
    assert len(listed(" ".join(f"tcp/{port}" for port in range(1, 17)))) == 16
    with pytest.raises(ValueError, match="at most 16"):
        listed(",".join(f"tcp/{port}" for port in range(1, 18)))
    with pytest.raises(ValueError, match="at most 64 are accepted"):
        openings(["tcp/1-32767", "tcp/3-32765", "udp/1-32767", "udp/3-32765"])
    assert listed("tcp/80, tcp/80 udp/1") == (Opening("tcp", 80, 80), Opening("udp", 1, 1))


@given(PORTS)
def test_matches_are_the_ports_each_once(ports: list[int]) -> None:
    first, last = ports
    found: list[int] = []
    for value, mask in Opening("tcp", first, last).matches():
        assert value & ~mask == 0
        found += range(value, value + (MAX_PORT & ~mask) + 1)
    if (first, last) != (1, MAX_PORT):
        assert found == list(range(first, last + 1))


@given(PORTS, PORTS)
def test_one_covers_another_where_all_its_ports_are_its_own(ports: list[int], others: list[int]) -> None:
    one, other = Opening("tcp", *ports), Opening("tcp", *others)
    covered = set(range(others[0], others[1] + 1)) <= set(range(ports[0], ports[1] + 1))
    assert one.covers(other) == covered
    assert not one.covers(Opening("udp", *others))
    assert Opening("any").covers(other)
    assert not other.covers(Opening("any"))
    assert refused([other], [Opening("icmp"), one]) == (() if covered else (other,))


@given(st.sets(st.sampled_from(ALL)), st.one_of(st.none(), st.sampled_from(ALL)))
def test_the_next_address_is_nobodys_and_the_first_behind_the_last_one(held: set[object], last: object) -> None:
    order = list(rotated(SMALL, last))  # type: ignore[arg-type]
    assert sorted(order, key=ALL.index) == ALL
    found = next((each for each in order if each not in held), None)
    free = [each for each in ALL if each not in held]
    assert (found in free) if free else found is None
    behind = [each for each in free if last in ALL and ALL.index(each) > ALL.index(last)]  # type: ignore[arg-type]
    assert found == next(iter(behind or free), None)


def test_a_last_address_of_a_pool_that_is_no_more_is_no_place_to_begin() -> None:
    assert next(rotated(SMALL, ip_address("203.0.113.7"))) == ALL[0]
    assert PoolState("public", 4, 3, 2).free == 0


@pytest.mark.parametrize(
    ("until", "released", "now", "expected"),
    [
        (None, None, 99.0, True),
        (50.0, None, 49.9, True),
        (50.0, None, 50.0, False),
        (50.0, None, 50.1, False),
        (None, 10.0, 9.0, False),
        (50.0, 10.0, 9.0, False),
    ],
)
def test_an_association_lives_until_its_end_or_its_release(
    until: float | None, released: float | None, now: float, expected: bool
) -> None:
    made = Association(
        1, "a", ALL[0], "public", "job", "alice", "cms", listed("tcp/80"), 0.0, until=until, released=released
    )
    assert made.live(now) is expected
    assert (made.external.address, made.external.openings) == (ALL[0], listed("tcp/80"))

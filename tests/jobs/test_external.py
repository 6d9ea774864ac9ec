"""External addresses: openings as words and as matches, and the next address of a pool."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_controller.jobs.external import (
    MAX_PORT,
    Association,
    External,
    Opening,
    PoolState,
    closed_by,
    closed_sentence,
    listed,
    opening,
    openings,
    refused,
    rotated,
    size,
)
from lark_controller.jobs.external_names import NameState

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
    assert listed("") == listed(" ") == ()
    with pytest.raises(ValueError, match="' , ,' is no protocol"):
        listed(" , ,")
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


@given(st.lists(PORTS, max_size=5), st.sampled_from(("tcp", "udp")), PORTS)
def test_what_several_openings_cover_together_is_not_refused(
    allowed: list[list[int]], protocol: str, ports: list[int]
) -> None:
    wanted, others = Opening(protocol, *ports), [Opening("icmp"), Opening("udp", 7, 7)]
    covered = {port for first, last in allowed for port in range(first, last + 1)}
    if protocol == "udp":
        covered = {7}
    whole = covered >= set(range(ports[0], ports[1] + 1))
    assert refused([wanted], [*others, *(Opening("tcp", *each) for each in allowed)]) == (() if whole else (wanted,))


def test_ports_that_follow_each_other_are_one_span() -> None:
    assert refused(listed("tcp/80-90 icmp"), listed("tcp/86-90 icmp tcp/80-85")) == ()
    assert refused(listed("tcp"), listed("tcp/1-1023 tcp/1024-65535")) == ()
    assert refused(listed("tcp/80-90"), listed("tcp/80-84 udp/85 tcp/86-90")) == listed("tcp/80-90")
    assert refused(listed("any"), listed("tcp udp icmp")) == listed("any")


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


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("tcp/80-80", "tcp/80"),
        ("tcp/1-65535", "tcp"),
        ("udp", "udp"),
        ("tcp/1", "tcp/1"),
        ("udp/1-80", "udp/1-80"),
        ("udp/80-65535", "udp/80-65535"),
        ("tcp/65535", "tcp/65535"),
        ("icmp", "icmp"),
        ("any", "any"),
    ],
)
def test_an_opening_has_one_text(word: str, text: str) -> None:
    assert str(opening(word)) == text


@pytest.mark.parametrize(
    ("word", "matches"),
    [
        ("tcp", []),
        ("any", []),
        ("icmp", []),
        ("tcp/80", [(80, 0xFFFF)]),
        ("tcp/4-7", [(4, 0xFFFC)]),
        ("tcp/1-4", [(1, 0xFFFF), (2, 0xFFFE), (4, 0xFFFF)]),
        ("udp/1024-65535", [(1024 << place, 0xFFFF & ~((1024 << place) - 1)) for place in range(6)]),
    ],
)
def test_ports_take_as_few_matches_as_there_can_be(word: str, matches: list[tuple[int, int]]) -> None:
    assert list(opening(word).matches()) == matches


def test_a_word_that_is_refused_is_shown_by_its_first_forty_characters() -> None:
    with pytest.raises(ValueError, match=f"^'{'x' * 40}' is no protocol with ports; accepted: tcp/PORT"):
        opening("x" * 50)
    long = "tcp/0" + " " * 50
    with pytest.raises(ValueError, match=f"^'tcp/0{' ' * 35}': ports are 1 to 65535"):
        opening(long)


def test_the_matches_of_all_openings_are_counted_together() -> None:
    # 15, 15 and 26 matches; what has no ports takes one.
    most = ["tcp/1-32767", "udp/1-32767", "tcp/3-32765"]
    assert len(openings([*most, "udp/1-255"])) == 4
    assert len(openings([*most, "udp/1-127", "icmp"])) == 5
    with pytest.raises(ValueError, match="these ports take 65 matches of a switch; at most 64"):
        openings([*most, "udp/1-255", "icmp"])
    with pytest.raises(ValueError, match="17 openings; at most 16 are accepted"):
        listed("icmp " * 30)


def test_openings_are_in_order() -> None:
    words = ["udp/5", "tcp/9", "tcp/7-9", "any", "tcp/7"]
    assert [str(each) for each in openings(words)] == ["any", "tcp/7", "tcp/7-9", "tcp/9", "udp/5"]


def test_a_pool_has_all_addresses_of_its_networks() -> None:
    assert size(()) == 0
    assert size(SMALL) == len(ALL)
    assert PoolState("public", 9, 3, 2).free == 4


def an_association(**changes: object) -> Association:
    return Association(7, "a", ALL[0], "public", "job", "alice", "cms", listed("tcp/80"), 5.0, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "name"),
    [
        (NameState.NONE, ""),
        (NameState.PENDING, "web.example.org"),
        (NameState.REGISTERED, "web.example.org"),
        (NameState.REMOVING, ""),
        (NameState.REMOVED, ""),
    ],
)
def test_switches_know_a_name_while_it_is_wanted(state: NameState, name: str) -> None:
    found = an_association(name="web.example.org", name_state=state).external
    assert found == External(ALL[0], listed("tcp/80"), name, 7)


def test_an_association_of_which_little_is_said() -> None:
    made = an_association()
    assert (made.until, made.released, made.free) == (None, None, None)
    assert (made.why, made.actor, made.name, made.zone, made.name_reason) == ("", "", "", "", "")
    assert (made.ttl, made.name_state) == (0, "none")
    assert External(ALL[0], ()) == (ALL[0], (), "", 0)
    assert Opening("any") == ("any", 0, 0)


def test_the_reason_of_each_closed_address_is_found_again() -> None:
    closed = {ALL[1]: "core1 has no room; it takes 9 rules", ip_address("2001:db8::1"): "no tracking"}
    for address in (*ALL, ip_address("2001:db8::1"), ip_address("2001:db8::10")):
        assert closed_by(closed_sentence(closed), address) == closed.get(address, "")
    assert closed_by("", ALL[0]) == closed_sentence({}) == ""

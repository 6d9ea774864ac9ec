"""RequestMpiBandwidth: patterns of a parallel job's nodes as tables."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_common.errors import AdError
from lark_controller.qos import pattern
from lark_controller.qos.pattern import MOST, node_pattern


@pytest.mark.parametrize(
    ("text", "nodes", "rates", "steady"),
    [
        ("ring 20", 1, {}, False),
        ("ring 20", 2, {(0, 1): 20_000, (1, 0): 20_000}, False),
        ("ring 0.5 steady", 3, {(0, 1): 500, (1, 2): 500, (2, 0): 500}, True),
        ("all  10", 3, {(a, b): 10_000 for a in range(3) for b in range(3) if a != b}, False),
        ("neighbours 3 1", 3, {(0, 1): 1000, (1, 0): 1000, (1, 2): 1000, (2, 1): 1000}, False),
        (
            "neighbours 2x2 1 steady", 4,
            {(0, 1): 1000, (1, 0): 1000, (0, 2): 1000, (2, 0): 1000, (1, 3): 1000, (3, 1): 1000, (2, 3): 1000,
             (3, 2): 1000},
            True,
        ),
        # Both neighbours in a dimension of two are the same node, and in one of one there is none.
        ("neighbours 2x1 periodic 1.5", 2, {(0, 1): 3000, (1, 0): 3000}, False),
        ("neighbours 3 periodic 1", 3, {(a, b): 1000 for a in range(3) for b in range(3) if a != b}, False),
        ("0>1 20, 1>0 5.125,2 > 0 7", 3, {(0, 1): 20_000, (1, 0): 5125, (2, 0): 7000}, False),
        ("0>1 20 steady", 2, {(0, 1): 20_000}, True),
        # As the policy has rates.
        ("ring 40Mbit", 2, {(0, 1): 40_000, (1, 0): 40_000}, False),
        ("0>1 1.5Gbit, 1>0 800kbit steady", 2, {(0, 1): 1_500_000, (1, 0): 800}, True),
    ],
)  # fmt: skip
def test_the_flows_of_a_pattern(text: str, nodes: int, rates: dict[tuple[int, int], int], steady: bool) -> None:
    found = node_pattern(text, nodes)
    assert (dict(found.rates), found.steady) == (rates, steady)


@pytest.mark.parametrize(
    ("text", "nodes", "reason"),
    [
        ("", 2, "is not understood"),
        ("steady", 2, "is not understood"),
        ("star 20", 2, "'star 20' is not understood; accepted: \"all RATE\""),
        ("ring", 2, "accepted:"),
        ("ring 20 30", 2, "accepted:"),
        ("ring 0", 2, "'0' is no rate; accepted: more than 0 and at most 1000000 Mb/s, as 250Mbit"),
        ("ring -1", 2, "is no rate"),
        ("ring 1e3", 2, "is no rate"),
        ("ring nan", 2, "is no rate"),
        ("ring 99999999", 2, "is no rate"),
        ("ring 0.000000001kbit", 2, "is no rate"),
        ("ring 40Mb", 2, "'40Mb' is no rate"),
        ("ring 40 Mbit", 2, "accepted:"),
        ("ring \u0665", 2, "is no rate"),
        ("neighbours 20", 4, "accepted:"),
        ("neighbours 2x3 20", 4, "a grid of 2x3 has 6 nodes, and the job has 4"),
        ("neighbours 2xx2 20", 4, "accepted:"),
        ("neighbours 2x2 round 20", 4, "accepted:"),
        ("0>4 20", 4, "there is no node 4; the job has nodes 0 to 3"),
        ("0>0 20", 4, "0>0 is a node to itself, or stands twice"),
        ("0>1 20, 0>1 20", 4, "0>1 is a node to itself, or stands twice"),
        ("0>1 20,", 4, "'' is not understood"),
        ("all 1", 65, f"4160 flows; at most {MOST} are accepted"),
        ("ring 1", MOST + 1, f"{MOST + 1} flows"),
        ("neighbours 64x64 1", MOST, f"16128 flows; at most {MOST} are accepted"),
    ],
)
def test_mistakes_are_named(text: str, nodes: int, reason: str) -> None:
    with pytest.raises(AdError) as caught:
        node_pattern(text, nodes)
    assert reason in str(caught.value)
    assert "RequestMpiBandwidth" in str(caught.value)


@given(st.text("alringeghbous 0123456789x>,.", max_size=40), st.integers(1, 12))
def test_whatever_is_written_is_a_pattern_of_the_jobs_nodes_or_a_mistake(text: str, nodes: int) -> None:
    try:
        found = node_pattern(text, nodes)
    except AdError:
        return
    for (here, there), kbps in found.rates.items():
        assert here != there
        assert 0 <= min(here, there) <= max(here, there) < nodes
        assert kbps > 0


@pytest.mark.parametrize("sides", [(1,), (2,), (3,), (5,), (2, 2), (1, 4), (3, 1, 2), (4, 4)])
@pytest.mark.parametrize("kind", ["", "periodic "])
def test_the_flows_of_a_grid_are_counted_before_they_are_made(
    monkeypatch: pytest.MonkeyPatch, sides: tuple[int, ...], kind: str
) -> None:
    """All posts wait while a pattern is read, and a user may ask for a grid of thousands of nodes."""
    counts: list[int] = []
    monkeypatch.setattr(pattern, "_check_count", counts.append)
    found = node_pattern(f"neighbours {'x'.join(map(str, sides))} {kind}1", prod(sides))
    assert counts == [len(found.rates)] * 2


def test_as_many_flows_are_accepted_as_may_be() -> None:
    assert len(node_pattern("ring 1", MOST).rates) == MOST == 4096
    assert len(node_pattern("all 1", 64).rates) == 64 * 63
    assert node_pattern("all 1", 1).rates == {}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"ring {'9' * 80}", f"'{'9' * 60}' is no rate"),
        ("x" * 80, f"'{'x' * 60}' is not understood"),
        (f"0>1 {'z' * 80}", f"'{'z' * 60}' is no rate"),
    ],
)
def test_a_word_that_is_refused_is_shown_by_its_first_sixty_characters(text: str, shown: str) -> None:
    with pytest.raises(AdError) as caught:
        node_pattern(text, 2)
    assert shown in str(caught.value)


@pytest.mark.parametrize("text", ["all 1", "ring 1", "neighbours 2x2 1", "0>1 1"])
@pytest.mark.parametrize("steady", ["", " steady"])
def test_a_pattern_keeps_its_text(text: str, steady: str) -> None:
    found = node_pattern(text + steady, 4)
    assert (found.text, found.steady) == (text + steady, bool(steady))


def test_a_grid_has_neighbours_in_each_dimension() -> None:
    """The last side counts fastest."""
    found = node_pattern("neighbours 2x3 1", 6).rates
    assert {there for here, there in found if here == 1} == {0, 2, 4}
    around = node_pattern("neighbours 2x3 periodic 1", 6).rates
    assert {there: kbps for (here, there), kbps in around.items() if here == 0} == {1: 1000, 2: 1000, 3: 2000}


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_neighbours_are_one_step_apart_in_one_dimension(one: int, two: int, three: int, periodic: bool) -> None:
    nodes, sides = one * two * three, (one, two, three)
    word = "periodic " if periodic else ""
    found = node_pattern(f"neighbours {one}x{two}x{three} {word}1", nodes).rates
    places = {node: (node // (two * three), node // three % two, node % three) for node in range(nodes)}
    wanted: dict[tuple[int, int], int] = {}
    for here, place in places.items():
        for dimension, side in enumerate(sides):
            for step in (-1, 1):
                at = list(place)
                at[dimension] += step
                if periodic:
                    at[dimension] %= side
                there = next((node for node, other in places.items() if other == tuple(at)), here)
                if there != here:
                    wanted[here, there] = wanted.get((here, there), 0) + 1000
    assert found == wanted

"""Patterns, the rates between jobs, and the bytes of headers."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_mpi.errors import ReservationError
from lark_mpi.patterns import (
    Pattern,
    Place,
    application_rate,
    headers,
    megabits,
    row,
    table,
    to_jobs,
    together,
    uses_ipv6,
)

SIZES = st.integers(1, 12)
RATES = st.floats(1, 1e10)


@pytest.mark.parametrize(
    ("pattern", "rank", "size", "near", "sent"),
    [
        (Pattern.ALL, 1, 3, (), {0: 5.0, 2: 5.0}),
        (Pattern.ALL, 0, 1, (), {}),
        (Pattern.RING, 1, 3, (), {2: 5.0}),
        (Pattern.RING, 2, 3, (), {0: 5.0}),
        (Pattern.RING, 0, 1, (), {}),
        (Pattern.NEIGHBOURS, 0, 4, (1, 3), {1: 5.0, 3: 5.0}),
        (Pattern.NEIGHBOURS, 0, 2, (1, 1), {1: 10.0}),
        (Pattern.NEIGHBOURS, 0, 1, (0, 0), {}),
    ],
)
def test_the_row_of_a_pattern(
    pattern: Pattern, rank: int, size: int, near: tuple[int, ...], sent: dict[int, float]
) -> None:
    assert row(pattern, rank, size, 5.0, near) == sent


@pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf, 1e13, pytest.param(10**400, id="huge")])
def test_rates_that_are_none_are_named(rate: float) -> None:
    with pytest.raises(ReservationError, match="bytes a second"):
        row(Pattern.RING, 0, 2, rate)


@pytest.mark.parametrize("rank", [-1, 3])
def test_a_table_names_ranks_that_are_there(rank: int) -> None:
    with pytest.raises(ReservationError, match="0 to 2 are accepted"):
        table(0, 3, {rank: 1.0})


@pytest.mark.parametrize(("rank", "named"), [(1.0, "1.0"), ("one", "'one'")])
def test_a_table_of_anything_else_is_named_before_it_is_used(rank: Any, named: str) -> None:
    with pytest.raises(ReservationError, match=f"^a rank of {named}; whole numbers of 0 to 2 are accepted$"):
        table(0, 3, {rank: 1.0})


@pytest.mark.parametrize("rate", ["fast", None, [1.0], 1j])
def test_a_rate_that_is_no_number_is_named_with_what_is_accepted(rate: Any) -> None:
    with pytest.raises(ReservationError, match=r"a rate of .* bytes a second; 0 to 1.25e\+12 are accepted"):
        table(0, 3, {1: rate})


def test_a_large_table_is_checked_as_a_whole() -> None:
    rates = dict.fromkeys(range(1000000), 1.0)
    assert len(table(5, 1_000_000, rates)) == 999_999
    with pytest.raises(ReservationError, match="there is no rank 4096 to send to; 0 to 4095 are accepted"):
        table(0, 4096, rates)


def test_a_table_without_what_costs_nothing() -> None:
    assert table(0, 3, {0: 7.0, 1: 0.0, 2: 3}) == {2: 3.0}


def test_ranks_of_one_job_or_one_host_need_nothing() -> None:
    one, beside, there = Place("a", "h"), Place("b", "h"), Place("c", "i")
    places = [one, one, beside, there, there]
    assert to_jobs({1: 1.0, 2: 2.0, 3: 4.0, 4: 8.0}, 0, places) == {"c": 12.0}
    assert to_jobs({0: 1.0, 2: 2.0, 4: 8.0}, 3, places) == {"a": 1.0, "b": 2.0}


@given(SIZES, RATES, st.data())
def test_what_jobs_send_is_what_their_ranks_send_to_other_hosts(size: int, rate: float, data: st.DataObject) -> None:
    jobs = data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    places = [Place(f"job{job}", f"host{job // 2}") for job in jobs]
    sums = [to_jobs(row(Pattern.ALL, rank, size, rate), rank, places) for rank in range(size)]
    for job in set(jobs):
        total = together(each for each, of in zip(sums, jobs, strict=True) if of == job)
        for other in set(jobs):
            expected = 0 if other // 2 == job // 2 else jobs.count(job) * jobs.count(other) * rate
            assert total.get(f"job{other}", 0) == pytest.approx(expected)


def test_headers_in_full_packets() -> None:
    assert headers(1500, False) == pytest.approx(1514 / 1448)
    assert headers(1500, True) == pytest.approx(1514 / 1428)
    assert headers(9000, False) == pytest.approx(9014 / 8948)
    assert headers(0, False) == headers(576, False)
    assert headers(1 << 20, False) == headers(65535, False)


def test_a_rate_on_the_link_in_megabits() -> None:
    assert megabits(1e6, 1500, False) == 8.365
    assert megabits(1448e6 / 8, 1500, False) == 1514.0
    assert megabits(0.5, 1500, False) == 0.001


@given(st.floats(1000, 1e11), st.integers(576, 65535), st.booleans())
def test_no_application_gets_less_than_its_rate(rate: float, mtu: int, ipv6: bool) -> None:
    had = application_rate(megabits(rate, mtu, ipv6), mtu, ipv6)
    assert rate * (1 - 1e-9) <= had <= rate + 126


@pytest.mark.parametrize(
    ("here", "there", "six"),
    [
        (("10.0.0.1", "2001:db8::1"), ("10.0.0.2", "2001:db8::2"), False),
        (("2001:db8::1",), ("10.0.0.2", "2001:db8::2"), True),
        (("2001:db8::1",), ("10.0.0.2",), False),
        ((), (), False),
    ],
)
def test_the_family_of_packets(here: tuple[str, ...], there: tuple[str, ...], six: bool) -> None:
    assert uses_ipv6(Place("a", "h", here), Place("b", "i", there)) is six

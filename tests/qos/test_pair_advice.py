"""Advice by pair: a table of flows, and what holds for any."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_controller.accounting.pairs import PairUse
from lark_controller.qos.advice import LEAST_SECONDS, Verdict
from lark_controller.qos.pair_advice import LONGEST, PairAdvice, PairReason, figure_for_all, pair_advice, summary


def used(
    highest: float = 0.0,
    throttled: float = 0.0,
    *,
    asked: float = 100.0,
    least: float | None = None,
    mean: float = 0.0,
    seconds: float = 1000.0,
    settled: float | None = None,
    dropped: int = 0,
    steady: bool = True,
    inside: bool = False,
    final: bool = True,
) -> PairUse:
    counted = round(1000 * seconds)
    at_most = counted if settled is None else round(1000 * settled)
    return PairUse(
        "ab" * 8,
        "worker2",
        "10.0.0.2/32",
        steady,
        inside,
        round(1000 * asked),
        round(1000 * (asked if least is None else least)),
        round((mean or highest) * 1e6 * seconds / 8),
        dropped,
        counted,
        at_most,
        round(throttled * at_most),
        round(highest * 1e6),
        10_000 if highest else 0,
        1.7e9,
        final,
    )


@pytest.mark.parametrize(
    ("use", "carried", "verdict", "figure", "sentence"),
    [
        (used(34), None, "too much", 40, "asked for steady 100 Mb/s, used 34 at most, never throttled: 40 is enough"),
        (used(99, 0.31), None, "too little", 180,
         "asked for steady 100 Mb/s, used 99 at most, throttled 31 % of the time: ask for 180"),
        (used(99, 0.31), 150, "too little", 150,
         "asked for steady 100 Mb/s, used 99 at most, throttled 31 % of the time:"
         " ask for 150, the most that its path carries"),
        (used(90, 0.02), None, "enough", 100,
         "asked for steady 100 Mb/s, used 90 at most, throttled 2 % of the time: 100 is right"),
        (used(34, steady=False), None, "too much", 40,
         "asked for 100 Mb/s, used 34 at most, never throttled: 40 is enough"),
        (used(250, steady=False), 1000, "too little", 290,
         "asked for 100 Mb/s, used 250 at most, never throttled: ask for 290 to have that for certain"),
        (used(250, 0.4, steady=False), 1000, "too little", 290,
         "asked for 100 Mb/s, used 250 at most, packets waited 40 % of the time: ask for 290"),
        (used(98, 0.4, steady=False), 1000, "too little", 190,
         "asked for 100 Mb/s, used 98 at most, packets waited 40 % of the time: ask for 190"),
        (used(34, 0.004, steady=False), None, "too much", 40,
         "asked for 100 Mb/s, used 34 at most, packets waited less than 1 % of the time: 40 is enough"),
        (used(34, least=20), None, "too much", 40,
         "asked for steady 20 to 100 Mb/s, used 34 at most, never throttled: 40 is enough"),
        (used(34, dropped=10_000), None, "enough", 100,
         "asked for steady 100 Mb/s, used 34 at most, never throttled, lost 10,000 packets in its queue: 100 is right"),
        (used(), None, "too much", 1, "asked for steady 100 Mb/s, used nothing, never throttled: 1 is enough"),
        (used(34, asked=0.8, steady=False), None, "too little", 40,
         "asked for 0.8 Mb/s, used 34 at most, never throttled: ask for 40 to have that for certain"),
        (used(99, 0.5, seconds=29), None, "unknown", None,
         "asked for steady 100 Mb/s; counted for 29 seconds, too short for advice"),
        (used(99, 0.5, least=20, settled=29, steady=False), None, "unknown", None,
         "asked for 20 to 100 Mb/s; counted for 29 seconds at 100 Mb/s, too short for advice"),
        (used(seconds=0), None, "unknown", None, "asked for steady 100 Mb/s; its queue was not counted"),
        (used(inside=True, seconds=0), None, "unknown", None,
         "asked for steady 100 Mb/s; both ends are on one worker, so it needs no link"),
    ],
)  # fmt: skip
def test_the_table(use: PairUse, carried: float | None, verdict: str, figure: int | None, sentence: str) -> None:
    found = pair_advice(use, carried)
    assert (found.verdict, found.advised, found.sentence) == (verdict, figure, sentence)


def test_reasons_why_nothing_is_compared() -> None:
    assert pair_advice(used(5, inside=True)).reason is PairReason.INSIDE
    assert pair_advice(used(seconds=0)).reason is PairReason.NOT_COUNTED
    assert pair_advice(used(5, seconds=LEAST_SECONDS - 0.1)).reason is PairReason.TOO_SHORT
    assert pair_advice(used(5, seconds=LEAST_SECONDS)).reason is PairReason.NONE


def test_numbers_are_those_of_the_pair() -> None:
    found = pair_advice(used(80, 0.25, mean=20, least=10, settled=500, dropped=7, final=False))
    assert (found.asked, found.asked_least, found.steady, found.so_far) == (100, 10, True, True)
    assert (found.seconds, found.mean, found.highest, found.highest_seconds) == (1000, 20, 80, 10)
    assert (found.throttled, found.dropped) == (0.25, 7)
    # Where no stretch was measured the mean is the highest rate that it kept up, and is of all the time.
    short = pair_advice(used(mean=20, seconds=4))
    assert (short.highest, short.highest_seconds) == (20, 4)


RATES = st.floats(0.001, 1e5)
USES = st.builds(
    used,
    st.floats(0, 1e5),
    st.floats(0, 1),
    asked=RATES,
    dropped=st.integers(0, 10**6),
    steady=st.booleans(),
    seconds=st.floats(LEAST_SECONDS, 1e5),
)


@given(USES, st.none() | RATES)
def test_never_less_than_the_highest_rate_and_never_more_than_its_path(use: PairUse, carried: float | None) -> None:
    found = pair_advice(use, carried)
    assert found.advised is not None
    assert found.advised >= 1
    if carried is None or carried >= found.highest + 1:
        assert found.advised >= found.highest
    assert carried is None or found.advised <= max(1, carried)
    assert str(found.advised) in found.sentence
    if found.verdict is Verdict.TOO_MUCH:
        assert found.advised < found.asked
    if found.verdict is Verdict.TOO_LITTLE and not found.bounded_by:
        assert found.advised >= found.asked


@given(
    RATES, st.booleans(), st.tuples(st.floats(0, 1e5), st.floats(0, 1e5)), st.tuples(st.floats(0, 1), st.floats(0, 1))
)
def test_more_use_and_more_throttling_never_lower_the_figure(
    asked: float, steady: bool, rates: tuple[float, float], shares: tuple[float, float]
) -> None:
    low = pair_advice(used(min(rates), min(shares), asked=asked, steady=steady)).advised
    high = pair_advice(used(max(rates), max(shares), asked=asked, steady=steady)).advised
    assert low is not None
    assert high is not None
    assert low <= high


def named(*uses: PairUse) -> list[tuple[str, PairAdvice]]:
    return [(f"node 0 to node {place}", pair_advice(use)) for place, use in enumerate(uses, 1)]


@pytest.mark.parametrize(
    ("uses", "left_out", "sentence", "figure"),
    [
        ([used(34)], 0,
         "1 pair, 1 asked for too much; node 0 to node 1: asked for steady 100 Mb/s, used 34 at most, never throttled:"
         " 40 is enough", 40),
        ([used(34), used(99, 0.31), used(50)], 0,
         "3 pairs, 1 asked for too little, 2 asked for too much, 180 for each is enough; node 0 to node 2: asked for"
         " steady 100 Mb/s, used 99 at most, throttled 31 % of the time: ask for 180", 180),
        # Of the one that is not known, what it asked for.
        ([used(34), used(seconds=0, asked=70.2)], 5,
         "2 pairs (and 5 reservations that are not kept), 1 asked for too much, 71 for each is enough;"
         " node 0 to node 1: asked for steady 100 Mb/s, used 34 at most, never throttled: 40 is enough", 71),
        ([used(seconds=0), used(inside=True)], 0,
         "2 pairs; node 0 to node 1: asked for steady 100 Mb/s; its queue was not counted", None),
        ([used(34), used(inside=True, asked=900)], 0,
         "2 pairs, 1 asked for too much, 40 for each is enough; node 0 to node 1: asked for steady 100 Mb/s,"
         " used 34 at most, never throttled: 40 is enough", 40),
    ],
)  # fmt: skip
def test_all_pairs_in_a_sentence(uses: list[PairUse], left_out: int, sentence: str, figure: int | None) -> None:
    assert summary(named(*uses), left_out) == sentence
    assert figure_for_all([each for _, each in named(*uses)]) == figure


@given(st.lists(USES, min_size=1, max_size=20), st.integers(0, 10**9), st.text(max_size=300))
def test_the_sentence_is_bounded_and_one_rate_is_enough_for_each(uses: list[PairUse], left_out: int, name: str) -> None:
    found = [(name, pair_advice(use)) for use in uses]
    assert len(summary(found, left_out)) <= LONGEST
    figure = figure_for_all([each for _, each in found])
    assert figure is not None
    assert all(each.advised is not None and figure >= each.advised for _, each in found)

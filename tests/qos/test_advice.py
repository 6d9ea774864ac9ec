"""Advice on RequestBandwidth: a table of jobs, and what holds for any."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lark_controller.accounting.usage import JobUsage, Peak, Usage
from lark_controller.policies.model import BandwidthMode, HostBandwidth
from lark_controller.qos.advice import (
    LEAST_SECONDS,
    Advice,
    Reason,
    Request,
    Verdict,
    advice,
    factor,
    rounded_up,
    shown,
)

BEGAN = 1_700_000_000.0
CAP, GUARANTEE = HostBandwidth(False), HostBandwidth(True)
UP_TO_100 = HostBandwidth(False, None, 100)


def used(
    highest: float = 0.0,
    throttled: float = 0.0,
    *,
    inward: float = 0.0,
    mean: float = 0.0,
    seconds: float = 1000.0,
    dropped: int = 0,
    refused: int = 0,
    final: bool = True,
) -> JobUsage:
    """A job that sent at most ``highest`` Mb/s, received ``inward``, and was throttled such a share of the time."""
    usage = Usage(
        bytes_out=round(mean * 1e6 / 8 * seconds), packets_out=1_000_000, rate_drops_out=dropped,
        policy_drops_out=refused, throttled=round(1000 * throttled * seconds),
    )  # fmt: skip
    peak = Peak(round(inward * 1e6), round(highest * 1e6))
    return JobUsage(usage, at=BEGAN + seconds, final=final, peak=peak)


def advised(asked: float | None, use: JobUsage | None, rule: HostBandwidth | None = CAP, **more: float) -> Advice:
    return advice(Request(asked, rule, more.get("link")), use, BEGAN)


@pytest.mark.parametrize(
    ("asked", "use", "rule", "link", "verdict", "figure", "sentence"),
    [
        (100, used(34), CAP, None, "too much", 40,
         "asked for 100 Mb/s, used 34 at most, never throttled: 40 is enough"),
        (100, used(1, inward=34), CAP, None, "too much", 40,
         "asked for 100 Mb/s, used 34 at most, never throttled: 40 is enough"),
        (100, used(99, 0.31), CAP, None, "too little", 180,
         "asked for 100 Mb/s, used 99 at most, throttled 31 % of the time: ask for 180"),
        (100, used(99, 1.0, dropped=1500), CAP, None, "too little", 200,
         "asked for 100 Mb/s, used 99 at most, throttled 100 % of the time, lost 1,500 packets in its queues:"
         " ask for 200"),
        (100, used(92, 0.02), CAP, None, "enough", 100,
         "asked for 100 Mb/s, used 92 at most, throttled 2 % of the time: 100 is right"),
        (100, used(34, 0.02), CAP, None, "enough", 100,
         "asked for 100 Mb/s, used 34 at most, throttled 2 % of the time: 100 is right"),
        (100, used(34, 0.004), CAP, None, "too much", 40,
         "asked for 100 Mb/s, used 34 at most, throttled less than 1 % of the time: 40 is enough"),
        (100, used(34, dropped=2000), CAP, None, "enough", 100,
         "asked for 100 Mb/s, used 34 at most, never throttled, lost 2,000 packets in its queues: 100 is right"),
        (100, used(99, 0.9), CAP, 150, "too little", 150,
         "asked for 100 Mb/s, used 99 at most, throttled 90 % of the time:"
         " ask for 150, the most that its worker's link carries"),
        (500, used(99, 0.9), UP_TO_100, 1000, "too little", 100,
         "asked for 500 Mb/s, of which the policy counts 100, used 99 at most, throttled 90 % of the time:"
         " ask for 100, the most that the policy allows"),
        (500, used(34), UP_TO_100, None, "too much", 40,
         "asked for 500 Mb/s, of which the policy counts 100, used 34 at most, never throttled: 40 is enough"),
        (None, used(19, 0.5), HostBandwidth(False, 20), None, "too little", 40,
         "asked for nothing, had the default of 20 Mb/s, used 19 at most, throttled 50 % of the time: ask for 40"),
        (0, used(3.5), HostBandwidth(True, 20), None, "too much", 5,
         "asked for nothing, had the default of guaranteed 20 Mb/s, used 3.5 at most, never throttled: 5 is enough"),
        (50, used(120), GUARANTEE, None, "too little", 140,
         "asked for guaranteed 50 Mb/s, used 120 at most, never throttled: ask for 140 to have that for certain"),
        (50, used(120), HostBandwidth(True, None, None, 130), None, "too little", 130,
         "asked for guaranteed 50 Mb/s, used 120 at most, never throttled:"
         " ask for 130, the most that the policy allows"),
        (50, used(51), GUARANTEE, None, "enough", 51,
         "asked for guaranteed 50 Mb/s, used 51 at most, never throttled: 51 is right"),
        (10, used(1000, 0.9), CAP, None, "too little", 1200,
         "asked for 10 Mb/s, used 1000 at most, throttled 90 % of the time: ask for 1200"),
        (100, used(34, final=False), None, None, "too much", 40,
         "asked for 100 Mb/s, which nothing enforced, used 34 at most: 40 is enough"),
        (100, used(0.042), CAP, None, "too much", 1,
         "asked for 100 Mb/s, used 0.042 at most, never throttled: 1 is enough"),
        (100, used(), CAP, None, "too much", 1, "asked for 100 Mb/s, used nothing, never throttled: 1 is enough"),
        (None, used(34), None, None, "unknown", 40,
         "asked for nothing, used 34 at most: nothing limited it; for what it used 40 would be enough"),
        (None, used(34, refused=24771), None, None, "unknown", 40,
         "asked for nothing, used 34 at most, had 24,771 packets dropped by the policy's rules: no rate limited it;"
         " for what it used 40 would be enough"),
        (100, used(34, dropped=2000, refused=1), CAP, None, "enough", 100,
         "asked for 100 Mb/s, used 34 at most, never throttled, lost 2,000 packets in its queues, had 1 packet dropped"
         " by the policy's rules: 100 is right"),
        (None, used(34), CAP, 25, "unknown", 25,
         "asked for nothing, used 34 at most, never throttled:"
         " nothing limited it; for what it used 25 would be enough"),
        (None, used(24, 0.15), CAP, None, "unknown", 30,
         "asked for nothing, used 24 at most, throttled 15 % of the time:"
         " no rate of its own limited it; for what it used 30 would be enough"),
        (100, used(99, 0.9, seconds=29), CAP, None, "unknown", None,
         "asked for 100 Mb/s; counted for 29 seconds, too short for advice"),
        (100, None, CAP, None, "unknown", None,
         "nothing is known of its use: the policy does not count it, or it is not kept any more"),
    ],
)  # fmt: skip
def test_the_table(
    asked: float | None,
    use: JobUsage | None,
    rule: HostBandwidth | None,
    link: float | None,
    verdict: str,
    figure: int | None,
    sentence: str,
) -> None:
    found = advice(Request(asked, rule, link), use, BEGAN)
    assert (found.verdict, found.advised, found.sentence) == (verdict, figure, sentence)
    assert found.so_far is (use is not None and not use.final)
    assert found.mode == (None if rule is None else rule.mode)


def test_reasons_why_nothing_is_compared() -> None:
    assert advised(100, None).reason is Reason.NOT_COUNTED
    assert advised(100, used(5, seconds=LEAST_SECONDS - 0.1)).reason is Reason.TOO_SHORT
    assert advised(100, used(5, seconds=LEAST_SECONDS)).reason is Reason.NONE
    assert advised(None, used(5)).reason is Reason.NEVER_LIMITED
    # The clock was set back, or nothing was read yet.
    assert advised(100, JobUsage()).reason is Reason.TOO_SHORT
    without = advice(Request(100, CAP), used(5), BEGAN, attached=False)
    assert (without.verdict, without.reason, without.advised) == (Verdict.UNKNOWN, Reason.NO_NETWORK, None)
    assert without.sentence == "it has no network"


def test_numbers_are_those_of_the_job() -> None:
    use = used(80, 0.25, inward=10, mean=20, dropped=7)
    found = advised(100, use, HostBandwidth(True, None, 90))
    assert (found.asked, found.counts, found.mode) == (100, 90, BandwidthMode.GUARANTEE)
    assert (found.seconds, found.mean, found.highest) == (1000, (0, 20), (10, 80))
    assert (found.throttled, found.dropped_in, found.dropped_out) == (0.25, 0, 7)
    assert (found.advised, found.bounded_by) == (90, "the policy allows")
    # A mean of what was counted before peaks were kept is a rate that the job kept up.
    assert advised(100, used(5, mean=20)).highest.outward == 20
    # The device's drops and the queue's may be of the same seconds.
    assert advised(100, used(5, throttled=1.7)).throttled == 1


@pytest.mark.parametrize(
    ("rate", "figure"),
    [(0, 1), (0.01, 1), (1, 1), (1.01, 2), (20, 20), (20.1, 25), (39.1, 40), (99, 100), (100, 100), (101, 110),
     (991, 1000), (1000, 1000), (1001, 1100), (10_000, 10_000), (10_001, 11_000)],
)  # fmt: skip
def test_figures_are_rounded_up(rate: float, figure: int) -> None:
    assert rounded_up(rate) == figure


def test_the_factor_grows_with_the_share_of_time_up_to_two() -> None:
    assert [factor(share) for share in (0, 0.25, 0.5, 1)] == [1.25, 1.625, 2, 2]


RATES = st.floats(0, 1e5)
SHARES = st.floats(0, 1)
BOUND = st.none() | st.floats(1, 1e5)
RULES = st.none() | st.builds(HostBandwidth, st.booleans(), BOUND, BOUND, BOUND)
ASKED = st.none() | RATES


def most(rule: HostBandwidth | None, link: float | None) -> float:
    bounds = [link] if rule is None else [link, rule.maximum, rule.ceiling]
    return min((each for each in bounds if each is not None), default=math.inf)


@given(ASKED, RULES, BOUND, RATES, RATES, SHARES, st.integers(0, 1_000_000))
def test_never_less_than_the_highest_rate_and_never_more_than_the_bounds(
    asked: float | None,
    rule: HostBandwidth | None,
    link: float | None,
    inward: float,
    outward: float,
    throttled: float,
    dropped: int,
) -> None:
    use = used(outward, throttled, inward=inward, dropped=dropped)
    found = advice(Request(asked, rule, link), use, BEGAN)
    assert found.advised is not None
    bound = most(rule, link)
    whole = bound if math.isinf(bound) else math.floor(bound)
    assert 1 <= found.advised <= bound
    assert found.advised >= min(max(use.peak) / 1e6, whole)
    assert bool(found.bounded_by) <= (found.advised == whole)
    # Who is told to ask for more or less is not told what he asked for already, but for a bound.
    if found.verdict is Verdict.TOO_MUCH and found.counts is not None:
        assert found.advised < found.counts
    if found.verdict is Verdict.TOO_LITTLE and not found.bounded_by:
        assert found.advised >= (found.counts or 0)
    assert str(found.advised) in found.sentence


@given(ASKED, RULES, BOUND, st.tuples(RATES, RATES), st.tuples(SHARES, SHARES))
def test_more_use_and_more_throttling_never_lower_the_figure(
    asked: float | None,
    rule: HostBandwidth | None,
    link: float | None,
    rates: tuple[float, float],
    shares: tuple[float, float],
) -> None:
    request = Request(asked, rule, link)
    low = advice(request, used(min(rates), min(shares)), BEGAN).advised
    high = advice(request, used(max(rates), max(shares)), BEGAN).advised
    assert low is not None
    assert high is not None
    assert low <= high


@given(st.floats(1, 1e5), RATES, SHARES, st.floats(1, 1e5), st.floats(1, 1e5))
def test_a_wider_bound_never_lowers_the_figure(asked: float, rate: float, share: float, one: float, two: float) -> None:
    use = used(rate, share)
    assume(one < two)
    narrow, wide = (advised(asked, use, link=link).advised for link in (one, two))
    assert narrow is not None
    assert wide is not None
    assert narrow <= wide


@pytest.mark.parametrize(
    ("use", "verdict"),
    [
        # From 5 % of the time on it was throttled often, and from 1 % on no more rarely.
        (used(50, 0.05), "too little"),
        (used(50, 0.049), "enough"),
        (used(50, 0.01), "enough"),
        (used(50, 0.0099), "too much"),
        # Up to 5 % above what counts is a burst.
        (used(105), "enough"),
        (used(105.1), "too little"),
        # With room it comes to 80: worth asking for less; 85 is not.
        (used(69.5), "too much"),
        (used(69.6), "enough"),
        # A thousandth of a million packets may have been lost.
        (used(50, dropped=1000), "too much"),
        (used(50, dropped=1001), "enough"),
    ],
)
def test_the_bounds_of_each_verdict(use: JobUsage, verdict: str) -> None:
    assert advised(100, use).verdict == verdict


def test_packets_of_both_directions_count_for_what_was_lost() -> None:
    usage = Usage(packets_in=500_000, packets_out=500_000, rate_drops_in=400, rate_drops_out=600)
    found = advised(100, JobUsage(usage, at=BEGAN + 1000, final=True, peak=Peak(5_000_000, 0)))
    assert (found.verdict, found.dropped_in, found.dropped_out) == ("too much", 400, 600)
    assert "lost 1,000 packets" in found.sentence


def test_numbers_of_the_wan_are_those_of_the_job() -> None:
    usage = Usage(bytes_in=9, bytes_out=9, wan_bytes_in=3, wan_bytes_out=4)
    found = advised(100, JobUsage(usage, at=BEGAN + 1000, final=False, peak=Peak()))
    assert (found.wan_bytes_in, found.wan_bytes_out, found.so_far) == (3, 4, True)
    none = advised(100, None)
    assert (none.wan_bytes_in, none.wan_bytes_out, none.so_far, none.bounded_by) == (None, None, False, "")
    assert (none.seconds, none.mean, none.highest, none.throttled) == (0.0, (0.0, 0.0), (0.0, 0.0), 0.0)
    assert (none.dropped_in, none.dropped_out, none.asked, none.counts, none.advised) == (0, 0, 100, 100, None)


def test_less_than_1_is_asked_for_nowhere() -> None:
    assert advised(100, used(50, 0.5), link=0.4).advised == 1
    assert advised(100, used(50, 0.5), link=1.9).advised == 1


@pytest.mark.parametrize(
    ("rate", "text"), [(0, "0"), (0.0421, "0.042"), (9.94, "9.9"), (9.95, "10"), (10.4, "10"), (1234.5, "1234")]
)
def test_a_rate_as_a_sentence_has_it(rate: float, text: str) -> None:
    assert shown(rate) == text


def test_verdicts_and_reasons_are_these_words() -> None:
    assert [each.value for each in Verdict] == ["enough", "too much", "too little", "unknown"]
    assert [each.value for each in Reason] == ["", "no network", "not counted", "too short", "never limited"]
    assert advised(100, used(5, seconds=30)).reason is Reason.NONE
    assert advised(100, used(5, seconds=29.9)).reason is Reason.TOO_SHORT

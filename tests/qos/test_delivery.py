"""A guarantee counts as missed where less was delivered and there was more to send."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lark_controller.qos.delivery import (
    Counters,
    Delivery,
    at_both,
    deliveries,
)

KEY = ("eth0", 5)
PROMISED = 80_000_000
SECOND = PROMISED // 8


def audit(first: Counters, last: Counters, promised: int = PROMISED) -> list[Delivery]:
    return [delivery for _, delivery in deliveries({KEY: first}, {KEY: last}, {KEY: promised})]


def after(seconds: float, share: float, **more: object) -> Counters:
    return Counters(seconds, round(SECOND * seconds * share), **{"dropped": 0, **more})  # type: ignore[arg-type]  # kept short


@pytest.mark.parametrize(
    ("last", "missed"),
    [
        (after(10, 1.0), False),
        (after(10, 0.97, dropped=500), False),
        (after(10, 0.5), False),
        (after(10, 0.5, dropped=1), True),
        (after(10, 0.5, offered=5 * SECOND), False),
        (after(10, 0.5, offered=6 * SECOND), True),
        (after(10, 0.5, waited=9.0), True),
        (after(10, 0.5, waited=5.0), False),
        # A burst was held to its rate, and dropped for it; then there was nothing to send.
        (after(10, 0.2, dropped=30, waited=2.0), False),
        (after(10, 0.2, offered=4 * SECOND, waited=2.0), False),
    ],
)
def test_missed_is_less_delivered_with_more_to_send(last: Counters, missed: bool) -> None:
    (found,) = audit(Counters(0, 0, 0, 0, 0.0), last)
    assert found.missed is missed
    assert found.delivered == pytest.approx(last.sent * 8 / 10)


def test_where_whoever_looked_begins_anew_drops_tell() -> None:
    (found,) = audit(Counters(0, 0, 0, None, 50.0), after(10, 0.5, dropped=1, waited=1.0))
    assert found.missed


def test_a_guarantee_that_was_raised_between_two_looks_was_promised_for_less() -> None:
    other = ("eth0", 6)
    assert at_both({KEY: 5, other: 9}, {KEY: 7, other: 8, ("eth0", 7): 1}) == {KEY: 5, other: 8}


def test_queues_that_were_made_anew_and_looks_in_quick_succession_say_nothing() -> None:
    assert audit(Counters(0, 1000, 0), Counters(10, 0, 0)) == []
    assert audit(Counters(0, 0, 5), Counters(10, 0, 0)) == []
    assert audit(Counters(0, 0, 0), Counters(1, 0, 9)) == []
    assert audit(Counters(0, 0, 0), Counters(10, 0, 9), promised=0) == []
    assert list(deliveries({}, {KEY: Counters(10, 0, 9)}, {KEY: PROMISED})) == []


@given(st.integers(0, 10**12), st.floats(5, 1000), st.integers(0, 10**6))
def test_what_was_delivered_in_full_is_never_missed(sent: int, seconds: float, dropped: int) -> None:
    promised = int(sent * 8 / seconds)
    assume(promised)
    (found,) = audit(Counters(0, 0, 0), Counters(seconds, sent, dropped), promised)
    assert not found.missed

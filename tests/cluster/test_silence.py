"""The rule by which an instance counts as lost, for those that no takeover concerns; nothing else runs."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from lark_controller.api.instances import AWAY_SECONDS, Sign
from lark_controller.cluster.silence import GAP_SECONDS, OLD_SECONDS, READINGS, SLOW_READINGS, Peer, interrupted, judged

# A reading: the seconds before it, those that it took, and the signs of life; None is one that failed.
Reading = tuple[float, float, list[Sign] | None]


def lost(readings: Iterable[Reading]) -> set[str]:
    """Those that are lost after readings."""
    peers: dict[str, Peer] = {}
    now = 0.0
    for pause, took, signs in readings:
        now += pause + took
        peers = interrupted(peers) if signs is None else judged(peers, signs, now, took)
    return {instance for instance, each in peers.items() if each.is_lost}


def same(count: int, *signs: Sign, took: float = 0.0) -> list[Reading]:
    return [(0.5, took, list(signs))] * count


A = Sign("a", 1, 0.2)
AGAIN = Sign("a", 2, 0.2)


def test_it_is_lost_once_it_was_silent_for_as_long_as_an_active_one_that_is_followed() -> None:
    assert lost(same(12, A)) == set()
    assert lost(same(13, A)) == {"a"}
    assert lost([*same(13, A), *same(1, AGAIN)]) == set()


def test_how_old_a_sign_of_life_is_when_it_is_seen_says_nothing() -> None:
    slow = [(0.5, 8.0, [Sign("a", number, 8.5)]) for number in range(100)]
    assert lost(slow) == set()
    assert lost([*slow, *same(SLOW_READINGS - 1, Sign("a", 99, 8.5), took=8.0)]) == set()
    assert lost([*slow, *same(SLOW_READINGS, Sign("a", 99, 8.5), took=8.0)]) == {"a"}


def test_one_that_is_lost_stays_so_until_it_gives_a_sign_of_life() -> None:
    dead = same(13, A)
    assert lost([*dead, (0.5, 0.0, None), *same(1, A)]) == {"a"}
    assert lost([*dead, (GAP_SECONDS + 1.0, 0.0, [A])]) == {"a"}
    assert lost([*dead, (0.5, 0.0, None), *same(1, AGAIN)]) == set()
    # Of one that lives, silence begins anew.
    assert lost([*same(12, A), (0.5, 0.0, None), *same(12, A)]) == set()


def test_one_that_was_killed_long_before_the_first_reading_is_lost_at_once() -> None:
    assert lost(same(1, Sign("a", 1, OLD_SECONDS))) == {"a"}
    assert lost(same(1, Sign("a", 1, OLD_SECONDS - 1.0))) == set()
    assert lost([*same(1, Sign("a", 1, OLD_SECONDS)), *same(1, AGAIN)]) == set()


def test_each_is_judged_by_itself() -> None:
    def both(number: int) -> Reading:
        return 0.5, 0.0, [A, Sign("b", number, 0.1)]

    assert lost(both(number) for number in range(13)) == {"a"}
    # What has no row any more is forgotten.
    assert lost([*(both(number) for number in range(13)), *same(1, Sign("b", 13, 0.1))]) == set()


# Of one that gives a sign of life now and then, as one reads it that is paused now and then.
STEPS = st.tuples(st.floats(0.0, 6.0), st.floats(0.0, 20.0), st.sampled_from([1] * 8 + [2, None]))


@given(st.lists(STEPS, max_size=30))
def test_nobody_is_lost_without_readings_in_a_row(steps: list[tuple[float, float, int | None]]) -> None:
    """Since its last sign of life, some in a row are as many and as long as the rule asks."""

    def reading(pause: float, took: float, beat: int | None) -> Reading:
        return pause, took, None if beat is None else [Sign("a", beat, 0.0)]

    if not lost(reading(*each) for each in steps):
        return
    now, last = 0.0, 0
    rows: list[list[float]] = [[]]
    for pause, took, beat in steps:
        now += pause + took
        if beat is None:
            rows.append([])
        elif beat != last:
            rows, last = [[now]], beat
        else:
            rows[-1].append(now)
    assert any(len(row) >= READINGS and row[-1] - row[0] >= AWAY_SECONDS for row in rows)

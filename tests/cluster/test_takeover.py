"""The rules by which an instance that stands by takes over; nothing else runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_controller.api.instances import AWAY_SECONDS, Identity, Look, Why
from lark_controller.cluster.silence import GAP_SECONDS, PAUSE_SECONDS, READINGS, SLOW_READINGS
from lark_controller.cluster.takeover import ENDED_SECONDS, Watch, reason, watched

ME = Identity("b1", "b", "http://b", "1")
HELD = Look(7, "a1", "a", "http://a", beat=1, held=True, server="monday")
FREE = replace(HELD, held=False)


def decided(readings: Iterable[tuple[float, Look | None]]) -> Why | None:
    """The acts of the instance after readings, each with its time; None is one that failed."""
    watch: Watch | None = None
    for at, look in readings:
        watch = None if look is None else watched(watch, look, at)
    return None if watch is None else reason(watch, ME)


def every(seconds: float, look: Look, begin: float, end: float) -> list[tuple[float, Look | None]]:
    count = round((end - begin) / seconds)
    return [(begin + number * seconds, look) for number in range(count + 1)]


@pytest.mark.parametrize(
    ("look", "why"),
    [
        (Look(0), Why.FIRST),
        (Look(7, why="released"), Why.RELEASED),
        (Look(7, why="drained"), Why.DRAINED),
        (HELD, None),
        (FREE, None),
        (replace(FREE, name="b", url="http://b"), Why.RESTARTED),
        # Two were given one name: the other one lives.
        (replace(HELD, name="b", url="http://b"), None),
        # A machine that was copied whole: the other one is without its session for a moment.
        (replace(FREE, name="b", url="http://b", boot="another"), None),
        (replace(FREE, name="b"), None),
        (replace(FREE, url="http://b"), None),
        (replace(FREE, alone=True), Why.RESTARTED),
    ],
)
def test_what_one_reading_says(look: Look, why: Why | None) -> None:
    assert decided([(100.0, look)]) is why


def test_a_holder_whose_session_ended_is_followed_soon() -> None:
    assert decided([(0.0, HELD), *every(0.5, FREE, 0.5, 1.0)]) is None
    assert decided([(0.0, HELD), *every(0.5, FREE, 0.5, 1.5)]) is Why.ENDED
    # Its session is another now, and it lives.
    assert decided([(0.0, HELD), (0.5, FREE), (1.0, FREE), (1.5, replace(FREE, beat=2))]) is None
    assert decided([(0.0, HELD), (0.5, FREE), (1.0, HELD), (1.5, FREE), (2.0, FREE)]) is None


def test_a_server_that_was_started_again_says_nothing_of_its_clients() -> None:
    after = replace(FREE, server="tuesday")
    assert decided([(0.0, HELD), *every(0.5, after, 0.5, 5.5)]) is None
    assert decided([(0.0, HELD), *every(0.5, after, 0.5, 6.5)]) is Why.SILENT


def test_who_never_saw_the_session_waits_for_signs_of_life() -> None:
    assert decided(every(0.5, FREE, 0.0, 5.5)) is None
    assert decided(every(0.5, FREE, 0.0, 6.0)) is Why.SILENT


def test_a_holder_that_hangs_is_followed_though_its_session_is_there() -> None:
    assert decided(every(0.5, HELD, 0.0, 5.5)) is None
    assert decided(every(0.5, HELD, 0.0, 6.0)) is Why.SILENT


def test_readings_that_failed_or_were_long_apart_count_for_nothing() -> None:
    dead = every(0.5, FREE, 0.0, 5.5)
    assert decided([*dead, (6.0, None), (6.5, FREE)]) is None
    assert decided([*dead, (5.5 + GAP_SECONDS + 0.1, FREE)]) is None
    # After twelve hours without a database, its holder is given the time to give a sign of life.
    assert decided([*dead, *((at, None) for at in range(6, 43200)), *every(0.5, FREE, 43200, 43205.5)]) is None
    assert decided([*dead, (6.0, None), *every(0.5, FREE, 6.5, 12.5)]) is Why.SILENT


def slowly(readings: Iterable[tuple[float, float, Look | None]]) -> Why | None:
    """As :func:`decided`, of readings with the seconds before each, and those that it took."""
    watch: Watch | None = None
    now = 0.0
    for pause, took, look in readings:
        now += pause + took
        watch = None if look is None else watched(watch, look, now, took)
    return None if watch is None else reason(watch, ME)


@pytest.mark.parametrize("took", [2.6, 3.0, 5.0, 30.0])
@pytest.mark.parametrize("look", [HELD, FREE])
def test_a_holder_that_died_is_followed_while_each_commit_takes_seconds(took: float, look: Look) -> None:
    first = [(0.5, took, look)]
    assert slowly([*first, *[(0.5, took, look)] * (SLOW_READINGS - 1)]) is None
    assert slowly([*first, *[(0.5, took, look)] * SLOW_READINGS]) is Why.SILENT
    # Some commits are quicker.
    mixed = [each for _ in range(SLOW_READINGS) for each in ((0.5, 0.1, look), (0.5, took, look))]
    assert slowly([*first, *mixed]) is Why.SILENT


@pytest.mark.parametrize("took", [2.6, 5.0, 30.0])
def test_a_holder_whose_own_commits_take_seconds_is_not_followed(took: float) -> None:
    """It writes half as often as the other reads."""
    assert slowly((0.5, took, replace(HELD, beat=number // 2)) for number in range(100)) is None


def test_slow_readings_count_in_a_row_alone() -> None:
    slow = [(0.5, 5.0, HELD)] * SLOW_READINGS
    # Once the database is fast again, it is as ever.
    assert slowly([*slow, *[(0.5, 0.1, HELD)] * 9]) is None
    assert slowly([*slow, (0.5, 5.0, None), (0.5, 5.0, HELD)]) is None
    assert slowly([*slow, (0.5, 5.0, replace(HELD, beat=2))]) is None
    assert slowly([*slow, (0.5, 0.1, replace(HELD, beat=2)), (0.5, 5.0, replace(HELD, beat=2))]) is None
    assert slowly([*slow, (0.5, 5.0, replace(HELD, generation=8))]) is None
    # It was paused itself before each.
    assert slowly([(PAUSE_SECONDS + 0.1, 5.0, HELD)] * 100) is None
    assert slowly([(30.0, 0.1, HELD)] * 100) is None
    # The database stood still, and the holder is given the time that it always has.
    assert slowly([(0.5, 0.1, HELD), (0.5, 600.0, HELD), *[(0.5, 0.1, HELD)] * 9]) is None


def test_another_term_begins_anew() -> None:
    dead = every(0.5, FREE, 0.0, 5.5)
    assert decided([*dead, (6.0, replace(FREE, generation=8))]) is None
    assert decided([*dead, (6.0, replace(FREE, holder="c1"))]) is None


LOOKS = st.builds(
    replace,
    st.sampled_from([HELD, FREE]),
    beat=st.integers(0, 2),
    server=st.sampled_from(["monday", "tuesday"]),
    generation=st.integers(7, 8),
)


# Of one holder for the most part, that gives a sign of life now and then.
SLOW_LOOKS = st.sampled_from([HELD] * 6 + [FREE, replace(HELD, beat=2), replace(HELD, generation=8), None])


@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(GAP_SECONDS + 0.1, 60.0), SLOW_LOOKS), max_size=20))
def test_no_holder_is_followed_by_slow_readings_without_evidence(steps: list[tuple[float, float, Look | None]]) -> None:
    """The last ones have one beat of one holder, and each came after hardly a pause."""
    why = slowly(steps)
    if why is None:
        return
    assert why is Why.SILENT
    first, *after = steps[-SLOW_READINGS - 1 :]
    assert len(after) == SLOW_READINGS
    assert all(pause <= PAUSE_SECONDS + 1e-6 for pause, _, _ in after)
    seen = [look for _, _, look in (first, *after) if look is not None]
    assert len(seen) == SLOW_READINGS + 1
    assert len({_who(look) for look in seen}) == 1


@given(st.lists(st.tuples(st.floats(0.0, 4.0), st.none() | LOOKS), max_size=40))
def test_no_holder_is_followed_without_evidence(steps: list[tuple[float, Look | None]]) -> None:
    """The last readings, in a row, have one beat of one holder, and are as many and as long as the reason asks; those
    before them may be any."""
    now, readings = 0.0, []
    for pause, look in steps:
        now += pause
        readings.append((now, look))
    why = decided(readings)
    if why is None:
        return
    still: list[tuple[float, Look]] = []
    for at, look in reversed(readings):
        if look is None or (still and (still[-1][0] - at > GAP_SECONDS or _who(look) != _who(still[-1][1]))):
            break
        still.append((at, look))
    assert len(still) >= READINGS
    assert still[0][0] - still[-1][0] >= (AWAY_SECONDS if why is Why.SILENT else ENDED_SECONDS)
    if why is Why.ENDED:
        assert not any(look.held for _, look in still[:READINGS])
        assert any(look is not None and look.held and look.server == still[0][1].server for _, look in readings)
    else:
        assert why is Why.SILENT


def _who(look: Look) -> tuple[int, str, int]:
    return look.generation, look.holder, look.beat

"""The rule by which the active instance hands over, since another has its switches; nothing else runs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest

from lark_controller.cluster.reach import ASKED, GAP_SECONDS, LOST_SECONDS, Loss, Reach, asked_for, followed

LOST = Reach(expected=20, connected=0, asked=20, reached=20)


def is_over(readings: Iterable[tuple[float, Reach]]) -> bool:
    loss: Loss | None = None
    for at, reach in readings:
        loss = followed(loss, reach, at)
    return loss is not None and loss.is_over


def every(seconds: float, reach: Reach, begin: float, end: float) -> list[tuple[float, Reach]]:
    return [(begin + number * seconds, reach) for number in range(round((end - begin) / seconds) + 1)]


@pytest.mark.parametrize(
    ("reach", "lost"),
    [
        (LOST, True),
        (Reach(20, 9, 11, 11), True),
        # The other one would have less than half of them, and hand over in turn.
        (Reach(20, 9, 11, 9), False),
        (Reach(20, 0, 20, 9), False),
        (Reach(20, 0, 20, 10), True),
        # Half of them are here.
        (Reach(20, 10, 10, 10), False),
        # Those that are away are so from everybody.
        (Reach(20, 0, 20, 0), False),
        (Reach(1, 0, 1, 0), False),
        (Reach(1, 0, 1, 1), True),
        # Nothing is expected, or asked yet.
        (Reach(0, 0, 0, 0), False),
        (Reach(20, 0, 0, 0), False),
        # Of very many some are asked for.
        (Reach(10_000, 1_000, 64, 36), True),
        (Reach(10_000, 1_000, 64, 35), False),
        # The answer to the question before.
        (Reach(20, 5, 15, 64), True),
    ],
)
def test_most_are_away_from_here_alone(reach: Reach, lost: bool) -> None:
    assert reach.is_lost is lost


def test_it_holds_for_a_while_without_a_pause() -> None:
    assert not is_over(every(0.5, LOST, 0.0, LOST_SECONDS - 0.5))
    assert is_over(every(0.5, LOST, 0.0, LOST_SECONDS))
    assert not is_over([*every(0.5, LOST, 0.0, 9.5), (10.0, Reach(20, 12, 8, 8)), (10.5, LOST)])
    # Few readings show little, and none what was while the reader stood still.
    assert not is_over([(0.0, LOST), (GAP_SECONDS, LOST), (2 * GAP_SECONDS, LOST), (3 * GAP_SECONDS + 1.0, LOST)])
    assert not is_over([*every(0.5, LOST, 0.0, 9.5), (9.6 + GAP_SECONDS, LOST)])


def test_while_switches_come_nothing_is_lost() -> None:
    coming = [(float(number), Reach(200, number, 64, 64)) for number in range(60)]
    assert not is_over(coming)
    # One that goes again is no reason to wait for longer.
    going = [(float(number), Reach(200, max(0, 5 - number), 64, 64)) for number in range(12)]
    assert is_over(going)


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 127, 128, 129, 10_000])
def test_few_are_asked_for_of_the_whole_range(count: int) -> None:
    found = asked_for(range(count, 0, -1))
    assert len(set(found)) == len(found) <= ASKED
    assert set(found) <= set(range(1, count + 1))
    if count <= ASKED:
        assert len(found) == count
    else:
        # At least half as many as may be, from the first to the last in equal steps.
        (step,) = {after - before for before, after in pairwise(found)}
        assert len(found) >= ASKED // 2
        assert found[0] == 1
        assert found[-1] > count - step

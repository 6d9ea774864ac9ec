"""When the active instance hands over since another has its switches: the rule alone."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from lark_controller.cluster.reach import GAP_SECONDS, LOST_SECONDS, Loss, Reach, followed

LOST = Reach(expected=20, connected=0, kept=20)


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
        (Reach(20, 9, 20), True),
        # Half of them are here.
        (Reach(20, 10, 20), False),
        # The other has hardly more.
        (Reach(20, 9, 17), False),
        (Reach(20, 0, 9), False),
        (Reach(20, 0, 10), True),
        (Reach(20, 0, 0), False),
        # Nothing is expected, whoever connects there.
        (Reach(0, 0, 5000), False),
        # Strangers there take no switch away from here.
        (Reach(20, 20, 5000), False),
        (Reach(1, 0, 1), True),
    ],
)
def test_most_are_away_from_here_alone(reach: Reach, lost: bool) -> None:
    assert reach.is_lost is lost


def test_it_holds_for_a_while_without_a_pause() -> None:
    assert not is_over(every(0.5, LOST, 0.0, LOST_SECONDS - 0.5))
    assert is_over(every(0.5, LOST, 0.0, LOST_SECONDS))
    assert not is_over([*every(0.5, LOST, 0.0, 9.5), (10.0, Reach(20, 12, 20)), (10.5, LOST)])
    # Few readings show little, and none what was while the reader stood still.
    assert not is_over([(0.0, LOST), (GAP_SECONDS, LOST), (2 * GAP_SECONDS, LOST), (3 * GAP_SECONDS + 1.0, LOST)])
    assert not is_over([*every(0.5, LOST, 0.0, 9.5), (9.6 + GAP_SECONDS, LOST)])


def test_while_switches_come_nothing_is_lost() -> None:
    coming = [(float(number), Reach(200, number, 200)) for number in range(60)]
    assert not is_over(coming)
    # One that goes again is no reason to wait for longer.
    going = [(float(number), Reach(200, max(0, 5 - number), 200)) for number in range(12)]
    assert is_over(going)

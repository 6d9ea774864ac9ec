"""Each guard is taken away once, and some schedule among a few breaks a promise: the simulation would notice it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from tests.cluster.simulation.schedule import Faults, Kind, played
from tests.cluster.simulation.server import Fate
from tests.cluster.simulation.world import Guards

# Faults that ask most of the one guard or the other; any schedule may have them.
_TERMS: Final = Faults(2, (Kind.PAUSED, Kind.STOPPED), interrupts=20, latency=0.3, fates=(Fate.ANSWERED, Fate.LATE))
_DOUBTS: Final = Faults(1, (Kind.LINKS,), 0.05, fates=(*[Fate.ANSWERED] * 5, Fate.UNANSWERED, Fate.LATE, Fate.LATE))
_SWITCHES: Final = Faults(2, (Kind.STANDS_STILL,), 0.12, interrupts=20)
_SLEEP: Final = Faults(1, (Kind.PAUSED,))
_PAUSES: Final = Faults(2, (), 0.01, interrupts=50)
_LATE: Final = Faults(1, (), 0.01, fates=(*[Fate.ANSWERED] * 9, Fate.LATE, Fate.LATE))
# The schedules that are played with each at most.
_MOST: Final = 60

_WITHOUT: Final = {
    "term_is_checked": (_TERMS, "has written in that of"),
    "term_is_held": (_TERMS, "has written in that of"),
    "room_is_locked": (_DOUBTS, "kb/s of"),
    "generation_is_sent": (_SWITCHES, "flows of generation"),
    "role_is_proven": (_PAUSES, "an order of generation"),
    "switches_are_compared": (_SWITCHES, "lacks"),
    "doubts_are_settled": (_LATE, ""),
    "doubts_are_noted": (_DOUBTS, "in memory"),
    "doubts_are_waited_for": (_DOUBTS, "promised 2 times"),
    "sleep_is_noticed": (_SLEEP, "the lease of"),
}


@pytest.mark.parametrize("name", _WITHOUT)
def test_a_guard_that_is_taken_away_is_noticed(name: str) -> None:
    faults, words = _WITHOUT[name]
    without = replace(Guards(), **{name: False})
    seed = next((seed for seed in range(_MOST) if _breaks(seed, without, faults, words)), None)
    assert seed is not None, f"{_MOST} schedules without {name} keep all promises"
    # With it the same schedule keeps them.
    assert played(seed, Guards(), faults).broken == []


def test_each_guard_is_taken_away() -> None:
    assert set(_WITHOUT) == set(Guards.names())


def _breaks(seed: int, guards: Guards, faults: Faults, words: str) -> bool:
    return any(words in each for each in played(seed, guards, faults).broken)

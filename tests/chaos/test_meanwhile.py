"""The overlaps of several controllers' faults."""

from __future__ import annotations

import random
from itertools import islice

from tests.chaos.instances import Happens
from tests.chaos.meanwhile import LEAST, MOST, Meanwhile, turns


def test_every_fault_overlaps_with_every_other_one_and_comes_alone() -> None:
    kinds = list(Happens)
    drawn = turns(random.Random(1), kinds)
    found = [list(islice(drawn, len(kinds))) for _ in Meanwhile]
    for turn in found:
        assert sorted(kind for kind, _ in turn) == sorted(kinds)
    pairs = {(kind, beside.kind) for turn in found for kind, beside in turn}
    assert pairs == {(kind, each) for kind in kinds for each in Meanwhile}
    assert all(LEAST <= beside.seconds <= MOST for turn in found for _, beside in turn)
    assert [list(islice(turns(random.Random(1), kinds), len(kinds)))] == found[:1]

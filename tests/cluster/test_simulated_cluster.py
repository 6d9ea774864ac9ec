"""Whole instances in virtual time, by the seed: what the term protects, and not the term alone.

Posts, ends, renewals, reservations and external addresses at instances of which one is active, on a database whose
commits are lost, late or not answered, with switches that keep flows and obey the highest generation. How a schedule is
played again: docs/design/cluster.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from typing import Final

import pytest

from lark_controller.api.instances import Why
from tests.cluster.simulation.schedule import played

# Schedules; more, or others, by SCHEDULES=FIRST-LAST.
_FIRST, _, _LAST = os.environ.get("SCHEDULES", "0-400").partition("-")
SEEDS: Final = range(int(_FIRST), int(_LAST or int(_FIRST) + 1))
_BLOCKS: Final = 8
_TRACE: Final = (
    "from tests.cluster.simulation.schedule import played\n"
    "for seed in (1, 7): p = played(seed); print(p.writes, p.flow_mods, p.trace)"
)


@pytest.mark.parametrize("block", range(_BLOCKS))
def test_what_was_promised_holds_in_every_schedule(block: int) -> None:
    met, takeovers = Counter[str](), Counter[Why]()
    for seed in SEEDS[block::_BLOCKS]:
        promises = played(seed)
        assert promises.broken == [], f"seed {seed}"
        counts = promises.counts
        met.update(writes=promises.writes, flows=promises.flow_mods, fenced=counts.fenced, late=counts.late)
        met.update(unanswered=counts.unanswered, waited=counts.waited)
        takeovers.update(counts.takeovers)
    if len(SEEDS) >= 400:
        # The faults were there.
        assert all(met.values())
        assert set(takeovers) >= {Why.FIRST, Why.RELEASED, Why.RESTARTED, Why.ENDED, Why.SILENT}


def test_a_schedule_is_the_same_again_in_another_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", _TRACE],
            env={**os.environ, "PYTHONHASHSEED": hashes},
            check=True,
            capture_output=True,
        ).stdout
        for hashes in ("1", "2")
    }
    assert len(found) == 1

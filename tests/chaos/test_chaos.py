"""Faults together for a while in every run of the tests; ``make chaos`` does it for an hour."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.__main__ import ROOT
from tests.chaos.schedule import Kind

# On each database: both together are the one-minute form.
SECONDS = 30
SEED = 4
_OF = {
    "sqlite": {Kind.DISK, Kind.LOCK},
    "postgresql": {Kind.STOP, Kind.CRASH, Kind.SESSIONS},
}


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def test_every_promise_is_kept_whatever_fails_together(database: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--database", database, "--seed", str(SEED), "--seconds", str(SECONDS),
         "--found", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for nothing in ("standing", "gone", "flows", "queues", "kbps", "megabytes"):
        assert f"'{nothing}': 0" not in done.stdout
    others = set().union(*_OF.values()) - _OF[database]
    for kind in set(Kind) - others:
        assert f"'{kind.value}'" in done.stdout

"""Two controllers on one PostgreSQL with faults for a while; ``make chaos`` does it with three, for longer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.__main__ import ROOT

SECONDS = 25
# It begins with a promotion while switches are away; then the active one stands still while the database is slow.
SEED = 218


@pytest.mark.postgres
def test_every_promise_is_kept_and_each_switch_has_a_master_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--instances", "2", "--seed", str(SEED), "--seconds", str(SECONDS),
         "--found", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "its standby takes its place, while switches are away" in done.stdout
    for nothing in ("standing", "gone", "flows", "queues", "kbps", "megabytes"):
        assert f"'{nothing}': 0" not in done.stdout

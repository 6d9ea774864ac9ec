"""The lab's command line, as far as it needs no lab."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("action", ["shell", "run"])
def test_help_is_shown_and_no_lab_is_booted(action: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lab", action, "--help"],
        cwd=ROOT, stdin=subprocess.DEVNULL, text=True, capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    assert "usage: lab" in done.stdout


def test_a_shell_takes_no_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lab", "shell", "on", "central"],
        cwd=ROOT, stdin=subprocess.DEVNULL, text=True, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, "accepted is: run on central" in done.stderr) == (2, True)

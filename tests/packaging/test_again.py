"""The bound on second tries: one for a test of real parts, none for a pure one, and few in a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures import again

ROOT = Path(__file__).parents[2]

LATE = """
import pathlib, pytest
@pytest.mark.parametrize("n", range({tests}))
def test_late(n, request):
    seen = pathlib.Path(__file__).with_suffix("." + str(n))
    if not seen.exists():
        seen.touch()
        raise AssertionError("late")
"""


def run(place: Path, tests: int) -> subprocess.CompletedProcess[str]:
    place.mkdir()
    (place / "test_one.py").write_text(LATE.format(tests=tests))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.fixtures.again", "-p", "no:cacheprovider"]
    # Other plugins take long to load, and these tests have no use for them.
    command += ["-p", "pytest_rerunfailures"]
    return subprocess.run(
        [*command, "-c", "/dev/null", "--rootdir", str(place), str(place)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("room", "late", "passes"),
    [("e2e", again.AT_MOST, True), ("e2e", again.AT_MOST + 1, False), (again.PURE[0], 1, False)],
)
def test_a_few_late_tests_are_tried_again_and_listed(tmp_path: Path, room: str, late: int, passes: bool) -> None:
    ran = run(tmp_path / room, late)
    assert (ran.returncode == 0) == passes, ran.stdout
    if room == "e2e":
        assert ran.stdout.count("test_late[0]") >= 1
        assert f"tried again: {late}" in ran.stdout


def test_every_pure_room_exists() -> None:
    assert all((ROOT / "tests" / room).is_dir() for room in again.PURE)

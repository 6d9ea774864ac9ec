"""Reservations of communicators of every kind: whatever way these end, nothing stays reserved, and nothing hangs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from lab.namespaces import temporary_directory
from tests.mpi.ranks import MPIS, PROGRAMS, built, finish, start
from tests.mpi.standin import Standin
from tests.worker.pool import eventually

RANKS: Final = 4
# By the program's steps, the rings that are reserved then between the two jobs, in each direction.
STEPS: Final = {
    "duplicated": 1,
    "original freed": 0,
    "other duplicate freed": 1,
    "disconnected": 0,
    "split": 2,
    "part": 1,
    "part freed": 0,
    "merged": 1,
    "merged freed": 0,
    "set twice": 2,
    "overwritten": 0,
    "of threads": 0,
    "left": 3,
}
BETWEEN: Final = "the communicator is between two groups; one of a single group is accepted"


@pytest.fixture
def folder() -> Iterator[Path]:
    with temporary_directory() as name:
        yield Path(name)


@pytest.mark.parametrize(("language", "end"), [("python", "finalize"), ("python", "exit"), ("c", "finalize")])
@pytest.mark.parametrize("mpi", MPIS)
def test_what_a_communicator_has_reserved_ends_with_it(mpi: str, language: str, end: str, folder: Path) -> None:
    standin = Standin(folder, ["one", "two"])
    command = [sys.executable, PROGRAMS / "attributes.py"] if language == "python" else [built(mpi) / "attributes"]
    process = start(mpi, folder, standin.sockets, [*command, end], RANKS)
    looks: dict[str, list[float]] = {}
    for step in STEPS:
        eventually(lambda step=step: (folder / step).exists() or process.poll() is not None, 60)
        looks[step] = sorted(standin.rates().values())
        (folder / f"{step} seen").touch()
    if end == "finalize":
        finalized = [folder / f"finalized{rank}" for rank in range(RANKS)]
        eventually(lambda: all(each.exists() for each in finalized) or process.poll() is not None, 60)
        # The process goes on.
        assert standin.rates() == {}
        time.sleep(0.1)
        (folder / "finalized seen").touch()
    outcome = finish(process, folder)
    standin.close()
    assert outcome.status == 0, outcome.output
    assert looks == {
        step: pytest.approx(2 * [rings * 8.365] if rings else [], rel=1e-3) for step, rings in STEPS.items()
    }
    told = {"between": [BETWEEN, True], "alone": True, "overwritten": True, "threads": True}
    assert outcome.told == dict.fromkeys(range(RANKS), told)
    assert standin.rates() == {}

"""The shares of the tests: each is a pytest process, and those of one stage run side by side.

A room stands in one share with all its files, but for those that stand in a share by themselves. The shares of the
first stage are to take about the same time: ``python -m tests`` prints each share's time, and at its end that of each
room and of the slowest files. Move rooms or files when one share is done long before the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]

STAGES: Final[Sequence[Mapping[str, Sequence[str]]]] = (
    {
        "workers": (
            "worker", "htcondor",
        ),
        "switches": (
            "switches", "reconcile", "flows", "e2e", "mpi", "hooks", "lab/test_short_form.py", "lab_parts",
            "accounting", "common", "jobs", "qos",
        ),
        "requests": (
            "rest", "services", "store", "cluster", "pages", "cli", "policies", "packaging", "experiments",
        ),
    },
    # Faults by the clock, most of whose time is waiting, and what needs a processor and measures nothing.
    {
        "faults": (
            "chaos",
        ),
        "programs": (
            "e2e/test_demo.py", "fuzz", "mutation",
        ),
    },
    # These depend most on what the machine does beside them: floods, measurements, processor time.
    {
        "alone": (
            "bench", "switches/test_openflow_floods.py", "worker/test_limits.py",
        ),
    },
    # Rates on a real kernel, in a network namespace that nothing else has used.
    {
        "rates": (
            "worker/test_shaping.py", "worker/test_reserved_floor.py", "worker/test_advice.py",
        ),
    },
)  # fmt: skip
ELSEWHERE: Final = ("install", "lab")
"""Rooms that ``make install-test`` and ``make lab-test`` run, but for the files of theirs that stand in a share."""


class SharesError(Exception):
    """A file of tests that is in no share, an entry without a file, or one that stands there twice."""


def divide(
    stages: Sequence[Mapping[str, Sequence[str]]] = STAGES,
    tests: Path = ROOT / "tests",
    elsewhere: Sequence[str] = ELSEWHERE,
) -> dict[str, tuple[Path, ...]]:
    """The files of each share, below ``tests``; raises SharesError unless each file of tests is in just one."""
    place: dict[str, str] = {}
    for share, entries in ((share, entries) for stage in stages for share, entries in stage.items()):
        for entry in entries:
            if entry in place:
                raise SharesError(f"tests/shares.py: {entry} stands in {place[entry]} and in {share}; one is right")
            place[entry] = share
    files: dict[str, list[Path]] = {share: [] for stage in stages for share in stage}
    unused = set(place)
    for path in sorted(tests.rglob("test_*.py")):
        name = str(path.relative_to(tests))
        room = path.relative_to(tests).parts[0]
        meant = next((entry for entry in (name, room) if entry in place), None)
        if meant is not None:
            unused.discard(meant)
            files[place[meant]].append(path)
        elif room not in elsewhere:
            raise SharesError(f"tests/shares.py: tests/{name} is in no share; name its room or itself in one")
    if unused:
        raise SharesError(f"tests/shares.py: no file of tests is meant by {', '.join(sorted(unused))}")
    return {share: tuple(paths) for share, paths in files.items()}

"""The shares of the tests: each is a pytest process, and some of those of one stage run side by side.

A room stands in one share with all its files, but for those that stand in a share by themselves. The shares of a stage
begin in their order, :data:`LANES` at first, and the next when one has ended: the longest stand first, so that all
lanes end at about the same time. What needs the lab's root file system, which is built meanwhile on a new machine, is
not among the first. ``python -m tests`` prints each share's time, and at its end that of each room and of the slowest
files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
LANES: Final = 3

STAGES: Final[Sequence[Mapping[str, Sequence[str]]]] = (
    {
        "worker": (
            "worker",
        ),
        "e2e": (
            "e2e",
        ),
        "rest": (
            "rest", "services", "store", "cli", "policies",
        ),
        "pages": (
            "pages",
        ),
        # What needs a processor and measures nothing.
        "programs": (
            "e2e/test_demo.py", "mutation", "packaging", "experiments",
        ),
        "htcondor": (
            "htcondor", "lab/test_short_form.py",
        ),
        "external": (
            "e2e/test_external.py", "e2e/test_external_attacks.py", "e2e/test_external_gateway.py",
            "e2e/test_external_ipv6.py", "e2e/test_external_misuse.py", "e2e/test_external_restart.py",
        ),
        "cluster": (
            "cluster",
        ),
        "transfers": (
            "worker/test_transfers.py", "worker/test_transfer_book.py", "worker/test_transfer_limits.py",
            "worker/test_transfer_policy.py", "worker/test_transfer_tables.py", "worker/test_short_transfers.py",
            "worker/test_fireflies.py", "worker/test_flow_labels.py", "worker/test_own_flows.py",
            "worker/test_hostile_transfers.py",
        ),
        "switches": (
            "switches", "reconcile", "flows", "common", "accounting", "jobs", "qos",
        ),
        "hooks": (
            "hooks", "mpi", "lab_parts",
        ),
        # The last of a stage is a short one, or one processor works through it while the other stands still; and it
        # waits for nothing.
        "fuzz": (
            "fuzz",
        ),
    },
    # Faults by the clock, most of whose time is waiting, and the benchmarks in short: no test holds them to a rate.
    {
        "bench": (
            "bench",
        ),
        "faults": (
            "chaos",
        ),
    },
    # These depend most on what the machine does beside them: floods, processor time.
    {
        "alone": (
            "switches/test_openflow_floods.py", "worker/test_limits.py",
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

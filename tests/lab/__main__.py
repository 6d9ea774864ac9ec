"""All end-to-end tests, those of each lab in a pytest of their own, side by side: ``python -m tests.lab``.

Arguments are pytest's, for both. Ends with what failed of both, and with status 1 if anything did.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as Xml
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab import rootfs
from lab.run import LabError
from lab.settings import from_environment
from tests.lab.packages import MPI

# Which tests each pytest has, by their marks; conftest.py sets them.
PARTS = {"lab": "kernel_datapath", "quick": "not kernel_datapath"}
# Exit status of pytest where the arguments choose none of its tests.
NONE_CHOSEN = 5


def part(name: str, arguments: Sequence[str], report: Path) -> int:
    """Run one pytest, with its name before each line that it prints; answers its exit status."""
    command = [sys.executable, "-u", "-m", "pytest", "-v", "-m", PARTS[name], f"--junitxml={report}", *arguments]
    with subprocess.Popen(
        [*command, str(Path(__file__).parent)], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"{name + ':':6} {line.rstrip()}", flush=True)
    return process.returncode


def counts(report: Path) -> tuple[int, list[str]]:
    """The number of tests in a report, and the names of those that did not pass."""
    if not report.exists():
        return 0, []
    cases = list(Xml.parse(report).iter("testcase"))
    bad = [case for case in cases if any(case.find(kind) is not None for kind in ("failure", "error", "skipped"))]
    return len(cases), [f"{case.get('classname')}::{case.get('name')}" for case in bad]


def main() -> int:
    """Run as a program."""
    began = time.monotonic()
    try:
        # Before their tests, whose own networks lead nowhere.
        rootfs.build(from_environment())
        rootfs.build(from_environment(), MPI)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(PARTS)) as threads:
        reports = [Path(folder, f"{name}.xml") for name in PARTS]
        statuses = list(threads.map(lambda name, report: part(name, sys.argv[1:], report), PARTS, reports))
        found = [counts(report) for report in reports]
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    bad = [name for _, names in found for name in names]
    print(f"{sum(number for number, _ in found)} tests in {minutes} min {seconds} s, {len(bad)} not passed")
    print(*bad, sep="\n")
    good = all(status in (0, NONE_CHOSEN) for status in statuses) and any(number for number, _ in found)
    return 0 if good and not bad else 1


if __name__ == "__main__":
    sys.exit(main())

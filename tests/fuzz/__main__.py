"""Run the fuzzers: ``python -m tests.fuzz [BORDER …] [--seconds N] [--seed S]``.

Each border has its part of the time, in a process of its own. Ends with 1 where one has a finding; the input then lies
in ``.fuzz/BORDER/``, and ``python -m tests.fuzz.engine BORDER FILE`` shows it again.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
BORDERS = tuple(sorted(path.stem for path in (FOLDER / "borders").glob("[a-z]*.py")))


class Result(NamedTuple):
    """The result of one border's run; ``finding`` is "" where it kept every promise."""

    inputs: int
    finding: str


def fuzz(border: str, found: Path, seed: int, *, seconds: int = 0, inputs: int = 0) -> Result:
    """Fuzz one border for so many seconds or inputs; what it leaves lies below ``found``.

    The same seed and number of inputs give the same inputs anywhere, but for what the border's own clock changes.
    """
    found.mkdir(parents=True, exist_ok=True)
    log = found / "log"
    with log.open("wb") as output:
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.engine", border, str(found), str(seconds), str(inputs), str(seed)],
            cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, timeout=seconds + 600, check=False,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )  # fmt: skip
    said = log.read_text("utf-8", "replace").splitlines()
    counts = [line.rpartition(":")[2] for line in said if line.startswith("stat::number_of_executed_units:")]
    start = next((number for number, line in enumerate(said) if line.startswith((" ===", "=="))), len(said) - 30)
    finding = "\n".join(line[:300] for line in said[max(0, start) :]) if done.returncode or not counts else ""
    return Result(int(counts[-1]) if counts else 0, finding)


def main() -> int:
    """Fuzz the borders that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("borders", nargs="*", metavar="BORDER", help=", ".join(BORDERS))
    parser.add_argument("--seconds", type=int, default=60, help="for all borders together (60)")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations; 0 is another one each time")
    parser.add_argument("--found", type=Path, default=ROOT / ".fuzz", help="where findings and new inputs go (.fuzz)")
    given = parser.parse_args()
    borders = given.borders or BORDERS
    for border in borders:
        if border not in BORDERS:
            parser.error(f"no border {border}; there are {', '.join(BORDERS)}")
    seed = given.seed or random.SystemRandom().randrange(1, 1 << 31)
    failed = False
    for border in borders:
        result = fuzz(border, given.found / border, seed, seconds=max(1, given.seconds // len(borders)))
        outcome = "FINDING" if result.finding else "nothing found"
        print(f"{border}: {result.inputs} inputs, seed {seed}: {outcome}", flush=True)
        if result.finding:
            failed = True
            print(result.finding, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())

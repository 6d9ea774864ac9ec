"""Throw faults at the running whole: ``python -m tests.chaos [--seed S] [--seconds N] [--database D]``.

Ends with 1 where a promise is broken; what remains of the run then lies in ``.chaos/``. As root it runs in namespaces
of its own (network, mounts); without, the disk is never full and no packet is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from pathlib import Path
from typing import Final

from tests.chaos import instances
from tests.chaos.runner import run
from tests.fixtures import own_network

ROOT: Final = Path(__file__).parents[2]
DATABASES: Final = ("sqlite", "postgresql")
# Seconds of faults in which some instance surely writes to a switch after another has taken over.
_SURELY_STALE: Final = 900


def main() -> int:
    """Run on each database that is named, or half of the time on each."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of faults and requests; 0 is another one each time")
    parser.add_argument("--seconds", type=float, default=60.0, help="of faults (60)")
    parser.add_argument("--database", choices=DATABASES, help="one alone; without it half of the time on each")
    parser.add_argument("--found", type=Path, default=ROOT / ".chaos", help="where what failed goes (.chaos)")
    parser.add_argument("--instances", type=int, default=1, help="so many controllers on one PostgreSQL (1)")
    given = parser.parse_args()
    seed = given.seed or random.SystemRandom().randrange(1, 1 << 31)
    databases = [given.database] if given.database else list(DATABASES)
    own_network.enter()
    if given.instances > 1:
        return _several(given, seed)
    failed = False
    for database in databases:
        print(f"{database}, seed {seed}", flush=True)
        found = given.found / f"{database}-{seed}"
        result = asyncio.run(
            run(database, seed, given.seconds / len(databases), found, lambda line: print(line, flush=True))
        )
        print(f"faults: {dict(result.kinds)}", flush=True)
        print(f"asked: {result.asked}", flush=True)
        for each in (*result.broken[:50], *result.switches):
            print(each, flush=True)
        if result.broken:
            failed = True
            print(f"what remains of it is in {found}", flush=True)
    return 1 if failed else 0


def _several(given: argparse.Namespace, seed: int) -> int:
    print(f"{given.instances} instances, seed {seed}", flush=True)
    found = given.found / f"instances-{seed}"
    work = instances.run(given.instances, seed, given.seconds, found, lambda line: print(line, flush=True))
    result = asyncio.run(work)
    print(f"faults: {dict(result.kinds)}", flush=True)
    print(f"asked: {result.asked}", flush=True)
    print(f"judged: {result.judged}; writes of slaves that switches refused: {result.refused}", flush=True)
    print(result.figures(), flush=True)
    broken = list(result.broken)
    if not result.refused and given.seconds >= _SURELY_STALE:
        broken.append("no write of a slave reached a switch: that these are refused was not tried")
    for each in broken[:50]:
        print(each, flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

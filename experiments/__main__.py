"""Runs experiments and writes their results: ``python -m experiments [NAME...]``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from experiments import (
    adaptive,
    calibration,
    full_links,
    lark_host,
    lark_latency,
    lark_start,
    lark_transfers,
    lark_wan,
    page,
    qos_allocation,
    qos_applications,
    qos_framework,
    rates,
    superfacility,
    transfer_shares,
)
from experiments.options import Options
from experiments.plot import plot
from experiments.rates import Rates
from experiments.result import Result, read, write
from lab.run import LabError

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs/experiments.md"
RESULTS: Final = ROOT / "docs/experiments"

# Every experiment by its name on the command line, in the order of the page.
EXPERIMENTS: Final[dict[str, Callable[[Options], tuple[Result, ...]]]] = {
    "lark-host": lark_host.run,
    "lark-wan": lark_wan.run,
    "lark-start": lark_start.run,
    "lark-latency": lark_latency.run,
    "lark-transfers": lark_transfers.run,
    "lark-transfers-wan": lark_transfers.run_far,
    "lark-transfers-shares": transfer_shares.run,
    "qos-framework": qos_framework.run,
    "qos-full-links": full_links.run,
    "superfacility": superfacility.run,
    "qos-allocation": qos_allocation.run,
    "qos-applications": qos_applications.run,
    "qos-adaptive": adaptive.run,
}
# Those at the machine's own rate.
UNSCALED: Final = frozenset({"superfacility"})


def main() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(prog="experiments", description="The papers' experiments, run again in the lab.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which, of {', '.join(EXPERIMENTS)}; all by default")
    parser.add_argument(
        "--scale", type=float, help="times every rate (1.0: Lark's times 0.05); without it, calibration chooses"
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="fewer points")
    parser.add_argument("--rates", type=Path, help="YAML or JSON with other rates and sizes (experiments/rates.py)")
    parser.add_argument("--output", type=Path, help="where results go instead of docs/experiments; no page then")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in EXPERIMENTS]
    if unknown:
        parser.error(f"{', '.join(unknown)}: no such experiment; there are {', '.join(EXPERIMENTS)}")
    if (given.scale is not None and not 0 < given.scale <= 10) or given.repetitions < 1:
        parser.error("accepted: a scale above 0 and up to 10, and at least one repetition")
    try:
        chosen = Rates() if given.rates is None else rates.read(given.rates)
    except LabError as error:
        parser.error(str(error))
    options = Options(given.scale or 1.0, given.repetitions, given.quick, chosen)
    folder = given.output or RESULTS
    missed = failed = 0
    if given.scale is None and not UNSCALED.issuperset(given.names or EXPERIMENTS):
        try:
            options, calibrated = calibration.run(options)
        except LabError as error:
            print(f"calibration: {error}", file=sys.stderr)
            return 1
        missed += _show(calibrated, folder)
    for name in given.names or EXPERIMENTS:
        began = time.monotonic()
        try:
            results = EXPERIMENTS[name](options)
        except (LabError, ValueError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed += 1
            continue
        for result in results:
            missed += _show(result, folder)
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    if not given.output:
        page.replace(PAGE, page.text(map(read, RESULTS.glob("*.json")), RESULTS.name))
    print(f"{missed} aims missed, {failed} experiments failed")
    return 1 if failed else 0


def _show(result: Result, folder: Path) -> int:
    """Write a result and print its aims; answers how many it misses."""
    result = replace(result, made=datetime.now(UTC).date().isoformat())
    write(result, folder)
    plot(result, folder)
    for check in result.checks:
        said = "not judged" if check.marked else "met" if check.met else "MISSED"
        print(f"{result.name}: {said}: {check.aim}: {check.found}", flush=True)
    return sum(not check.met and not check.marked for check in result.checks)


if __name__ == "__main__":
    sys.exit(main())

"""``python -m bench``: measure, write JSON to bench/results, and the table into docs/benchmarks.md.

``--quick`` takes under two minutes and leaves the documentation alone; ``--only NAME`` measures one subject.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench import changes, external, hostile, ovsdb, posts, reactive, report, scale, takeovers, usage, views

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "bench" / "results"
PAGE: Final = ROOT / "docs" / "benchmarks.md"

SUBJECTS: Final = (
    "reactive",
    "posts",
    "calculated",
    "whole",
    "views",
    "usage",
    "ovsdb",
    "scale",
    "hostile",
    "external",
    "takeovers",
)


def measurements(quick: bool) -> dict[str, Callable[[], Any]]:
    """The measurement of each name."""
    if quick:
        return {
            "reactive": lambda: reactive.measure(1, 1.5),
            "posts": lambda: posts.measure(8, 1000),
            "calculated": lambda: [changes.measure_calculated(3, 22, (1_000, 20_000))],
            "whole": lambda: [changes.measure_whole(3, 22, (1_000, 20_000))],
            "views": lambda: views.measure(5_000, 10, 10),
            "usage": lambda: usage.measure(1, 2_000, 5, minute_days=0.02),
            "ovsdb": lambda: ovsdb.measure(50, 20, 3.0),
            "scale": lambda: scale.measure(2_000, 32, 5.0, day_seconds=10.0),
            "hostile": lambda: hostile.measure(1.0, 4),
            "external": lambda: external.measure(1, 0.5, 500),
            "takeovers": lambda: takeovers.measure(2_000, 32, 2, 1.0),
        }
    return {
        "reactive": lambda: reactive.measure(3, 3.0),
        "posts": lambda: posts.measure(60, 1000),
        "calculated": lambda: [
            changes.measure_calculated(7, 22),
            changes.measure_calculated(5, 26, connected=10),
            changes.measure_calculated(5, 28, connected=10),
            changes.measure_calculated(5, None, (1_000, 20_000), connected=10),
        ],
        "whole": lambda: [
            changes.measure_whole(7, 22),
            changes.measure_whole(5, None, (1_000, 20_000), fresh=20),
        ],
        "views": lambda: views.measure(200_000, 100, 100),
        "usage": lambda: usage.measure(30, 200_000, 20),
        "ovsdb": lambda: ovsdb.measure(1000, 300),
        "scale": scale.measure,
        "hostile": lambda: hostile.measure(8.0, 16),
        "external": external.measure,
        "takeovers": takeovers.measure,
    }


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure the controller.")
    parser.add_argument("--quick", action="store_true", help="small sizes, under two minutes; docs stay as they are")
    parser.add_argument("--only", choices=SUBJECTS, action="append", help="measure this alone (may be repeated)")
    chosen = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    path = RESULTS / f"{stamp}{'-quick' if chosen.quick else ''}.json"
    found: dict[str, Any] = {"machine": report.machine(), "quick": chosen.quick}
    for name, measure in measurements(chosen.quick).items():
        if chosen.only and name not in chosen.only:
            continue
        started = time.monotonic()
        print(f"{name} …", flush=True)
        found[name] = measure()
        path.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    table = report.table(found)
    print(f"\n{table}\n{path}")
    if not chosen.quick and not chosen.only:
        report.replace(PAGE, table)
        print(PAGE)
    if "hostile" in found and not chosen.quick:
        attacked = report.attacked(found["machine"], found["hostile"])
        report.replace(PAGE, attacked, report.HOSTILE_BEGIN, report.HOSTILE_END)
        print(attacked)
    if "external" in found and not chosen.quick:
        translated = report.translated(found["machine"], found["external"])
        report.replace(PAGE, translated, report.EXTERNAL_BEGIN, report.EXTERNAL_END)
        print(translated)
    if "takeovers" in found and not chosen.quick:
        taken_over = report.taken_over(found["machine"], found["takeovers"])
        report.replace(PAGE, taken_over, report.TAKEOVERS_BEGIN, report.TAKEOVERS_END)
        print(taken_over)


if __name__ == "__main__":
    main()

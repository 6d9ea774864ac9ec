"""``python -m bench``: measure, write JSON to bench/results, and the table into docs/benchmarks.md.

``--quick`` takes some minutes and leaves the documentation alone; ``--only NAME`` measures one subject. Those that have
a section of their own in the page are measured where they are named, or quickly. Takeovers and instances write their
figures after each step, so that a run that is interrupted has those that it found, and take other sizes (``--jobs``,
``--connected``, ``--kills``, ``--minutes``); then the documentation stays as it is, too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench import (
    changes,
    external,
    hostile,
    instances,
    instances_report,
    limited,
    ovsdb,
    posts,
    reactive,
    report,
    scale,
    takeovers,
    usage,
    views,
)

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "benchmarks.md"

JOBS_A_WORKER: Final = 64
# Those of the page's first table, which take a quarter of an hour, and all.
TABLE: Final = ("reactive", "posts", "calculated", "whole", "views", "usage", "ovsdb")
SUBJECTS: Final = (*TABLE, "scale", "limited", "hostile", "external", "takeovers", "instances")

# Tables of their own in the page: what writes each, and the marks between which it stands.
SECTIONS: Final = {
    "hostile": (report.attacked, report.HOSTILE_BEGIN, report.HOSTILE_END),
    "external": (report.translated, report.EXTERNAL_BEGIN, report.EXTERNAL_END),
    "takeovers": (report.taken_over, report.TAKEOVERS_BEGIN, report.TAKEOVERS_END),
    "instances": (instances_report.several, instances_report.BEGIN, instances_report.END),
}


def measurements(
    quick: bool, sized: argparse.Namespace, keep: Callable[[str, Any], None]
) -> dict[str, Callable[[], Any]]:
    """The measurement of each name; those of hours have the sizes of the command line, and ``keep`` their figures."""
    taking = partial(keep, "takeovers")
    asking = partial(keep, "instances")
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
            "limited": lambda: limited.measure(2_000, 32),
            "hostile": lambda: hostile.measure(1.0, 4),
            "external": lambda: external.measure(1, 0.5, 500),
            "takeovers": lambda: takeovers.measure(2_000, 32, 2, 1.0, keep=taking),
            "instances": lambda: instances.measure(2_000, 2.0, keep=asking),
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
        "limited": lambda: limited.measure(sized.jobs or 200_000, max(1, (sized.jobs or 200_000) // JOBS_A_WORKER)),
        "hostile": lambda: hostile.measure(8.0, 16),
        "external": external.measure,
        "takeovers": lambda: takeovers.measure(
            size := sized.jobs or 200_000,
            max(1, size // JOBS_A_WORKER),
            sized.kills or 100,
            connected=sized.connected,
            bound=60 * (sized.minutes or 180),
            keep=taking,
        ),
        "instances": lambda: instances.measure(sized.jobs or 20_000, keep=asking),
    }


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure the controller.")
    parser.add_argument("--quick", action="store_true", help="small sizes, some minutes; docs stay as they are")
    parser.add_argument("--only", choices=SUBJECTS, action="append", help="measure this alone (may be repeated)")
    parser.add_argument("--jobs", type=int, help="jobs of the pool, 64 for each worker (takeovers, instances, limited)")
    parser.add_argument("--connected", type=int, help="workers whose switches are played (takeovers; all)")
    parser.add_argument("--kills", type=int, help="takeovers after a kill (100)")
    parser.add_argument("--minutes", type=float, help="minutes after which none is killed any more (180)")
    chosen = parser.parse_args()
    other = any(each is not None for each in (chosen.jobs, chosen.connected, chosen.kills, chosen.minutes))
    path = report.results_file("-quick" if chosen.quick else "")
    found: dict[str, Any] = {"machine": report.machine(), "quick": chosen.quick}

    def keep(name: str, value: Any) -> None:
        found[name] = value
        report.keep(found, path)

    for name, measure in measurements(chosen.quick, chosen, keep).items():
        if name not in (chosen.only or (SUBJECTS if chosen.quick else TABLE)):
            continue
        started = time.monotonic()
        print(f"{name} …", flush=True)
        keep(name, measure())
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    table = report.table(found)
    print(f"\n{table}\n{path}")
    if not chosen.quick and not chosen.only:
        report.replace(PAGE, table)
        print(PAGE)
    for name, (written, begins, ends) in SECTIONS.items():
        if name in found:
            text = written(found["machine"], found[name])
            print(text)
            if not chosen.quick and not other:
                report.replace(PAGE, text, begins, ends)


if __name__ == "__main__":
    main()

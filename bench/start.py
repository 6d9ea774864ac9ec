"""The cost of Lark at a job's start and end: ``python -m bench.start``, jobs with and without it by turns in the lab.

One worker is set up by docs/how-to/worker.md; the other one's HTCondor has neither hook nor wrapper. The starter's
log (with fractions of a second) and the job, whose first instruction prints the time, say when what happened.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench import report
from bench.percentiles import median, percentile
from lab import kernel
from lab.boot import Lab
from lab.settings import LabSettings, from_environment
from lab.starts import CONFIG, DEBUG, PLAIN, WITH, WITHOUT, one, stages

STAGES: Final = {
    "hook": "from the hook's start to its end: the job registered, its network made, its switches' confirmation",
    "wrapper": "from the process's start to the job's first instruction: the way into the namespace",
    "start": "from the hook's start to the job's first instruction",
    "end": "from the job's end to the starter's",
    "batch": "from batch begin to batch end: the starter's whole life, set-up and teardown",
}
BEGIN: Final = "<!-- start: written by `python -m bench.start` -->"
END: Final = "<!-- end of start -->"
PAGE: Final = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def measure(rounds: int, settings: LabSettings) -> dict[str, Any]:
    """Run ``rounds`` jobs on each worker, by turns. Raises LabError where the lab does not do it."""
    with Lab.start(settings) as lab:
        lab.start_pool()
        for worker in (WITH, WITHOUT):
            text = DEBUG + (PLAIN if worker == WITHOUT else "")
            lab.write(worker, CONFIG, text)
            lab.on(worker, "condor_reconfig")
        for worker in (WITH, WITHOUT):
            one(lab, worker)  # what is done once is no job's cost
        found: dict[str, list[dict[str, float]]] = {WITH: [], WITHOUT: []}
        for number in range(rounds):
            for worker in (WITH, WITHOUT) if number % 2 else (WITHOUT, WITH):
                found[worker].append(stages(one(lab, worker)))
        return {"kind": lab.choice.kind, "rounds": rounds, "with": _sums(found[WITH]), "without": _sums(found[WITHOUT])}


def _sums(found: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    columns = {name: sorted(each[name] for each in found) for name in found[0]}
    return {name: {"p50": median(values), "p95": percentile(values, 95)} for name, values in columns.items()}


def table(found: Mapping[str, Any]) -> str:
    """The measurement as a Markdown table, with a line about where it was taken above."""
    about = found["machine"]
    lines = [
        f"{found['rounds']} jobs with Lark and {found['rounds']} without, by turns, in the lab "
        f"(`LAB_KIND={found['kind']}`) on a machine with {about['cores']} cores, Linux {about['kernel']}; load average "
        f"{about['load']:.1f} when it began and {found['load_after']:.1f} when it ended"
        f"{', of others, before whom the whole lab was scheduled (`--realtime`)' if found['realtime'] else ''}.",
        "",
        "| stage | without: p50, p95 | with Lark: p50, p95 | Lark's share at p50 | ratio of p50 |",
        "| --- | --- | --- | --- | --- |",
    ]
    for stage, meaning in STAGES.items():
        without, with_ = found["without"][stage], found["with"][stage]
        ratio = f"{with_['p50'] / without['p50']:.2f}" if without["p50"] >= 1 else ""
        lines.append(
            f"| {meaning} | {without['p50']:.0f}, {without['p95']:.0f} ms | {with_['p50']:.0f}, {with_['p95']:.0f} ms "
            f"| {with_['p50'] - without['p50']:+.0f} ms | {ratio} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, and write JSON to bench/results and the table into docs/benchmarks.md."""
    parser = argparse.ArgumentParser(prog="python -m bench.start", description="Measure what Lark costs a job. Root.")
    parser.add_argument("--rounds", type=int, default=20, help="jobs on each side [20]")
    parser.add_argument("--realtime", action="store_true", help="before whatever else runs on the machine (SCHED_RR)")
    chosen = parser.parse_args()
    if chosen.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    settings = from_environment()
    if settings.kind == "auto" and kernel.choose("auto").kind != "native":
        # User Mode Linux makes system calls several times as dear as they are, which is most of what is measured.
        settings = replace(settings, kind="userspace")
    machine = report.machine()
    found = {
        "machine": machine,
        **measure(chosen.rounds, settings),
        "realtime": chosen.realtime,
        "load_after": os.getloadavg()[0],
    }
    report.keep(found, report.results_file("-start"))
    print(table(found))
    report.replace(PAGE, table(found), BEGIN, END)


if __name__ == "__main__":
    main()

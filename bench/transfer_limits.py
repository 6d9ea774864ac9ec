"""HTCondor's limit by number of transfers beside Lark's limit by rate: ``python -m bench.transfer_limits``, in one pool
of the lab.

The same jobs of one submission, with a sandbox each, run under neither limit, either, and both. Writes JSON to
bench/results and the table into docs/how-to/transfers.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from bench import report
from experiments import sandboxes
from experiments.lark_start import settings
from experiments.lark_transfers import limited
from experiments.sandboxes import Batch
from lab import controller, submit
from lab.boot import Lab
from lab.inside.topology import DOMAIN
from lab.run import LabError

BEGIN: Final = "<!-- transfer limits: written by `python -m bench.transfer_limits` -->"
END: Final = "<!-- end of transfer limits -->"
PAGE: Final = Path(__file__).parents[1] / "docs" / "how-to" / "transfers.md"
# Of each job. The first half second of a transfer is under no rule, so it is to last for much longer.
SIZE: Final = 30_000_000
JOBS: Final = 8
# Mb/s of the access point's link.
LINK: Final = 80.0
TIMEOUT: Final = 900.0
PATIENCE: Final = 360.0
CONFIG: Final = "/etc/condor/config.d/91-before.conf"
# Jobs are registered before their input is moved; HTCondor 25.14.1 starts none after that where they begin without the
# worker's network.
BEFORE: Final = (
    "LARK_HOOK_PREPARE_JOB_BEFORE_TRANSFER = /usr/local/libexec/lark/lark-start\nNO_JOB_NETWORKING = False\n"
)


class Limits(NamedTuple):
    """The limits of a run: HTCondor's number (None: none), and the keys of Lark's rule (``""``: no rule)."""

    most: int | None = None
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Moved:
    """The inputs of a run: the ``most`` at once, the median ``each`` and all ``together`` in Mb/s of the files' bytes,
    the ``seconds`` from the first one's beginning to the last one's end."""

    most: int
    each: float
    together: float
    seconds: float


CASES: Final = (
    Limits(),
    Limits(2),
    Limits(None, "rate: 8Mbit"),
    Limits(None, "group_rate: 16Mbit"),
    Limits(2, "rate: 8Mbit"),
)


def measure(lab: Lab, cases: Sequence[Limits], batch: Batch, link: float) -> list[Moved]:
    """A run of the batch under each of these limits, with a link of so many Mb/s at the access point."""
    sandboxes.prepare(lab, batch)
    found = []
    with before_the_input(lab), limited(lab, link):
        with ruled(lab, "rate: 100Gbit"):
            learn(lab)
        for case in cases:
            # Without any rule in the policy, workers would not ask about the next case's jobs for a while.
            rule = case.rule or "when: 'Owner == \"nobody\"', rate: 1"
            with ruled(lab, rule), sandboxes.queue(lab, case.most):
                jobs, _ = sandboxes.run(lab, batch, TIMEOUT)
            log = lab.on(sandboxes.ACCESS_POINT, "cat", f"{jobs.directory}/log").stdout
            found.append(moved(sandboxes.inputs(log), batch.size))
            print(case, found[-1], file=sys.stderr, flush=True)
    return found


def moved(spans: Sequence[tuple[float, float]], size: int) -> Moved:
    """The rates of inputs of ``size`` bytes that were on their way for these times."""
    seconds = max(end for _, end in spans) - min(begin for begin, _ in spans)
    each = median(size * 8e-6 / (end - begin) for begin, end in spans)
    return Moved(sandboxes.at_once(spans), each, len(spans) * size * 8e-6 / seconds, seconds)


def learn(lab: Lab) -> None:
    """Let both workers take up that the policy has rules of transfers: a job on each, until its rule is in place."""
    jobs = [
        submit.submit(lab, sandboxes.USER, "sleep 600", {"requirements": f'Machine == "{worker}.{DOMAIN}"'})
        for worker in sandboxes.WORKERS
    ]
    for each in jobs:
        wait_for_rule(lab, f"{each.cluster}.0")
    lab.on(sandboxes.ACCESS_POINT, "condor_rm", *(str(each.cluster) for each in jobs))
    for each in jobs:
        submit.wait(lab, each)


def wait_for_rule(lab: Lab, job: str) -> dict[str, Any]:
    """A job's description by the controller, once its worker has the rule of its transfers. Raises LabError."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(LabError):  # it has not begun
            found: dict[str, Any] = controller.api(lab, f"/v1/jobs/{job}")
            if (found["transfers"] or {}).get("enforced"):
                return found
        if time.monotonic() > deadline:
            raise LabError(f"the worker does not have the rule of job {job}'s transfers")
        time.sleep(0.3)


@contextmanager
def before_the_input(lab: Lab) -> Iterator[None]:
    """Let workers register jobs before their input is moved."""
    for worker in sandboxes.WORKERS:
        lab.write(worker, CONFIG, BEFORE)
        lab.on(worker, "condor_reconfig")
    try:
        yield
    finally:
        for worker in sandboxes.WORKERS:
            lab.on(worker, "rm", "-f", CONFIG)
            lab.on(worker, "condor_reconfig")


@contextmanager
def ruled(lab: Lab, rule: str) -> Iterator[None]:
    """A rule of transfers during the block."""
    put_rule(lab, rule)
    try:
        yield
    finally:
        controller.api(lab, "/v1/policy", "PUT", lab.on("controller", "cat", "/etc/lark/policy.yaml").stdout)


def put_rule(lab: Lab, rule: str) -> None:
    """Put the lab's policy with a rule of transfers in force."""
    before = lab.on("controller", "cat", "/etc/lark/policy.yaml").stdout
    controller.api(lab, "/v1/policy", "PUT", before.replace("policies:\n", f"policies:\n  - transfers: {{{rule}}}\n"))


def table(found: Mapping[str, Any]) -> str:
    """The measurement as a Markdown table, with a line about where it was taken above."""
    about = found["machine"]
    lines = [
        f"`python -m bench.transfer_limits`: {found['jobs']} jobs of one submission in the lab "
        f"(`LAB_KIND={found['kind']}`), half on each of two workers, with an input of {found['size'] / 1e6:g} MB each; "
        f"the access point's link has {found['link']:g} Mb/s. Inputs alone, in Mb/s of the files' bytes. "
        f"{about['cores']} cores, Linux {about['kernel']}; load average {about['load']:.1f} when it began and "
        f"{found['load_after']:.1f} when it ended, of others and the lab.",
        "",
        "| HTCondor's limit | Lark's rule | inputs at a time, at most | rate of each | all together | all moved in |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in found["rows"]:
        most, rule = row["most"], row["rule"]
        had = row["moved"]
        lines.append(
            f"| {f'`MAX_CONCURRENT_UPLOADS = {most}`' if most else 'none'} | {f'`{rule}`' if rule else 'none'} "
            f"| {had['most']} | {had['each']:.1f} | {had['together']:.1f} | {had['seconds']:.0f} s |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, and write JSON to bench/results and the table into the page."""
    parser = argparse.ArgumentParser(prog="python -m bench.transfer_limits", description="Limits of transfers. Root.")
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--size", type=int, default=SIZE, help=f"bytes of each input [{SIZE}]")
    chosen = parser.parse_args()
    machine = report.machine()
    with Lab.start(settings()) as lab:
        lab.start_pool()
        rows = measure(lab, CASES, Batch(chosen.jobs, chosen.size, chosen.jobs), LINK)
    found = {
        "machine": machine,
        "kind": settings().kind,
        "jobs": chosen.jobs,
        "size": chosen.size,
        "link": LINK,
        "rows": [{**case._asdict(), "moved": asdict(row)} for case, row in zip(CASES, rows, strict=True)],
        "load_after": os.getloadavg()[0],
    }
    report.keep(found, report.results_file("-transfer-limits"))
    print(table(found))
    report.replace(PAGE, table(found), BEGIN, END)


if __name__ == "__main__":
    main()

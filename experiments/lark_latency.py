"""Lark's experiments on latency: a ping with and without, and what the first packet of a flow waits for."""

from __future__ import annotations

import re
from statistics import median
from typing import Final

from experiments import paper
from experiments.options import Options
from experiments.pool import FIRST_PORT, SITE, Pool, policy, running
from experiments.result import Check, Point, Result, Series
from lab.inside.topology import BY_NAME

WORKER: Final = "worker1"
HERE: Final = {"requirements": f'Machine == "{WORKER}.lab.test"'}
PINGS: Final = 60
FULL: Final = 50.0
_TIME = re.compile(r"time=([0-9.]+) ms")


def run(options: Options) -> tuple[Result, ...]:
    """All of them, in one lab."""
    host = BY_NAME[SITE].address
    ping = f"ping -c {PINGS} -i 0.05 {host}"
    # The first packets towards another network take the gateway's redirect; they are no flow set-up.
    ready = f"ping -c 3 -i 0.2 -W 1 {host} >/dev/null; "
    with running() as pool:
        pool.put_policy(policy("policies:\n  - bandwidth: {mode: cap}"))
        pool.serve(SITE, 1)
        in_job = [times(pool.output("alice", f"{ready}{ping}\n", HERE)) for _ in range(options.repetitions)]
        on_worker = [times(pool.on(WORKER, f"{ready}{ping}")) for _ in range(options.repetitions)]
        first = [_first(pool, host, ready) for _ in range(options.repetitions)]
        full = [_through_a_full_queue(pool, host, ready) for _ in range(options.repetitions)]
    return (latency(in_job, on_worker, first, full, options),)


def times(printed: str) -> list[float]:
    """Round-trip times in ms, as ``ping`` prints them."""
    return [float(found) for found in _TIME.findall(printed)]


def _first(pool: Pool, host: str, ready: str) -> list[float]:
    """First packets of flows that the switch has not seen: a new kind of packet each, by its type of service."""
    marks = " ".join(str(mark) for mark in range(4, 84, 4))
    script = f"{ready}for mark in {marks}; do ping -c 1 -Q $mark {host}; done\n"
    return times(pool.output("alice", script, HERE))


def _through_a_full_queue(pool: Pool, host: str, ready: str) -> list[float]:
    """Pings of a job whose own stream fills its queue."""
    lines = {**HERE, "+RequestBandwidth": f"{FULL:g}"}
    script = (
        f"{ready}iperf3 --client {host} --port {FIRST_PORT} --time 8 >/dev/null & sleep 2\n"
        f"ping -c {PINGS} -i 0.05 {host}\nwait\n"
    )
    return times(pool.output("alice", script, lines))


def latency(
    in_job: list[list[float]],
    on_worker: list[list[float]],
    first: list[list[float]],
    full: list[list[float]],
    options: Options,
) -> Result:
    """Medians of each kind, in ms."""
    kinds = (
        ("on the worker itself", on_worker),
        ("in a job", in_job),
        ("in a job, first packet of a flow", first),
        ("in a job, through its full queue", full),
    )  # fmt: skip
    series = tuple(
        Series(name, (Point.of(place, (median(each) for each in runs)),)) for place, (name, runs) in enumerate(kinds, 1)
    )
    medians = [each.points[0].y for each in series]
    return Result(
        name="lark-latency",
        title="Round-trip times on the site's network",
        source="Lark, section VII.B",
        x_label="place",
        y_label="median round-trip time, ms",
        series=(*series, Series("first packet of a flow", (Point(3, paper.FIRST_PACKET_MS),), paper=True)),
        checks=(
            Check("a job's ping takes no longer than the worker's, within 0.2 ms",
                  f"{medians[1]:.3f} ms in a job, {medians[0]:.3f} ms on the worker", medians[1] - medians[0] <= 0.2),
            Check("the first packet of a flow asks nobody: at most 1 ms more than later ones",
                  f"{medians[2] - medians[1]:.3f} ms more", medians[2] - medians[1] <= 1),
            Check(f"through a full queue of {FULL:g} Mb/s at most 3 ms", f"{medians[3]:.2f} ms", medians[3] <= 3),
        ),
        setting={"repetitions": options.repetitions, "pings": PINGS},
        notes=("The paper finds the difference that Open vSwitch makes negligible, and about 50 ms for a first packet, "
               "which its controller decides about; here the flows stand before the job starts.",),
    )  # fmt: skip

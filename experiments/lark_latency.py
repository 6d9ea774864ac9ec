"""Lark's experiments on latency: a ping with and without, and what the first packet of a flow waits for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
        sent, received = (
            [_through_a_full_queue(pool, host, ready, back) for _ in range(options.repetitions)]
            for back in ("", " --reverse")
        )
    places = {
        "worker": on_worker,
        "job": in_job,
        "job, first\npacket of a flow": first,
        "job, sends\nat its limit": sent,
        "job, receives\nat its limit": received,
    }
    return (latency(places, options),)


def times(printed: str) -> list[float]:
    """Round-trip times in ms, as ``ping`` prints them."""
    return [float(found) for found in _TIME.findall(printed)]


def _first(pool: Pool, host: str, ready: str) -> list[float]:
    """First packets of flows that the switch has not seen: a new kind of packet each, by its type of service."""
    marks = " ".join(str(mark) for mark in range(4, 84, 4))
    script = f"{ready}for mark in {marks}; do ping -c 1 -Q $mark {host}; done\n"
    return times(pool.output("alice", script, HERE))


def _through_a_full_queue(pool: Pool, host: str, ready: str, back: str) -> list[float]:
    """Pings of a job whose own stream fills its queue: what it sends, or with ``back`` what it receives."""
    lines = {**HERE, "+RequestBandwidth": f"{FULL:g}"}
    script = (
        f"{ready}iperf3 --client {host} --port {FIRST_PORT} --time 8{back} >/dev/null & sleep 2\n"
        f"ping -c {PINGS} -i 0.05 {host}\nwait\n"
    )
    return times(pool.output("alice", script, lines))


def latency(places: Mapping[str, Sequence[Sequence[float]]], options: Options) -> Result:
    """Medians of each kind, in ms; of the repetitions of each place."""
    points = tuple(Point.of(place, map(median, runs)) for place, runs in enumerate(places.values(), 1))
    worker, job, first, sent, received = (point.y for point in points)
    return Result(
        name="lark-latency",
        title="Round-trip times on the site's network",
        source="Lark, section VII.B",
        x_label="where",
        y_label="median round-trip time, ms",
        series=(
            Series("here", points),
            Series("first packet, which the controller decides about", (Point(3, paper.FIRST_PACKET_MS),), paper=True),
        ),
        checks=(
            Check("a job's ping takes no longer than the worker's, within 0.2 ms",
                  f"{job:.3f} ms in a job, {worker:.3f} ms on the worker", job - worker <= 0.2),
            Check("the first packet of a flow asks nobody: at most 1 ms more than later ones",
                  f"{first - job:+.3f} ms", first - job <= 1),
            Check(f"through a full queue of {FULL:g} Mb/s at most 3 ms",
                  f"{sent:.2f} ms where the job sends, {received:.2f} ms where it receives", max(sent, received) <= 3),
        ),
        setting={"repetitions": options.repetitions, "pings": PINGS},
        notes=("The paper finds the difference that Open vSwitch makes negligible, and about 50 ms for a first packet, "
               "which its controller decides about; here the flows stand before the job starts.",),
        places=tuple(places),
    )  # fmt: skip

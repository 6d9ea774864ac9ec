"""Finds the scale that this machine's lab carries, by reference streams beside a stream that fills a worker's cable.

A scale is carried if most of its references have their rate. The cable carries more than the link of the experiments at
that scale, since a queue costs the lab's processor more than a plain cable does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from experiments import beside, reference
from experiments.beside import Taken
from experiments.options import Options
from experiments.pool import READY, SITE, Pool, running
from experiments.result import Beside, Check, Point, Result, Series
from lab.inside.topology import BY_NAME

WORKER: Final = "worker1"
SECONDS: Final = 6.0
# Times the link's rate: what queues, several streams, and programs that start beside them cost more.
SPARE: Final = 2.5


def run(options: Options) -> tuple[Options, Result]:
    """The options with the scale that is carried, and the result that shows how it was chosen. Raises LabError."""
    tried: dict[float, list[Taken[None]]] = {}
    with running() as pool:
        for factor in beside.SCALES:
            at = replace(options, scale=factor)
            tried[factor] = [_stream(pool, at.rates.host_link * at.part) for _ in range(beside.TRIALS)]
            if beside.is_carried([each.meanwhile.reference for each in tried[factor]]):
                break
    chosen, carried = beside.scale(
        {factor: [each.meanwhile.reference for each in taken] for factor, taken in tried.items()}
    )
    return replace(options, scale=chosen), result(tried, chosen, carried, options)


def _stream(pool: Pool, link: float) -> Taken[None]:
    """One reference stream beside one that fills the cable; nothing else is measured."""
    worker = BY_NAME[WORKER]
    pool.limit(worker, 0, link * SPARE)
    pool.refer(reference.to_worker(link, SITE, WORKER))
    (port,) = pool.serve(WORKER, 1)
    load = f"iperf3 --client {worker.address} --port {port} --time {SECONDS + 2 * READY:g} >/dev/null"
    with pool.watched(pool.now() + READY, SECONDS) as watched:
        pool.on(SITE, load)
    return Taken(None, watched())


def result(tried: dict[float, list[Taken[None]]], chosen: float, carried: bool, options: Options) -> Result:
    """Show each scale's streams."""
    points = tuple(
        Point.of(replace(options, scale=factor).part, (each.meanwhile.reference for each in taken))
        for factor, taken in sorted(tried.items())
    )
    part = replace(options, scale=chosen).part
    return Result(
        name="calibration",
        title="The scale that this machine's lab carries",
        source="",
        x_label="rates of the paper times",
        y_label="delivered to a reference stream, of its rate",
        series=(
            Series("reference streams beside one without Lark's queues", points),
            Series("its rate", tuple(Point(point.x, 1) for point in points), aim=True),
        ),
        checks=(
            Check(
                f"a scale at which most references have their rate within {beside.TOLERANCE / 2:.1%}",
                f"{part:g}"
                if carried
                else f"none; the experiments run at {part:g}, and most of their values are marked",
                carried,
            ),
        ),
        setting={"streams at each scale": beside.TRIALS, "seconds": SECONDS, "times the link's rate": SPARE},
        notes=("Scales are tried from the greatest on, until one is carried.",),
        beside=Beside.of(each for taken in tried.values() for each in taken),
    )

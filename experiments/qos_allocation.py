"""The QoS framework's Figure 8 with applications: times of MPI programs against what they reserve.

On the four nodes of :mod:`experiments.cluster`, with one rank on each, as :mod:`experiments.qos_framework` has its
exchange. Rates are the paper's MB/s a flow, times the scale. A program's knee is the rate at which communicating takes
as long as computing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf, isinf
from typing import Final

from experiments import paper
from experiments.adaptive import setting
from experiments.applications import PACKAGES
from experiments.beside import Kept
from experiments.cluster import Played
from experiments.measured import Measured, NotMeasuredError, measure
from experiments.nodes import Run
from experiments.options import Options
from experiments.qos_framework import MEGABITS, WITHIN, requested, scale
from experiments.result import Check, Point, Result, Series
from experiments.sizes import CELLS, NODES, arguments

# Each run is made once in a quarter of an hour. None is repeated after the first number of seconds, and all have ended
# at the second.
REPEATED: Final = 900
SECONDS: Final = 3600
RANDOM_ACCESS: Final = "hpcc's RandomAccess"
# Programs, and the parts of each that have a time of their own. With b_eff, hpcc takes minutes longer: at the greatest
# rates alone.
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "integer sort": ("",),
    "hpcc": ("PTRANS", "FFT", "b_eff"),
    RANDOM_ACCESS: ("",),
    "LAMMPS": ("",),
    "POV-Ray": ("",),
}
# Parts of HPC Challenge that are there to measure the network: they compute hardly anything for a byte, whatever their
# input, and have their knee beyond what can be reserved.
OF_NETWORK: Final = frozenset({"PTRANS", "FFT", "b_eff"})
WITH_B_EFF: Final = 2
# The allocations to try, as parts of the most. RandomAccess looks for small messages most of the time, whatever its
# input: its knee is below the least of these, at which a full frame takes a tenth of a second.
TRIED: Final = (0.1, 0.2, 0.4, 0.7, 1.0)
LOW: Final = (0.03, 0.06, 0.12, 0.4)
# A time that is so much more than the least of all counts as that.
NEAR: Final = 0.1


def run(options: Options) -> tuple[Result, ...]:
    """Figure 8 with applications."""
    request = requested(NODES, runs(options), REPEATED, options)
    return (against_allocation(measure(request, PACKAGES, SECONDS), options),)


def programs(options: Options) -> tuple[str, ...]:
    """The programs to run."""
    return tuple(PARTS)[: 1 if options.quick else None]


def rates(name: str, options: Options) -> tuple[float, ...]:
    """The allocations to try with a program, MB/s a flow."""
    limit = paper.flow_limit(NODES, options.rates.link_mbytes)
    tried = LOW if name == RANDOM_ACCESS else (0.2, 0.5, 1.0) if options.quick else TRIED
    return tuple(round(limit * part, 3) for part in tried)


def runs(options: Options) -> Iterator[Run]:
    """Each program at each of its rates."""
    unit = MEGABITS * scale(NODES, options)
    most = paper.flow_limit(NODES, options.rates.link_mbytes) * unit * 1e6 / MEGABITS
    for name in programs(options):
        for rate in rates(name, options):
            program = f"{name} with b_eff" if name == "hpcc" and rate in rates(name, options)[-WITH_B_EFF:] else name
            yield Run(_named(name, rate), (rate * unit,), programs=(program,), arguments=(arguments(name, most),))


def _named(name: str, rate: float) -> str:
    return f"{name} {rate:g}"


def knee(points: Sequence[Point]) -> tuple[float, float]:
    """The seconds of computing and the rate at which communicating takes as long: by least squares of ``computing +
    volume / rate``. The rate is 0 where there is no communicating, and without end where there is no computing."""
    xs, ys = [1 / point.x for point in points], [point.y for point in points]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    volume = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    computing = mean_y - volume * mean_x
    if volume <= 0:
        return mean_y, 0.0
    return max(computing, 0.0), volume / computing if computing > 0 else inf


def least_knee(points: Sequence[Point]) -> float:
    """The least rate that is the knee of all points, or of those without any one of them."""
    fewer = [[*points[:left], *points[left + 1 :]] for left in range(len(points))] if len(points) > 2 else []
    return min(knee(each)[1] for each in (points, *fewer))


def sufficient(points: Sequence[Point]) -> float:
    """The least rate from which on the time is that of the fastest, but for NEAR."""
    most, found = min(point.y for point in points) * (1 + NEAR), points[-1].x
    for point in reversed(points):
        if point.y > most:
            break
        found = point.x
    return found


def told(points: Sequence[Point]) -> str:
    """A knee in words."""
    computing, rate = knee(points)
    if not rate:
        return "none, it computes alone"
    if isinf(rate):
        least = least_knee(points)
        left = "" if isinf(least) else f", and without one of its points to {least:.3g} MB/s at least"
        return f"none, it communicates alone up to {points[-1].x:g} MB/s{left}"
    place = ", below these rates" if rate < points[0].x else ", beyond these rates" if rate > points[-1].x else ""
    return (
        f"{rate:.3g} MB/s{place} ({computing:.2g} s of computing; "
        f"within {NEAR:.0%} of its least time from {sufficient(points):g} MB/s on)"
    )


def against_allocation(times: Measured, options: Options) -> Result:
    """A program's time by what is reserved: the more, the shorter, up to where it computes most of the time."""
    series, falls, knees = [], [], []
    inside: list[tuple[float, bool]] = []
    network: list[tuple[float, bool]] = []
    messages: list[tuple[float, bool]] = []
    for name in programs(options):
        tried = rates(name, options)
        for part in PARTS[name]:
            found = {rate: times[run] for rate in tried if times.has(run := _named(name, rate))}
            points = tuple(_point(rate, kept, part) for rate, kept in found.items() if part in kept.values[0].parts[0])
            if len(points) < 2:
                # One point has no knee.
                continue
            shown, mark = f"{name}'s {part}" if part else name, any(point.marked for point in points)
            series.append(Series(shown, points))
            knees.append(f"{shown} {told(points)}")
            if name == RANDOM_ACCESS:
                messages.append((knee(points)[1] / tried[0], mark))
                continue
            falls.append((points[-1].y / points[0].y, mark))
            if part in OF_NETWORK:
                network.append((least_knee(points) / tried[-1], mark))
            else:
                inside.append(((knee(points)[1] - tried[0]) / (tried[-1] - tried[0]), mark))
    if not series:
        raise NotMeasuredError(f"nothing of {', '.join(programs(options))} at two rates")
    alone = all(isinf(rate) for rate, _ in network)
    names = [_named(name, rate) for name in programs(options) for rate in rates(name, options)]
    return Result(
        name="qos-applications-8",
        title=f"Applications on {NODES} nodes: time against allocation",
        source="QoS framework, Fig. 8",
        x_label="reserved for each flow, MB/s (of the paper's links)",
        y_label="time, s",
        series=tuple(series),
        checks=(
            *_held(
                "every program but RandomAccess is faster with the most than with the least",
                falls,
                lambda found: found < 1 - WITHIN,
            ),
            *_held(
                "Integer Sort, LAMMPS and POV-Ray have a knee among the rates, from which on they compute longer than "
                "they communicate",
                inside,
                lambda found: 0 <= found <= 1,
                "at {} to {} of the way from the least rate to the greatest",
            ),
            *_held(
                "HPC Challenge's PTRANS, FFT and b_eff, which measure the network, communicate longer at every rate",
                network,
                lambda found: found > 1,
                "they communicate alone" if alone else "they would not from {} of the most on, without any one point",
            ),
            *_held(
                "HPC Challenge's RandomAccess, which looks for small messages all the time, computes longer at every "
                "rate",
                messages,
                lambda found: found < 1,
                "its knee is at {} of the least rate",
            ),
        ),
        setting=setting(options, times.repetitions(*names)),
        notes=(
            "Integer Sort is ours, in the shape of NAS IS; PTRANS, RandomAccess, FFT and b_eff are HPC Challenge's, "
            f"LAMMPS moves a bar of {8 * CELLS:,} atoms of silicon, POV-Ray renders a fourth of each picture on each "
            "node: all of Debian. Links are slower here than the paper's and processors are not, so the inputs of "
            "Integer Sort, LAMMPS and POV-Ray are chosen so that the knee lies among the rates: Integer Sort puts its "
            "keys into buckets several times in a round, LAMMPS's bar is long and thin, and the pictures are sent "
            "uncompressed. What HPC Challenge's parts compute for a byte is theirs. RandomAccess looks for small "
            "messages all the time, so lower rates are tried with it. PTRANS and FFT compute hardly anything for a "
            "byte, whatever their size, so their knee is beyond what can be reserved. By the paper's two numbers of "
            "Integer Sort at 5 and 8 MB/s its knee is at about 50 MB/s, beyond its most, too. "
            "b_eff computes nothing, and sends 4 GB, hours at these rates: shown is a message of 2 MB from one rank to "
            f"another, with which it begins, at the {WITH_B_EFF} greatest rates.",
            "The knee is the rate at which communicating takes as long as computing, by the curve of computing + bytes "
            f"/ rate that is nearest to the points: {'; '.join(knees)}.",
            "The ranks share the lab's processor, so they compute one after the other. The paper's text has one such "
            f"rate, of a program that is not run here: {paper.ISOSURFACE_MBYTES:g} MB/s are sufficient for extracting "
            "isosurfaces on four nodes.",
            *times.missing(*names),
        ),
        beside=times.beside(*names),
    )


def _held(
    aim: str, values: Sequence[tuple[float, bool]], met: Callable[[float], bool], shown: str = "{} to {} of it"
) -> tuple[Check, ...]:
    """An aim that is held to values, where there are any."""
    return (Check.of(aim, values, met, shown),) if values else ()


def _point(x: float, kept: Kept[Played], part: str) -> Point:
    return Point.judged(x, kept, lambda played: played.parts[0][part])

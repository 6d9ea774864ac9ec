"""The QoS framework's experiments: completion time of a communicating application against what it reserved.

On nodes of :mod:`experiments.cluster`, in a lab without the pool. Rates are the paper's MB/s a flow; the cables carry
210 MB/s in both directions together, as the paper reckons, all times the scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Final

from experiments import paper
from experiments.beside import Kept
from experiments.cluster import Played
from experiments.measured import Measured, figures, measure
from experiments.nodes import Request, Run
from experiments.options import Options
from experiments.result import Check, Point, Result, Series

# Times the paper's rates, by number of nodes: what one processor carries with something to spare, frame by frame. Eight
# nodes at the paper's rates send 550,000 frames a second.
SCALE: Final = 0.08
# For all runs: no one is repeated later than at the first, and all have ended at the second.
REPEATED: Final = 1200
SECONDS: Final = 2400
# Bytes that each flow sends in a round. Rates are scaled down and frames are not: with fewer of them in a round, what
# it takes to send one again at the round's end would count for more than it does at the paper's rates.
SIZE: Final = 200_000
ROUNDS: Final = 3
# Frames that a cable holds back for each of its flows at least. At the scale of eight nodes 40 ms are little more than
# one for each (experiments/full_links.py shows what that costs); at the paper's rates they are 130.
FRAMES: Final = 8
# Mb/s in a MB/s.
MEGABITS: Final = 8
# Payload in a full frame's L2 bytes at an MTU of 1500, TCP with timestamps over IPv4.
PAYLOAD: Final = 1448 / 1514
# How far a completion time may be off, where the aim is that it does not change.
WITHIN: Final = 0.05


def run(options: Options) -> tuple[Result, ...]:
    """Figures 8 and 12, and 13a for four nodes; 9 and 13b for eight."""
    results: list[Result] = []
    for nodes in options.rates.nodes[: 1 if options.quick else None]:
        results += _of(nodes, options)
    return tuple(results)


def rates(nodes: int, options: Options) -> tuple[float, ...]:
    """The allocations to try, MB/s a flow, up to the most that a link can be reserved for."""
    limit = paper.flow_limit(nodes, options.rates.link_mbytes)
    parts = (0.3, 0.9) if options.quick else (0.2, 0.4, 0.6, 0.8, 1.0)
    return tuple(round(limit * part, 2) for part in parts)


def shares(nodes: int, options: Options) -> tuple[tuple[float, ...], ...]:
    """Allocations of applications that run at the same time, MB/s a flow each; the paper's pair (5, 8) among them.

    With other nodes or links they are as large a part of what can be reserved.
    """
    small = nodes <= 4
    factor = paper.flow_limit(nodes, options.rates.link_mbytes) / paper.flow_limit(4 if small else 8)
    chosen: tuple[tuple[float, ...], ...] = ((5, 8), (3, 4, 8))
    if small:
        chosen = ((5, 8),) if options.quick else ((5, 8), (5, 8, 20))
    return tuple(tuple(round(rate * factor, 3) for rate in each) for each in chosen)


def _of(nodes: int, options: Options) -> Iterable[Result]:
    unit = MEGABITS * scale(nodes, options)
    alone = rates(nodes, options)
    reserved = alone[-1] * 0.8
    noises = () if nodes > 4 else tuple(noise for noise in (2, 3) if noise < nodes)
    together = shares(nodes, options)
    singles = sorted({rate for rates_ in together for rate in rates_} | set(alone))
    runs = [Run("free", (None,)), *(Run(f"alone {rate:g}", (rate * unit,)) for rate in singles)]
    runs += [Run(_floor(rate), (rate * unit,), floor=True) for rate in alone]
    if noises:
        runs.append(Run(f"alone {reserved:g}", (reserved * unit,)))
    for noise in noises:
        runs += [
            Run(f"noise {noise}", (None,), noise),
            Run(f"reserved noise {noise}", (reserved * unit,), noise),
        ]
    for each in together:
        runs += [
            Run(f"together {named(each)}", tuple(rate * unit for rate in each)),
            Run(f"free {named(each)}", (None,) * len(each)),
        ]
    request = requested(nodes, (replace(one, frames=FRAMES) for one in runs), REPEATED, options)
    times = measure(request, (), SECONDS)
    made: list[Callable[[], Result]] = [partial(against_allocation, nodes, alone, times, request, options)]
    if noises:
        made.append(partial(with_background, nodes, reserved, noises, times, options))
    yield from figures("qos-framework", [*made, partial(at_once, nodes, together, times, options)])


def scale(nodes: int, options: Options) -> float:
    """The factor of the paper's rates for so many nodes."""
    return SCALE / nodes * options.scale


def _floor(rate: float) -> str:
    """The name of the run of one application that reserves a floor."""
    return f"floor {rate:g}"


def named(each: Sequence[float]) -> str:
    """The name of applications that run at the same time, by their allocations."""
    return "+".join(f"{rate:g}" for rate in each)


def against_allocation(
    nodes: int, alone: Sequence[float], times: Measured, request: Request, options: Options
) -> Result:
    """Figures 8 and 9: the more is reserved, the sooner the application ends."""
    found = tuple(_point(rate, times[f"alone {rate:g}"]) for rate in alone)
    payload = request.size * request.rounds
    unit = 1_000_000 * scale(nodes, options)
    expected = tuple(Point(rate, payload / (rate * unit * PAYLOAD)) for rate in alone)
    off = [(point.y / other.y, point.marked) for point, other in zip(found, expected, strict=True)]
    free = _point(0, times["free"])
    floors = tuple(_point(rate, times[_floor(rate)]) for rate in alone if times.has(_floor(rate)))
    worse = [(point.y / free.y, point.marked or free.marked) for point in floors]
    names = ("free", *(f"alone {rate:g}" for rate in alone), *map(_floor, alone))
    falling = all(first.y > second.y for first, second in pairwise(found))
    return Result(
        name=f"qos-figure-{8 if nodes <= 4 else 9}",
        title=f"Exchange between {nodes} nodes: completion time against allocation",
        source=f"QoS framework, Fig. {8 if nodes <= 4 else 9}",
        x_label="reserved for each flow, MB/s (of the paper's links)",
        y_label="completion time, s",
        series=(
            Series("exchange, reserved", found),
            Series("its bytes at that rate", expected, aim=True),
            Series("exchange alone, nothing reserved", tuple(replace(free, x=rate) for rate in alone)),
            *([Series("exchange alone, reserved as a floor", floors)] if floors else []),
        ),
        checks=(
            Check(
                "the time falls with every step of the allocation",
                "yes" if falling else "no",
                falling,
                marked=any(point.marked for point in found),
            ),
            Check.of(
                "the time is that of the bytes at the reserved rate, within 10 %", off, lambda part: 0.9 <= part <= 1.1
            ),
            *_floors_check(worse),
        ),
        setting=setting(nodes, options, times.repetitions(*names)),
        notes=(
            "The application is a program of ours: in every round each node sends as much to every other. The paper's "
            "applications, of which it says that their communication patterns differ, are not run.",
            f"{2 * nodes - 2} flows share a link of {options.rates.link_mbytes:g} MB/s, so at most "
            f"{paper.flow_limit(nodes, options.rates.link_mbytes):g} MB/s can be reserved for each; more is refused.",
            "Links that are full duplex could reserve twice that: each direction has the capacity.",
            *times.missing(*names),
        ),
        beside=times.beside(*names),
    )  # fmt: skip


def _floors_check(worse: Sequence[tuple[float, bool]]) -> tuple[Check, ...]:
    """The aim of what reserves a floor, where there is one."""
    aim = "with a floor at most 5 % slower than with nothing reserved"
    return (Check.of(aim, worse, lambda part: part <= 1 + WITHIN),) if worse else ()


def with_background(nodes: int, reserved: float, noises: Sequence[int], times: Measured, options: Options) -> Result:
    """Figure 12: flows that send all the time beside the application."""
    free = (_point(0, times["free"]), *(_point(n, times[f"noise {n}"]) for n in noises))
    kept = (
        _point(0, times[f"alone {reserved:g}"]),
        *(_point(n, times[f"reserved noise {n}"]) for n in noises),
    )
    off = [(point.y / kept[0].y, point.marked or kept[0].marked) for point in kept[1:]]
    worse = [(point.y / free[0].y, point.marked or free[0].marked) for point in free[1:]]
    names = ("free", f"alone {reserved:g}", *(f"{kind} {n}" for n in noises for kind in ("noise", "reserved noise")))
    return Result(
        name="qos-figure-12",
        title=f"Exchange between {nodes} nodes: completion time beside background flows",
        source="QoS framework, Fig. 12",
        x_label="background flows",
        y_label="completion time, s",
        series=(Series(f"{reserved:g} MB/s reserved for each flow", kept), Series("nothing reserved", free)),
        checks=(
            Check.of(
                "reserved: within 5 % of the time without background flows", off, lambda part: abs(part - 1) <= WITHIN
            ),
            Check.of(
                "not reserved: background flows make it slower", worse, lambda part: part > 1 + WITHIN, "{} to {} times"
            ),
            Check.of(
                "something comes of every background flow meanwhile",
                _least(noises, times),
                lambda rate: rate > 0,
                "{} to {} Mb/s, the least of each run",
            ),
        ),
        setting=setting(nodes, options, times.repetitions(*names)),
        notes=(
            "The background flows are TCP streams from the first node, one to each of the next nodes. They got, all "
            f"together: {'; '.join(_background(n, times) for n in noises)}.",
            f"The paper does not say what was reserved; {reserved:g} MB/s, four fifths of the most, is ours.",
        ),
        beside=times.beside(*names),
    )


def _least(noises: Sequence[int], times: Measured) -> list[tuple[float, bool]]:
    """The least Mb/s of a background flow in each run, and whether that is marked."""
    runs = [times[f"{name} {number}"] for number in noises for name in ("noise", "reserved noise")]
    return [(min(played.background), kept.marked) for kept in runs for played in kept.values]


def _background(number: int, times: Measured) -> str:
    """A part of a sentence about what so many background flows got, medians of Mb/s of L2 bytes."""
    free, kept = (
        median(sum(played.background) for played in times[f"{name} {number}"].values)
        for name in ("noise", "reserved noise")
    )
    return f"{number} flows {free:.2f} Mb/s beside flows without a reservation, {kept:.2f} beside reserved ones"


def at_once(nodes: int, together: Sequence[Sequence[float]], times: Measured, options: Options) -> Result:
    """Figure 13: applications at the same time, each with its own allocation."""
    alone, beside, free, off = [], [], [], []
    places: list[str] = []
    names = [f"alone {rate:g}" for each in together for rate in each]
    names += [f"{kind} {named(each)}" for each in together for kind in ("together", "free")]
    for each in together:
        for number, rate in enumerate(each):
            places.append(f"{rate:g} of\n{named(each)}")
            single, joint = times[f"alone {rate:g}"], times[f"together {named(each)}"]
            alone.append(_point(len(places), single))
            beside.append(_point(len(places), joint, number))
            free.append(_point(len(places), times[f"free {named(each)}"], number))
            off.append((beside[-1].y / alone[-1].y, beside[-1].marked or alone[-1].marked))
    return Result(
        name=f"qos-figure-13-{nodes}-nodes",
        title=f"Several exchanges at once between {nodes} nodes",
        source="QoS framework, Fig. 13",
        x_label="reserved for each flow, MB/s (of the paper's links)",
        y_label="completion time, s",
        series=(
            Series("alone", tuple(alone)),
            Series("at once", tuple(beside)),
            Series("at once, nothing reserved", tuple(free)),
        ),
        checks=(Check.of("within 5 % of the time alone", off, lambda part: abs(part - 1) <= WITHIN, "{} to {} of it"),),
        setting=setting(nodes, options, times.repetitions(*names)),
        notes=(
            "In the paper Integer Sort on four nodes takes "
            f"{paper.SORT_SECONDS_ALONE[5.0]:g} s at 5 MB/s and {paper.SORT_SECONDS_ALONE[8.0]:g} s at 8 MB/s alone, "
            f"{paper.SORT_SECONDS_PAIR[5.0]:g} s and {paper.SORT_SECONDS_PAIR[8.0]:g} s at the same time. It draws "
            "pairs and triples, of which its text has no values; all here but 5 and 8 MB/s on four nodes are ours.",
        ),
        places=tuple(places),
        beside=times.beside(*names),
    )


def _point(x: float, kept: Kept[Played], application: int = 0) -> Point:
    return Point.judged(x, kept, lambda played: played.seconds[application])


def requested(nodes: int, runs: Iterable[Run], seconds: float, options: Options) -> Request:
    """The request of these runs, each of which is played once, on so many nodes with the paper's links."""
    return Request(
        nodes=nodes,
        link=options.rates.link_mbytes * MEGABITS * scale(nodes, options),
        half_duplex=True,
        size=SIZE,
        rounds=ROUNDS,
        repetitions=options.fewer,
        runs=tuple({one.name: one for one in runs}.values()),
        seconds=seconds,
    )


def setting(nodes: int, options: Options, repetitions: int | str) -> dict[str, str | float | int | bool]:
    """The setting of the results of exchanges, with how often each run was measured."""
    return {
        "nodes": nodes,
        "rates of the paper times": scale(nodes, options),
        "bytes of a flow in a round": SIZE,
        "rounds": ROUNDS,
        "repetitions": repetitions,
    }

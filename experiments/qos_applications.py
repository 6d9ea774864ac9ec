"""The QoS framework's figures with applications beside others: MPI programs of others, and an integer sort.

As :mod:`experiments.qos_allocation` has them alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Final

from experiments import paper
from experiments.adaptive import setting
from experiments.applications import PACKAGES
from experiments.beside import Kept
from experiments.cluster import Played
from experiments.measured import Measured, NotMeasuredError, figures, measure
from experiments.nodes import Run
from experiments.options import Options
from experiments.qos_framework import FRAMES, MEGABITS, WITHIN, requested, scale
from experiments.result import Check, Point, Result, Series
from experiments.sizes import NODES, arguments, of_link

# All runs take three quarters of an hour where every measurement is sound. None is repeated after the first number of
# seconds, and all have ended at the second.
REPEATED: Final = 3300
SECONDS: Final = 5400
# Background flows beside programs; these reserve a floor as well.
NOISES: Final[Mapping[str, tuple[int, ...]]] = {"integer sort": (3,), "LAMMPS": (3,), "POV-Ray": (2, 3)}
# Beside background flows a program does its work so many times: one of TCP's time-outs, 0.2 s at least, is a smaller
# part of it.
TIMES: Final = 3
# Programs at the same time with what each reserves for a flow, MB/s; 5 and 8 are the paper's. Ranks of LAMMPS ask for
# messages without a pause, and would slow others down by the processor that all share.
TOGETHER: Final = (
    (("integer sort", 5.0), ("POV-Ray", 8.0)),
    (("integer sort", 5.0), ("POV-Ray", 8.0), ("POV-Ray", 20.0)),
)
# A program alone is short, and its time another one each time, by a fifth of it: it is measured so many times as often.
OFTEN: Final = 3
# The reserved floor, MB/s a flow.
FLOOR: Final = 5.0
# A note of what stands beside others.
LITTLE: Final = (
    "The programs compute little here: the paper's nodes have processors for each of them, and here all share one with "
    "what forwards their packets."
)
# Why links have queues where nothing is reserved.
QUEUED: Final = (
    "Links have queues in all of these runs, by reservations of next to nothing for jobs that send nothing: packets "
    "cost more of the processor with queues, and the programs compute with that."
)
# Why a time is compared with one at which as much goes on elsewhere.
ELSEWHERE: Final = (
    '"Elsewhere" is the same at the same time, on nodes and links of its own: the one processor has as much to do, and '
    "no link is shared. So the time beside that is what the network has to keep, and what comes on top of the "
    "time alone there is the processor's."
)


def run(options: Options) -> tuple[Result, ...]:
    """Figures 12 and 13 with applications, and what a floor costs."""
    # Short as the programs are, one segment that is sent again late can make one of two measurements the median.
    request = replace(requested(NODES, runs(options), REPEATED, options), repetitions=options.repetitions)
    return tuple(results(measure(request, PACKAGES, SECONDS), options))


def runs(options: Options) -> Iterator[Run]:
    """All runs; those of one name are the same. Nodes ping where that is shown: it is traffic of its own."""
    shown = {run for name in accompanied(options) for noise in noises(name, options) for run in _pinged(name, noise)}
    for one in _unpinged(options):
        yield replace(one, pinged=one.name in shown)


def _unpinged(options: Options) -> Iterator[Run]:
    limit, unit = paper.flow_limit(NODES, options.rates.link_mbytes), MEGABITS * scale(NODES, options)
    most = limit * unit * 1e6 / MEGABITS
    for name in accompanied(options):
        for noise in (0, *noises(name, options)):
            yield from _accompanied(name, noise, limit, unit)
            if noise:
                given = (reserved(limit) * unit,)
                called, like = _beside(name, "reserved elsewhere", noise), _beside(name, "reserved", noise)
                run = _light(called, (name,), given, most, noise, apart=True, times=TIMES, queued=True)
                yield replace(run, like=like)
    for together in at_once(options):
        for name, rate in together:
            yield _light(_alone(name, rate), (name,), (of_link(rate, limit) * unit,), most)
        named, given = zip(*together, strict=True)
        rates = tuple(of_link(rate, limit) * unit for rate in given)
        yield _light(_called(together), named, rates, most)
        yield _light(_called(together, "elsewhere "), named, rates, most, apart=True)


def _accompanied(name: str, noise: int, limit: float, unit: float) -> Iterator[Run]:
    """A program beside background flows: with nothing reserved, with most of the link, and with a floor."""
    most = limit * unit * 1e6 / MEGABITS
    for kind, rate in (("free", None), ("reserved", reserved(limit) * unit), ("floor", of_link(FLOOR, limit) * unit)):
        called = _beside(name, kind, noise)
        run = _light(called, (name,), (rate,), most, noise, floor=kind == "floor", times=TIMES, queued=True)
        yield run if noise or kind == "reserved" else replace(run, often=OFTEN)


def _light(
    called: str,
    names: tuple[str, ...],
    rates: tuple[float | None, ...],
    most: float,
    noise: int = 0,
    *,
    floor: bool = False,
    apart: bool = False,
    times: int = 1,
    queued: bool = False,
) -> Run:
    """A run of programs that compute little, since they share the processor with what is beside them."""
    given = tuple(arguments(name, most, light=True, times=times) for name in names)
    return Run(called, rates, noise, names, given, floor=floor, frames=FRAMES, apart=apart, queued=queued)


def _beside(name: str, kind: str, noise: int) -> str:
    """The name of a program's run beside background flows."""
    return f"{name}, {kind}, noise {noise}"


def _alone(name: str, rate: float) -> str:
    """The name of a program's run alone that is compared with one beside others."""
    return f"{name}, light {rate:g}"


def accompanied(options: Options) -> tuple[str, ...]:
    """The programs that run beside background flows."""
    return tuple(NOISES)[: 1 if options.quick else None]


def noises(name: str, options: Options) -> tuple[int, ...]:
    """The numbers of background flows beside a program."""
    return NOISES[name][-1:] if options.quick else NOISES[name]


def _least_and_most(name: str, options: Options) -> tuple[int, ...]:
    """No background flow beside a program, and the most."""
    return (0, noises(name, options)[-1])


def at_once(options: Options) -> tuple[tuple[tuple[str, float], ...], ...]:
    """The programs to run at the same time."""
    return () if options.quick else TOGETHER


def reserved(limit: float) -> float:
    """The reservation beside background flows, MB/s a flow: four fifths of the most, as for the exchange."""
    return round(limit * 0.8, 2)


def _called(together: Sequence[tuple[str, float]], where: str = "") -> str:
    return f"at once {where}" + ", ".join(f"{name} {rate:g}" for name, rate in together)


def results(times: Measured, options: Options) -> Iterator[Result]:
    """The results of what was measured; a run of which nothing was is left out of them."""
    limit = paper.flow_limit(NODES, options.rates.link_mbytes)
    made: list[Callable[[], Result]] = [
        partial(with_background, times, limit, options),
        partial(floors, times, options),
    ]
    if at_once(options):
        made.append(partial(together, times, options))
    return figures("qos-applications", made)


def _point(x: float, kept: Kept[Played], application: int = 0) -> Point:
    return Point.judged(x, kept, lambda played: played.seconds[application])


def with_background(times: Measured, limit: float, options: Options) -> Result:
    """Figure 12: flows that send all the time beside a program."""
    places, alone, apart, kept, free, off, worse = [], [], [], [], [], [], []
    for name in accompanied(options):
        single, nothing = _beside(name, "reserved", 0), _beside(name, "free", 0)
        for noise in noises(name, options):
            held, without = _beside(name, "reserved", noise), _beside(name, "free", noise)
            elsewhere = _beside(name, "reserved elsewhere", noise)
            if not times.has(single, nothing, held, without, elsewhere):
                continue
            places.append(f"{name},\n{noise} flows")
            x = len(places)
            alone.append(_point(x, times[single]))
            apart.append(_point(x, times[elsewhere]))
            kept.append(_point(x, times[held]))
            free.append(_point(x, times[without]))
            unreserved = _point(x, times[nothing])
            off.append((kept[-1].y / apart[-1].y, kept[-1].marked or apart[-1].marked))
            worse.append((free[-1].y / unreserved.y, free[-1].marked or unreserved.marked))
    names = [
        _beside(name, kind, noise)
        for name in accompanied(options)
        for kind in ("reserved", "free")
        for noise in (0, *noises(name, options))
    ]
    names += [
        _beside(name, "reserved elsewhere", noise) for name in accompanied(options) for noise in noises(name, options)
    ]
    if not places:
        raise NotMeasuredError(f"no program beside background flows: {' '.join(times.missing(*names))}")
    return Result(
        name="qos-applications-12",
        title=f"Applications on {NODES} nodes: time beside background flows",
        source="QoS framework, Fig. 12",
        x_label="application and background flows",
        y_label="time, s",
        series=(
            Series(f"{reserved(limit):g} MB/s reserved, no background", tuple(alone)),
            Series(f"{reserved(limit):g} MB/s reserved, flows elsewhere", tuple(apart)),
            Series(f"{reserved(limit):g} MB/s reserved", tuple(kept)),
            Series("nothing reserved", tuple(free)),
        ),
        checks=(
            Check.of(
                "reserved: within 5 % of the time with the flows elsewhere", off, lambda found: abs(found - 1) <= WITHIN
            ),
            Check.of(
                "not reserved: background flows make it slower",
                worse,
                lambda found: found > 1 + WITHIN,
                "{} to {} times",
            ),
        ),
        setting=setting(options, times.repetitions(*names)),
        notes=(
            "The background flows are TCP streams from the first node, one to each of the next nodes. The paper's "
            "nodes have four processors each, and it supposes that the flows have others than the "
            f"application. {LITTLE} {ELSEWHERE} Each flow sends there what one has got here. "
            f"{_against(kept, alone)} {QUEUED} {_round_trips(times, options)}",
            f"The paper does not say what was reserved; {reserved(limit):g} MB/s, four fifths of the most, is ours.",
            *times.missing(*names),
        ),
        places=tuple(places),
        beside=times.beside(*names),
    )


def _round_trips(times: Measured, options: Options) -> str:
    """A note of the pings between two nodes of each program, the medians of its runs."""
    told = []
    for name in accompanied(options):
        for noise in noises(name, options):
            runs = _pinged(name, noise)
            if times.has(*runs):
                found = {kind: median(each.round_trip for each in times[run].values) for run, kind in runs.items()}
                said = ", ".join(f"{taken:.1f} {kind}" for kind, taken in found.items())
                told.append(f"{name}, {noise} flows: {said}")
    return f"Pings between two of its nodes took, ms: {'; '.join(told)}." if told else ""


def _pinged(name: str, noise: int) -> dict[str, str]:
    """The runs of a program whose round trips are shown, with what is said of each."""
    return {
        _beside(name, "reserved", 0): "alone",
        _beside(name, "reserved elsewhere", noise): "flows elsewhere",
        _beside(name, "reserved", noise): "beside them",
        _beside(name, "free", noise): "beside them with nothing reserved",
    }


def _against(beside: Sequence[Point], alone: Sequence[Point]) -> str:
    """A note of times against those alone."""
    parts = [one.y / other.y for one, other in zip(beside, alone, strict=True)]
    return f"Against the time alone: {min(parts):.3f} to {max(parts):.3f} of it."


def floors(times: Measured, options: Options) -> Result:
    """Programs that reserve a floor are not worse off than those that reserve nothing, alone and beside others."""
    places, floor, free, off = [], [], [], []
    for name in accompanied(options):
        for noise in _least_and_most(name, options):
            given, nothing = _beside(name, "floor", noise), _beside(name, "free", noise)
            if not times.has(given, nothing):
                continue
            places.append(f"{name},\n{noise} flows")
            x = len(places)
            floor.append(_point(x, times[given]))
            free.append(_point(x, times[nothing]))
            off.append((floor[-1].y / free[-1].y, floor[-1].marked or free[-1].marked))
    names = [
        _beside(name, kind, noise)
        for name in accompanied(options)
        for kind in ("floor", "free")
        for noise in _least_and_most(name, options)
    ]
    if not places:
        raise NotMeasuredError(f"no program with a floor: {' '.join(times.missing(*names))}")
    return Result(
        name="qos-applications-floor",
        title="Applications that reserve a floor, and that reserve nothing",
        source="",
        x_label="application and background flows",
        y_label="time, s",
        series=(
            Series(f"{FLOOR:g} MB/s reserved as a floor", tuple(floor)),
            Series("nothing reserved", tuple(free)),
        ),
        checks=(
            Check.of(
                "with a floor at most 5 % slower than with nothing reserved", off, lambda found: found <= 1 + WITHIN,
                "{} to {} of the time",
            ),
        ),
        setting=setting(options, times.repetitions(*names)),
        notes=(
            "A reservation that is not steady, which is the default: its rate for certain, and what is free on top. "
            "Where these programs are in figures of the paper, their reservations are steady, as the paper's are. "
            f"{QUEUED}",
            *times.missing(*names),
        ),
        places=tuple(places),
        beside=times.beside(*names),
    )  # fmt: skip


def together(times: Measured, options: Options) -> Result:
    """Figure 13: programs at the same time, each with its own allocation."""
    places, alone, apart, joint, off = [], [], [], [], []
    for each in at_once(options):
        for number, (name, rate) in enumerate(each):
            elsewhere = _called(each, "elsewhere ")
            if not times.has(_alone(name, rate), _called(each), elsewhere):
                continue
            places.append(f"{name} {rate:g}\nof {len(each)}")
            x = len(places)
            alone.append(_point(x, times[_alone(name, rate)]))
            apart.append(_point(x, times[elsewhere], number))
            joint.append(_point(x, times[_called(each)], number))
            off.append((joint[-1].y / apart[-1].y, joint[-1].marked or apart[-1].marked))
    names = [_called(each, where) for each in at_once(options) for where in ("", "elsewhere ")]
    names += [_alone(name, rate) for each in at_once(options) for name, rate in each]
    if not places:
        raise NotMeasuredError(f"no programs at once: {' '.join(times.missing(*names))}")
    return Result(
        name="qos-applications-13",
        title=f"Applications at once on {NODES} nodes",
        source="QoS framework, Fig. 13",
        x_label="application and MB/s reserved for each flow",
        y_label="time, s",
        series=(
            Series("alone", tuple(alone)),
            Series("at once, the others elsewhere", tuple(apart)),
            Series("at once", tuple(joint)),
        ),
        checks=(
            Check.of("within 5 % of the time with the others elsewhere", off, lambda found: abs(found - 1) <= WITHIN),
        ),
        setting=setting(options, times.repetitions(*names)),
        notes=(
            "Of the rates 5 and 8 MB/s are the paper's, of a pair of Integer Sorts; programs and 20 MB/s are ours.",
            f"{LITTLE} LAMMPS and HPC Challenge are not among them: their ranks ask for messages without a pause. "
            f"{ELSEWHERE} {_against(joint, alone)}",
            *times.missing(*names),
        ),
        places=tuple(places),
        beside=times.beside(*names),
    )

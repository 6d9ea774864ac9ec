"""Exchanges of the QoS framework's Figure 13 that reserve whole links, and what costs them time.

On eight nodes three applications reserve all of every link, 42 flows of it each. The same exchanges alone and at once,
on cables that differ in one thing each: how many frames they hold back, how much they carry, and how fast all of it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Final

from experiments import paper
from experiments.beside import Kept
from experiments.cable import MARGIN, held
from experiments.cluster import Played
from experiments.measured import Measured, NotMeasuredError, measure
from experiments.nodes import Run
from experiments.options import Options
from experiments.qos_framework import FRAMES, MEGABITS, WITHIN, named, requested, scale, setting, shares
from experiments.result import Check, Point, Result, Series

NODES: Final = 8
# All runs take a quarter of an hour where every measurement is sound.
REPEATED: Final = 1500
SECONDS: Final = 3600


@dataclass(frozen=True, slots=True)
class Variant:
    """Cables: ``rates`` are times the reservations, ``wider`` times what a cable carries, ``frames`` for each flow."""

    name: str
    rates: float = 1.0
    wider: float = 1.0
    frames: int = 0


SHALLOW, DEEP = Variant("40 ms"), Variant(f"{FRAMES} frames a flow", frames=FRAMES)
VARIANTS: Final = (
    SHALLOW,
    DEEP,
    Variant("40 ms, a tenth more", wider=1.1),
    Variant("40 ms, all half as fast", rates=0.5, wider=0.5),
)


def run(options: Options) -> tuple[Result, ...]:
    """The three exchanges alone and at once, on each kind of cable."""
    unit = MEGABITS * scale(NODES, options)
    request = requested(NODES, runs(options, unit), REPEATED, options)
    return (result(measure(request, (), SECONDS), options),)


def variants(options: Options) -> tuple[Variant, ...]:
    """The kinds of cables."""
    return VARIANTS[: 2 if options.quick else None]


def rates(options: Options) -> tuple[float, ...]:
    """The reservations of the exchanges for a flow, MB/s."""
    return shares(NODES, options)[-1]


def runs(options: Options, unit: float) -> Iterator[Run]:
    """Each exchange alone and all at once, on each kind of cable."""
    for each in variants(options):
        given = tuple(rate * each.rates * unit for rate in rates(options))
        for rate, alone in zip(rates(options), given, strict=True):
            yield Run(_alone(each, rate), (alone,), wider=each.wider, frames=each.frames)
        yield Run(_at_once(each), given, wider=each.wider, frames=each.frames)


def _alone(variant: Variant, rate: float) -> str:
    return f"{variant.name}, alone {rate:g}"


def _at_once(variant: Variant) -> str:
    return f"{variant.name}, at once"


def result(times: Measured, options: Options) -> Result:
    """The times of each kind of cable, and what was lost on it."""
    places: list[str] = []
    names = [
        name for each in variants(options) for name in (_at_once(each), *(_alone(each, one) for one in rates(options)))
    ]
    alone, joint, told = [], [], []
    slower: dict[str, list[tuple[float, bool]]] = {}
    dropped: dict[str, list[tuple[float, bool]]] = {}
    for each in variants(options):
        if not times.has(_at_once(each), *(_alone(each, rate) for rate in rates(options))):
            continue
        together = times[_at_once(each)]
        for number, rate in enumerate(rates(options)):
            places.append(f"{rate:g} of {named(rates(options))},\n{each.name}")
            x = len(places)
            alone.append(_point(x, times[_alone(each, rate)]))
            joint.append(_point(x, together, number))
            mark = joint[-1].marked or alone[-1].marked
            slower.setdefault(each.name, []).append((joint[-1].y / alone[-1].y, mark))
        dropped[each.name] = [(float(played.losses.dropped), together.marked) for played in together.values]
        singles = [played for rate in rates(options) for played in times[_alone(each, rate)].values]
        told.append(f"{each.name}: {_lost(together.values)} at once, {_lost(singles)} alone")
    if not places:
        raise NotMeasuredError("qos-full-links: no kind of cable was measured alone and at once")
    return Result(
        name="qos-full-links",
        title=f"Three exchanges that reserve whole links of {NODES} nodes, on several kinds of cables",
        source="QoS framework, Fig. 13",
        x_label="reserved for each flow, MB/s (of the paper's links), and the cables",
        y_label="completion time, s",
        series=(Series("alone", tuple(alone)), Series("at once", tuple(joint))),
        checks=tuple(_checks(slower, dropped)),
        setting=setting(NODES, options, times.repetitions(*names)),
        notes=(
            f"All flows of a link together reserve {paper.LINK_MBYTES:g} MB/s, all of it; the cable carries 2 % "
            "more. A switch that holds back 40 ms at the paper's rates holds 130 full frames for each of these "
            f"42 flows; at the scale of this lab it holds {_held(options)} for all of them. A frame that it drops at "
            "the end of a round may be sent again after a time-out, for which the whole exchange waits: the counts "
            "below say what was lost. The cables here differ in what they hold back, in what they carry beyond what is "
            "reserved, and in how fast all of it is, which is the work of the lab's processor.",
            f"Lost, in the middle of the measurements: {'; '.join(told)}.",
            f"At once they take, of their time alone: {'; '.join(itertools.starmap(_slower, slower.items()))}.",
            *times.missing(*names),
        ),
        places=tuple(places),
        beside=times.beside(*names),
    )


def _point(x: float, kept: Kept[Played], application: int = 0) -> Point:
    return Point.judged(x, kept, lambda played: played.seconds[application])


def _checks(
    slower: dict[str, list[tuple[float, bool]]], dropped: dict[str, list[tuple[float, bool]]]
) -> Iterator[Check]:
    if SHALLOW.name in dropped:
        yield Check.of(
            "cables that hold back 40 ms drop frames of flows whose rates are reserved", dropped[SHALLOW.name],
            lambda found: found > 0, "{} to {} frames",
        )  # fmt: skip
    if DEEP.name in dropped:
        yield Check.of(
            f"cables that hold back {DEEP.name} drop none", dropped[DEEP.name], lambda found: found == 0,
            "{} to {} frames",
        )  # fmt: skip
        yield Check.of(
            f"with {DEEP.name}: within 5 % of the time alone", slower[DEEP.name], lambda part: abs(part - 1) <= WITHIN
        )


def _held(options: Options) -> int:
    """The frames that a cable of the first kind holds back."""
    return held(options.rates.link_mbytes * MEGABITS * scale(NODES, options) * MARGIN)


def _slower(name: str, parts: list[tuple[float, bool]]) -> str:
    """A part of a sentence about the times of exchanges at once."""
    return f"{name}, {min(part for part, _ in parts):.3f} to {max(part for part, _ in parts):.3f}"


def _lost(several: tuple[Played, ...] | list[Played]) -> str:
    """A part of a sentence about what was lost in an exchange."""
    dropped, again, waited = (
        median(counted)
        for counted in zip(
            *((each.losses.dropped, each.losses.again, each.losses.timeouts) for each in several), strict=True
        )
    )
    return f"{dropped:g} frames dropped, {again:g} segments sent again, {waited:g} time-outs"

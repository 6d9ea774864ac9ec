"""The result of an experiment: frozen values, written as JSON and read back. Pure, but for the two file calls.

Rates are Mb/s of layer-2 bytes unless an axis has another unit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from experiments.beside import Kept, Meanwhile, Taken

Value = TypeVar("Value")

# The label of an axis that is time.
TIME = "seconds"

# A note of what shows streams over time.
ONE_SHOWN = "Picture and table of rates show one measurement; the aims are judged by the medians of all."

Values = Mapping[str, str | float | int | bool]


@dataclass(frozen=True, slots=True)
class Point:
    """One point; ``low`` and ``high`` are the least and the greatest of the repetitions, ``y`` their median.

    ``reference`` is that of the reference streams beside what counts which is furthest from 1, and ``steal`` the
    greatest share of the processors that was taken away then. ``marked`` is true where no measurement was sound.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    reference: float | None = None
    steal: float | None = None
    marked: bool = False

    @classmethod
    def of(cls, x: float, values: Iterable[float]) -> Point:
        """The point of several repetitions. Raises ValueError where there are none."""
        ordered = sorted(values)
        if not ordered:
            raise ValueError(f"nothing was measured at {x:g}")
        half = len(ordered) // 2
        middle = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
        return cls(x, middle, ordered[0], ordered[-1])

    @classmethod
    def judged(cls, x: float, kept: Kept[Value], number: Callable[[Value], float]) -> Point:
        """The point of measurements that stand beside a reference stream, of which only those count that are sound."""
        beside = [each.meanwhile for each in kept.taken if kept.marked or each.meanwhile.sound]
        return replace(
            cls.of(x, map(number, kept.values)),
            reference=max((each.reference for each in beside), key=lambda one: abs(one - 1)),
            steal=max(each.steal for each in beside),
            marked=kept.marked,
        )


def marked(points: Iterable[Point], mark: bool) -> tuple[Point, ...]:
    """The points, with the mark that nothing sound was measured where it is true."""
    return tuple(replace(point, marked=mark) for point in points)


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a plot. ``paper`` is true of what the paper reports, ``aim`` of what is wished for or reckoned.

    Where neither is true it was measured here.
    """

    name: str
    points: tuple[Point, ...]
    paper: bool = False
    aim: bool = False

    @property
    def measured(self) -> bool:
        """True of what was measured here."""
        return not self.paper and not self.aim


def scaled(name: str, xs: Iterable[float], rate: float, papers: float, part: float) -> Series:
    """A rate that was configured, times ``part``. It is the paper's if it is the same as ``papers``; else an aim."""
    points = tuple(Point(x, rate * part) for x in xs)
    if rate == papers:
        return Series(f"{name} (the paper's {rate:g}, scaled)", points, paper=True)
    return Series(f"{name} ({rate:g}, scaled; not the paper's)", points, aim=True)


@dataclass(frozen=True, slots=True)
class Check:
    """An aim, what came out, and whether that meets it. ``marked``: nothing sound was measured, so neither holds."""

    aim: str
    found: str
    met: bool
    marked: bool = False

    @classmethod
    def of(
        cls, aim: str, values: Iterable[tuple[float, bool]], met: Callable[[float], bool], shown: str = "{} to {} of it"
    ) -> Check:
        """Hold values to an aim, each with its mark: those that are marked do not count where others are sound.

        ``shown`` has places for the least and the greatest. Raises ValueError where there are no values.
        """
        every = list(values)
        sound = [value for value, marked in every if not marked]
        counted = sound or [value for value, _ in every]
        if not counted:
            raise ValueError(f"nothing was measured for: {aim}")
        left = f" ({len(every) - len(sound)} of {len(every)} marked)" if len(sound) < len(every) else ""
        found = shown.format(f"{min(counted):.3f}", f"{max(counted):.3f}") + left
        return cls(aim, found, all(map(met, counted)), marked=not sound)


@dataclass(frozen=True, slots=True)
class Beside:
    """The reference streams and the processors of all measurements of a result.

    ``sound`` of ``taken`` measurements count. ``low`` and ``high`` are the ends of their references as parts of the
    rate, of all if none is sound; ``steal``, ``outside`` and ``inside`` are medians of :class:`Meanwhile`'s shares.
    """

    taken: int
    sound: int
    low: float
    high: float
    steal: float
    outside: float
    inside: float

    @classmethod
    def of(cls, taken: Iterable[Taken[Value]]) -> Beside | None:
        """Sum up measurements; None where there are none."""
        every = [each.meanwhile for each in taken]
        if not every:
            return None
        sound = [each for each in every if each.sound]
        counted: list[Meanwhile] = sound or every
        references = [each.reference for each in counted]
        return cls(
            len(every), len(sound), min(references), max(references),
            median(each.steal for each in counted), median(each.outside for each in counted),
            median(each.inside for each in counted),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """One experiment's outcome: what a figure of a paper shows, here.

    ``name`` begins the names of its files. ``source`` names paper and figure. ``setting`` is what it ran with (rates,
    repetitions, scale). ``notes`` are sentences on what differs from the paper and why. Where ``places`` are given, x
    is no number but one of them, counted from 1. ``beside`` is None where no reference stream stood beside it, and
    ``made`` is the day of the run (ISO 8601).
    """

    name: str
    title: str
    source: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    checks: tuple[Check, ...] = ()
    setting: Values = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    beside: Beside | None = None
    made: str = ""

    @property
    def over_time(self) -> bool:
        """True if x is time."""
        return self.x_label == TIME


def write(result: Result, directory: Path) -> Path:
    """Write ``NAME.json``; answers its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{result.name}.json"
    path.write_text(json.dumps(asdict(result), indent=1) + "\n")
    return path


def read(path: Path) -> Result:
    """Read what :func:`write` wrote. Raises ValueError or KeyError for anything else."""
    found: dict[str, Any] = json.loads(path.read_text())
    series = tuple(
        Series(each["name"], tuple(Point(**point) for point in each["points"]), each["paper"], each.get("aim", False))
        for each in found.pop("series")
    )
    checks = tuple(Check(**each) for each in found.pop("checks"))
    notes, places = tuple(found.pop("notes")), tuple(found.pop("places"))
    beside = found.pop("beside", None)
    return Result(
        **found, notes=notes, places=places, series=series, checks=checks,
        beside=None if beside is None else Beside(**beside),
    )  # fmt: skip

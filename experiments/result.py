"""The result of an experiment: frozen values, written as JSON and read back. Pure, but for the two file calls.

Rates are Mb/s of layer-2 bytes unless an axis says otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# The label of an axis that is time.
TIME = "seconds"

Values = Mapping[str, str | float | int | bool]


@dataclass(frozen=True, slots=True)
class Point:
    """One point; ``low`` and ``high`` are the least and the greatest of the repetitions, ``y`` their median."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, x: float, values: Iterable[float]) -> Point:
        """The point of several repetitions. Raises ValueError where there are none."""
        ordered = sorted(values)
        if not ordered:
            raise ValueError(f"nothing was measured at {x:g}")
        half = len(ordered) // 2
        middle = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
        return cls(x, middle, ordered[0], ordered[-1])


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a plot. ``paper`` is true of what the paper reports, false of what was measured here."""

    name: str
    points: tuple[Point, ...]
    paper: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """An aim, what came out, and whether that meets it."""

    aim: str
    found: str
    met: bool


@dataclass(frozen=True, slots=True)
class Result:
    """One experiment's outcome: what a figure of a paper shows, here.

    ``name`` begins the names of its files. ``source`` names paper and figure. ``setting`` is what it ran with (rates,
    repetitions, scale). ``notes`` are sentences on what differs from the paper and why. Where ``places`` are given, x
    is no number but one of them, counted from 1.
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
        Series(each["name"], tuple(Point(**point) for point in each["points"]), each["paper"])
        for each in found.pop("series")
    )
    checks = tuple(Check(**each) for each in found.pop("checks"))
    notes, places = tuple(found.pop("notes")), tuple(found.pop("places"))
    return Result(**found, notes=notes, places=places, series=series, checks=checks)

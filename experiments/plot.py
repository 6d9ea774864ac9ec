"""Plots of results: PNG and SVG beside the JSON, the paper's figures dashed beside ours."""

from __future__ import annotations

from math import nan
from pathlib import Path
from typing import Final

import matplotlib

# There is no display.
matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes

from experiments.result import Point, Result, Series

# Colours that can be distinguished with any kind of colour vision (Okabe and Ito), ours first.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A6D00")
# Whole numbers up to this are a count, and each has its mark on the axis.
MOST_COUNT: Final = 16
# Seconds between two points over time that are not one stream's.
PAUSE: Final = 2.0
# Inches of a plot, and of a letter below it; the number of bars from which on their values stand upright.
SIZE: Final = (7.2, 4.2)
LETTER: Final = 0.072
UPRIGHT: Final = 18
# How many times as much as the least the most is where bars of one scale would show nothing of the least.
APART: Final = 50


def plot(result: Result, directory: Path) -> tuple[Path, Path]:
    """Draw a result as ``NAME.png`` and ``NAME.svg``; answers their paths."""
    longest = max((len(line) for place in result.places for line in place.split("\n")), default=0)
    width = max(SIZE[0], LETTER * longest * len(result.places))
    figure, axes = pyplot.subplots(figsize=(width, SIZE[1]), layout="constrained")
    try:
        ordered = sorted(result.series, key=lambda series: not series.measured)
        for number, series in enumerate(ordered):
            colour = COLOURS[number % len(COLOURS)]
            if result.places:
                _bars(axes, series, colour, (number, len(ordered)), upright=_is_crowded(result))
            else:
                _line(axes, series, colour, result.over_time)
        if result.places:
            axes.set_xticks(range(1, len(result.places) + 1), result.places, fontsize=8)
            axes.set_xlim(0.4, len(result.places) + 0.6)
        axes.set_title(result.title, fontsize=11)
        axes.set_xlabel(result.x_label)
        axes.set_ylabel(result.y_label)
        _height(axes, result)
        xs = sorted({point.x for series in result.series for point in series.points})
        if not result.over_time and not result.places and all(x == int(x) <= MOST_COUNT for x in xs):
            axes.set_xticks(xs)
        axes.set_axisbelow(True)
        axes.grid(axis="y" if result.places else "both", alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        # Below the plot, where it lies over no value.
        figure.legend(fontsize=8, frameon=False, ncols=2, loc="outside lower center")
        directory.mkdir(parents=True, exist_ok=True)
        paths = (directory / f"{result.name}.png", directory / f"{result.name}.svg")
        figure.savefig(paths[0], dpi=130)
        # Without a date the same result makes the same file.
        figure.savefig(paths[1], metadata={"Date": None})
        return paths
    finally:
        pyplot.close(figure)


def _height(axes: Axes, result: Result) -> None:
    """From 0, or where what is shown is orders of magnitude apart from below the least; with room for values."""
    ys = [point.y for series in result.series for point in series.points]
    room = 1.15 if _is_crowded(result) else 1.05
    if result.places and max(ys) > APART * min(ys):
        axes.set_yscale("log")
        axes.set_ylim(min(ys) / 3, max(ys) * (max(ys) / min(ys)) ** (room - 1))
    else:
        axes.set_ylim(0, axes.get_ylim()[1] * room)


def _is_crowded(result: Result) -> bool:
    return bool(result.places) and sum(len(series.points) for series in result.series) > UPRIGHT


def _line(axes: Axes, series: Series, colour: str, over_time: bool) -> None:
    points = list(series.points)
    if over_time and series.measured:
        # Between one job and the next there is no line.
        points = [
            each
            for point, after in zip(points, [*points[1:], points[-1]], strict=True)
            for each in ((point, Point(point.x, nan)) if after.x - point.x > PAUSE else (point,))
        ]
    xs = [point.x for point in points]
    ys = [point.y for point in points]
    axes.plot(
        xs, ys,
        color=colour, label=_named(series), linewidth=1.4,
        linestyle="-" if series.measured else "--",
        marker=None if over_time else ("o" if series.measured else "D"), markersize=4,
    )  # fmt: skip
    if any(point.low is not None for point in series.points):
        low, high = zip(*map(_ends, series.points), strict=True)
        axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)


def _bars(axes: Axes, series: Series, colour: str, place: tuple[int, int], *, upright: bool) -> None:
    """A series as bars beside those of the others; ``place`` is its number, from 0, and how many there are."""
    number, of = place
    width = 0.8 / of
    xs = [point.x + (number - (of - 1) / 2) * width for point in series.points]
    ys = [point.y for point in series.points]
    low, high = zip(*map(_ends, series.points), strict=True)
    ends = ([y - least for y, least in zip(ys, low, strict=True)], [most - y for y, most in zip(ys, high, strict=True)])
    axes.bar(xs, ys, width * 0.9, color=colour, label=_named(series), alpha=0.9 if series.measured else 0.45)
    axes.errorbar(xs, ys, ends, fmt="none", ecolor="#333333", elinewidth=0.8, capsize=2)
    for x, y, top in zip(xs, ys, high, strict=True):
        axes.annotate(
            f"{y:.0f}" if y >= 100 else f"{y:.3g}", (x, top), (0, 5 if upright else 2),
            textcoords="offset points", ha="center", va="bottom", fontsize=7, rotation=90 if upright else 0,
        )  # fmt: skip


def _ends(point: Point) -> tuple[float, float]:
    return point.y if point.low is None else point.low, point.y if point.high is None else point.high


def _named(series: Series) -> str:
    return f"{series.name} (paper)" if series.paper and "paper" not in series.name else series.name

"""Plots of results: PNG and SVG beside the JSON, the paper's figures dashed beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import matplotlib

# There is no display.
matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes

from experiments.result import Result, Series

# Colours that are told apart with any kind of colour vision (Okabe and Ito), ours first.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A6D00")
# A line of more points than this is one over time, where a mark for each would hide it.
MARKED: Final = 40


def plot(result: Result, directory: Path) -> tuple[Path, Path]:
    """Draw a result as ``NAME.png`` and ``NAME.svg``; answers their paths."""
    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
    try:
        ours = [series for series in result.series if not series.paper]
        theirs = [series for series in result.series if series.paper]
        for number, series in enumerate(ours + theirs):
            _line(axes, series, COLOURS[number % len(COLOURS)])
        axes.set_title(result.title, fontsize=11)
        axes.set_xlabel(result.x_label)
        axes.set_ylabel(result.y_label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=8, frameon=False)
        directory.mkdir(parents=True, exist_ok=True)
        paths = (directory / f"{result.name}.png", directory / f"{result.name}.svg")
        figure.savefig(paths[0], dpi=130)
        # Without a date the same result makes the same file.
        figure.savefig(paths[1], metadata={"Date": None})
        return paths
    finally:
        pyplot.close(figure)


def _line(axes: Axes, series: Series, colour: str) -> None:
    xs = [point.x for point in series.points]
    ys = [point.y for point in series.points]
    many = len(xs) > MARKED
    name = f"{series.name} (paper)" if series.paper else series.name
    axes.plot(
        xs, ys,
        color=colour, label=name, linewidth=1.4,
        linestyle="--" if series.paper else "-",
        marker=None if many else ("D" if series.paper else "o"), markersize=4,
    )  # fmt: skip
    if any(point.low is not None for point in series.points):
        low = [point.y if point.low is None else point.low for point in series.points]
        high = [point.y if point.high is None else point.high for point in series.points]
        axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)

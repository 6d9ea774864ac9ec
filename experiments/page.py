"""The page of the documentation that shows every result. Pure, but for :func:`replace`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Final

from experiments.result import Result, Series

BEGIN: Final = "<!-- results: written by `python -m experiments` -->"
END: Final = "<!-- end of results -->"
# Seconds of a stream that do not count where its rate over time is put into a few numbers.
SETTLED: Final = 3.0


def text(results: Iterable[Result], pictures: str) -> str:
    """Every result in Markdown, by name; ``pictures`` is the folder of the plots as seen from the page."""
    ordered = sorted(results, key=lambda result: _order(result.name))
    return "\n\n".join("\n".join(_section(result, pictures)) for result in ordered)


def replace(page: Path, found: str) -> None:
    """Put ``found`` between the marks of a page. Raises ValueError where the marks are not there."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no place for results between {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n\n{found}\n\n{END}{after}")


def _order(name: str) -> tuple[tuple[str, int], ...]:
    """Figure 8 before figure 10."""
    return tuple((word, int(number or 0)) for word, number in re.findall(r"(\D+)(\d*)", name))


def _section(result: Result, pictures: str) -> Iterator[str]:
    yield f"## {result.title}"
    yield ""
    yield f"After {result.source}. " + " ".join(result.notes)
    yield ""
    yield f"![{result.title}: {result.y_label} over {result.x_label}]({pictures}/{result.name}.svg)"
    if result.checks:
        yield ""
        yield "| aim | found | met |"
        yield "| --- | --- | --- |"
        for check in result.checks:
            yield f"| {check.aim} | {check.found} | {'yes' if check.met else '**no**'} |"
    yield ""
    yield from _over_time(result) if result.over_time else _table(result)
    if result.setting:
        yield ""
        yield "Run with " + ", ".join(f"{name} {_shown(value)}" for name, value in result.setting.items()) + "."


def _table(result: Result) -> Iterator[str]:
    yield f"| {result.x_label} | {' | '.join(map(_named, result.series))} |"
    yield f"| {':---' if result.places else '---:'} |" + " ---: |" * len(result.series)
    for x in sorted({point.x for each in result.series for point in each.points}):
        cells = []
        for each in result.series:
            point = next((point for point in each.points if point.x == x), None)
            if point is None:
                cells.append("")
            elif point.low is None or point.high is None or _digits(point.low) == _digits(point.high):
                cells.append(_digits(point.y))
            else:
                cells.append(f"{_digits(point.y)} ({_digits(point.low)} to {_digits(point.high)})")
        first = " ".join(result.places[round(x) - 1].split()) if result.places else f"{x:g}"
        yield f"| {first} | {' | '.join(cells)} |"


def _over_time(result: Result) -> Iterator[str]:
    """A table of a few numbers for each series over time, without its first seconds."""
    yield f"| {result.y_label} | mean | middle four fifths of its intervals |"
    yield "| :--- | ---: | ---: |"
    for each in result.series:
        begin = min(point.x for point in each.points)
        rates = sorted(point.y for point in each.points if each.paper or point.x > begin + SETTLED)
        cut = len(rates) // 10
        spread = "" if each.paper else f"{_digits(rates[cut])} to {_digits(rates[-1 - cut])}"
        yield f"| {_named(each)} | {_digits(fmean(rates))} | {spread} |"


def _named(series: Series) -> str:
    return f"{series.name} (paper)" if series.paper else series.name


def _digits(value: float) -> str:
    """Three digits, or all before the point."""
    size = abs(value)
    return f"{value:.{0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3}f}"


def _shown(value: str | float | int | bool) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

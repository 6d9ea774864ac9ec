"""The page of the documentation that shows every result. Pure, but for :func:`replace`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from experiments.result import Result, Series

BEGIN: Final = "<!-- results: written by `python -m experiments` -->"
END: Final = "<!-- end of results -->"
# A longer series is one over time: the plot shows it, a table would not.
TABLED: Final = 20


def text(results: Iterable[Result], pictures: str) -> str:
    """Every result in Markdown; ``pictures`` is the folder of the plots as seen from the page."""
    return "\n\n".join("\n".join(_section(result, pictures)) for result in results)


def replace(page: Path, found: str) -> None:
    """Put ``found`` between the marks of a page. Raises ValueError where the marks are not there."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no place for results between {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n\n{found}\n\n{END}{after}")


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
    tabled = [series for series in result.series if len(series.points) <= TABLED]
    if tabled:
        yield ""
        yield from _table(result, tabled)
    if result.setting:
        yield ""
        yield "Run with " + ", ".join(f"{name} {_shown(value)}" for name, value in result.setting.items()) + "."


def _table(result: Result, series: list[Series]) -> Iterator[str]:
    names = [f"{each.name} (paper)" if each.paper else each.name for each in series]
    yield f"| {result.x_label} | {' | '.join(names)} |"
    yield "| ---: |" + " ---: |" * len(series)
    for x in sorted({point.x for each in series for point in each.points}):
        cells = []
        for each in series:
            point = next((point for point in each.points if point.x == x), None)
            if point is None:
                cells.append("")
            elif point.low is None or point.high is None or point.low == point.high:
                cells.append(_shown(point.y))
            else:
                cells.append(f"{_shown(point.y)} ({_shown(point.low)} to {_shown(point.high)})")
        yield f"| {_shown(x)} | {' | '.join(cells)} |"


def _shown(value: str | float | int | bool) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

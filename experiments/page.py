"""The page of the documentation that shows every result. Pure, but for :func:`replace`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

from experiments.result import Check, Result, Series

BEGIN: Final = "<!-- results: written by `python -m experiments` -->"
END: Final = "<!-- end of results -->"
CALIBRATION: Final = "calibration"
# Behind a value of which no measurement was sound.
MARK: Final = "†"
# Seconds of a stream that do not count where its rate over time is put into a few numbers.
SETTLED: Final = 3.0


def text(results: Iterable[Result], pictures: str) -> str:
    """Every result in Markdown, by name, behind what they have in common and which aims are missed.

    ``pictures`` is the folder of the plots as seen from the page.
    """
    ordered = sorted(results, key=lambda result: _order(result.name))
    sections = [_made(ordered), _missed(ordered), *(_section(result, pictures) for result in ordered)]
    return "\n\n".join("\n".join(lines) for lines in sections)


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


def _made(results: Sequence[Result]) -> Iterator[str]:
    """The days of the results, how much of what was measured counts, and the results of which nothing does."""
    yield "## How these results were made"
    yield ""
    days = sorted({result.made for result in results if result.made})
    told = f"On {', '.join(days)}. " if days else ""
    # Measurements that several results show are counted once; calibration looks for the scale that is lost.
    beside = {result.beside for result in results if result.beside is not None and result.name != CALIBRATION}
    taken, sound = sum(each.taken for each in beside), sum(each.sound for each in beside)
    yield f"{told}{sound} of {taken} measurements beside a reference stream are sound."
    for said, names in (
        ("Without a reference stream", [each.title for each in results if each.beside is None]),
        ("Without a sound measurement", [each.title for each in results if each.beside and not each.beside.sound]),
    ):
        if names:
            yield ""
            yield f"{said}:"
            yield ""
            yield from (f"- {name}" for name in names)


def _missed(results: Sequence[Result]) -> Iterator[str]:
    """Each aim that is missed or not judged, with the result that it belongs to."""
    yield "## Aims that are missed or not judged"
    yield ""
    aims = [(result, check) for result in results for check in result.checks if check.marked or not check.met]
    number = sum(len(result.checks) for result in results)
    if not aims:
        yield f"None of {number}."
        return
    yield f"{len(aims)} of {number}; the others are met."
    yield ""
    yield "| result | aim | found | met |"
    yield "| --- | --- | --- | --- |"
    for result, check in aims:
        yield f"| {result.title} | {check.aim} | {check.found} | {_met(check)} |"


def _section(result: Result, pictures: str) -> Iterator[str]:
    yield f"## {result.title}"
    yield ""
    yield " ".join([f"After {result.source}."] * bool(result.source) + list(result.notes))
    yield ""
    yield f"![{result.title}: {result.y_label} over {result.x_label}]({pictures}/{result.name}.svg)"
    if result.checks:
        yield ""
        yield "| aim | found | met |"
        yield "| --- | --- | --- |"
        for check in result.checks:
            yield f"| {check.aim} | {check.found} | {_met(check)} |"
    yield ""
    yield from _over_time(result) if result.over_time else _table(result)
    if any(point.marked for each in result.series for point in each.points):
        yield ""
        yield f"{MARK} Nothing sound was measured here: the machine was late or busy each time."
    yield ""
    yield _beside(result)
    if result.setting:
        yield ""
        yield "Run with " + ", ".join(f"{name} {_shown(value)}" for name, value in result.setting.items()) + "."


def _met(check: Check) -> str:
    if check.marked:
        return "not judged"
    return "yes" if check.met else "**no**"


def _beside(result: Result) -> str:
    """A sentence about the reference streams and the processors."""
    made = f"Measured on {result.made}" if result.made else "Measured"
    found = result.beside
    if found is None:
        return f"{made} without a reference stream beside it."
    count = f"{found.sound} of {found.taken} measurements sound; the reference stream beside those"
    if not found.sound:
        count = f"none of {found.taken} measurements sound; the reference stream"
    return (
        f"{made}, {count} had "
        f"{found.low:.3f} to {found.high:.3f} of its rate, while {found.steal:.1%} of the machine's processors was "
        f"taken away, they worked for {found.outside:.0%} of the time, and the lab's for {found.inside:.0%}."
    )


def _table(result: Result) -> Iterator[str]:
    judged = any(point.reference is not None for each in result.series for point in each.points)
    beside = ["reference stream at its worst, of its rate", "processors taken away at most"] if judged else []
    yield f"| {result.x_label} | {' | '.join([*map(_named, result.series), *beside])} |"
    yield f"| {':---' if result.places else '---:'} |" + " ---: |" * (len(result.series) + len(beside))
    for x in sorted({point.x for each in result.series for point in each.points}):
        cells = []
        for each in result.series:
            point = next((point for point in each.points if point.x == x), None)
            if point is None:
                cells.append("")
            elif point.low is None or point.high is None or _digits(point.low) == _digits(point.high):
                cells.append(_digits(point.y) + (MARK if point.marked else ""))
            else:
                mark = MARK if point.marked else ""
                cells.append(f"{_digits(point.y)} ({_digits(point.low)} to {_digits(point.high)}){mark}")
        if judged:
            here = [point for each in result.series for point in each.points if point.x == x]
            cells += [_range([point.reference for point in here], "{:.3f}"), _range([p.steal for p in here], "{:.1%}")]
        first = " ".join(result.places[round(x) - 1].split()) if result.places else f"{x:g}"
        yield f"| {first} | {' | '.join(cells)} |"


def _range(values: Iterable[float | None], shown: str) -> str:
    """The ends of what is there."""
    ends = [shown.format(each) for each in sorted(value for value in values if value is not None)]
    return "" if not ends else ends[0] if ends[0] == ends[-1] else f"{ends[0]} to {ends[-1]}"


def _over_time(result: Result) -> Iterator[str]:
    """A table of a few numbers for each series over time, without its first seconds."""
    yield f"| {result.y_label} | mean | middle four fifths of its intervals |"
    yield "| :--- | ---: | ---: |"
    for each in result.series:
        begin = min(point.x for point in each.points)
        rates = sorted(point.y for point in each.points if not each.measured or point.x > begin + SETTLED)
        cut = len(rates) // 10
        spread = "" if not each.measured else f"{_digits(rates[cut])} to {_digits(rates[-1 - cut])}"
        mark = MARK if any(point.marked for point in each.points) else ""
        yield f"| {_named(each)} | {_digits(fmean(rates))}{mark} | {spread} |"


def _named(series: Series) -> str:
    return f"{series.name} (paper)" if series.paper and "paper" not in series.name else series.name


def _digits(value: float) -> str:
    """Three digits, or all before the point."""
    size = abs(value)
    return f"{value:.{0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3}f}"


def _shown(value: str | float | int | bool) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

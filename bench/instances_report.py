"""One, two and three instances on one database, as a Markdown table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bench.report import many

BEGIN: Final = "<!-- instances: written by `python -m bench --only instances` -->"
END: Final = "<!-- end of instances -->"


def _most(row: dict[str, Any], asked: str) -> str:
    posts = row[asked]
    refused = posts["most"]["posts"] - posts["most"]["confirmed"]
    return f"{posts['per_second']:,.0f}/s, p50 {posts['most']['p50']:.0f} ms, p99 {posts['most']['p99']:.0f} ms" + (
        f"; {refused:,} of {posts['most']['posts']:,} not confirmed" if refused else ""
    )


def _steady(row: dict[str, Any], asked: str) -> str:
    posts = row[asked]["steady"]
    return (
        f"p50 {posts['p50']:.0f} ms, p99 {posts['p99']:.0f} ms; {posts['confirmed']:,} of {posts['posts']:,} confirmed"
    )


def _shares(measured: dict[str, Any], of: slice) -> str:
    pairs = zip(measured["idle"][of], measured["busy"][of], strict=True)
    return ", ".join(f"{idle:.1%} to {busy:.1%}" for idle, busy in pairs)


def _mebibytes(values: list[float]) -> str:
    return f"{', '.join(f'{value:,.0f}' for value in values)} MiB"


# Each row's words, the least number of instances that it is about, and its figure.
_ROWS: Final[tuple[tuple[str, int, Callable[[dict[str, Any]], str]], ...]] = (
    ("posts confirmed a second at most, asked at the active one", 1, lambda row: _most(row, "active")),
    ("the same, asked at one that stands by", 2, lambda row: _most(row, "standby")),
    ("posts at 50/s until confirmed, asked at the active one", 1, lambda row: _steady(row, "active")),
    ("the same, asked at one that stands by", 2, lambda row: _steady(row, "standby")),
    ("changes a second (starts and ends) at the active one", 1, lambda row: f"{row['changes']['per_second']:.0f}/s"),
    ("its processor without changes, and with them", 1, lambda row: _shares(row["changes"], slice(0, 1))),
    ("the processor of each that stands by, the same", 2, lambda row: _shares(row["changes"], slice(1, None))),
    (
        "age of its copy meanwhile, p50; worst",
        2,
        lambda row: f"{row['changes']['age_p50']:.1f}; {row['changes']['age_worst']:.1f} s",
    ),
    ("changes a second written into the database by another", 2, lambda row: f"{row['feed']['per_second']:.0f}/s"),
    (
        "the processor of each that stands by, without them and with them",
        2,
        lambda row: _shares(row["feed"], slice(None)),
    ),
    (
        "age of its copy meanwhile, p50; worst",
        2,
        lambda row: f"{row['feed']['age_p50']:.1f}; {row['feed']['age_worst']:.1f} s",
    ),
    ("memory of each, the active one first, all in sync", 1, lambda row: _mebibytes(row["memory"])),
    ("at most, all of the above included", 1, lambda row: _mebibytes(row["memory_most"])),
    (
        "the active one killed: until all switches have a master; are known to be in sync",
        2,
        lambda row: f"{row['lost']['last']:.1f}; {row['lost']['in_sync']:.1f} s",
    ),
    (
        "posts at 20/s meanwhile: acknowledged; missing afterwards; the longest wait",
        2,
        lambda row: (
            f"{row['lost']['acknowledged']:,} of {row['lost']['posts']:,}; {row['lost']['missing']:,}; "
            f"{row['lost']['post_worst']:.1f} s"
        ),
    ),
    (
        "memory of each that is left; at most",
        2,
        lambda row: f"{_mebibytes(row['lost']['memory_left'])}; {_mebibytes(row['lost']['memory_left_most'])}",
    ),
)


def several(about: dict[str, Any], found: dict[str, Any]) -> str:
    """The table of one, two and three instances on one database."""
    rows = found["rows"]
    lines = [
        f"Machine: {about['cores']} cores, Linux {about['kernel']}, Python {about['python']}; load average "
        f"{about['load']:.1f} of others when the run began. {found['jobs']:,} jobs on {found['workers']:,} workers, "
        f"whose switches and two cores are all played; each figure of posts and of processor time is of "
        f"{found['seconds']:.0f} s. A processor is one of the machine's cores.",
        "",
        f"| what | {' | '.join(many(row['instances'], 'instance', 'instances') for row in rows)} |",
        f"| --- |{' --- |' * len(rows)}",
    ]
    for words, least, figure in _ROWS:
        cells = (figure(row) if row["instances"] >= least else "–" for row in rows)
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join(lines)

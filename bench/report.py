"""Results as a Markdown table."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).parent / "results"

BEGIN: Final = "<!-- results: written by `python -m bench` -->"
END: Final = "<!-- end of results -->"

HOSTILE_BEGIN: Final = "<!-- hostile: written by `python -m bench --only hostile` -->"
HOSTILE_END: Final = "<!-- end of hostile -->"

EXTERNAL_BEGIN: Final = "<!-- external: written by `python -m bench --only external` -->"
EXTERNAL_END: Final = "<!-- end of external -->"
TAKEOVERS_BEGIN: Final = "<!-- takeovers: written by `python -m bench --only takeovers` -->"
TAKEOVERS_END: Final = "<!-- end of takeovers -->"

MIB: Final = 1 << 20

Row = tuple[str, str, str, str]


def machine() -> dict[str, Any]:
    """The machine in general terms, and how busy it was when the measurements began."""
    return {
        "cores": os.cpu_count(),
        "kernel": ".".join(platform.release().split(".")[:2]),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def results_file(name: str = "") -> Path:
    """A new file for the results of a run that begins, in bench/results, which is made."""
    RESULTS.mkdir(exist_ok=True)
    return RESULTS / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}{name}.json"


def keep(found: Mapping[str, Any], path: Path) -> None:
    """Write results as JSON."""
    path.write_text(json.dumps(found, indent=1) + "\n")


def table(found: dict[str, Any]) -> str:
    """The table of all that was measured, with a line about the machine above."""
    about = found["machine"]
    lines = [
        f"Machine: {about['cores']} cores, Linux {about['kernel']}, Python {about['python']}; load average "
        f"{about['load']:.1f} when the run began (of others; every process of a measurement shares these cores).",
        "",
        "| what | reference or aim | Lark | ratio or verdict |",
        "| --- | --- | --- | --- |",
    ]
    lines += [f"| {' | '.join(row)} |" for row in _rows(found)]
    return "\n".join(lines)


def attacked(about: dict[str, Any], found: dict[str, Any]) -> str:
    """The table of the attacks."""
    lines = [
        f"Machine: {about['cores']} cores, Linux {about['kernel']}, Python {about['python']}; load average "
        f"{about['load']:.1f} of others when the run began. {found['workers']} switches, {found['rate']:.0f} posts/s "
        f"(`wait=2`), `/healthz` 20 times a second by new connections; by turns {found['seconds']:.0f} s without and "
        f"as long under each attack, {found['rounds']} times, of one controller process.",
        "",
        "| attack | `/healthz` p99 without, under | posts p50 without, under | posts p99 without, under | ratio of p99 "
        "| answered | switches lost | memory at most |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in found["rows"]:
        without, under = row["without"], row["under"]
        one, other = without["posts"], under["posts"]
        lines.append(
            f"| {row['what']} | {without['health']['p99']:.0f}, {under['health']['p99']:.0f} ms "
            f"| {one['p50']:.0f}, {other['p50']:.0f} ms | {one['p99']:.0f}, {other['p99']:.0f} ms "
            f"| {other['p99'] / one['p99']:.1f} × | {_answered(row)} | {row['away']} | {row['memory']:.2f} × |"
        )
    return "\n".join(lines)


def translated(about: dict[str, Any], found: dict[str, Any]) -> str:
    """The table of connections with and without the translation of external addresses."""
    lines = [
        f"Machine: {about['cores']} cores, Linux {about['kernel']}, Python {about['python']}; load average "
        f"{about['load']:.1f} of others when the run began. Each row: {found['rounds']} rounds of "
        f"{found['seconds']:g} s by turns; medians, and median and range of the rounds' ratios.",
        "",
        "| what | MTU | jobs called | mapped | flows of the core | direct | mapped | ratio |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    words = {"in": "stream to the jobs", "out": "stream from the jobs", "web": "pages of 64 KiB", "rtt": "round trip"}
    for row in found["rows"]:
        one, other = (_translated_rate(row["action"], row[way]) for way in ("direct", "mapped"))
        lines.append(
            f"| {words[row['action']]} | {row['mtu']} | {row['called']} | {row['addresses']:,} | {row['flows']:,} "
            f"| {one} | {other} | {row['ratio']:.2f} ({row['ratios'][0]:.2f} to {row['ratios'][1]:.2f}) |"
        )
    return "\n".join(lines)


def taken_over(about: dict[str, Any], found: dict[str, Any]) -> str:
    """The table of takeovers after the active controller was killed."""
    words = {
        "first": ("until the first switch has a master again", "s"),
        "median": ("until half of them have", "s"),
        "last": ("until all have", "s"),
        "in_sync": ("until all are known to be in sync", "s"),
        "changed": ("flow-mods that changed what a switch does", ""),
        "processor": ("processor time of the controller that takes over", "s"),
        "memory": ("its memory", "MiB"),
        "copy_memory": ("its memory before, while it stood by", "MiB"),
        "unmarked": ("workers' switches without a marker at the kill", ""),
        "cycle": ("from one kill to the next", "s"),
    }
    lines = [
        f"Machine: {about['cores']} cores, Linux {about['kernel']}, Python {about['python']}; load average "
        f"{about['load']:.1f} of others when the run began. {found['jobs']:,} jobs on {found['workers']:,} workers, "
        f"{found['played']:,} workers' switches and two cores, two controllers; the active one was killed "
        f"{found['kills']} times.",
        "",
        "| what | p50 | p99 | worst |",
        "| --- | --- | --- | --- |",
    ]
    for name, (text, unit) in words.items():
        values = (
            f"{found[name][each]:,.{0 if unit in ('', 'MiB') else 1}f} {unit}" for each in ("p50", "p99", "worst")
        )
        lines.append(f"| {text} | {' | '.join(value.rstrip() for value in values)} |")
    return "\n".join(lines)


def _translated_rate(action: str, value: float) -> str:
    if action == "rtt":
        return f"{value / 1000:.3f} ms"
    return f"{value:,.0f}/s" if action == "web" else f"{value / 1e6:,.0f} Mb/s"


def _answered(row: dict[str, Any]) -> str:
    statuses = row["under"]["posts"]["statuses"]
    said = ", ".join(
        f"{count} × {status if status != '0' else 'nothing'}" for status, count in sorted(statuses.items())
    )
    return f"{said}; `/readyz` {row['ready']}" if row["refused"] else said


def replace(page: Path, text: str, begins: str = BEGIN, ends: str = END) -> None:
    """Put a table between its marks in a page. Raises ValueError where the marks are not there."""
    before, begin, rest = page.read_text().partition(begins)
    _, end, after = rest.partition(ends)
    if not begin or not end:
        raise ValueError(f"{page} has no place for the table between {begins} and {ends}")
    page.write_text(f"{before}{begins}\n\n{text}\n\n{ends}{after}")


def _rows(found: dict[str, Any]) -> Iterator[Row]:
    for name, rows in (
        ("reactive", _reactive), ("posts", _posts), ("calculated", _calculated), ("whole", _whole), ("views", _views),
        ("usage", _usage), ("ovsdb", _ovsdb), ("scale", _scale),
    ):  # fmt: skip
        if name in found:
            yield from rows(found[name])


def _reactive(found: dict[str, Any]) -> Iterator[Row]:
    for row in found["rows"]:
        one, other = row["lark"], row["learning"]
        spread = f"{min(row['ratios']):.1f} to {max(row['ratios']):.1f}"
        yield (
            f"reactive decisions, {many(row['switches'], 'switch', 'switches')}, {row['window']} under way on each",
            f"learning switch: {other['per_second']:,.0f}/s, p50 {other['p50']:.2f} ms, p99 {other['p99']:.2f} ms",
            f"{one['per_second']:,.0f}/s, p50 {one['p50']:.2f} ms, p99 {one['p99']:.2f} ms",
            f"{row['ratio']:.1f} × ({spread} in {len(row['ratios'])} rounds)",
        )


def _posts(found: dict[str, Any]) -> Iterator[Row]:
    what = f"{found['rate']:.0f} posts/s for {found['seconds']:.0f} s, {found['switches']:,} switches"
    for name, said in (("well", "all well"), ("others", "one stalled: posts of the other workers")):
        row = found[name]
        yield (
            f"`POST …?wait=` to confirmed flows: {what}, {said}",
            "aim: p99 ≤ 50 ms",
            f"p50 {row['p50']:.1f} ms, p99 {row['p99']:.1f} ms, worst {row['worst']:.0f} ms",
            f"{row['confirmed']:,} of {row['posts']:,} confirmed",
        )
    row = found["stalled"]
    yield (
        "posts of the stalled switch's own worker",
        "answered within `wait` (10 s)",
        f"worst {row['worst'] / 1000:.1f} s",
        f"{row['posts'] - row['refused']} of {row['posts']} answered, {row['confirmed']} confirmed",
    )


def _calculated(found: list[dict[str, Any]]) -> Iterator[Row]:
    for run in found:
        yield (
            f"one job put and removed, calculated alone, {_addresses(run['block'])}: {_sizes(run['sizes'])}",
            "aim in blocks: ratio ≤ 1.2",
            f"{_each(run['micros'], 0)} µs; {_each(run['flows'], 0)} flows on {run['connected']} of 1,000 workers",
            f"ratio {run['ratio']:.2f}",
        )
        if run["ratio_joining"] is not None and run["joining"][-1] < 1:
            shares = ", ".join(f"{share:.0%}" for share in run["joining"])
            yield (
                f"the same of jobs in whose block another job is ({shares} of them)",
                "aim in blocks: ratio ≤ 1.2",
                f"{_each(run['micros_joining'], 0)} µs",
                f"ratio {run['ratio_joining']:.2f}",
            )
        yield (
            f"rules, {_addresses(run['block'])}: {_sizes(run['sizes'])}",
            "core: at most 4,096",
            f"core {_each(run['core_rules'], 0)}; largest worker {_each(run['edge_rules'], 0)}",
            "" if max(run["core_rules"]) <= 4096 else "over the limit",
        )


def _whole(found: list[dict[str, Any]]) -> Iterator[Row]:
    for run in found:
        yield (
            f"one job from its ads to the switch's barrier, {_addresses(run['block'])}: {_sizes(run['sizes'])}",
            "aim in blocks: ratio ≤ 1.2",
            f"{_each(run['millis'], 2)} ms",
            f"ratio {run['ratio']:.2f}",
        )


def _views(found: dict[str, Any]) -> Iterator[Row]:
    for row in found["views"]:
        several = f", the slowest of {row['requests']} requests" if row["requests"] > 1 else ""
        yield (
            f"pages: {row['view']}{several}; {found['jobs']:,} live and {found['ended']:,} ended jobs, PostgreSQL",
            f"`GET /v1/token` between: p50 {row['least']:.1f} ms; aim: p95 ≤ 300 ms",
            f"p50 {row['p50']:.0f} ms, p95 {row['p95']:.0f} ms; {row['bytes'] / 1000:,.0f} kB",
            f"{row['p50'] / row['least']:.1f} ×; {row['processor']:.0f} ms of processor time",
        )


def _usage(found: dict[str, Any]) -> Iterator[Row]:
    what = f"use: {found['days']} days of {found['jobs_a_day']:,} jobs a day, PostgreSQL"
    jobs, buckets = found["usage_jobs"], found["usage"]
    yield (
        f"{what}: jobs; buckets",
        "",
        f"{jobs['rows']:,} rows, {_gigabytes(jobs)}; {buckets['rows']:,} rows, {_gigabytes(buckets)}",
        "with indexes",
    )
    for row in found["questions"]:
        yield (
            f"{what}: {row['question']} ({row['rows']:,} rows)",
            "aim: p95 ≤ 300 ms",
            f"p50 {row['p50']:.0f} ms, p95 {row['p95']:.0f} ms",
            "; ".join(step for step in row["plan"] if "Scan" in step),
        )
    yield (
        f"{what}: new use of {found['jobs_a_day']:,} live jobs written, every minute",
        f"one UPDATE of as many rows: {found['reference_seconds']:.1f} s",
        f"{found['write_seconds']:.1f} s",
        f"{found['write_seconds'] / found['reference_seconds']:.1f} ×; {found['first_write_seconds']:.1f} s at first",
    )
    yield (
        f"use: accounts of {found['jobs_a_day']:,} live jobs that all send and receive: memory; a reading of one",
        "",
        f"{found['accounts_mib']:.0f} MiB; {found['read_seconds'] * 1e6:.0f} µs",
        "",
    )


def _ovsdb(found: dict[str, Any]) -> Iterator[Row]:
    without, many, one = found["without"], found["many"], found["one"]
    what = f"OVSDB: {found['workers']:,} workers, each with a server of its own, {found['jobs']:,} limited jobs"
    yield (
        f"{what}: until all are connected and have their queues",
        f"the same switches without databases: {without['connect_seconds']:.1f} s",
        f"{found['connect_seconds']:.1f} s",
        f"{found['connect_seconds'] / without['connect_seconds']:.1f} ×",
    )
    for name, said in (("committed", "the switch's transaction"), ("answered", "the answer to `POST …?wait=`")):
        yield (
            f"{what}: from a job's other rate to {said}",
            f"1 worker, by turns: {_three(one[name])}",
            _three(many[name]),
            ", ".join(f"p{each} {many[name][f'p{each}'] / one[name][f'p{each}']:.2f} ×" for each in (50, 95, 99)),
        )
    yield (
        f"{what}: another rate for all of them by a policy, until the last transaction",
        f"the policy's own answer: {found['storm']['answered']:.1f} s",
        f"{found['storm']['committed']:.1f} s",
        f"{found['storm']['committed'] / found['storm']['answered']:.1f} ×",
    )
    more = (found["memory"] - without["memory"]) / 1024
    yield (
        f"{what}: memory; threads; processor while nothing happens",
        f"without databases: {without['memory'] / MIB:.0f} MiB; {without['threads']:.0f}; {without['idle']:.1%}",
        f"{found['memory'] / MIB:.0f} MiB; {found['threads']}; {found['idle']:.1%}",
        f"{more / found['workers']:.0f} KiB a worker",
    )


def _scale(found: dict[str, Any]) -> Iterator[Row]:
    flows, plain = found["flows"], found["reference"]
    size = f"{found['jobs']:,} jobs on {found['workers']:,} workers, all switches connected"
    yield (
        f"{size}: memory of the controller loaded; in sync; at most",
        "aim: 1 GB",
        f"{found['memory_loaded']:,.0f}; {found['memory_in_sync']:,.0f}; {found['memory_peak']:,.0f} MiB",
        f"{found['memory_in_sync'] * MIB / found['jobs']:,.0f} bytes a job",
    )
    micros = found["sync_seconds"] / flows["flows"] * 1e6
    yield (
        f"{size}: empty switches, until all are in sync; jobs that wait meanwhile",
        f"aim: 120 s, 5 s; a flow-mod built: {plain['flow_mod_built']:.1f} µs",
        f"{found['sync_seconds']:.0f} s for {flows['flows']:,} flows; p50 {found['first_jobs']['p50'] / 1000:.1f} s, "
        f"worst {found['first_jobs']['worst'] / 1000:.1f} s",
        f"{micros:.0f} µs a flow",
    )
    yield (
        f"{size}: rules on the largest worker; on a core",
        "aim: 3,000; 4,096",
        f"{flows['largest']:,}; {flows['core']:,}",
        f"{found['verified_after_sync']} switches compared with a calculation of their own: equal",
    )
    yield (
        f"{size}: a comparison with a collector of as many slots, without asking it",
        "aim: 10 s a minute, with asking",
        f"{found['comparison_seconds']:.1f} s of processor",
        f"{found['comparison_seconds'] / found['jobs'] * 1e6:.1f} µs a job",
    )
    # Measurements for which the time did not suffice are absent.
    for name, rows in (
        ("posts_at_most", _scale_posts), ("reload_5_percent", _scale_reload), ("reload_all", _scale_reload),
        ("counters", _scale_counters), ("day", _scale_day), ("restart_with_posts", _scale_restart),
    ):  # fmt: skip
        if name in found:
            yield from rows(found, size, name)


def _scale_posts(found: dict[str, Any], size: str, name: str) -> Iterator[Row]:
    for rate in ("50", "100"):
        posts = found[f"posts_at_{rate}"]
        yield (
            f"{size}: posts with `wait` at {rate}/s",
            "aim: p99 ≤ 100 ms" if rate == "100" else f"ads parsed: {found['reference']['ads_parsed']:.0f} µs",
            f"p50 {posts['p50']:.0f} ms, p99 {posts['p99']:.0f} ms",
            f"{posts['confirmed']:,} of {posts['posts']:,} confirmed",
        )
    most = found[name]
    yield (
        f"{size}: as many posts as go through",
        "aim: 300/s",
        f"{most['per_second']:.0f}/s, p99 {most['p99']:.0f} ms",
        f"{most['processor_ms']:.1f} ms of processor each",
    )


def _scale_reload(found: dict[str, Any], size: str, name: str) -> Iterator[Row]:
    reload = found[name]
    share, aim = ("all", "60") if name == "reload_all" else ("5 %", "3")
    yield (
        f"{size}: a policy that changes the decision of {share} of the jobs; posts at 50/s meanwhile",
        f"aim: {aim} s; p99 ≤ 200 ms",
        f"{reload['in_sync']:.1f} s; p99 {reload['posts']['p99']:,.0f} ms, statuses {reload['posts']['statuses']}",
        f"{reload['flow_mods']:,} flow-mods",
    )


def _scale_counters(found: dict[str, Any], size: str, name: str) -> Iterator[Row]:
    counters = found[name]
    yield (
        f"{size}: the counters of all jobs, which are busy, read and their use written; a round",
        "aim: 30 % of a core; 30 s",
        f"{counters['share']:.0%} of a core; {counters['round_seconds']:.0f} s",
        "",
    )


def _scale_day(found: dict[str, Any], size: str, name: str) -> Iterator[Row]:
    day = found[name]
    yield (
        f"{size}: {day['starts']:,} of a day's {day['of']:,} starts and ends, one after the other; memory after the "
        "first hour's; at the end",
        "aim: 1.05 ×",
        f"{day['first_hour']:,.0f}; {day['end']:,.0f} MiB in {day['seconds']:,.0f} s",
        f"{day['end'] / day['first_hour']:.2f} ×; statuses {day['statuses']}",
    )


def _scale_restart(found: dict[str, Any], size: str, name: str) -> Iterator[Row]:
    quiet, busy = found["restart"], found[name]
    posts, switches = busy["posts"], found["workers"] + 2
    yield (
        f"{size}: controller started again, until its first answer to a post; until all switches are in sync",
        "aim: 10 s; 30 s; 0 flow-mods",
        f"{busy['first_post']:.0f} s; {quiet['in_sync']:.0f} s",
        f"{quiet['flow_mods']:,} flow-mods; none to {quiet['untouched']:,} of {switches:,} switches",
    )
    yield (
        f"{size}: the same with posts at 50/s from the first answer until all are in sync",
        "aim: p99 200 ms",
        f"{busy['in_sync']:.0f} s; p50 {posts['p50']:.0f} ms, p99 {posts['p99']:.0f} ms, worst {posts['worst']:.0f} ms",
        f"{posts['confirmed']} of {posts['posts']} confirmed",
    )


def _three(values: dict[str, float]) -> str:
    return f"p50 {values['p50']:.1f} ms, p95 {values['p95']:.1f} ms, p99 {values['p99']:.1f} ms"


def _gigabytes(table: dict[str, int]) -> str:
    return f"{(table['bytes'] + table['index_bytes']) / 1e9:.2f} GB"


def _addresses(block: int | None) -> str:
    return "scattered addresses" if block is None else f"addresses in blocks of /{block}"


def _sizes(sizes: list[int]) -> str:
    return "at " + ", ".join(f"{size:,}" for size in sizes) + " jobs"


def _each(values: list[float], digits: int) -> str:
    return ", ".join(f"{value:,.{digits}f}" for value in values)


def many(number: int, one: str, more: str) -> str:
    """A number with its noun."""
    return f"{number} {one if number == 1 else more}"

"""Lark's experiments on the WAN: Figures 10 a and b, 12 with Table III. Groups' jobs send through the core."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from experiments import paper
from experiments.cable import MARGIN
from experiments.options import Options
from experiments.pool import FIRST_PORT, WAN, Load, Pool, Stream, policy, running
from experiments.result import TIME, Check, Point, Result, Series
from lab.inside.topology import BY_NAME
from lab.jobs import Running
from lab.run import LabError

# By number of other jobs, the high-priority job's rate in each repetition, Mb/s of L2 bytes.
Rates = Mapping[int, Sequence[float]]

# One guest CPU carries every frame over two switches and a router; at a tenth it has nothing to spare.
SCALE: Final = 0.05
SECONDS: Final = 10.0
# A WAN of 20 ms round trip is longer in slow start than a LAN.
SETTLED: Final = 3.0
CMS: Final = {"accounting_group": "group_cms", "accounting_group_user": "alice"}
# The site's end of the WAN's cable: the gateway's inner interface.
GATEWAY: Final = "gateway-wan"


def groups(rates: Mapping[str, float], scale: float) -> str:
    """A queue for the CMS jobs and one for all others, with ceilings as the paper's."""
    return (
        "groups:\n"
        f"  group_cms: {{port: wan, guarantee: {rates['cms'] * scale:g}Mbit, ceiling: {rates['cms'] * scale:g}Mbit}}\n"
        f"  default: {{port: wan, guarantee: {rates['other'] * scale:g}Mbit,"
        f" ceiling: {rates['other'] * scale:g}Mbit}}\n"
    )


def run(options: Options) -> tuple[Result, ...]:
    """All of them, in one lab."""
    scale = SCALE * options.scale
    high, low = options.rates.priority
    numbers = (1, 5) if options.quick else options.rates.others
    wan = options.rates.wan_link * scale
    loads = [_load("alice", FIRST_PORT, CMS)]
    loads += [_load("bob", FIRST_PORT + 1 + place, {}) for place in range(max(numbers))]
    with running() as pool:
        pool.serve(WAN, len(loads))
        pool.limit(BY_NAME[GATEWAY], 0, wan * MARGIN)
        pool.put_policy(policy(groups=groups(options.rates.wan_queues, scale), wan=wan))
        four = _four(pool, options.repetitions)
        pool.put_policy(policy(groups=groups({"cms": high, "other": low}, scale), wan=wan))
        with pool.jobs(loads) as jobs:
            managed = _against(pool, loads, jobs, numbers, options.fewer)
            pool.put_policy(policy(wan=wan))
            unmanaged = _against(pool, loads, jobs, numbers, options.fewer)
    return (
        figure_10a(four, scale, options),
        figure_10b(four, scale, options),
        figure_12(managed, unmanaged, scale, options),
        table_3(managed, unmanaged, scale, options),
    )


def _load(user: str, port: int, group: Mapping[str, str]) -> Load:
    return Load(user, WAN, port, group, seconds=SECONDS)


def _four(pool: Pool, repetitions: int) -> list[list[Stream]]:
    """Two CMS jobs and two others, at once; for each repetition their streams."""
    loads = [_load("alice", FIRST_PORT + place, CMS) for place in (0, 1)]
    loads += [_load("bob", FIRST_PORT + place, {}) for place in (2, 3)]
    with pool.jobs(loads) as jobs:
        return [pool.streams(loads, jobs) for _ in range(repetitions)]


def _against(
    pool: Pool, loads: Sequence[Load], jobs: Sequence[Running], numbers: Sequence[int], repetitions: int
) -> Rates:
    """The rates of the first job beside each number of the others, Mb/s of L2 bytes, for each repetition."""
    found: dict[int, list[float]] = {number: [] for number in numbers}
    # By turns, so that what else the machine does falls on all alike.
    for _ in range(repetitions):
        for number in numbers:
            found[number].append(_one(pool, loads[: number + 1], jobs[: number + 1]))
    return found


def _one(pool: Pool, loads: Sequence[Load], jobs: Sequence[Running], tries: int = 3) -> float:
    """The first job's rate while all run; again where a late machine let them miss each other. Raises LabError."""
    for _ in range(tries):
        with contextlib.suppress(ValueError):
            return window(pool.streams(loads, jobs))[0]
    raise LabError(f"in {tries} tries {len(jobs)} streams did not run at the same time")


def window(streams: Sequence[Stream]) -> list[float]:
    """The mean rate of each stream while all of them run and have settled, Mb/s of L2 bytes."""
    first = max(each.began for each in streams) + SETTLED
    last = min(each.began + each.rates[-1][0] for each in streams)
    return [each.mean(first - each.began, last - each.began) for each in streams]


def figure_10a(runs: Sequence[Sequence[Stream]], scale: float, options: Options) -> Result:
    """Aggregate rates of the two groups."""
    sums = [(means[0] + means[1], means[2] + means[3]) for means in map(window, runs)]
    targets = (options.rates.wan_queues["cms"] * scale, options.rates.wan_queues["other"] * scale)
    ratios = [median(each[place] for each in sums) / targets[place] for place in (0, 1)]
    zero = min(each.began for each in runs[0])
    series = tuple(
        Series(name, _summed(runs[0][2 * place : 2 * place + 2], zero)) for place, name in enumerate(("CMS", "other"))
    )
    end = max(point.x for each in series for point in each.points)
    return Result(
        name="lark-figure-10a",
        title="Traffic of two accounting groups through the core's queues",
        source="Lark, Fig. 10a",
        x_label=TIME,
        y_label="rate of the group, Mb/s of L2 bytes",
        series=(
            *series,
            *(
                Series(f"{name} queue", (Point(0, rate), Point(end, rate)), paper=True)
                for name, rate in zip(("q1, CMS", "q2, other"), targets, strict=True)
            ),
        ),
        checks=(
            Check(
                "each group has its queue's rate, within 5 %",
                f"CMS {ratios[0]:.3f}, other {ratios[1]:.3f} of it",
                all(abs(each - 1) <= 0.05 for each in ratios),
            ),
        ),
        setting=_setting(scale, options.repetitions),
        notes=("Two jobs in each group, one TCP stream a job, 20 ms round trip.",),
    )


def figure_10b(runs: Sequence[Sequence[Stream]], scale: float, options: Options) -> Result:
    """The two jobs of the smaller group."""
    ratios = []
    for each in runs:
        means = window(each)
        ratios.append(min(means[2:]) / max(means[2:]))
    zero = min(each.began for each in runs[0])
    return Result(
        name="lark-figure-10b",
        title="Two jobs in one group",
        source="Lark, Fig. 10b",
        x_label=TIME,
        y_label="rate, Mb/s of L2 bytes",
        series=tuple(Series(f"job {place}", each.points(zero)) for place, each in enumerate(runs[0][2:], 1)),
        checks=(
            Check(
                "two jobs in a group are within 10 % of each other",
                f"the lesser has {median(ratios):.3f} of the other ({min(ratios):.3f} to {max(ratios):.3f})",
                median(ratios) >= 0.9,
            ),
        ),
        setting=_setting(scale, options.repetitions),
    )


def figure_12(managed: Rates, unmanaged: Rates, scale: float, options: Options) -> Result:
    """Rate of the high-priority job beside N others."""
    guarantee = options.rates.priority[0] * scale
    ratios = [rate / guarantee for rates in managed.values() for rate in rates]
    medians = [median(rates) / guarantee for rates in managed.values()]
    return Result(
        name="lark-figure-12",
        title="A high-priority job beside N others on the WAN",
        source="Lark, Fig. 12",
        x_label="other jobs",
        y_label="rate of the high-priority job, Mb/s of L2 bytes",
        series=(
            Series("with management", tuple(Point.of(number, rates) for number, rates in managed.items())),
            Series("without", tuple(Point.of(number, rates) for number, rates in unmanaged.items())),
            Series("guarantee", tuple(Point(number, guarantee) for number in managed), paper=True),
        ),
        checks=(
            Check(
                "its guarantee within 5 % at every N, by the median of its runs",
                f"{min(medians):.3f} to {max(medians):.3f} of it",
                all(abs(ratio - 1) <= 0.05 for ratio in medians),
            ),
            Check(
                "its guarantee within 5 % in every run",
                f"{min(ratios):.3f} to {max(ratios):.3f} of it",
                all(abs(ratio - 1) <= 0.05 for ratio in ratios),
            ),
        ),
        setting=_setting(scale, options.fewer),
    )


def table_3(managed: Rates, unmanaged: Rates, scale: float, options: Options) -> Result:
    """The high-priority job's speed with management, as a multiple of that without."""
    ours = tuple(Point(number, median(managed[number]) / median(unmanaged[number])) for number in managed)
    theirs = tuple(Point(number, paper.SPEED_UP[number]) for number in managed if number in paper.SPEED_UP)
    # What perfect fairness among N + 1 streams would give: 0.9 of the link against 1 / (N + 1) of it.
    fair = tuple(Point(number, options.rates.priority[0] / options.rates.wan_link * (number + 1)) for number in managed)
    return Result(
        name="lark-table-3",
        title="Speed-up of the high-priority job from management",
        source="Lark, Table III",
        x_label="other jobs",
        y_label="times as fast as without management",
        series=(
            Series("here", ours),
            Series("even shares without management", fair),
            Series("Table III", theirs, paper=True),
        ),
        checks=(
            Check(
                "faster with management at every N",
                f"{min(point.y for point in ours):.1f} to {max(point.y for point in ours):.1f} times",
                all(point.y > 1 for point in ours),
            ),
        ),
        setting=_setting(scale, options.fewer),
        notes=(
            "Without management a job has the share that TCP's fairness leaves it; in the paper that is less than an "
            "even share from four jobs on.",
        ),
    )


def _summed(streams: Sequence[Stream], zero: float) -> tuple[Point, ...]:
    """The streams' rates added up, in half seconds since ``zero``."""
    sums: dict[float, float] = {}
    for each in streams:
        for point in each.points(zero):
            at = round(point.x * 2) / 2
            sums[at] = sums.get(at, 0) + point.y
    return tuple(Point(at, rate) for at, rate in sorted(sums.items()))


def _setting(scale: float, repetitions: int) -> dict[str, str | float | int | bool]:
    return {"rates of the paper times": scale, "repetitions": repetitions, "seconds": SECONDS}

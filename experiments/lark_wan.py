"""Lark's experiments on the WAN: Figures 10 a and b, 12 with Table III. Groups' jobs send through the core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from experiments import paper, reference, uploads
from experiments.beside import Kept, repeat
from experiments.cable import MARGIN
from experiments.options import Options
from experiments.pool import FIRST_PORT, WAN, Load, Pool, Stream, policy, running
from experiments.result import ONE_SHOWN, TIME, Beside, Check, Point, Result, Series, marked, scaled
from lab import starts
from lab.inside.topology import BY_NAME

SECONDS: Final = 10.0
# A WAN of 20 ms round trip is longer in slow start than a LAN.
SETTLED: Final = 3.0
# Jobs of Figure 10, two in each group.
JOBS_OF_GROUPS: Final = 4
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
    high, low = options.rates.priority
    numbers = (1, 5) if options.quick else options.rates.others
    wan = options.rates.wan_link * options.part
    with running() as pool:
        pool.serve(WAN, max(*numbers, JOBS_OF_GROUPS - 1) + 1)
        pool.limit(BY_NAME[GATEWAY], 0, wan * MARGIN)
        pool.refer(reference.to_wan(wan, WAN))
        pool.put_policy(policy(groups=groups(options.rates.wan_queues, options.part), wan=wan))
        four = _four(pool, options.repetitions)
        pool.put_policy(policy(groups=groups({"cms": high, "other": low}, options.part), wan=wan))
        pool.configure(uploads.WORKER, starts.DEBUG)
        managed = uploads.against(pool, numbers, CMS, dict.fromkeys(numbers, low * options.part), options)
        pool.put_policy(policy(wan=wan))
        even = {number: wan * number / (number + 1) for number in numbers}
        unmanaged = uploads.against(pool, numbers, CMS, even, options)
    return (
        figure_10a(four, options),
        figure_10b(four, options),
        uploads.figure_12(managed, unmanaged, options),
        uploads.table_3(managed, unmanaged, options),
    )


def _four(pool: Pool, repetitions: int) -> Kept[list[Stream]]:
    """Two CMS jobs and two others, at once; for each repetition their streams."""
    loads = [Load("alice", WAN, FIRST_PORT + place, CMS, seconds=SECONDS) for place in (0, 1)]
    loads += [Load("bob", WAN, FIRST_PORT + place, {}, seconds=SECONDS) for place in (2, 3)]
    with pool.jobs(loads) as jobs:
        return repeat(lambda: pool.measured(loads, jobs), repetitions)


def window(streams: Sequence[Stream]) -> list[float]:
    """The mean rate of each stream while all of them run and have settled, Mb/s of L2 bytes."""
    first = max(each.began for each in streams) + SETTLED
    last = min(each.began + each.rates[-1][0] for each in streams)
    return [each.mean(first - each.began, last - each.began) for each in streams]


def figure_10a(runs: Kept[list[Stream]], options: Options) -> Result:
    """Aggregate rates of the two groups."""
    sums = [(means[0] + means[1], means[2] + means[3]) for means in map(window, runs.values)]
    targets = [options.rates.wan_queues[name] * options.part for name in ("cms", "other")]
    first = runs.values[0]
    zero = min(each.began for each in first)
    series = tuple(
        Series(name, marked(_summed(first[2 * place : 2 * place + 2], zero), runs.marked))
        for place, name in enumerate(("CMS", "other"))
    )
    end = max(point.x for each in series for point in each.points)
    return Result(
        name="lark-figure-10a",
        title="Streams of two accounting groups through the core's queues",
        source="Lark, Fig. 10a",
        x_label=TIME,
        y_label="rate of the group, Mb/s of L2 bytes",
        series=(
            *series,
            *(
                scaled(f"{label} queue", (0, end), options.rates.wan_queues[name], paper.WAN_QUEUES[name], options.part)
                for name, label in (("cms", "q1, CMS"), ("other", "q2, other"))
            ),
        ),
        checks=(
            Check.of(
                "each group has its queue's rate, within 5 %, by its median",
                [(median(each[place] for each in sums) / targets[place], runs.marked) for place in (0, 1)],
                lambda ratio: abs(ratio - 1) <= 0.05,
            ),
        ),
        setting=_setting(options),
        notes=(
            "Two jobs in each group, one iperf3 TCP stream a job, 20 ms round trip; in the paper each uploads 5 GB by "
            "FTP.",
            ONE_SHOWN,
        ),
        beside=Beside.of(runs.taken),
    )


def figure_10b(runs: Kept[list[Stream]], options: Options) -> Result:
    """The two jobs of the smaller group."""
    lesser = [min(means[2:]) / max(means[2:]) for means in map(window, runs.values)]
    first = runs.values[0]
    zero = min(each.began for each in first)
    return Result(
        name="lark-figure-10b",
        title="The two jobs of the smaller group",
        source="Lark, Fig. 10b",
        x_label=TIME,
        y_label="rate, Mb/s of L2 bytes",
        series=tuple(
            Series(f"job {place}", marked(each.points(zero), runs.marked)) for place, each in enumerate(first[2:], 1)
        ),
        checks=(
            Check.of(
                "two jobs in a group are within 10 % of each other, by the median",
                [(median(lesser), runs.marked)],
                lambda ratio: ratio >= 0.9,
                f"the lesser has {{}} of the other ({min(lesser):.3f} to {max(lesser):.3f})",
            ),
        ),
        setting=_setting(options),
        notes=(f"The streams of the figure before. {ONE_SHOWN}",),
        beside=Beside.of(runs.taken),
    )


def _summed(streams: Sequence[Stream], zero: float) -> tuple[Point, ...]:
    """The streams' rates added up, in half seconds since ``zero``."""
    sums: dict[float, float] = {}
    for each in streams:
        for point in each.points(zero):
            at = round(point.x * 2) / 2
            sums[at] = sums.get(at, 0) + point.y
    return tuple(Point(at, rate) for at, rate in sorted(sums.items()))


def _setting(options: Options) -> dict[str, str | float | int | bool]:
    return {"rates of the paper times": options.part, "repetitions": options.repetitions, "seconds": SECONDS}

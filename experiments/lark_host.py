"""Lark's experiments on host bandwidth: Figures 8 a to c, and 11. Real jobs of the lab's pool, on one worker."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from statistics import median
from typing import Final

from experiments.cable import MARGIN
from experiments.options import Options
from experiments.pool import FIRST_PORT, SITE, Load, Pool, Stream, policy, running
from experiments.result import TIME, Check, Point, Result, Series
from lab.inside.topology import BY_NAME

WORKER: Final = "worker1"
HERE: Final = {"requirements": f'Machine == "{WORKER}.lab.test"'}
USERS: Final = {"A": "alice", "B": "bob", "C": "carol"}
# One guest CPU sends, forwards and receives every frame; at a tenth of the paper's rates it has nothing to spare.
SCALE: Final = 0.05
SECONDS: Final = 14.0
SWEEP_SECONDS: Final = 10.0
# Up to this rate (Mb/s) a stream of the sweep lasts twice as long: while one lost packet is sent again the
# receiver counts nothing, and at 10 Mb/s that was 1 % of five seconds.
SLOW: Final = 100
# A stream at the full rate of a link, in the paper's own words "comparable"; our aim.
LEAST, MOST = 0.98, 1.00


def host_rates(options: Options) -> dict[str, int]:
    """The requests of jobs A, B and C, scaled: whole Mb/s, since HTCondor matches no job that asks for part of one."""
    return {name: max(1, round(rate * SCALE * options.scale)) for name, rate in options.rates.host_rates.items()}


def request(rate: float) -> dict[str, str]:
    """Lines of a submit file of a job on the worker that asks for ``rate`` Mb/s."""
    return {**HERE, "+RequestBandwidth": f"{rate:g}"}


def run(options: Options) -> tuple[Result, ...]:
    """All of them, in one lab."""
    scale = SCALE * options.scale
    with running() as pool:
        pool.serve(SITE, 3)
        pool.limit(BY_NAME[WORKER], 0, options.rates.host_link * scale * MARGIN)
        managed = policy("policies:\n  - bandwidth: {mode: cap}", link=options.rates.host_link * scale)
        pool.put_policy(managed)
        with_management = _at_once(pool, options)
        in_turn = _in_turn(pool, 2 if options.quick else 3, options)
        pool.put_policy(policy(link=options.rates.host_link * scale))
        without = _at_once(pool, options)
        # Each rate of the sweep is to meet its own queue and nothing else.
        pool.unlimit(BY_NAME[WORKER], 0)
        pool.put_policy(policy("policies:\n  - bandwidth: {mode: cap}", link=1000))
        swept = sweep(pool, options.rates.sweep[::4] if options.quick else options.rates.sweep, options)
    return (
        figure_8a(with_management, scale, options),
        figure_8b(without, with_management, scale, options),
        figure_8c(in_turn, scale, options),
        swept,
    )


def _at_once(pool: Pool, options: Options) -> list[dict[str, Stream]]:
    """One job of each kind; for each repetition their streams."""
    loads = [
        Load(USERS[name], SITE, port, request(rate), download=True, seconds=SECONDS)
        for port, (name, rate) in enumerate(host_rates(options).items(), FIRST_PORT)
    ]
    with pool.jobs(loads) as jobs:
        return [
            dict(zip(options.rates.host_rates, pool.streams(loads, jobs), strict=True))
            for _ in range(options.repetitions)
        ]


def _in_turn(pool: Pool, number: int, options: Options) -> dict[str, list[Stream]]:
    """Jobs of each user one after the other; how much they fetch takes each about six seconds at its rate."""

    def of_user(place: int, name: str, rate: float) -> list[Stream]:
        size = round(rate * 1e6 / 8 * 6)
        load = Load(USERS[name], SITE, FIRST_PORT + place, request(rate), download=True, size=size)
        return [pool.streams([load])[0] for _ in range(number)]

    with ThreadPoolExecutor(len(USERS)) as threads:
        found = {
            name: threads.submit(of_user, place, name, rate)
            for place, (name, rate) in enumerate(host_rates(options).items())
        }
        return {name: each.result() for name, each in found.items()}


def together(streams: dict[str, Stream]) -> dict[str, float]:
    """The mean rate of each stream while all of them run, Mb/s of L2 bytes."""
    first = max(each.began for each in streams.values()) + 2
    last = min(each.began + each.rates[-1][0] for each in streams.values()) - 0.5
    return {name: each.mean(first - each.began, last - each.began) for name, each in streams.items()}


def figure_8a(runs: Sequence[dict[str, Stream]], scale: float, options: Options) -> Result:
    """Three jobs with management: each gets what it requested."""
    means = [together(each) for each in runs]
    ratios = {name: median(each[name] for each in means) / rate for name, rate in host_rates(options).items()}
    return Result(
        name="lark-figure-8a",
        title=f"Jobs of {_listed(options)} Mb/s on one worker, with bandwidth management",
        source="Lark, Fig. 8a",
        x_label=TIME,
        y_label="rate, Mb/s of L2 bytes",
        series=_over_time(runs[0], scale, options),
        checks=(
            Check(
                f"delivered / configured between {LEAST} and {MOST:.2f}",
                ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items()),
                all(LEAST <= ratio <= MOST + 0.005 for ratio in ratios.values()),
            ),
        ),
        setting=_setting(scale, options),
        notes=("Each job fetches from a server of its own by one TCP stream.",),
    )


def figure_8b(
    runs: Sequence[dict[str, Stream]], managed: Sequence[dict[str, Stream]], scale: float, options: Options
) -> Result:
    """The same jobs without management: TCP shares the link among them."""
    means = [together(each) for each in runs]
    share = options.rates.host_link * scale / 3
    # TCP's fairness is one of long times: the jobs' medians are held to it, not each run.
    shares = [median(each[name] for each in means) / share for name in options.rates.host_rates]
    faster = median(together(each)["C"] for each in managed) / median(each["C"] for each in means)
    return Result(
        name="lark-figure-8b",
        title="The same jobs without bandwidth management",
        source="Lark, Fig. 8b",
        x_label=TIME,
        y_label="rate, Mb/s of L2 bytes",
        series=_over_time(runs[0], scale, options, of_paper={"even shares": options.rates.host_link / 3}),
        checks=(
            Check(
                "the three share the link about evenly (medians within 30 % of a third)",
                f"{min(shares):.2f} to {max(shares):.2f} of a third",
                all(0.7 <= each <= 1.3 for each in shares),
            ),
            Check("C is slower than with management", f"with management {faster:.2f} times as fast", faster > 1.3),
        ),
        setting=_setting(scale, options),
    )


def figure_8c(streams: dict[str, list[Stream]], scale: float, options: Options) -> Result:
    """Several jobs of each kind, one after the other: they stay within their allocations."""
    zero, asked = min(each.began for each in chain.from_iterable(streams.values())), host_rates(options)
    series = tuple(
        Series(f"{name}, {asked[name]} Mb/s", tuple(
            point for each in sorted(streams[name], key=lambda each: each.began) for point in each.points(zero)
        ))
        for name in streams
    )  # fmt: skip
    # The whole transfer, since a few seconds of it are more or less than the rest.
    most = max(each.received / asked[name] for name, found in streams.items() for each in found)
    return Result(
        name="lark-figure-8c",
        title="Jobs of each kind one after the other",
        source="Lark, Fig. 8c",
        x_label=TIME,
        y_label="rate, Mb/s of L2 bytes",
        series=series,
        checks=(Check("no job gets more than it requested", f"at most {most:.3f} of it", most <= MOST + 0.005),),
        setting={"rates of the paper times": scale, "jobs of each kind": len(streams["A"])},
        notes=("Each user's next job is submitted when the one before has ended.",),
    )


def sweep(pool: Pool, rates: Sequence[float], options: Options) -> Result:
    """Figure 11: one stream through each configured rate, towards the job and from it."""
    points: dict[str, list[Point]] = {"towards the job": [], "from the job": []}
    for rate in rates:
        loads = {
            name: Load(
                "alice",
                SITE,
                FIRST_PORT,
                request(rate),
                download=download,
                seconds=SWEEP_SECONDS * (2 if rate <= SLOW else 1),
                block=8192 if rate <= SLOW else 131072,
            )
            for name, download in (("towards the job", True), ("from the job", False))
        }
        means: dict[str, list[float]] = {name: [] for name in loads}
        with pool.jobs([loads["from the job"]]) as jobs:
            for _ in range(options.fewer):
                for name, load in loads.items():
                    means[name].append(pool.streams([load], jobs)[0].mean())
        for name, found in means.items():
            points[name].append(Point.of(rate, found))
    ratios = [point.y / point.x for found in points.values() for point in found]
    return Result(
        name="lark-figure-11",
        title="Rate delivered to one TCP stream against the rate configured",
        source="Lark, Fig. 11",
        x_label="configured, Mb/s",
        y_label="delivered, Mb/s of L2 bytes",
        series=(
            *(Series(name, tuple(found)) for name, found in points.items()),
            Series("configured", tuple(Point(rate, rate) for rate in rates), paper=True),
        ),
        checks=(
            Check(
                f"delivered / configured between {LEAST} and {MOST:.2f}",
                f"{min(ratios):.3f} to {max(ratios):.3f}",
                all(LEAST <= ratio <= MOST + 0.005 for ratio in ratios),
            ),
        ),
        setting={
            "repetitions": options.fewer,
            "seconds": SWEEP_SECONDS,
            f"seconds up to {SLOW} Mb/s": SWEEP_SECONDS * 2,
        },
        notes=('The paper says of its own that it is "comparable" with what is configured.',),
    )


def _over_time(
    streams: dict[str, Stream], scale: float, options: Options, of_paper: dict[str, float] | None = None
) -> tuple[Series, ...]:
    zero = min(each.began for each in streams.values())
    end = max(each.began - zero + each.rates[-1][0] for each in streams.values())
    ours = [
        Series(f"{name}, asks for {host_rates(options)[name]} Mb/s", each.points(zero))
        for name, each in streams.items()
    ]
    targets = {f"{name} target": rate for name, rate in options.rates.host_rates.items()}
    theirs = [
        Series(name, (Point(0, rate * scale), Point(end, rate * scale)), paper=True)
        for name, rate in (targets if of_paper is None else of_paper).items()
    ]
    return (*ours, *theirs)


def _listed(options: Options) -> str:
    *most, last = (f"{rate:g}" for rate in options.rates.host_rates.values())
    return f"{', '.join(most)} and {last}"


def _setting(scale: float, options: Options) -> dict[str, str | float | int | bool]:
    return {"rates of the paper times": scale, "repetitions": options.repetitions, "seconds": SECONDS}

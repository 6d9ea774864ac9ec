"""Lark's experiments on host bandwidth: Figures 8 a to c, and 11. Real jobs of the lab's pool, on one worker."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Final

from experiments import paper, reference, sequence
from experiments.beside import Kept, Taken, repeat, worse
from experiments.cable import MARGIN
from experiments.options import Options
from experiments.pool import FIRST_PORT, SITE, Load, Pool, Stream, policy, running
from experiments.result import ONE_SHOWN, TIME, Beside, Check, Point, Result, Series, marked, scaled
from lab.inside.topology import BY_NAME
from lab.jobs import Running

WORKER: Final = "worker1"
HERE: Final = {"requirements": f'Machine == "{WORKER}.lab.test"'}
USERS: Final = {"A": "alice", "B": "bob", "C": "carol"}
SECONDS: Final = 14.0
SWEEP_SECONDS: Final = 10.0
# Up to this rate (Mb/s) a stream of the sweep lasts twice as long: while one lost packet is sent again the
# receiver counts nothing, and at 10 Mb/s that was 1 % of five seconds.
SLOW: Final = 100
# A stream's part of its rate, in the paper's own words "comparable"; our aim.
LEAST, MOST = 0.98, 1.005
# Jobs of each kind that the queue has at once in Figure 8c.
SEQUENCE: Final = 3
Streams = dict[str, Stream]


def host_rates(options: Options) -> dict[str, int]:
    """The requests of jobs A, B and C, scaled: whole Mb/s, since HTCondor matches no job that asks for part of one."""
    return {name: max(1, round(rate * options.part)) for name, rate in options.rates.host_rates.items()}


def request(rate: float) -> dict[str, str]:
    """Lines of a submit file of a job on the worker that asks for ``rate`` Mb/s."""
    return {**HERE, "+RequestBandwidth": f"{rate:g}"}


def run(options: Options) -> tuple[Result, ...]:
    """All of them, in one lab."""
    link = options.rates.host_link * options.part
    with running() as pool:
        pool.serve(SITE, len(USERS) * SEQUENCE)
        pool.limit(BY_NAME[WORKER], 0, link * MARGIN)
        pool.refer(reference.to_worker(link, SITE, WORKER))
        managed = policy("policies:\n  - bandwidth: {mode: cap}", link=link)
        pool.put_policy(managed)
        with_management = _at_once(pool, options)
        pool.put_policy(policy(link=link))
        without = _at_once(pool, options)
        pool.put_policy(managed)
        matched = sequence.run(pool, 2 if options.quick else SEQUENCE, host_rates(options), round(link))
        # Each rate of the sweep is to meet its own queue and nothing else.
        pool.unlimit(BY_NAME[WORKER], 0)
        pool.put_policy(policy("policies:\n  - bandwidth: {mode: cap}", link=1000))
        swept = sweep(pool, options.rates.sweep[::4] if options.quick else options.rates.sweep, options)
    return (
        figure_8a(with_management, options),
        figure_8b(without, with_management, options),
        sequence.figure_8c(matched, host_rates(options), options),
        swept,
    )


def _at_once(pool: Pool, options: Options) -> Kept[Streams]:
    """One job of each kind; for each repetition their streams."""
    loads = [
        Load(USERS[name], SITE, port, request(rate), download=True, seconds=SECONDS)
        for port, (name, rate) in enumerate(host_rates(options).items(), FIRST_PORT)
    ]
    with pool.jobs(loads) as jobs:

        def measure() -> Taken[Streams]:
            taken = pool.measured(loads, jobs)
            return Taken(dict(zip(options.rates.host_rates, taken.value, strict=True)), taken.meanwhile)

        return repeat(measure, options.repetitions)


def together(streams: Streams) -> dict[str, float]:
    """The mean rate of each stream while all of them run, Mb/s of L2 bytes."""
    first = max(each.began for each in streams.values()) + 2
    last = min(each.began + each.rates[-1][0] for each in streams.values()) - 0.5
    return {name: each.mean(first - each.began, last - each.began) for name, each in streams.items()}


def figure_8a(runs: Kept[Streams], options: Options) -> Result:
    """Three jobs with management: each gets what it requested."""
    means = [together(each) for each in runs.values]
    ratios = [(median(each[name] for each in means) / rate, runs.marked) for name, rate in host_rates(options).items()]
    return Result(
        name="lark-figure-8a",
        title=f"Three jobs that ask for {_listed(options)} Mb/s on one worker, with bandwidth management",
        source="Lark, Fig. 8a",
        x_label=TIME,
        y_label="rate, Mb/s of L2 bytes",
        series=(*_over_time(runs, options), *_targets(runs.values[0], options)),
        checks=(
            Check.of(
                f"delivered / configured between {LEAST} and {MOST}, by each job's median",
                ratios,
                lambda ratio: LEAST <= ratio <= MOST,
            ),
        ),
        setting=_setting(options),
        notes=(
            "Each job fetches from a server of its own by one iperf3 TCP stream; in the paper from HTTP servers.",
            ONE_SHOWN,
        ),
        beside=Beside.of(runs.taken),
    )


def figure_8b(runs: Kept[Streams], managed: Kept[Streams], options: Options) -> Result:
    """The same jobs without management: TCP shares the link among them."""
    means = [together(each) for each in runs.values]
    link = options.rates.host_link * options.part
    # TCP's fairness is one of long times: the jobs' medians are held to it, not each run.
    shares = [(median(each[name] for each in means) / (link / 3), runs.marked) for name in options.rates.host_rates]
    faster = median(together(each)["C"] for each in managed.values) / median(each["C"] for each in means)
    end = _end(runs.values[0])
    return Result(
        name="lark-figure-8b",
        title="The same jobs without bandwidth management",
        source="Lark, Fig. 8b",
        x_label=TIME,
        y_label="rate, Mb/s of L2 bytes",
        series=(
            *_over_time(runs, options),
            Series("a third of the link", (Point(0, link / 3), Point(end, link / 3)), aim=True),
        ),
        checks=(
            Check.of(
                "the three share the link about evenly (medians within 30 % of a third)",
                shares,
                lambda share: 0.7 <= share <= 1.3,
                "{} to {} of a third",
            ),
            Check.of(
                "C is slower than with management",
                [(faster, runs.marked or managed.marked)],
                lambda ratio: ratio > 1.3,
                "with management {} times as fast",
            ),
        ),
        setting=_setting(options),
        notes=(
            "What TCP does in Lark's jobs when no bandwidth is managed. The paper says that the jobs share evenly; its "
            "text has no number.",
        ),
        beside=Beside.of(runs.taken),
    )


def sweep(pool: Pool, rates: Sequence[float], options: Options) -> Result:
    """Figure 11: one stream through each configured rate, towards the job and from it."""
    points: dict[str, list[Point]] = {"towards the job": [], "from the job": []}
    every: list[Taken[list[Stream]]] = []
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
        pool.refer(reference.to_worker(rate, SITE, WORKER))
        with pool.jobs([loads["from the job"]]) as jobs:
            for name, load in loads.items():
                kept = repeat(partial(_at_rate, pool, load, jobs, rate), options.fewer)
                points[name].append(Point.judged(rate, kept, lambda streams: streams[0].mean()))
                every += kept.taken
    ratios = [(point.y / point.x, point.marked) for found in points.values() for point in found]
    return Result(
        name="lark-figure-11",
        title="Rate delivered to one TCP stream against the rate configured",
        source="Lark, Fig. 11",
        x_label="configured, Mb/s",
        y_label="delivered, Mb/s of L2 bytes",
        series=(
            *(Series(name, tuple(found)) for name, found in points.items()),
            Series("configured", tuple(Point(rate, rate) for rate in rates), aim=True),
        ),
        checks=(
            Check.of(
                f"delivered / configured between {LEAST} and {MOST}",
                ratios,
                lambda ratio: LEAST <= ratio <= MOST,
            ),
        ),
        setting={
            "repetitions": options.fewer,
            "seconds": SWEEP_SECONDS,
            f"seconds up to {SLOW} Mb/s": SWEEP_SECONDS * 2,
        },
        notes=(
            'The paper draws its own from 30 s of iperf, and says that it is "comparable" with what is configured; its '
            "text has no numbers, and the rates here are ours.",
            "The rates here are not scaled, whatever calibration chooses.",
        ),
        beside=Beside.of(every),
    )


def _at_rate(pool: Pool, load: Load, jobs: Sequence[Running], rate: float) -> Taken[list[Stream]]:
    """One stream, and at once after it a reference at the same rate, without a queue."""
    taken = pool.measured([load], jobs)
    return Taken(taken.value, worse(taken.meanwhile, pool.alone(rate)))


def _over_time(runs: Kept[Streams], options: Options) -> tuple[Series, ...]:
    """The streams of one measurement."""
    streams = runs.values[0]
    zero = min(each.began for each in streams.values())
    return tuple(
        Series(f"{name}, asks for {host_rates(options)[name]} Mb/s", marked(each.points(zero), runs.marked))
        for name, each in streams.items()
    )


def _targets(streams: Streams, options: Options) -> tuple[Series, ...]:
    """The requests, scaled; they are the paper's where nobody has given others."""
    end = _end(streams)
    return tuple(
        scaled(f"{name}'s request", (0, end), rate, paper.HOST_RATES[name], options.part)
        for name, rate in options.rates.host_rates.items()
    )


def _end(streams: Streams) -> float:
    zero = min(each.began for each in streams.values())
    return max(each.began - zero + each.rates[-1][0] for each in streams.values())


def _listed(options: Options) -> str:
    *most, last = (f"{rate:g}" for rate in host_rates(options).values())
    return f"{', '.join(most)} and {last}"


def _setting(options: Options) -> dict[str, str | float | int | bool]:
    return {"rates of the paper times": options.part, "repetitions": options.repetitions, "seconds": SECONDS}

"""Figure 12 and Table III: a high-priority job uploads a file beside N others that upload as much, all at once.

The speed-up is the ratio of the times that the high-priority job's upload takes without management and with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final

from experiments import paper
from experiments.beside import Kept, Taken, repeat
from experiments.options import Options
from experiments.pool import FIRST_PORT, PAYLOAD, STREAM_TIMEOUT, WAN, Load, Pool, stream
from experiments.pool import FRAME as L2_FRAME
from experiments.result import Beside, Check, Point, Result, Series
from lab.jobs import Running

# The paper's jobs upload a gigabyte. At this part of it a transfer takes as long beside the scaled rates as half of the
# paper's, which keeps fifteen jobs' uploads within minutes.
BYTES: Final = 1e9
PART: Final = 0.5
LEAST_REPETITIONS: Final = 5
# The rate may be this far from the guarantee.
WITHIN: Final = 0.05
# A WAN of 20 ms round trip is longer in slow start than a LAN. Seconds.
SETTLED: Final = 1.5
# Seconds of an upload beside which the reference stream runs at most.
MOST_BESIDE: Final = 20.0


@dataclass(frozen=True, slots=True)
class Upload:
    """The high-priority job's: ``seconds`` of its program, from start to exit, and the settled ``rate``, L2 Mb/s."""

    seconds: float
    rate: float


# By number of other jobs.
Uploads = Mapping[int, Kept[Upload]]


def size(options: Options) -> int:
    """Bytes of payload that each job uploads."""
    return round(BYTES * PART * options.part)


def repetitions(options: Options) -> int:
    """Sound uploads that are wanted of each number of jobs."""
    return 2 if options.quick else max(LEAST_REPETITIONS, options.repetitions)


def loads(others: int, priority: Mapping[str, str], options: Options) -> list[Load]:
    """The high-priority job first, then the others."""
    first = Load("alice", WAN, FIRST_PORT, priority, size=size(options))
    return [first, *(Load("bob", WAN, FIRST_PORT + 1 + place, {}, size=size(options)) for place in range(others))]


def expected(others: int, options: Options) -> float:
    """Seconds that the upload takes where all jobs share the WAN evenly."""
    wan = options.rates.wan_link * options.part
    return size(options) * 8 / 1e6 * L2_FRAME / PAYLOAD / (wan / (others + 1))


def against(pool: Pool, numbers: Sequence[int], priority: Mapping[str, str], options: Options) -> Uploads:
    """The uploads beside each number of others, by new jobs for each number, since a job of the lab ends after a while.

    ``priority`` are lines of the submit file of the job that is measured. Raises LabError.
    """
    found = {}
    for number in numbers:
        wanted = loads(number, priority, options)
        with pool.jobs(wanted) as jobs:
            found[number] = repeat(partial(_one, pool, wanted, jobs, options), repetitions(options))
    return found


def _one(pool: Pool, loads: Sequence[Load], jobs: Sequence[Running], options: Options) -> Taken[Upload]:
    """One upload, and beside it the others', which are ended with it."""
    begin = pool.begin(jobs)
    seconds = expected(len(jobs) - 1, options)
    timeout = seconds * 4 + STREAM_TIMEOUT
    with pool.watched(begin, min(seconds, MOST_BESIDE) + SETTLED) as watched, ThreadPoolExecutor(len(jobs)) as threads:
        beside = [
            threads.submit(job.run, load.script(begin), timeout) for job, load in zip(jobs[1:], loads[1:], strict=True)
        ]
        printed = jobs[0].run(_timed(loads[0].script(begin)), timeout).stdout
        for job in jobs[1:]:
            # Those of the same user on the same worker are to end as well.
            job.run("kill $(pidof iperf3) 2>/dev/null; true", STREAM_TIMEOUT)
        for each in beside:
            each.result()
    text, took = printed.rsplit("took ", 1)
    return Taken(Upload(float(took), stream(text).mean(SETTLED)), watched())


def _timed(script: str) -> str:
    """The job's program, and how long the upload took behind what it prints."""
    before, command = script.rsplit("exec ", 1)
    return f"{before}began=$(date +%s%N)\n{command}ended=$(date +%s%N)\necho took $(((ended - began) / 1000000))e-3\n"


def figure_12(managed: Uploads, unmanaged: Uploads, options: Options) -> Result:
    """Rate of the high-priority job beside N others."""
    guarantee = options.rates.priority[0] * options.part
    points = {
        name: tuple(Point.judged(number, kept, lambda one: one.rate) for number, kept in found.items())
        for name, found in (("with management", managed), ("without", unmanaged))
    }
    single = [(one.rate / guarantee, kept.marked) for kept in managed.values() for one in kept.values]
    return Result(
        name="lark-figure-12",
        title="A high-priority job that uploads beside N others on the WAN",
        source="Lark, Fig. 12",
        x_label="other jobs",
        y_label="rate of the high-priority job, Mb/s of L2 bytes",
        series=(
            *(Series(name, found) for name, found in points.items()),
            Series("allocated to it", tuple(Point(number, guarantee) for number in managed), paper=True),
        ),
        checks=(
            Check.of(
                "its guarantee within 5 % at every N, by the median of its runs",
                [(point.y / guarantee, point.marked) for point in points["with management"]],
                lambda ratio: abs(ratio - 1) <= WITHIN,
            ),
            Check.of("its guarantee within 5 % in every run", single, lambda ratio: abs(ratio - 1) <= WITHIN),
        ),
        setting=_setting(options),
        notes=(f"The rate is that after the first {SETTLED:g} s, in which TCP finds it.",),
        beside=Beside.of(_taken(managed, unmanaged)),
    )


def speed_up(number: int, managed: Kept[Upload], unmanaged: Kept[Upload]) -> Point:
    """The ratio of the medians of the upload's times: as many times as fast is it with management."""
    with_, without = (Point.judged(number, kept, lambda one: one.seconds) for kept in (managed, unmanaged))
    references = [each.reference for each in (with_, without) if each.reference is not None]
    return Point(
        number,
        median(one.seconds for one in unmanaged.values) / median(one.seconds for one in managed.values),
        min(one.seconds for one in unmanaged.values) / max(one.seconds for one in managed.values),
        max(one.seconds for one in unmanaged.values) / min(one.seconds for one in managed.values),
        max(references, key=lambda one: abs(one - 1)),
        max(each.steal or 0.0 for each in (with_, without)),
        with_.marked or without.marked,
    )


def table_3(managed: Uploads, unmanaged: Uploads, options: Options) -> Result:
    """The high-priority job's upload with management, as a multiple of that without."""
    ours = tuple(speed_up(number, managed[number], unmanaged[number]) for number in managed)
    times = {
        name: tuple(Point.judged(number, kept, lambda one: one.seconds) for number, kept in found.items())
        for name, found in (("with management, s", managed), ("without, s", unmanaged))
    }
    part = options.rates.priority[0] / options.rates.wan_link
    fair = tuple(Point(number, part * (number + 1)) for number in managed)
    return Result(
        name="lark-table-3",
        title="Speed-up of the high-priority job's upload from management",
        source="Lark, Table III",
        x_label="other jobs",
        y_label="times as fast as without management",
        series=(
            Series("here", ours),
            Series("by even shares of the link", fair, aim=True),
            Series(
                "Table III",
                tuple(Point(number, paper.SPEED_UP[number]) for number in managed if number in paper.SPEED_UP),
                paper=True,
            ),
        ),
        checks=(
            Check.of(
                "faster with management at every N",
                [(point.y, point.marked) for point in ours],
                lambda ratio: ratio > 1,
                "{} to {} times",
            ),
        ),
        setting=_setting(options),
        notes=(
            f"The time of an iperf3 program that uploads {size(options) / 1e6:g} MB inside a running job; the paper's "
            f"jobs upload 1 GB by FTP. That is {PART:g} of a gigabyte at rates scaled alike. All begin at once and "
            "upload as much, and what is left is ended with the first. In seconds: "
            + "; ".join(f"{name[:-3]} {_listed(points)}" for name, points in times.items())
            + ".",
            "Without management a job has the share that TCP's fairness leaves it.",
        ),
        beside=Beside.of(_taken(managed, unmanaged)),
    )  # fmt: skip


def _listed(points: Sequence[Point]) -> str:
    return ", ".join(f"{point.y:.1f}" for point in points)


def _taken(*found: Uploads) -> list[Taken[Upload]]:
    return [each for uploads in found for kept in uploads.values() for each in kept.taken]


def _setting(options: Options) -> dict[str, str | float | int | bool]:
    return {
        "rates of the paper times": options.part,
        "repetitions": repetitions(options),
        "MB of each upload": size(options) / 1e6,
    }

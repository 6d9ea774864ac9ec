"""Figure 12 and Table III: a high-priority job uploads a file beside N others that upload as much, all at once.

The high-priority job is a job of HTCondor's of its own each time, whose program is the upload. The others are jobs that
stand, and upload as often as is requested. The speed-up is the ratio of the high-priority job's execution times
without management and with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from experiments.result import Beside, Check, Point, Result, Series, scaled
from lab.jobs import Running
from lab.run import LabError

# The paper's jobs upload a gigabyte. Scaled as the rates are, it takes as long as the paper's, and what TCP needs to
# find its rate and to end is a small part of it: with a fifth, rates had 0.93 to 0.99 of the guarantee.
BYTES: Final = 1e9
LEAST_REPETITIONS: Final = 5
# The rate may be this far from the guarantee, and the speed-up from that of even shares.
WITHIN: Final = 0.05
WITHIN_SHARES: Final = 0.15
# A WAN of 20 ms round trip is longer in slow start than a LAN. Seconds.
SETTLED: Final = 0.5
INTERVAL: Final = 0.25
# Jobs of the lab that stand end by themselves after a while: new ones come for so many numbers of others.
BATCH: Final = 4
# A failed upload is tried again, so often in all.
TRIES: Final = 3
# All jobs are on one worker, where a named pipe lets the others begin with the high-priority job.
WORKER: Final = "worker1"
HERE: Final = {"requirements": f'Machine == "{WORKER}.lab.test"'}
FLAGS: Final = "/home/uploads"
OTHER: Final = "bob"
READY_SECONDS: Final = 40


@dataclass(frozen=True, slots=True)
class Upload:
    """The high-priority job's: ``seconds`` of its execution by the starter's record, and of its ``program`` by iperf3.

    ``rate`` is its settled rate, ``others`` that of all others together meanwhile; L2 Mb/s.
    """

    seconds: float
    rate: float
    program: float = 0.0
    others: float = 0.0


# By number of other jobs.
Uploads = Mapping[int, Kept[Upload]]


def size(options: Options) -> int:
    """Bytes of payload that each job uploads."""
    return round(BYTES * options.part)


def repetitions(options: Options) -> int:
    """Sound uploads that are wanted of each number of jobs."""
    return 2 if options.quick else max(LEAST_REPETITIONS, options.repetitions)


def priority_load(lines: Mapping[str, str], options: Options) -> Load:
    """The high-priority job; ``lines`` are of its submit file."""
    return Load("alice", WAN, FIRST_PORT, {**HERE, **lines}, size=size(options), interval=INTERVAL)


def other_loads(number: int, options: Options) -> list[Load]:
    """The others."""
    return [
        Load(OTHER, WAN, FIRST_PORT + 1 + place, HERE, size=size(options), interval=INTERVAL) for place in range(number)
    ]


def expected(others: int, options: Options) -> float:
    """Seconds that the upload takes where all jobs share the WAN evenly."""
    wan = options.rates.wan_link * options.part
    return size(options) * 8 / 1e6 * L2_FRAME / PAYLOAD / (wan / (others + 1))


def against(
    pool: Pool, numbers: Sequence[int], lines: Mapping[str, str], share: Mapping[int, float], options: Options
) -> Uploads:
    """The uploads beside each number of others. ``lines`` are of the submit file of the job that is measured.

    ``share`` has the Mb/s of L2 bytes that all others are to have together. Raises LabError.
    """
    found: dict[int, Kept[Upload]] = {}
    first = priority_load(lines, options)
    for batch in (numbers[at : at + BATCH] for at in range(0, len(numbers), BATCH)):
        others = other_loads(max(batch), options)
        with pool.jobs(others) as jobs:
            for number in batch:
                beside = list(zip(jobs[:number], others[:number], strict=True))
                measure = partial(persistent, partial(_one, pool, first, beside, share[number], options))
                found[number] = repeat(measure, repetitions(options))
    return found


def persistent(measure: Callable[[], Taken[Upload]]) -> Taken[Upload]:
    """Measure again what failed. Raises LabError where it fails each time."""
    for left in reversed(range(TRIES)):
        try:
            return measure()
        except LabError as error:
            if not left:
                raise
            print(f"uploads: tried again: {error}", file=sys.stderr, flush=True)
    raise AssertionError


def _one(
    pool: Pool, first: Load, beside: Sequence[tuple[Running, Load]], share: float, options: Options
) -> Taken[Upload]:
    """One upload, and beside it the others', which are ended with it.

    Raises LabError where the upload fails, or where the others do not send.
    """
    timeout = expected(len(beside), options) * 4 + STREAM_TIMEOUT + READY_SECONDS
    pool.on(WORKER, f"rm -rf {FLAGS}; mkdir -m 1777 {FLAGS}; mkfifo {FLAGS}/go; chmod 666 {FLAGS}/go")
    with pool.accompanied() as counted, ThreadPoolExecutor(max(1, len(beside))) as threads:
        for job, load in beside:
            threads.submit(job.run, _waiting(load), timeout)
        try:
            ready = f"[ $(ls {FLAGS} | wc -l) -gt {len(beside)} ]"
            pool.on(WORKER, f"timeout {READY_SECONDS} sh -c 'until {ready}; do sleep 0.1; done'")
            begin = f": >{FLAGS}/go\n" if beside else ""
            executed = pool.executed(first, f"{begin}exec {first.client()}\n", WORKER, timeout)
        finally:
            # Jobs that still wait begin now, and all are ended.
            pool.on(WORKER, f"timeout 1 sh -c ': >{FLAGS}/go'; sleep 0.2; pkill -TERM -u {OTHER} -x iperf3; true")
        measured = stream(executed.printed)
        ended = measured.began + measured.rates[-1][0]
        meanwhile, counts = counted(measured.began, ended)
    rates = [counts.rate(load.port, measured.began + SETTLED, ended) * L2_FRAME / PAYLOAD for _, load in beside]
    upload = Upload(executed.seconds, measured.mean(SETTLED), measured.rates[-1][0], sum(rates))
    check_others(rates, share)
    print(
        f"uploads: beside {len(beside)} {upload.seconds:.1f} s, {upload.rate:.1f} Mb/s, others {upload.others:.1f}, "
        f"reference {meanwhile.reference:.3f}",
        file=sys.stderr,
        flush=True,
    )
    return Taken(upload, meanwhile)


def check_others(rates: Sequence[float], share: float) -> None:
    """Raise LabError where the others have not sent: an upload alone shows nothing about management.

    ``rates`` are theirs, and ``share`` is that of all together.
    """
    if not all(rates) or sum(rates) < share / 2:
        each = ", ".join(f"{rate:.2f}" for rate in rates)
        raise LabError(f"the other jobs sent {each} Mb/s, and were to have {share:g} together")


def _waiting(load: Load) -> str:
    """The upload of a job that stands; it finds its way to the server first, and begins with the high-priority job."""
    return (
        f"ping -c 1 -W 2 {load.address} >/dev/null\n"
        f"touch {FLAGS}/{load.port}\nread -r _ <{FLAGS}/go\nexec {load.client()}\n"
    )


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
        title="Rate of a high-priority job that uploads beside N others on the WAN",
        source="Lark, Fig. 12",
        x_label="other jobs",
        y_label="rate of the high-priority job, Mb/s of L2 bytes",
        series=(
            *(Series(name, found) for name, found in points.items()),
            scaled("allocated to it", managed, options.rates.priority[0], paper.PRIORITY_RATES[0], options.part),
        ),
        checks=(
            Check.of(
                "its guarantee within 5 % at every N, by the median of its runs",
                [(point.y / guarantee, point.marked) for point in points["with management"]],
                lambda ratio: abs(ratio - 1) <= WITHIN,
            ),
            Check.of("its guarantee within 5 % in every run", single, lambda ratio: abs(ratio - 1) <= WITHIN),
            Check.of(
                "the others together have what is allocated to them within 5 %, by the median of its runs",
                [
                    (
                        median(one.others for one in kept.values) / (options.rates.priority[1] * options.part),
                        kept.marked,
                    )
                    for kept in managed.values()
                ],
                lambda ratio: abs(ratio - 1) <= WITHIN,
            ),
        ),
        setting=_setting(options),
        notes=(
            f"The rate is that after the first {SETTLED:g} s, in which TCP finds it. The others' is what the kernel of "
            "the server's machine has received of them meanwhile.",
        ),
        beside=Beside.of(_taken(managed, unmanaged)),
    )


def of_job(upload: Upload) -> float:
    """The job's execution time."""
    return upload.seconds


def of_program(upload: Upload) -> float:
    """The time of the upload in it."""
    return upload.program


def aside(uploads: Uploads) -> float:
    """The median of the seconds that a job is executed for beside its upload."""
    return median(one.seconds - one.program for kept in uploads.values() for one in kept.values)


def speed_up(
    number: int, managed: Kept[Upload], unmanaged: Kept[Upload], seconds: Callable[[Upload], float] = of_job
) -> Point:
    """The ratio of the medians of the times: as many times as fast is it with management."""
    with_, without = (Point.judged(number, kept, seconds) for kept in (managed, unmanaged))
    references = [each.reference for each in (with_, without) if each.reference is not None]
    return Point(
        number,
        median(map(seconds, unmanaged.values)) / median(map(seconds, managed.values)),
        min(map(seconds, unmanaged.values)) / max(map(seconds, managed.values)),
        max(map(seconds, unmanaged.values)) / min(map(seconds, managed.values)),
        max(references, key=lambda one: abs(one - 1)),
        max(each.steal or 0.0 for each in (with_, without)),
        with_.marked or without.marked,
    )


def table_3(managed: Uploads, unmanaged: Uploads, options: Options) -> Result:
    """The high-priority job's execution, and its upload alone: how many times as fast with management."""
    ours, programs = (
        tuple(speed_up(number, managed[number], unmanaged[number], seconds) for number in managed)
        for seconds in (of_job, of_program)
    )
    times = {
        name: tuple(Point.judged(number, kept, lambda one: one.seconds) for number, kept in found.items())
        for name, found in (("with management, s", managed), ("without, s", unmanaged))
    }
    part = options.rates.priority[0] / options.rates.wan_link
    fair = tuple(Point(number, part * (number + 1)) for number in managed)
    theirs = paper.SPEED_UP if part == paper.PRIORITY_RATES[0] / paper.WAN_LINK else {}
    alone, more = expected(0, options), aside(managed)
    jobs = tuple(Point(number, (more + alone * (number + 1)) / (more + alone / part)) for number in managed)
    own = {
        name: ", ".join(f"{median(one.program for one in kept.values):.1f}" for kept in found.values())
        for name, found in (("with management", managed), ("without", unmanaged))
    }
    return Result(
        name="lark-table-3",
        title="Speed-up of a high-priority job that uploads, from management",
        source="Lark, Table III",
        x_label="other jobs",
        y_label="times as fast as without management",
        series=(
            Series("the job", ours),
            Series("its upload alone", programs),
            Series("even shares, with the job's own time", jobs, aim=True),
            Series("even shares", fair, aim=True),
            *_theirs(managed, theirs),
        ),
        checks=(
            *(
                Check.of(
                    f"{name}: within 15 % of what even shares give{besides}",
                    [(point.y / other.y, point.marked) for point, other in zip(found, shares, strict=True)],
                    lambda ratio: abs(ratio - 1) <= WITHIN_SHARES,
                )
                for name, besides, found, shares in (
                    ("the job", " with the job's own time", ours, jobs),
                    ("its upload alone", "", programs, fair),
                )
            ),
            _enough(managed, unmanaged),
        ),
        setting=_setting(options),
        notes=(
            f"Execution times of HTCondor jobs, by the starter's record, each of which uploads {size(options) / 1e6:g} "
            "MB by iperf3; the paper's upload 1 GB by FTP, which is scaled as the rates are. All "
            "begin at once and upload as much, and what is left is ended with the first. In seconds: "
            + "; ".join(f"{name[:-3]} {_listed(points)}" for name, points in times.items())
            + ". Of those iperf3's own: "
            + "; ".join(f"{name} {listed}" for name, listed in own.items())
            + ".",
            f"A job's own time is what it is executed for beside its upload: {more:.1f} s, the median. The upload "
            "takes as long as one of a gigabyte at the paper's rates.",
            "By the paper's values a job without management had less than an even share from four other jobs on "
            f"({paper.SPEED_UP[4]:g} against 4.5; at 15: {paper.SPEED_UP[15]:g} against 14.4).",
        ),
        beside=Beside.of(_taken(managed, unmanaged)),
    )  # fmt: skip


def _enough(*found: Uploads) -> Check:
    """Hold the number of uploads that count to what is wanted, beside each number of others."""
    sound = [0 if kept.marked else len(kept.values) for uploads in found for kept in uploads.values()]
    aim = f"at least {LEAST_REPETITIONS} sound uploads of each kind beside every number of others"
    return Check(aim, f"{min(sound)} to {max(sound)}", min(sound) >= LEAST_REPETITIONS, marked=not any(sound))


def _theirs(numbers: Iterable[int], table: Mapping[int, float]) -> tuple[Series, ...]:
    """The paper's table, for the numbers that it has; none where the rates are not the paper's."""
    points = tuple(Point(number, table[number]) for number in numbers if number in table)
    return (Series("Table III", points, paper=True),) if points else ()


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

"""The experiment on HTCondor's transfers: many jobs with a sandbox each, with and without Lark by turns in one pool.

After Sfiligoi, Würthwein, DeFanti and Graham, "HTCondor data movement at 100 Gbps": 10,000 jobs of one submission, each
with an input of 2 GB, through 200 slots. The access point's link carries as much as the experiments' links do, so that
it is what jobs wait for, as in the paper.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from experiments import paper, reference, sandboxes
from experiments.beside import Kept, Taken, keep, wants_more
from experiments.lark_start import settings
from experiments.options import Options
from experiments.pool import SITE, Pool
from experiments.result import Beside, Check, Point, Result, Series
from experiments.sandboxes import ACCESS_POINT, PARTS, WORKERS, Batch, Ran
from lab.boot import Lab
from lab.inside.topology import BY_NAME, UPLINK, cable

# At a scale of 1: the bytes of a sandbox, at which a link of 50 Mb/s carries one in 1.6 s; jobs and slots of the lab.
SIZE: Final = 10e6
JOBS: Final = 120
SLOTS: Final = 16
QUICK: Final = 20
# HTCondor's transfer queue has 100 at a time by default: half of the paper's slots.
QUEUED: Final = SLOTS // 2
# The share of the jobs an hour without Lark that there are to be with it.
LEAST: Final = 0.98
ROUND_TRIP_MS: Final = 58.0
# The two ends of the way there: of the first one the access point's cable is plugged in, the other one is on the site.
WAY: Final = ("long-way", "long-way-site")
# Jobs before the first measurement.
FIRST: Final = 4
# Seconds that a batch may take beyond what the link needs for it.
PATIENCE: Final = 900.0
KINDS: Final = ("without Lark", "with Lark")
_INSTEAD: Final = (
    "Jobs wait for the access point's link: other slots fill it in the time that Lark takes at a job's start."
)
Runs = Mapping[str, Kept[Ran]]


def run(options: Options) -> tuple[Result, ...]:
    """The batches natively, as jobs' starts are measured."""
    batch = batch_of(options)
    with Lab.start(settings()) as lab:
        lab.start_pool()
        pool = Pool(lab)
        pool.refer(reference.to_worker(reference.LEAST, SITE, WORKERS[0]))
        with limited(lab, link_of(options)):
            near = by_turns(lab, pool, batch, {"": None, "queue": QUEUED}, options)
        kind = lab.choice.kind
    return rates(near, batch, options, kind), processor_time(near, batch, options, kind)


def run_far(options: Options) -> tuple[Result, ...]:
    """The same over a long way, natively too: where a job's start takes longer than its link takes for its sandbox, as
    in User Mode Linux, a pool's jobs an hour are those of its processor."""
    batch = batch_of(options)
    with Lab.start(settings()) as lab:
        lab.start_pool()
        pool = Pool(lab)
        pool.refer(reference.to_worker(reference.LEAST, SITE, WORKERS[0]))
        with limited(lab, link_of(options)), far_away(lab, ROUND_TRIP_MS / 2):
            far = by_turns(lab, pool, batch, {"": None}, replace(options, repetitions=options.fewer))
        kind = lab.choice.kind
    return (far_rates(far, batch, options, kind),)


@contextmanager
def far_away(lab: Lab, delay_ms: float) -> Iterator[None]:
    """Let what the access point sends take ``delay_ms`` to the site during the block, and what it receives too."""
    machine = BY_NAME[ACCESS_POINT]
    nic = machine.nics[0]
    end, (near, site) = cable(machine, nic), WAY
    lines = (
        f"ip link add {near} type veth peer name {site}",
        # The way has no addresses of its own.
        *(f"echo 1 >/proc/sys/net/ipv6/conf/{each}/disable_ipv6" for each in (near, end)),
        f"ip link set {end} nomaster",
        f"ip link set {near} up",
        f"ip link set {site} master {nic.segment} up",
        "cd /lark/run/source",
        f"PYTHONPATH=. setsid python3 -m experiments.long_way {end} {near} {delay_ms:g} >/dev/null 2>&1 & echo $!",
    )
    pid = ""
    try:
        pid = lab.run(["sh", "-ec", "\n".join(lines)]).stdout.strip()
        yield
    finally:
        lab.run(["sh", "-c", f"kill {pid}; ip link del {near}; ip link set {end} master {nic.segment}"])


def batch_of(options: Options) -> Batch:
    """The batch of a scale."""
    return Batch(QUICK if options.quick else JOBS, round(SIZE * options.scale), SLOTS)


def link_of(options: Options) -> float:
    """The rate of the access point's link, Mb/s."""
    return options.rates.host_link * options.part


@contextmanager
def limited(lab: Lab, rate: float) -> Iterator[None]:
    """Let the access point send at ``rate`` Mb/s at most, by a token bucket: kernels have it that lack netem."""
    lab.on(ACCESS_POINT, *f"tc qdisc replace dev {UPLINK} root tbf rate {rate:g}mbit burst 64k latency 40ms".split())
    try:
        yield
    finally:
        lab.on(ACCESS_POINT, "tc", "qdisc", "del", "dev", UPLINK, "root")


def by_turns(lab: Lab, pool: Pool, batch: Batch, queues: Mapping[str, int | None], options: Options) -> dict[str, Runs]:
    """The runs of a batch without and with Lark, one after the other and the other way round, with HTCondor's queue as
    ``queues`` names it."""
    sandboxes.prepare(lab, batch)
    found: dict[str, Runs] = {}
    for name, most in queues.items():
        taken: dict[str, list[Taken[Ran]]] = {kind: [] for kind in KINDS}
        with sandboxes.queue(lab, most):
            # Work that is done once is no job's cost.
            sandboxes.run(lab, replace(batch, jobs=min(FIRST, batch.jobs)), PATIENCE)
            order = KINDS
            while any(wants_more(each, options.repetitions) for each in taken.values()):
                for kind in order:
                    taken[kind].append(_one(lab, pool, batch, kind, options))
                order = order[::-1]
        found[name] = {kind: keep(each) for kind, each in taken.items()}
    return found


def _one(lab: Lab, pool: Pool, batch: Batch, kind: str, options: Options) -> Taken[Ran]:
    """One run of a batch, with the reference stream beside it."""
    timeout = PATIENCE + 2 * batch.jobs * batch.size * 8 / 1e6 / link_of(options)
    with ExitStack() as stack:
        if kind == KINDS[0]:
            stack.enter_context(sandboxes.without_lark(lab))
        with pool.accompanied() as counted:
            begin = pool.now()
            _, ran = sandboxes.run(lab, batch, timeout)
            meanwhile, _ = counted(begin, pool.now())
    print(
        f"transfers: {batch.jobs} jobs {kind} in {ran.seconds:.1f} s, at most {ran.most} inputs at once, reference "
        f"{meanwhile.reference:.3f}, processors {meanwhile.outside:.0%}",
        file=sys.stderr,
        flush=True,
    )
    return Taken(ran, replace(meanwhile, programs=True))


def rates(found: Mapping[str, Runs], batch: Batch, options: Options, lab: str) -> Result:
    """Jobs an hour, without and with Lark, HTCondor's transfer queue off and on."""
    places = {
        f"{kind},\n{'queue of ' + str(QUEUED) if queue else 'no queue'}": (kind, runs[kind])
        for queue, runs in found.items()
        for kind in KINDS
    }
    points = {place: _hourly(number, kept, batch) for number, (place, (_, kept)) in enumerate(places.items(), 1)}
    papers = (
        paper.TRANSFER_MINUTES["no queue"], paper.TRANSFER_MINUTES["no queue"],
        paper.TRANSFER_MINUTES["queue"], paper.TRANSFER_MINUTES["queue"],
    )  # fmt: skip
    return Result(
        name="lark-transfers",
        title="Jobs with a sandbox each, without and with Lark",
        source="HTCondor data movement, section III",
        x_label="the pool",
        y_label="jobs an hour",
        series=(Series("here", tuple(points.values())), _papers(papers, batch, options)),
        checks=(
            *(
                _share(f"with Lark at least {LEAST:.0%} of the jobs an hour without, {said}", found[queue], batch)
                for queue, said in (
                    ("", "HTCondor's transfer queue off"),
                    ("queue", f"and at {QUEUED} transfers at a time"),
                )
                if queue in found
            ),
            _once(kept for _, kept in places.values()),
        ),
        setting=_setting(batch, options, lab),
        notes=(
            f"{batch.jobs} jobs of one submission, in place of the paper's {paper.TRANSFER_JOBS:,}, through "
            f"{batch.slots} slots in place of its {paper.TRANSFER_SLOTS}. Each has an input of its own "
            "(names of one file of random bytes), which is encrypted on its way, and its program ends at once.",
            _INSTEAD,
            "The median input was on its way for "
            + ", ".join(
                f"{_median([ran.moving for ran in kept.values]):.1f} s ({place.replace(chr(10), ' ')}, at most "
                f"{max(ran.most for ran in kept.values)} at once)"
                for place, (_, kept) in places.items()
            )
            + f"; the paper's for {paper.INPUT_MINUTES['no queue']:g} min, without the queue.",
            "HTCondor's queue has 100 transfers at a time by default, half of the paper's slots; so here half of the "
            "slots. By default sandboxes below 100 MiB do not wait there, transfers at a time become one more a minute "
            "(`FILE_TRANSFER_DISK_LOAD_THROTTLE`), and a user with a fifth of them gets no further slots "
            "(`MAX_CONCURRENT_UPLOADS_PER_USER`); here all wait, and the number alone counts.",
            "Without Lark means without hook, wrapper and worker service on both workers; Open vSwitch carries the "
            "workers' own traffic either way.",
        ),
        places=tuple(places),
        beside=Beside.of(each for _, kept in places.values() for each in kept.taken),
    )


def far_rates(found: Mapping[str, Runs], batch: Batch, options: Options, lab: str) -> Result:
    """Jobs an hour over a long way between the access point and the workers."""
    points = tuple(_hourly(place, found[""][kind], batch) for place, kind in enumerate(KINDS, 1))
    papers = (paper.TRANSFER_MINUTES["wan"],) * len(KINDS)
    return Result(
        name="lark-transfers-wan",
        title=f"Jobs with a sandbox each, {ROUND_TRIP_MS:g} ms away from their access point",
        source="HTCondor data movement, section IV",
        x_label="the pool",
        y_label="jobs an hour",
        series=(Series("here", points), _papers(papers, batch, options)),
        checks=(
            _share(f"with Lark at least {LEAST:.0%} of the jobs an hour without", found[""], batch),
            _once(found[""].values()),
        ),
        setting={**_setting(batch, options, lab), "ms of round trip": ROUND_TRIP_MS},
        notes=(
            "The same, with HTCondor's transfer queue off, and a program between the access point and the site that "
            f"holds every frame up for {ROUND_TRIP_MS / 2:g} ms. The paper's way had 100 Gb/s for one of its workers "
            "and 10 Gb/s for each of four; it found 60 Gb/s, and its median input was on its way for "
            f"{paper.INPUT_MINUTES['wan']:g} min.",
            _INSTEAD,
        ),
        places=KINDS,
        beside=Beside.of(each for kept in found[""].values() for each in kept.taken),
    )


def processor_time(found: Mapping[str, Runs], batch: Batch, options: Options, lab: str) -> Result:
    """The processor time of each of the pool's programs, for each job."""

    def cost(part: str, ran: Ran) -> float:
        return 1000 * ran.spent[part] / batch.jobs

    series = []
    for queue, runs in found.items():
        for kind in KINDS:
            points = (Point.judged(place, runs[kind], partial(cost, part)) for place, part in enumerate(PARTS, 1))
            # A program that is stopped has no time.
            series.append(
                Series(f"{kind}, {'queue' if queue else 'no queue'}", tuple(point for point in points if point.y))
            )
    return Result(
        name="lark-transfers-time",
        title="Processor time for each job with a sandbox",
        source="",
        x_label="programs",
        y_label="ms of processor time a job",
        series=tuple(series),
        setting=_setting(batch, options, lab),
        notes=(
            "Of the batches above, until the last job has left the queue: a program's own time and that of what it has "
            "started. Hook and wrapper are started by HTCondor on the worker, and are in its time. Without Lark the "
            "worker service is stopped, and the controller has no jobs.",
        ),
        places=tuple(PARTS),
        beside=Beside.of(each for runs in found.values() for kept in runs.values() for each in kept.taken),
    )


def _median(values: Sequence[float]) -> float:
    return Point.of(0, values).y


def _hourly(place: int, kept: Kept[Ran], batch: Batch) -> Point:
    return Point.judged(place, kept, lambda ran: 3600 * batch.jobs / ran.seconds)


def _share(aim: str, runs: Runs, batch: Batch) -> Check:
    without, with_ = (_hourly(place, runs[kind], batch) for place, kind in enumerate(KINDS, 1))
    return Check.of(
        aim,
        [(with_.y / without.y, with_.marked or without.marked)],
        lambda ratio: ratio >= LEAST,
        f"{with_.y:.0f} against {without.y:.0f}: {{}} of it",
    )


def _once(several: Iterable[Kept[Ran]]) -> Check:
    """Hold every job to one start, in all runs that count."""
    every = list(several)
    again = sum(ran.again for kept in every for ran in kept.values)
    marked = all(kept.marked for kept in every)
    return Check("every job is started once, and ends well", f"{again} were started again", not again, marked)


def _papers(minutes: Sequence[float], batch: Batch, options: Options) -> Series:
    """The paper's jobs an hour, as they would be of sandboxes of this size on a link of this rate."""
    scale = (link_of(options) * 1e6 / batch.size) / (paper.TRANSFER_LINK * 1e6 / paper.TRANSFER_BYTES)
    points = (Point(place, scale * 60 * paper.TRANSFER_JOBS / each) for place, each in enumerate(minutes, 1))
    return Series("the paper's minutes, by link and sandbox", tuple(points), paper=True)


def _setting(batch: Batch, options: Options, lab: str) -> dict[str, str | float | int | bool]:
    return {
        "jobs": batch.jobs,
        "MB of each sandbox": batch.size / 1e6,
        "slots": batch.slots,
        "Mb/s of the access point's link": link_of(options),
        "lab": lab,
    }

"""Figure 8c: many jobs are in the queue at once, and matchmaking decides which of them run beside each other.

The worker advertises as much bandwidth as its link carries, so HTCondor starts a job when what it asks for is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from experiments import page
from experiments.beside import Kept, Taken, repeat
from experiments.options import Options
from experiments.pool import FIRST_PORT, READY, SITE, Load, Pool, Stream, stream
from experiments.result import TIME, Beside, Check, Point, Result, Series, marked
from lab.run import LabError

WORKER: Final = "worker1"
USERS: Final = {"A": "alice", "B": "bob", "C": "carol"}
# How long a job transfers at its rate, and what a job's start and end take beside that at most, seconds.
SECONDS: Final = 8.0
ASIDE: Final = 8.0
LEAST, MOST = 0.98, 1.005
# A second of two jobs' streams beside each other may be the one's end and the other's begin.
OVERLAP: Final = 1.0


@dataclass(frozen=True, slots=True)
class Transfer:
    """One job's: its kind, and its stream; None where the job got nothing."""

    kind: str
    stream: Stream | None

    def ratio(self, asked: Mapping[str, float]) -> float:
        """Its rate after slow start as a part of what it asked for; 0 where it got nothing."""
        if self.stream is None or not self.stream.rates or self.stream.rates[-1][0] <= page.SETTLED:
            return 0.0
        return self.stream.mean() / asked[self.kind]


Transfers = tuple[Transfer, ...]


def run(pool: Pool, number: int, asked: Mapping[str, int], link: int) -> Kept[Transfers]:
    """``number`` jobs of each kind, all in the queue at once. Raises LabError where they do not leave it."""
    with pool.bandwidth(WORKER, link):
        return repeat(lambda: _once(pool, number, asked), 1)


def _once(pool: Pool, number: int, asked: Mapping[str, int]) -> Taken[Transfers]:
    loads = [
        (kind, Load(
            USERS[kind], SITE, FIRST_PORT + place * number + one,
            {"requirements": f'Machine == "{WORKER}.lab.test"', "+RequestBandwidth": f"{rate}"},
            download=True, seconds=SECONDS, size=round(rate * 1e6 / 8 * SECONDS),
        ))
        for place, (kind, rate) in enumerate(asked.items()) for one in range(number)
    ]  # fmt: skip
    with pool.watched(pool.now() + READY, number * (SECONDS + ASIDE)) as watched:
        printed = pool.queued([load for _, load in loads])
    return Taken(
        tuple(Transfer(kind, _stream(text)) for (kind, _), text in zip(loads, printed, strict=True)), watched()
    )


def _stream(text: str) -> Stream | None:
    try:
        return stream(text)
    except LabError:
        return None


def most_at_once(transfers: Sequence[Transfer], asked: Mapping[str, float]) -> float:
    """The most that jobs whose streams overlapped asked for together."""
    spans = [
        (each.stream.began, each.stream.began + each.stream.rates[-1][0] - OVERLAP, asked[each.kind])
        for each in transfers
        if each.stream is not None and each.stream.rates
    ]
    return max((sum(rate for begin, end, rate in spans if begin <= at < end) for at, _, _ in spans), default=0.0)


def that_waited(transfers: Sequence[Transfer]) -> int:
    """The number of jobs that began when another had ended."""
    there = [each.stream for each in transfers if each.stream is not None and each.stream.rates]
    first = min((each.began + each.rates[-1][0] for each in there), default=0.0)
    return sum(each.began + OVERLAP >= first for each in there)


def figure_8c(kept: Kept[Transfers], asked: Mapping[str, int], options: Options) -> Result:
    """Several jobs of each kind: they stay within their allocations, and each has its own."""
    transfers = kept.values[0]
    link = options.rates.host_link * options.part
    zero = min((each.stream.began for each in transfers if each.stream is not None), default=0.0)
    series = tuple(
        Series(f"{kind}, {rate} Mb/s", marked(_points(kind, transfers, zero), kept.marked))
        for kind, rate in asked.items()
    )
    most, waited = most_at_once(transfers, asked), that_waited(transfers)
    return Result(
        name="lark-figure-8c",
        title="Several jobs of each kind in the queue at once",
        source="Lark, Fig. 8c",
        x_label=TIME,
        y_label="rate, Mb/s of L2 bytes",
        series=tuple(each for each in series if each.points),
        checks=(
            Check.of(
                f"every job's rate between {LEAST} and {MOST} of what it requested",
                [(each.ratio(asked), kept.marked) for each in transfers],
                lambda ratio: LEAST <= ratio <= MOST,
            ),
            Check(
                "jobs that run at once ask for no more than the link carries",
                f"at most {most:g} of {link:g} Mb/s",
                most <= link,
            ),
            Check("jobs wait until enough is left", f"{waited} of {len(transfers)} waited", waited > 0),
        ),
        setting={"rates of the paper times": options.part, "jobs of each kind": len(transfers) // len(asked)},
        notes=(
            "All jobs are submitted at once to a worker that advertises what its link carries, and HTCondor's "
            f"matchmaking decides when each starts. Each fetches what takes {SECONDS:g} s at its rate, by iperf3.",
            "A job that gets nothing counts as 0 of what it requested.",
        ),
        beside=Beside.of(kept.taken),
    )


def _points(kind: str, transfers: Sequence[Transfer], zero: float) -> list[Point]:
    there = [each.stream for each in transfers if each.kind == kind and each.stream is not None]
    return [point for each in sorted(there, key=lambda one: one.began) for point in each.points(zero)]

"""Figure 8c: many jobs are in the queue at once, and matchmaking decides which of them run beside each other.

The worker advertises as much bandwidth as its link carries, so HTCondor starts a job when what it asks for is left. The
negotiator gives the worker's parts away one at a time, to the user with the least use so far, so one job of each runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from experiments import page
from experiments.beside import Kept, Taken, repeat
from experiments.options import Options
from experiments.pool import FIRST_PORT, SITE, Load, Pool, Stream, stream
from experiments.result import TIME, Beside, Check, Point, Result, Series, marked
from lab.run import LabError

WORKER: Final = "worker1"
USERS: Final = {"A": "alice", "B": "bob", "C": "carol"}
# How long a job transfers at its rate, seconds.
SECONDS: Final = 8.0
# Seconds in which a job begins to transfer when what it asks for is free: the end of the job before it, cycles of the
# negotiator (one for each job that is matched), and its own start.
BEGINS_WITHIN: Final = 15.0
LEAST, MOST = 0.98, 1.005
# A second of two jobs' streams beside each other may be the one's end and the other's begin.
OVERLAP: Final = 1.0


@dataclass(frozen=True, slots=True)
class Transfer:
    """One job's: its kind, and its stream; None where the job got nothing."""

    kind: str
    stream: Stream | None

    def ratio(self, asked: Mapping[str, float]) -> float:
        """Its rate after slow start as a part of what it asked for; 0 where it got nothing.

        The last interval is left out: the job has its bytes somewhere within it, and receives nothing after that.
        """
        whole = () if self.stream is None else self.stream.rates[:-1]
        if self.stream is None or not whole or whole[-1][0] <= page.SETTLED:
            return 0.0
        return self.stream.mean(last=whole[-1][0]) / asked[self.kind]


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
    with pool.accompanied() as counted:
        printed = pool.queued([load for _, load in loads])
        found = tuple(Transfer(kind, _stream(text)) for (kind, _), text in zip(loads, printed, strict=True))
        spans = _spans(found)
        if not spans:
            raise LabError("no job of the sequence has transferred anything")
        meanwhile, _ = counted(min(begin for _, begin, _ in spans), max(end for _, _, end in spans))
    return Taken(found, meanwhile)


def _spans(transfers: Sequence[Transfer]) -> list[tuple[str, float, float]]:
    """Kind, begin and end of every stream."""
    return [
        (each.kind, each.stream.began, each.stream.began + each.stream.rates[-1][0])
        for each in transfers
        if each.stream is not None and each.stream.rates
    ]


def _stream(text: str) -> Stream | None:
    try:
        return stream(text)
    except LabError:
        return None


def most_at_once(transfers: Sequence[Transfer], asked: Mapping[str, float]) -> float:
    """The most that jobs whose streams overlapped asked for together."""
    spans = _spans(transfers)
    return max((_asked_at(at, spans, asked, OVERLAP) for _, at, _ in spans), default=0.0)


def _asked_at(
    at: float, spans: Sequence[tuple[str, float, float]], asked: Mapping[str, float], overlap: float = 0.0
) -> float:
    """The sum that jobs ask for which transfer at a time."""
    return sum(asked[kind] for kind, begin, end in spans if begin <= at < end - overlap)


def waits(transfers: Sequence[Transfer], asked: Mapping[str, float], link: float) -> list[float]:
    """For each job that began when another had ended: the seconds for which it was free by then what the job asks for.

    Seconds of a job are those of its transfer.
    """
    spans = _spans(transfers)
    ends = sorted(end for _, _, end in spans)
    found = []
    for place, (kind, begin, _) in enumerate(spans):
        others = spans[:place] + spans[place + 1 :]
        before = [end for end in ends if end - OVERLAP <= begin]
        if not before:
            continue
        free = begin
        # From the last end before it backwards, as long as there was enough; starts of others only take.
        for at in sorted((moment for _, *both in others for moment in both if moment <= begin), reverse=True):
            if link - _asked_at(at, others, asked) < asked[kind]:
                break
            free = at
        found.append(max(0.0, begin - max(free, before[0])))
    return found


def figure_8c(kept: Kept[Transfers], asked: Mapping[str, int], options: Options) -> Result:
    """Several jobs of each kind: they stay within their allocations, and each has its own."""
    transfers = kept.values[0]
    link = options.rates.host_link * options.part
    zero = min((each.stream.began for each in transfers if each.stream is not None), default=0.0)
    series = tuple(
        Series(f"{kind}, {rate} Mb/s", marked(_points(kind, transfers, zero), kept.marked))
        for kind, rate in asked.items()
    )
    most, waited = most_at_once(transfers, asked), waits(transfers, asked, link)
    all_kinds = min(sum(asked.values()), link)
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
                "one job of each kind at once, so that the whole link is asked for, and never more",
                f"at most {most:g} of {link:g} Mb/s",
                round(all_kinds, 6) <= round(most, 6) <= round(link, 6),
                marked=kept.marked,
            ),
            Check(
                f"every job that waited began within {BEGINS_WITHIN:g} s of when what it asks for was free",
                f"{len(waited)} of {len(transfers)} waited, at most {max(waited, default=0):.1f} s",
                len(waited) == len(transfers) - len(asked) and max(waited, default=0) <= BEGINS_WITHIN,
                marked=kept.marked,
            ),
        ),
        setting={"rates of the paper times": options.part, "jobs of each kind": len(transfers) // len(asked)},
        notes=(
            "All jobs are submitted at once to a worker that advertises what its link carries, and HTCondor's "
            "matchmaking decides when each starts: the negotiator gives parts of the worker away one at a time, to "
            "users whose priorities are equal at the start. Each fetches by iperf3 what takes "
            f"{SECONDS:g} s at its rate.",
            "A job that gets nothing counts as 0 of what it requested.",
        ),
        beside=Beside.of(kept.taken),
    )


def _points(kind: str, transfers: Sequence[Transfer], zero: float) -> list[Point]:
    there = [each.stream for each in transfers if each.kind == kind and each.stream is not None]
    return [point for each in sorted(there, key=lambda one: one.began) for point in each.points(zero)]

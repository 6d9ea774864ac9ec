"""The SuperFacility paper's tables: throughput of jobs by their own addresses and by external ones.

Through one core, a real Open vSwitch with the flows that the controller calculates, at the full rate of this machine.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from experiments import paper
from experiments.beside import TRIES, Processors
from experiments.core_path import JOBS, POOL, CorePath
from experiments.core_traffic import ECHO, OPENED, OWN, Jobs, Transfer, Way
from experiments.options import Options
from experiments.result import Check, Point, Result, Series, Values
from lab.namespaces import Net, temporary_directory
from lab.openvswitch import OpenVSwitch

# The seconds of each way in a round; a row has a round for each repetition.
SECONDS: Final = 2.0
# How many jobs are called at once; and how many are mapped while one of them is called.
CALLED: Final = (1, 8, 200)
MAPPED: Final = 4_000
MTUS: Final = (1500, 9000)
LEAST_RATIO: Final = 0.97
# A round in which more of the processors was taken away is measured again.
MOST_STEAL: Final = 0.02
MOST_MORE_MS: Final = 0.05
# By name: the title of its figure, the paper's table, and the unit of its rates.
TOOLS: Final = {
    "iperf3": ("iperf3", "Table II", "Mb/s"),
    "copy": ("a bulk copy", "Table III", "MB/s"),
    "web": ("a web server", "Table IV", "MB/s"),
}
ECHOED: Final = "round trip"


@dataclass(frozen=True, slots=True)
class Row:
    """Rounds of one kind of transfer, by turns by the jobs' own addresses and by external ones.

    ``tool`` is one of :data:`TOOLS` or a round trip (microseconds); ``flows`` are those of the core. ``steal`` has the
    share of the processors that was taken away in each round, and ``again`` is how many rounds do not count for it.
    """

    tool: str
    mtu: int
    inwards: bool
    called: int
    mapped: int
    flows: int
    direct: tuple[float, ...]
    external: tuple[float, ...]
    steal: tuple[float, ...] = ()
    again: int = 0

    @property
    def ratios(self) -> tuple[float, ...]:
        """External of direct, in each round."""
        return tuple(one / other for one, other in zip(self.external, self.direct, strict=True))

    @property
    def place(self) -> str:
        """The words on an axis."""
        way = "to jobs" if self.inwards else "from jobs"
        mapped = "" if self.called == self.mapped else f"\n({self.mapped:,})"
        return f"{self.mtu}\n{way}\n{self.called}{mapped}"


def run(options: Options) -> tuple[Result, ...]:
    """Tables II to IV, and all ratios."""
    load = os.getloadavg()[0]
    rows = measure(1, 0.5, (1, 8), 500) if options.quick else measure(options.repetitions, SECONDS, CALLED, MAPPED)
    return results(rows, load)


def measure(
    rounds: int, seconds: float, called: Sequence[int], mapped: int, mtus: Sequence[int] = MTUS
) -> tuple[Row, ...]:
    """Measure every row; one job is called with ``mapped`` jobs mapped, too. Raises LabError."""
    rows: list[Row] = []
    for mtu in mtus:
        with temporary_directory() as name, OpenVSwitch(Path(name)) as ovs, Net() as net:
            path = CorePath(ovs, net, Path(name), mtu)
            jobs = Jobs(path, Path(name) / "transfers")
            with path.serving(ECHO, ECHO + OWN), jobs.serving(_ways(max(called))[0].addresses):
                for count, total in (*((each, each) for each in called), (1, mapped)):
                    flows = path.map(total, OPENED)
                    for row in _rows(jobs, path, count, (mtu, total, flows), rounds, seconds):
                        print(
                            row.tool, row.place.replace("\n", " "), f"{statistics.median(row.ratios):.3f}", flush=True
                        )
                        rows.append(row)
    return tuple(rows)


def _ways(count: int) -> tuple[Way, Way]:
    numbers = range(1, count + 1)
    return (
        Way("direct", tuple(str(JOBS + number) for number in numbers), OWN),
        Way("external", tuple(str(POOL + number) for number in numbers), 0),
    )


def _rows(
    jobs: Jobs, path: CorePath, count: int, about: tuple[int, int, int], rounds: int, seconds: float
) -> list[Row]:
    ways, (mtu, mapped, flows), found = _ways(count), about, []
    transfers: dict[str, Transfer] = {"iperf3": jobs.iperf3, "copy": jobs.copy, "web": jobs.web}
    for tool, transfer in transfers.items():
        for inwards in (True, False):
            # Neighbours are found, files are made, and the switch's caches are filled.
            for way in ways:
                transfer(way, inwards, seconds)
            taken = by_turns(partial(_transferred, transfer, inwards, seconds), ways, rounds)
            found.append(Row(tool, mtu, inwards, count, mapped, flows, *taken))
    if count == 1:
        taken = by_turns(lambda way: path.measured("rtt", max(0.5, seconds / 2), way.ends(ECHO)), ways, rounds)
        found.append(Row(ECHOED, mtu, True, count, mapped, flows, *taken))
    return found


def _transferred(transfer: Transfer, inwards: bool, seconds: float, way: Way) -> float:
    return transfer(way, inwards, seconds)


Rounds = tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...], int]


def by_turns(
    measure: Callable[[Way], float],
    ways: tuple[Way, Way],
    rounds: int,
    processors: Callable[[], Processors] = lambda: Processors.of(Path("/proc/stat").read_text()),
) -> Rounds:
    """The values of both ways and the share of the processors that was taken away, by round; and how many rounds do not
    count for that.

    Where all have too much of it, all count.
    """
    taken: list[tuple[float, float, float]] = []
    sound = 0
    while sound < rounds and len(taken) < rounds * TRIES:
        before, found = processors(), {}
        for way in ways if len(taken) % 2 else reversed(ways):
            found[way.name] = measure(way)
        _, steal = before.shares(processors())
        sound += steal <= MOST_STEAL
        taken.append((found[ways[0].name], found[ways[1].name], steal))
    kept = [each for each in taken if each[2] <= MOST_STEAL] or taken
    direct, external, steals = zip(*kept, strict=True)
    return direct, external, steals, len(taken) - len(kept)


def results(rows: Sequence[Row], load: float) -> tuple[Result, ...]:
    """The figures of these rows; ``load`` is the machine's before the run."""
    steal = max((share for row in rows for share in row.steal), default=0.0)
    setting: Values = {
        "rounds": len(rows[0].direct),
        "processors": len(os.sched_getaffinity(0)),
        "load average before": load,
        "most flows of the core": max(row.flows for row in rows),
        "processors taken away, at most, in %": round(100 * steal, 1),
        "rounds measured again for that": sum(row.again for row in rows),
    }
    return (*(_table(tool, rows, setting) for tool in TOOLS), _ratios(rows, setting))


def _table(tool: str, rows: Sequence[Row], setting: Values) -> Result:
    title, table, unit = TOOLS[tool]
    chosen = [row for row in rows if row.tool == tool]
    direct, theirs = paper.DIRECT[table], paper.MAPPED[table]
    ours = statistics.median(statistics.median(row.direct) for row in chosen if row.called == 1)
    return Result(
        name=f"superfacility-{table.lower().replace(' ', '-')}-{tool}",
        title=f"External addresses: {title}",
        source=f"SuperFacility, {table}",
        x_label="MTU, direction, jobs called at once (mapped)",
        y_label=unit,
        series=tuple(
            Series(name, tuple(Point.of(x, getattr(row, what)) for x, row in enumerate(chosen, 1)))
            for name, what in (("by the jobs' own addresses", "direct"), ("by external addresses", "external"))
        ),
        setting=setting,
        notes=(
            f"The paper has {direct[0]:g} {direct[1]} directly and {theirs[0]:g} through its routers, "
            f"{theirs[0] / direct[0]:.2f} of it, and {paper.RSIP[table]:g} by RSIP, its way before."
            f"{paper.BESIDES[table]} Not scaled: one job called has {ours:,.0f} {unit} directly here, the median of "
            "the rows with one (both MTUs, and every way), "
            f"{ours * UNITS[unit] / (direct[0] * UNITS[direct[1]]):.3f} of the paper's.",
            "All jobs together; a way's time is from the start of the first program to the end of the last.",
        ),
        places=tuple(row.place for row in chosen),
    )


# Of a Mb/s.
UNITS: Final = {"Mb/s": 1.0, "MB/s": 8.0, "Gb/s": 1_000.0}


def _ratios(rows: Sequence[Row], setting: Values) -> Result:
    places = list(dict.fromkeys(row.place for row in rows))
    chosen = [row for row in rows if row.tool != ECHOED]
    series = tuple(
        Series(
            TOOLS[tool][0],
            tuple(Point.of(places.index(row.place) + 1, row.ratios) for row in chosen if row.tool == tool),
        )
        for tool in TOOLS
    )
    checks = [
        _kept(called, mapped, [row for row in chosen if (row.called, row.mapped) == (called, mapped)])
        for called, mapped in dict.fromkeys((row.called, row.mapped) for row in chosen)
    ]
    more = [(statistics.median(_more_ms(row)), False) for row in rows if row.tool == ECHOED]
    checks.append(
        Check.of(
            f"a round trip takes at most {MOST_MORE_MS} ms more",
            more,
            lambda ms: ms <= MOST_MORE_MS,
            "{} to {} ms more",
        )
    )
    return Result(
        name="superfacility-throughput",
        title="External addresses: throughput of that by the jobs' own addresses",
        source="SuperFacility, Tables II to IV",
        x_label="MTU, direction, jobs called at once (mapped)",
        y_label="external of direct, in the same round",
        series=series,
        checks=tuple(checks),
        setting=setting,
        notes=(
            "The core is Open vSwitch's userspace datapath, which shares this machine's processors with both ends of "
            "every connection: only the ratios show what the translation costs.",
            "Both ways pass the same core and the same flows, by turns in each round, so the one is the other's "
            f"reference. A round in which more than {MOST_STEAL:.0%} of the processors was taken away is measured "
            "again.",
        ),
        places=tuple(places),
    )


def _kept(called: int, mapped: int, rows: Sequence[Row]) -> Check:
    """Hold the median of all rounds of all transfers to the aim; a row alone has too few rounds to show as little."""
    medians = [statistics.median(row.ratios) for row in rows]
    middle = statistics.median(ratio for row in rows for ratio in row.ratios)
    return Check(
        f"{called} called, {mapped:,} mapped: at least {LEAST_RATIO} of direct, the median of all rounds",
        f"{middle:.3f} ({len(rows)} kinds of transfers have {min(medians):.3f} to {max(medians):.3f})",
        middle >= LEAST_RATIO,
    )


def _more_ms(row: Row) -> list[float]:
    return [(one - other) / 1e3 for one, other in zip(row.external, row.direct, strict=True)]

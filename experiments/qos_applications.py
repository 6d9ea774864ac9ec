"""The QoS framework's figures with applications: MPI programs of others, an integer sort, and one that adapts.

On the four nodes of :mod:`experiments.cluster`, with one rank on each, as :mod:`experiments.qos_framework` has its
exchange. Rates are the paper's MB/s a flow, times the scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from experiments import paper
from experiments.applications import PACKAGES
from experiments.beside import Kept
from experiments.cluster import Played
from experiments.nodes import Request, Run
from experiments.options import Options
from experiments.qos_framework import MEGABITS, ROUNDS, SIZE, WITHIN, Times, beside_all, measure, scale
from experiments.result import TIME, Check, Point, Result, Series

NODES: Final = 4
# All runs take a quarter of an hour where every measurement is sound.
SECONDS: Final = 3600
# Programs, and the parts of each that have a time of their own.
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "integer sort": ("",),
    "hpcc": ("PTRANS", "RandomAccess", "FFT"),
    "LAMMPS": ("",),
    "POV-Ray": ("",),
}
# Background flows beside programs; these reserve a floor as well.
NOISES: Final[Mapping[str, tuple[int, ...]]] = {"integer sort": (3,), "LAMMPS": (3,), "POV-Ray": (2, 3)}
# Programs at the same time with what each reserves for a flow, MB/s; 5 and 8 are the paper's.
TOGETHER: Final = (
    (("integer sort", 5.0), ("POV-Ray", 8.0)),
    (("integer sort", 5.0), ("LAMMPS", 8.0), ("POV-Ray", 20.0)),
)
# What is reserved as a floor, MB/s a flow.
FLOOR: Final = 5.0
# How the names of runs go on that show the floor's worth.
FLOOR_RUNS: Final = ("floor", "free", "noise")
# Frames of the program that adapts: a second, for how many seconds; MB/s that each rank sends at most and reserves.
FRAMES: Final = 10.0
FRAMES_SECONDS: Final = 18.0
FRAMES_MOST: Final = 50.0
FRAMES_FLOOR: Final = 2.0
# The application that comes in its way: from when to when, and what it reserves for a flow and sends, MB/s.
LOAD_FROM: Final = 6.0
LOAD_SECONDS: Final = 8.0
LOAD: Final = 45.0
# Seconds after a change that do not count: the news, and frames that are under way.
SETTLED: Final = 2.0
# Of its frame rate, what counts as kept.
KEPT: Final = 0.9


def run(options: Options) -> tuple[Result, ...]:
    """Figures 8, 12 and 13 with applications, what a floor costs, and an application that adapts."""
    limit = paper.flow_limit(NODES, options.rates.link_mbytes)
    unit = MEGABITS * scale(NODES, options)
    tried = rates(options)
    request = Request(
        nodes=NODES,
        link=options.rates.link_mbytes * unit,
        half_duplex=True,
        size=SIZE,
        rounds=ROUNDS,
        repetitions=options.fewer,
        runs=tuple({one.name: one for one in runs(options, tried, limit, unit)}.values()),
    )
    times = measure(request, PACKAGES, SECONDS)
    return tuple(results(times, tried, options))


def rates(options: Options) -> tuple[float, ...]:
    """The allocations to try, MB/s a flow."""
    limit = paper.flow_limit(NODES, options.rates.link_mbytes)
    return tuple(round(limit * part, 2) for part in ((0.2, 0.5, 1.0) if options.quick else (0.2, 0.4, 0.7, 1.0)))


def runs(options: Options, tried: Sequence[float], limit: float, unit: float) -> Iterator[Run]:
    """All runs; those of one name are the same."""
    for name in programs(options):
        for rate in tried:
            yield _alone(name, rate, unit)
    for name in accompanied(options):
        yield Run(f"{name} free", (None,), programs=(name,))
        yield Run(f"{name} floor", (_of_link(FLOOR, limit) * unit,), programs=(name,), floor=True)
        yield _alone(name, reserved(limit), unit)
        for noise in noises(name, options):
            yield Run(f"{name} noise {noise}", (None,), noise, (name,))
            yield Run(f"{name} reserved noise {noise}", (reserved(limit) * unit,), noise, (name,))
            yield Run(f"{name} floor noise {noise}", (_of_link(FLOOR, limit) * unit,), noise, (name,), floor=True)
    for together in at_once(options):
        for name, rate in together:
            yield _alone(name, _of_link(rate, limit), unit)
        named, given = zip(*together, strict=True)
        yield Run(_called(together), tuple(_of_link(rate, limit) * unit for rate in given), programs=named)
    yield from frames(options, limit, unit)


def programs(options: Options) -> tuple[str, ...]:
    """The programs to run."""
    return tuple(PARTS)[: 1 if options.quick else None]


def accompanied(options: Options) -> tuple[str, ...]:
    """The programs that run beside background flows, too."""
    return tuple(name for name in programs(options) if name in NOISES)


def noises(name: str, options: Options) -> tuple[int, ...]:
    """The numbers of background flows beside a program."""
    return NOISES[name][-1:] if options.quick else NOISES[name]


def at_once(options: Options) -> tuple[tuple[tuple[str, float], ...], ...]:
    """The programs to run at the same time."""
    return () if options.quick else TOGETHER


def reserved(limit: float) -> float:
    """The reservation beside background flows, MB/s a flow: four fifths of the most, as for the exchange."""
    return round(limit * 0.8, 2)


def frames(options: Options, limit: float, unit: float) -> Iterator[Run]:
    """The program that adapts, and the same that does not; another application begins beside each."""
    megabyte = 1e6 * scale(NODES, options)
    shown = (
        *("--rate", f"{FRAMES:g}", "--seconds", f"{FRAMES_SECONDS:g}"),
        *("--bytes", f"{_of_link(FRAMES_MOST, limit) * megabyte / FRAMES:.0f}"),
        *("--floor", f"{_of_link(FRAMES_FLOOR, limit) * megabyte:.0f}"),
    )
    load = _of_link(LOAD, limit)
    # More than it has reserved, so that it takes all of that.
    sent = ("--rate", f"{FRAMES:g}", "--seconds", f"{LOAD_SECONDS:g}", "--bytes", f"{2 * load * megabyte / FRAMES:.0f}")
    for name in ("frames", "frames, adapting"):
        both = (name, "frames")
        reserved_later = (None, load * unit)
        yield Run(name, reserved_later, programs=both, arguments=(shown, sent), delays=(0.0, LOAD_FROM), to_first=True)


def _alone(name: str, rate: float, unit: float) -> Run:
    return Run(f"{name} {rate:g}", (rate * unit,), programs=(name,))


def _of_link(rate: float, limit: float) -> float:
    """A rate as large a part of what can be reserved as on the paper's links."""
    return round(rate * limit / paper.flow_limit(NODES), 3)


def _called(together: Sequence[tuple[str, float]]) -> str:
    return "at once " + ", ".join(f"{name} {rate:g}" for name, rate in together)


def results(times: Times, tried: Sequence[float], options: Options) -> Iterator[Result]:
    """The results of what was measured."""
    limit = paper.flow_limit(NODES, options.rates.link_mbytes)
    yield against_allocation(times, tried, options)
    yield with_background(times, limit, options)
    yield floors(times, options)
    if at_once(options):
        yield together(times, limit, options)
    yield adapting(times, options)


def parts(options: Options) -> Iterator[tuple[str, str]]:
    """Each program with each of its parts."""
    for name in programs(options):
        for part in PARTS[name]:
            yield name, part


def _shown(name: str, part: str) -> str:
    return f"{name}'s {part}" if part else name


def _point(x: float, kept: Kept[Played], part: str, application: int = 0) -> Point:
    return Point.judged(x, kept, lambda played: played.parts[application][part])


def knee(points: Sequence[Point]) -> tuple[float, float]:
    """The seconds of computing and the rate at which communicating takes as long: by least squares of ``computing +
    volume / rate``. The rate is 0 where there is no communicating, and without end where there is no computing."""
    xs, ys = [1 / point.x for point in points], [point.y for point in points]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    volume = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    computing = mean_y - volume * mean_x
    if volume <= 0:
        return mean_y, 0.0
    return max(computing, 0.0), volume / computing if computing > 0 else float("inf")


def _knee(computing: float, rate: float) -> str:
    """The knee in words."""
    if not computing:
        return "none, it communicates alone"
    return f"{rate:.3g} MB/s ({computing:.2g} s of computing)" if rate else "none, it computes alone"


def against_allocation(times: Times, tried: Sequence[float], options: Options) -> Result:
    """Figures 8 and 9: the more is reserved the sooner a program ends, up to where it computes most of the time."""
    series, knees, falls, told = [], [], [], []
    for name, part in parts(options):
        points = tuple(_point(rate, times[f"{name} {rate:g}"], part) for rate in tried)
        mark = any(point.marked for point in points)
        series.append(Series(_shown(name, part), points))
        falls.append((points[-1].y / points[0].y, mark))
        computing, rate = knee(points)
        knees.append((rate / tried[-1], mark))
        told.append(f"{_shown(name, part)} {_knee(computing, rate)}")
    return Result(
        name="qos-applications-8",
        title=f"Applications on {NODES} nodes: time against allocation",
        source="QoS framework, Fig. 8",
        x_label="reserved for each flow, MB/s (of the paper's links)",
        y_label="time, s",
        series=tuple(series),
        checks=(
            Check.of(
                "every program is faster with the most than with the least", falls, lambda found: found < 1 - WITHIN
            ),
            Check.of(
                "every program has a knee, from which on it computes longer than it communicates",
                knees,
                lambda found: tried[0] / tried[-1] <= found <= 1,
                "at {} to {} of the most that can be reserved",
            ),
        ),
        setting=_setting(options),
        notes=(
            "Integer Sort is ours, in the shape of NAS IS; PTRANS, RandomAccess and FFT are HPC Challenge's, LAMMPS "
            "moves 216,000 atoms of silicon, POV-Ray renders a fourth of each picture on each node: all of Debian, "
            "with sizes for these links. HPC Challenge's b_eff is not run: it sends 4 GB, hours at these rates.",
            "The knee is the rate at which communicating takes as long as computing, by the curve of computing + bytes "
            f"/ rate that is nearest to the points: {'; '.join(told)}.",
            "The ranks share the lab's processor, so they compute one after the other. The paper's text has one such "
            f"rate, of a program that is not run here: {paper.ISOSURFACE_MBYTES:g} MB/s are sufficient for extracting "
            "isosurfaces on four nodes.",
        ),
        beside=beside_all(times, *(f"{name} {rate:g}" for name in programs(options) for rate in tried)),
    )


def with_background(times: Times, limit: float, options: Options) -> Result:
    """Figure 12: flows that send all the time beside a program."""
    places, alone, kept, free, off, worse = [], [], [], [], [], []
    for name in accompanied(options):
        (part,) = PARTS[name]
        for noise in noises(name, options):
            places.append(f"{name},\n{noise} flows")
            x = len(places)
            alone.append(_point(x, times[f"{name} {reserved(limit):g}"], part))
            kept.append(_point(x, times[f"{name} reserved noise {noise}"], part))
            free.append(_point(x, times[f"{name} noise {noise}"], part))
            unreserved = _point(x, times[f"{name} free"], part)
            off.append((kept[-1].y / alone[-1].y, kept[-1].marked or alone[-1].marked))
            worse.append((free[-1].y / unreserved.y, free[-1].marked or unreserved.marked))
    return Result(
        name="qos-applications-12",
        title=f"Applications on {NODES} nodes: time beside background flows",
        source="QoS framework, Fig. 12",
        x_label="application and background flows",
        y_label="time, s",
        series=(
            Series(f"{reserved(limit):g} MB/s reserved, no background", tuple(alone)),
            Series(f"{reserved(limit):g} MB/s reserved", tuple(kept)),
            Series("nothing reserved", tuple(free)),
        ),
        checks=(
            Check.of(
                "reserved: within 5 % of the time without background flows", off, lambda found: abs(found - 1) <= WITHIN
            ),
            Check.of(
                "not reserved: background flows make it slower",
                worse,
                lambda found: found > 1 + WITHIN,
                "{} to {} times",
            ),
        ),
        setting=_setting(options),
        notes=(
            "The background flows are TCP streams from the first node, one to each of the next nodes. The paper's "
            "nodes have four processors each, and it supposes that the flows have others than the application; here "
            "they share one.",
            f"The paper does not say what was reserved; {reserved(limit):g} MB/s, four fifths of the most, is ours.",
        ),
        places=tuple(places),
        beside=beside_all(
            times, *(f"{name} {kind}" for name in accompanied(options) for kind in ("noise", "reserved"))
        ),
    )


def floors(times: Times, options: Options) -> Result:
    """Programs that reserve a floor are not worse off than those that reserve nothing, alone and beside others."""
    places, floor, free, off = [], [], [], []
    for name in accompanied(options):
        (part,) = PARTS[name]
        for noise in (0, *noises(name, options)[-1:]):
            places.append(f"{name},\n{noise} flows")
            x, kind = len(places), f" noise {noise}" if noise else ""
            floor.append(_point(x, times[f"{name} floor{kind}"], part))
            free.append(_point(x, times[f"{name}{kind or ' free'}"], part))
            off.append((floor[-1].y / free[-1].y, floor[-1].marked or free[-1].marked))
    return Result(
        name="qos-applications-floor",
        title="Applications that reserve a floor, and that reserve nothing",
        source="",
        x_label="application and background flows",
        y_label="time, s",
        series=(
            Series(f"{FLOOR:g} MB/s reserved as a floor", tuple(floor)),
            Series("nothing reserved", tuple(free)),
        ),
        checks=(
            Check.of(
                "with a floor at most 5 % slower than with nothing reserved", off, lambda found: found <= 1 + WITHIN,
                "{} to {} of the time",
            ),
        ),
        setting=_setting(options),
        notes=(
            "A reservation that is not steady, which is the default: its rate for certain, and what is free on top. "
            "In all other figures reservations are steady, as the paper's are.",
        ),
        places=tuple(places),
        beside=beside_all(times, *(f"{name} {kind}" for name in accompanied(options) for kind in FLOOR_RUNS)),
    )  # fmt: skip


def together(times: Times, limit: float, options: Options) -> Result:
    """Figure 13: programs at the same time, each with its own allocation."""
    places, alone, joint, off = [], [], [], []
    for each in at_once(options):
        for number, (name, rate) in enumerate(each):
            (part,) = PARTS[name]
            places.append(f"{name} {rate:g}\nof {len(each)}")
            x = len(places)
            alone.append(_point(x, times[f"{name} {_of_link(rate, limit):g}"], part))
            joint.append(_point(x, times[_called(each)], part, number))
            off.append((joint[-1].y / alone[-1].y, joint[-1].marked or alone[-1].marked))
    singles = (f"{name} {_of_link(rate, limit):g}" for each in at_once(options) for name, rate in each)
    return Result(
        name="qos-applications-13",
        title=f"Applications at once on {NODES} nodes",
        source="QoS framework, Fig. 13",
        x_label="application and MB/s reserved for each flow",
        y_label="time, s",
        series=(Series("alone", tuple(alone)), Series("at once", tuple(joint))),
        checks=(Check.of("within 5 % of the time alone", off, lambda found: abs(found - 1) <= WITHIN),),
        setting=_setting(options),
        notes=(
            "Of the rates 5 and 8 MB/s are the paper's, of a pair of Integer Sorts; programs and 20 MB/s are ours. The "
            "paper's nodes have four processors each; here all programs share one, and compute by turns.",
        ),
        places=tuple(places),
        beside=beside_all(times, *singles, "at once"),
    )


def adapting(times: Times, options: Options) -> Result:
    """A program that sends fewer bytes when best effort falls, beside the same that does not."""
    series, least, told = [], {}, []
    for name, called in (("frames, adapting", "adapts"), ("frames", "does not adapt")):
        kept = times[name]
        played = kept.values[0]
        series.append(Series(called, tuple(_points(played, kept.marked))))
        found = [min(_rates(each, *_beside(each))) for each in kept.values]
        least[name] = [(rate / FRAMES, kept.marked) for rate in found]
        begin, end = _beside(played)
        sizes = [_size(played, *span) for span in ((0.0, begin - SETTLED), (begin, end))]
        told.append(f"where it {called}, from {sizes[0] / 1000:.0f} to {sizes[1] / 1000:.0f} kB")
    return Result(
        name="qos-applications-adaptive",
        title="Frames of an application that adapts, and of one that does not",
        source="QoS framework, section V.B",
        x_label=TIME,
        y_label="frames a second",
        series=(
            *series,
            Series("wanted", (Point(0, FRAMES), Point(FRAMES_SECONDS, FRAMES)), aim=True),
        ),
        checks=(
            Check.of(
                f"adapting: at least {KEPT:.0%} of its frame rate in every second beside the other",
                least["frames, adapting"], lambda found: found >= KEPT,
            ),
            Check.of("not adapting: less than that", least["frames"], lambda found: found < KEPT),
        ),
        setting=_setting(options),
        notes=(
            f"Three ranks send their parts of {FRAMES:g} frames a second to the fourth. After {LOAD_FROM:g} s, for "
            f"{LOAD_SECONDS:g} s, another application sends what it has reserved, {LOAD:g} MB/s a flow. The one that "
            "adapts reserves a floor with lark_mpi, waits for changes of what is free, and makes its frames as large "
            f"as pass in time. A frame went {'; '.join(told)}.",
            "The picture shows one measurement of each; the aims are judged by all.",
        ),
        beside=beside_all(times, "frames"),
    )  # fmt: skip


def _seconds(played: Played) -> list[tuple[float, int]]:
    """The frames as seconds since the first one, each with its bytes."""
    shown = played.shown[0]
    return [(at - shown[0][0], size) for at, size in shown]


def _beside(played: Played) -> tuple[float, float]:
    """From when to when the other application showed frames, without what does not count at the begin."""
    first, other = played.shown[0][0][0], played.shown[1]
    return other[0][0] - first + SETTLED, other[-1][0] - first


def _rates(played: Played, begin: float, end: float) -> list[float]:
    """Frames in each whole second between two times."""
    at = [moment for moment, _ in _seconds(played)]
    return [sum(second <= each < second + 1 for each in at) for second in _whole(begin, end)]


def _whole(begin: float, end: float) -> Iterator[float]:
    second = begin
    while second + 1 <= end:
        yield second
        second += 1


def _points(played: Played, mark: bool) -> Iterator[Point]:
    # Not beyond the last frame, with which the program ends.
    end = _seconds(played)[-1][0]
    for second, rate in zip(_whole(0, end), _rates(played, 0, end), strict=True):
        yield Point(second + 0.5, rate, marked=mark)


def _size(played: Played, begin: float, end: float) -> float:
    """The mean bytes of a frame between two times."""
    sizes = [size for at, size in _seconds(played) if begin <= at < end]
    return sum(sizes) / max(1, len(sizes))


def _setting(options: Options) -> dict[str, str | float | int | bool]:
    return {
        "nodes": NODES,
        "rates of the paper times": scale(NODES, options),
        "repetitions": options.fewer,
    }

"""An application that adapts: frames for a display, smaller ones when best effort falls, beside the same without that.

The program is ``programs/frames.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from experiments import paper
from experiments.applications import PACKAGES
from experiments.cluster import Played
from experiments.measured import Measured, measure
from experiments.nodes import Run
from experiments.options import Options
from experiments.qos_framework import MEGABITS, requested, scale
from experiments.result import TIME, Check, Point, Result, Series
from experiments.sizes import NODES, of_link

# No run is repeated after the first number of seconds, and all have ended at the second.
REPEATED: Final = 600
SECONDS: Final = 1800
# Frames of the program that adapts: a second, for how many seconds; MB/s that each rank sends at most and reserves.
FRAMES: Final = 10.0
FRAMES_SECONDS: Final = 18.0
FRAMES_MOST: Final = 50.0
FRAMES_FLOOR: Final = 2.0
# The application that comes in its way: from when to when, on which nodes, the receiver first, and what it reserves and
# sends, MB/s. The sender's own queue has what is left of its link for frames; no queue would keep down the best effort
# that several senders have towards one node.
LOAD_FROM: Final = 6.0
LOAD_SECONDS: Final = 8.0
LOAD_NODES: Final = (2, 1)
LOAD: Final = 180.0
# The runs: without adapting, and with it.
NAMES: Final = ("frames", "frames, adapting")
# Seconds after a change that do not count: the news, and frames that are under way.
SETTLED: Final = 2.0
# Of its frame rate, what counts as kept.
KEPT: Final = 0.9


def run(options: Options) -> tuple[Result, ...]:
    """The figure of the application that adapts."""
    return (adapting(measure(requested(NODES, runs(options), REPEATED, options), PACKAGES, SECONDS), options),)


def runs(options: Options) -> Iterator[Run]:
    """The program that adapts, and the same that does not; another application begins beside each."""
    limit, unit = paper.flow_limit(NODES, options.rates.link_mbytes), MEGABITS * scale(NODES, options)
    megabyte = 1e6 * scale(NODES, options)
    shown = (
        *("--rate", f"{FRAMES:g}", "--seconds", f"{FRAMES_SECONDS:g}"),
        *("--bytes", f"{of_link(FRAMES_MOST, limit) * megabyte / FRAMES:.0f}"),
        *("--floor", f"{of_link(FRAMES_FLOOR, limit) * megabyte:.0f}"),
    )
    load = of_link(LOAD, limit)
    # As fast as they pass, so that it takes all that it has reserved. A second's worth at once: between two messages is
    # a round trip of MPI's, in which nothing is sent.
    sent = ("--rate", f"{FRAMES:g}", "--seconds", f"{LOAD_SECONDS:g}", "--bytes", f"{load * megabyte:.0f}")
    for name in NAMES:
        both = (name, "frames")
        reserved_later = (None, load * unit)
        delays = (0.0, LOAD_FROM)
        yield Run(name, reserved_later, programs=both, arguments=(shown, sent), delays=delays, late=LOAD_NODES)


def adapting(times: Measured, options: Options) -> Result:
    """A program that sends fewer bytes when best effort falls, beside the same that does not."""
    limit = paper.flow_limit(NODES, options.rates.link_mbytes)
    load = of_link(LOAD, limit)
    series, least, told = [], {}, []
    for name, called in (("frames, adapting", "adapts"), ("frames", "does not adapt")):
        kept = times[name]
        played = kept.values[0]
        series.append(Series(called, tuple(_points(played, kept.marked))))
        found = [min(_rates(each, *_other(each))) for each in kept.values]
        least[name] = [(rate / FRAMES, kept.marked) for rate in found]
        begin, end = _other(played)
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
        setting=setting(options, times.repetitions(*NAMES)),
        notes=(
            f"Three ranks send their parts of {FRAMES:g} frames a second to the fourth. After {LOAD_FROM:g} s, for "
            f"{LOAD_SECONDS:g} s, another application sends what it has reserved, {load:g} MB/s, from one of the three "
            f"to another one: their links have {options.rates.link_mbytes - load:g} MB/s left then for parts of "
            f"{of_link(FRAMES_MOST, limit):g} MB/s. The one that "
            "adapts reserves a floor with lark_mpi, waits for changes of what is free, and makes its frames as large "
            f"as pass in time. A frame went {'; '.join(told)}.",
            "The picture shows one measurement of each; the aims are judged by all.",
        ),
        beside=times.beside(*NAMES),
    )  # fmt: skip


def _seconds(played: Played) -> list[tuple[float, int]]:
    """The frames as seconds since the first one, each with its bytes."""
    shown = played.shown[0]
    return [(at - shown[0][0], size) for at, size in shown]


def _other(played: Played) -> tuple[float, float]:
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


def setting(options: Options, repetitions: int | str) -> dict[str, str | float | int | bool]:
    """The setting of the results of applications, with how often each run was measured."""
    return {
        "nodes": NODES,
        "rates of the paper times": scale(NODES, options),
        "repetitions": repetitions,
    }

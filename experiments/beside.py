"""Judges measurements by a reference stream beside them, and by what the processors did meanwhile.

The reference is a TCP stream of a known rate that passes the same cables at the same time, and none of Lark's queues.
Where it does not get its rate, the machine is late, and what was measured beside it shows nothing of Lark. Such a
measurement is repeated; where that does not help, its value is marked. It is never averaged with sound ones.

Pure; standard library only, since it is used inside the lab, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Value = TypeVar("Value")

# How far the reference may be from its rate.
TOLERANCE: Final = 0.01
# The share of the machine's processors above which a program is taken to have waited for one.
CROWDED: Final = 0.95
# Calibration tries these factors of the experiments' rates. With each, the jobs of Figure 8 ask for whole Mb/s.
SCALES: Final = (2.0, 1.0, 0.8, 0.6, 0.4, 0.2)
# Reference streams that decide about a factor, and how many measurements are made at most for each that is to count.
TRIALS: Final = 3
TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Processors:
    """Times of a kernel's processors since its start, in its ticks (``/proc/stat``, see proc_stat(5))."""

    busy: int
    stolen: int
    total: int

    @classmethod
    def of(cls, stat: str) -> Processors:
        """Read the text of ``/proc/stat``. Raises ValueError for anything else."""
        words = stat.split("\n", 1)[0].split()
        if words[:1] != ["cpu"] or len(words) < 9:
            raise ValueError(f"not the first line of /proc/stat: {stat[:80]!r}")
        # Guests' time is part of user and nice already.
        times = [int(word) for word in words[1:9]]
        idle, stolen = times[3] + times[4], times[7]
        return cls(sum(times) - idle - stolen, stolen, sum(times))

    def shares(self, later: Processors) -> tuple[float, float]:
        """The shares of the time until ``later`` that the processors worked, and that they were taken away."""
        total = max(1, later.total - self.total)
        return (later.busy - self.busy) / total, (later.stolen - self.stolen) / total


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """The machine and the reference stream while something was measured.

    ``reference`` is what the reference stream delivered, as a part of its rate. ``steal`` is the share of the
    machine's processors that others took away, ``outside`` the share that worked, ``inside`` the share of the lab's own
    processor that worked (the same as ``outside`` where the lab has no kernel of its own). ``programs`` is true where
    the time of programs is measured, which wait for a processor that is never idle while a stream still has its rate.
    """

    reference: float
    steal: float = 0.0
    outside: float = 0.0
    inside: float = 0.0
    programs: bool = False

    @property
    def sound(self) -> bool:
        """True if the reference had its rate and, beside programs, the processors had time left."""
        return abs(self.reference - 1) <= TOLERANCE and not (self.programs and self.outside > CROWDED)


def worse(first: Meanwhile, second: Meanwhile) -> Meanwhile:
    """The one whose reference was further from its rate."""
    return max(first, second, key=lambda one: abs(one.reference - 1))


@dataclass(frozen=True, slots=True)
class Taken(Generic[Value]):
    """One measurement, and what went on meanwhile."""

    value: Value
    meanwhile: Meanwhile


@dataclass(frozen=True, slots=True)
class Kept(Generic[Value]):
    """The measurements that count. Where none is sound, they are all there are, and ``marked`` is true.

    ``taken`` has all, in the order in which they were made.
    """

    values: tuple[Value, ...]
    marked: bool
    taken: tuple[Taken[Value], ...]


def wants_more(taken: Sequence[Taken[Value]], wanted: int) -> bool:
    """Say if one more measurement is to be made: until ``wanted`` are sound, but at most TRIES times as many."""
    return sum(each.meanwhile.sound for each in taken) < wanted and len(taken) < wanted * TRIES


def keep(taken: Iterable[Taken[Value]]) -> Kept[Value]:
    """Choose what counts. Raises ValueError where nothing was measured."""
    every = tuple(taken)
    if not every:
        raise ValueError("nothing was measured")
    sound = tuple(each.value for each in every if each.meanwhile.sound)
    return Kept(sound or tuple(each.value for each in every), not sound, every)


def repeat(measure: Callable[[], Taken[Value]], wanted: int) -> Kept[Value]:
    """Measure until ``wanted`` measurements are sound, or the tries are over."""
    taken: list[Taken[Value]] = []
    while wants_more(taken, wanted):
        taken.append(measure())
    return keep(taken)


def by_turns(measures: Mapping[str, Callable[[], Taken[Value]]], wanted: int) -> dict[str, Kept[Value]]:
    """Measure several kinds, by turns, so that what the machine does meanwhile falls on all alike, as :func:`repeat`
    does one."""
    taken: dict[str, list[Taken[Value]]] = {name: [] for name in measures}
    while more := [name for name, found in taken.items() if wants_more(found, wanted)]:
        for name in more:
            taken[name].append(measures[name]())
    return {name: keep(found) for name, found in taken.items()}


def is_carried(references: Sequence[float]) -> bool:
    """True if a calibration's references had their rate within half of the tolerance: more than half of them, which
    one late moment does not change."""
    return sum(abs(each - 1) <= TOLERANCE / 2 for each in references) * 2 > len(references)


def scale(tried: Mapping[float, Sequence[float]]) -> tuple[float, bool]:
    """Choose the greatest factor that is carried, and whether there is one; where there is none it is the least tried.

    ``tried`` has the references of each factor. Raises ValueError where none was tried.
    """
    if not tried:
        raise ValueError("no scale was tried")
    carried = [factor for factor, references in tried.items() if is_carried(references)]
    return (max(carried), True) if carried else (min(tried), False)

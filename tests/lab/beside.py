"""Rates of streams beside a reference stream of the same moment: through the same cables, and none of Lark's queues.

A machine that is late lets every stream have less, the reference as well. So a rate is measured again while its
reference is off, for a bounded number of times, and held against what the reference of its moment got.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from experiments import reference
from experiments.beside import worse
from experiments.pool import Pool
from lab.boot import Lab

# Mb/s of the reference's payload: little beside what is measured, and enough to be counted to a part of a hundred.
RATE = 5.0
# Of a stream's rate: below 1 for what a queue takes to fill, above for what late timers make up for in a short window.
LEAST, MOST = 0.85, 1.05
TRIES = 6
# Seconds for which the reference runs longer than what is measured, since its first ones do not count.
BEFORE = 2.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates in Mb/s, and what the reference delivered meanwhile as a part of its rate."""

    found: Sequence[float]
    reference: float

    def least(self, wanted: float, part: float = LEAST) -> float:
        """The least for a stream that is to have ``wanted``: a part of it, less by what the reference lacks."""
        return wanted * part * min(1.0, self.reference)

    def have(self, wanted: Sequence[float], part: float = LEAST) -> bool:
        """Say if every stream got what it is to have, or no less of it than the reference."""
        return all(one >= self.least(each, part) for one, each in zip(self.found, wanted, strict=True))


def site(source: str = "central") -> reference.Way:
    """A way to the first worker from a machine of the site."""
    return reference.to_worker(RATE / reference.PART, source, "worker1")


def wan() -> reference.Way:
    """A way to a WAN host from behind the core."""
    return reference.to_wan(RATE / reference.PART, "wan1")


def measured(
    lab: Lab, way: reference.Way, seconds: float, measure: Callable[[], Sequence[float]], wanted: Sequence[float] = ()
) -> Rates:
    """Measure, and again while the reference is off or a stream has less than ``wanted``; the last try is answered."""
    pool = Pool(lab)
    pool.refer(way)
    rates = Rates((), 0.0)
    for _ in range(TRIES):
        with pool.watched(pool.now(), seconds + BEFORE) as watched:
            found = measure()
        meanwhile = watched()
        rates = Rates(found, meanwhile.reference)
        if meanwhile.sound and rates.have(wanted or [0.0] * len(found)):
            break
        if sum(wanted) > RATE:
            # What a small stream gets may be too much for as much as was measured.
            meanwhile = worse(meanwhile, pool.alone(sum(wanted)))
            rates = Rates(found, meanwhile.reference)
        print("Mb/s:", *(f"{one:.2f}" for one in found), f"beside a reference of {meanwhile.reference:.3f}")
    return rates

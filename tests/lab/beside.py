"""Rates of streams beside a reference stream of the same moment: through the same cables, and none of Lark's queues.

A machine that is late lets every stream have less, the reference as well. So a rate is measured again while its
reference is off, for a bounded number of times. The first measurement whose reference has its rate decides, whatever
came out; where there is none, the test fails and says so.

Where each stream has what it is to have in spite of a reference that is a little off, time and again, that counts and
is marked: a late machine gives nobody more.

Where the machine's processors had no time left, a small reference may have its rate beside streams that have not: a
measurement of too little is made again then. One of too much decides, since a late machine gives nobody more; and a
promise that is broken is broken in each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from experiments import reference
from experiments.beside import Meanwhile, Taken, worse
from experiments.pool import Pool
from lab.boot import Lab
from lab.run import LabError

# Mb/s of the reference's payload: little beside what is measured, and enough to be counted to a part of a hundred.
RATE = 5.0
# Of a stream's rate: below 1 for what a queue takes to fill, above for what late timers make up for in a short window.
LEAST, MOST = 0.85, 1.05
TRIES = 8
# Measurements whose reference is off before one counts, marked, whose streams have what they are to have; and the least
# part of its rate that the reference has then, so that a stream that had too much would be seen.
REPEATED, NEARLY = 3, 0.95
# Seconds for which the reference runs longer than what is measured: its first ones do not count, and streams that begin
# at the same time have to be ready and settled first.
BEFORE = 5.0


class NotTogetherError(LabError):
    """Streams that were to run at the same time did not: what was measured shows nothing."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates in Mb/s, and what the reference delivered meanwhile as a part of its rate."""

    found: Sequence[float]
    reference: float

    def have(self, wanted: Sequence[float], part: float = LEAST) -> bool:
        """Say if every stream got what it is to have; ``part`` leaves out what a queue takes to fill."""
        return all(one >= each * part for one, each in zip(self.found, wanted, strict=True))


def site(source: str = "central") -> reference.Way:
    """A way to the first worker from a machine of the site."""
    return reference.to_worker(RATE / reference.PART, source, "worker1")


def wan() -> reference.Way:
    """A way to a WAN host from behind the core."""
    return reference.to_wan(RATE / reference.PART, "wan1")


def measured(
    lab: Lab,
    way: reference.Way,
    seconds: float,
    measure: Callable[[], Sequence[float]],
    wanted: Sequence[float] = (),
    part: float = LEAST,
) -> Rates:
    """Measure until the reference has its rate, and answer that. Raises LabError where it never has.

    Where a stream has less than ``part`` of what is ``wanted``, a reference of as much as all of that follows at once
    and counts, too: what a small stream gets may be too much for as much as was measured; and nothing counts that was
    measured while the processors had no time left. ``measure`` may raise
    NotTogetherError, and is then called again as if the reference were off.
    """
    pool = Pool(lab)
    pool.refer(way)

    def once() -> Taken[Sequence[float]]:
        try:
            with pool.watched(pool.now(), seconds + BEFORE) as watched:
                found = measure()
        except NotTogetherError as error:
            print(error)
            return Taken((), Meanwhile(0.0))
        meanwhile = watched()
        if meanwhile.sound and sum(wanted) > RATE and not Rates(found, 1.0).have(wanted, part):
            meanwhile = replace(worse(meanwhile, pool.alone(sum(wanted))), outside=meanwhile.outside, programs=True)
        print("Mb/s:", *(f"{one:.2f}" for one in found), f"beside a reference of {meanwhile.reference:.3f},", end=" ")
        print(f"processors busy for {meanwhile.outside:.3f} of the time")
        return Taken(found, meanwhile)

    return first_sound(once, lambda found: bool(wanted) and Rates(found, 1.0).have(wanted, part))


def first_sound(
    measure: Callable[[], Taken[Sequence[float]]], enough: Callable[[Sequence[float]], bool] = lambda _: False
) -> Rates:
    """Answer the first measurement that is sound, whatever it is; or one of enough in which the reference nearly had
    its rate, once REPEATED were not sound. Raises LabError where none of TRIES is either."""
    tried = []
    for turn in range(1, TRIES + 1):
        taken = measure()
        if taken.meanwhile.sound:
            return Rates(taken.value, taken.meanwhile.reference)
        if turn > REPEATED and taken.value and taken.meanwhile.reference >= NEARLY and enough(taken.value):
            print(f"marked: its reference had {taken.meanwhile.reference:.3f} of its rate")
            return Rates(taken.value, taken.meanwhile.reference)
        found = ", ".join(f"{one:.2f}" for one in taken.value)
        tried.append(f"({found}) beside {taken.meanwhile.reference:.3f} and {taken.meanwhile.outside:.2f}")
    raise LabError(
        f"no measurement is sound; (rates) beside the part of its rate that the reference had, and of the time in which"
        f" the processors were busy: {', '.join(tried)}"
    )

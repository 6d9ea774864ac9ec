"""The last rates of live jobs, in memory: what a plot of a job's last minutes is made from."""

from __future__ import annotations

from array import array
from typing import Final

from lark_controller.accounting.usage import Rate

# Readings that are kept of a job: 20 minutes where counters are read every 10 seconds.
READINGS: Final = 120
# Jobs of which they are kept. 2.4 kB each; of a larger pool those that came last.
JOBS: Final = 10_000
_WIDTH: Final = 1 + len(Rate._fields)


class Recent:
    """The rates of up to :data:`JOBS` jobs at their last :data:`READINGS` readings; not thread-safe."""

    def __init__(self) -> None:
        # By the job's number: the time that times count from, and for each reading the time and the four rates.
        self._jobs: dict[int, tuple[float, array[float]]] = {}

    def keep(self, number: int, at: float, rate: Rate, first: bool) -> None:
        """Keep a rate of the time ``at`` (seconds since 1970).

        Where there are too many jobs, one whose ``first`` reading this is takes the place of the one that has been here
        longest, which gets it back no more.
        """
        known = self._jobs.get(number)
        if known is None:
            if len(self._jobs) >= JOBS:
                if not first:
                    return
                del self._jobs[next(iter(self._jobs))]
            known = self._jobs[number] = (at, array("f"))
        since, kept = known
        kept.extend((at - since, *rate))
        if len(kept) > READINGS * _WIDTH:
            del kept[:_WIDTH]

    def forget(self, number: int) -> None:
        """Removes the readings of a job that is over."""
        self._jobs.pop(number, None)

    def of(self, number: int) -> list[tuple[float, Rate]]:
        """A job's rates, each with its time, the oldest first."""
        since, kept = self._jobs.get(number, (0.0, array("f")))
        return [
            (since + kept[place], Rate(*map(round, kept[place + 1 : place + _WIDTH])))
            for place in range(0, len(kept), _WIDTH)
        ]

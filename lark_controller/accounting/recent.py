"""The last rates of live jobs, in memory: what a plot of a job's last minutes is made from."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from struct import Struct
from typing import Final

from lark_controller.accounting.numeric import Numbers, np
from lark_controller.accounting.usage import Rate

# Readings that are kept of a job: 20 minutes where counters are read every 10 seconds.
READINGS: Final = 120
# Jobs of which they are kept. 2.4 kB each; of a larger pool those that came last.
JOBS: Final = 10_000
_WIDTH: Final = 1 + len(Rate._fields)
_ROW: Final = Struct(f"{4 * _WIDTH}s")


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

    def keep_all(self, numbers: Sequence[int], at: float, rates: Numbers) -> None:
        """Keep rates of many jobs at a time, a column for each job: none is the first of its job."""
        found = list(map(self._jobs.get, numbers))
        kept = [known for known in found if known is not None]
        if len(kept) < len(found):
            if len(self._jobs) < JOBS:
                for number, known, rate in zip(numbers, found, rates.T.tolist(), strict=True):
                    if known is None:
                        self.keep(number, at, Rate(*rate), False)
            rates = rates[:, [known is not None for known in found]]
        if not kept:
            return
        rows = np.empty((len(kept), _WIDTH), np.float32)
        rows[:, 0] = at - np.array([since for since, _ in kept])
        rows[:, 1:] = rates.T.astype(np.float64)
        for (_, some), (row,) in zip(kept, _ROW.iter_unpack(rows.tobytes()), strict=True):
            some.frombytes(row)
            if len(some) > READINGS * _WIDTH:
                del some[:_WIDTH]

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

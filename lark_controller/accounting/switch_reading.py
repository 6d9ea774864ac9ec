"""One reading of all jobs of a switch, column by column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from lark_controller.accounting.account import FLOWS, PORT, WORKER
from lark_controller.accounting.numeric import Bools, Counts
from lark_controller.accounting.plain_readings import JobReading

COUNTERS: Final = WORKER - PORT
# Counters of the port among these, which come first.
_OF_PORT: Final = FLOWS - PORT
# Jobs that are taken together: those of most switches, in some milliseconds.
_AT_ONCE: Final = 512


@dataclass(frozen=True, slots=True)
class SwitchReading:
    """A column for each of the jobs with these ``numbers``: the ``counters`` of its port and its counting flows, in the
    order of an account's, as far as they were ``counted``. ``age`` has for each the seconds for which its port has been
    there (None: not known)."""

    numbers: Sequence[int]
    counters: Counts
    counted: Bools
    age: Callable[[int], float | None]

    def parts(self) -> Iterator[SwitchReading]:
        """The reading in parts, each of them short enough to be gone through under the lock of the accounts."""
        if len(self.numbers) <= _AT_ONCE:
            yield self
            return
        for first in range(0, len(self.numbers), _AT_ONCE):
            some = slice(first, first + _AT_ONCE)
            age = partial(_later, self.age, first)
            yield SwitchReading(self.numbers[some], self.counters[:, some], self.counted[:, some], age)

    def jobs(self, chosen: Iterable[int]) -> Iterator[JobReading]:
        """The readings of the jobs in some columns, one by one."""
        for place in chosen:
            packets_out, bytes_out, packets_in, bytes_in, lost_out, lost_in, *counts = self.counters[:, place].tolist()
            there = self.counted[_OF_PORT::2, place].tolist()
            flows = [(kind, *counts[2 * kind : 2 * kind + 2]) for kind, known in enumerate(there) if known]
            port = packets_out, bytes_out, packets_in, bytes_in, lost_out, lost_in
            yield self.numbers[place], port, flows, self.age(place)


def _later(age: Callable[[int], float | None], first: int, place: int) -> float | None:
    return age(first + place)

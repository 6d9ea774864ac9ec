"""One job's account: its sums, and the readings that they go up to."""

from __future__ import annotations

from array import array
from typing import Final

from lark_controller.accounting.readings import CountKind, PortReading, QueueReading
from lark_controller.accounting.usage import IDLE, Usage
from lark_controller.jobs.job import Job

# Positions in an account's numbers.
SUMS: Final = len(Usage._fields)
PORT: Final = 2 * SUMS
FLOWS: Final = PORT + len(PortReading._fields)
WORKER: Final = FLOWS + 2 * len(CountKind)
QUEUES: Final = WORKER + 6
HELD: Final = QUEUES + len(QueueReading._fields)
# Of bytes and packets, in and out: the WAN's part that was read ahead of the whole.
DROPS: Final = HELD + 4
# Drops by policy and by rate, in and out, as of the last reading that has a rate.
SIZE: Final = DROPS + 4
ZEROS: Final = array("Q", bytes(8 * SIZE))


class Account:
    """One job's sums and the readings that they go up to, in one array: 200,000 of them must fit beside the jobs."""

    __slots__ = (
        "at",
        "final",
        "followed",
        "follows",
        "job",
        "numbers",
        "placed",
        "rate",
        "started",
        "told",
        "treatment",
        "unwritten",
    )

    def __init__(self, job: Job, treatment: str) -> None:
        # The owner of the use is fixed at the beginning; the job's place may come later.
        self.job = self.placed = job
        self.treatment = treatment
        self.at = 0.0
        self.unwritten = 0.0  # the reading at which the use begins that is not written
        self.rate = IDLE
        self.started = False  # the port was read before, so its readings can be compared
        self.told = False  # the worker has posted its last counters: a switch's reading of the port is older
        self.final = False
        # Another job is at the port already, or was until this one came and its last counters are not in.
        self.followed = self.follows = False
        self.numbers = ZEROS

    def opened(self) -> array[int]:
        """The numbers, to be changed: until then all accounts have the same zeros."""
        if self.numbers is ZEROS:
            self.numbers = ZEROS[:]
        return self.numbers

    @property
    def last(self) -> float:
        """The time of the last reading, or of the job's beginning."""
        return self.at or self.job.created

    @property
    def port(self) -> tuple[int | None, str | None]:
        """The datapath and the name of the job's port."""
        return self.placed.datapath, self.placed.port

    @property
    def sums(self) -> array[int]:
        """The numbers of :attr:`usage`, which cost less as they are."""
        return self.numbers[:SUMS]

    @property
    def usage(self) -> Usage:
        """The job's use so far."""
        return Usage(*self.numbers[:SUMS])

    @property
    def written(self) -> Usage:
        """The part of it that is written."""
        return Usage(*self.numbers[SUMS:PORT])

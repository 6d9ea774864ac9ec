"""One job's account: its sums, and the readings that they go up to."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

from lark_common.runs import access_point
from lark_common.shared_texts import shared
from lark_controller.accounting.readings import CountKind, PortReading, QueueReading
from lark_controller.accounting.usage import IDLE, MOST, Peak, Usage
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
PEAK: Final = DROPS + 4
# The highest rates in and out, bits a second.
STRETCH: Final = PEAK + len(Peak._fields)
# The stretch that is not over: its beginning (milliseconds since 1970; 0: none), and the bytes in and out until then.
SIZE: Final = STRETCH + 3
ZEROS: Final = array("Q", bytes(8 * SIZE))

# Seconds that a stretch has at least. A rate over less is a burst: what a queue lets pass at once, or two readings that
# happened to come close together.
LEAST_STRETCH: Final = 5.0
_IN: Final = Usage._fields.index("bytes_in")
_OUT: Final = Usage._fields.index("bytes_out")


def keep_highest(numbers: array[int], before: array[int], last: float, at: float) -> bool:
    """Compare the rate since the stretch began with the highest ones, where that is long enough ago; True where it is a
    higher one. The sums were ``before`` at the reading before this, which was at ``last``."""
    known, now = numbers[PEAK:SIZE].tolist(), (numbers[_IN], numbers[_OUT])
    found = highest_now(known, last, at, millis(at), (before[_IN], before[_OUT]), now)
    numbers[PEAK:SIZE] = array("Q", found)
    return found[0] > known[0] or found[1] > known[1]


def highest_now(
    known: Sequence[int], last: float, at: float, moment: int, before: tuple[int, int], now: tuple[int, int]
) -> tuple[int, int, int, int, int]:
    """The highest rates and the stretch that is not over, after a reading ``at`` a time, in milliseconds ``moment``;
    ``known`` are those up to the ``last`` reading, ``before`` and ``now`` the bytes in and out up to it and up to this
    one."""
    peak_in, peak_out, begun, begun_in, begun_out = known
    if not begun:
        begun, (begun_in, begun_out) = millis(last), before
    elapsed = at - begun / 1000
    if 0 <= elapsed < LEAST_STRETCH:
        return peak_in, peak_out, begun, begun_in, begun_out
    # A clock that was set back begins a stretch, and gives no rate of the one before.
    if elapsed > 0:
        inward, outward = 8 * (now[0] - begun_in) / elapsed, 8 * (now[1] - begun_out) / elapsed
        # Most are not the highest, and need not be rounded.
        if inward > peak_in:
            peak_in = max(peak_in, min(round(inward), MOST))
        if outward > peak_out:
            peak_out = max(peak_out, min(round(outward), MOST))
    return peak_in, peak_out, moment, *now


class Account:
    """One job's sums and the readings that they go up to, in one array: 200,000 of them must fit beside the jobs.

    It has what its use is written under, which is fixed at the beginning, and no :class:`Job`: that changes without it.
    """

    __slots__ = (
        "access_point",
        "at",
        "created",
        "datapath",
        "final",
        "followed",
        "follows",
        "global_job_id",
        "group",
        "host",
        "id",
        "moved_at",
        "number",
        "numbers",
        "owner",
        "port_name",
        "rate",
        "reported",
        "restored",
        "started",
        "stays",
        "timed",
        "treatment",
        "unwritten",
        "user",
    )

    def __init__(self, job: Job, treatment: str) -> None:
        self.number, self.id, self.global_job_id = job.number, job.id, job.run.global_job_id
        self.owner, self.user, self.group, self.host = job.owner, job.user, job.group, job.host
        # In lower case. It is needed with each reading, and there are few.
        self.access_point = shared(access_point(self.global_job_id).lower())
        self.created = job.created
        self.place(job)
        self.treatment = treatment
        self.at = 0.0
        self.moved_at = 0.0  # the last report of its transfers, which comes when no counter of the port is read
        self.timed = True  # the worker's time since its last report of them is since one that was taken here
        self.unwritten = 0.0  # the reading at which the use begins that is not written
        self.rate = IDLE
        self.started = False  # the port was read before, so its readings can be compared
        # It was there before this start. Its last reading was another controller's, by a clock that may differ: no rate
        # begins there. Its worker counts from a report to that controller, which may have written less.
        self.restored = False
        self.reported = False  # the worker has posted its last counters: a switch's reading of the port is older
        self.final = False
        self.stays = False  # it was over, and came back before its last counters did
        # Another job is at the port already, or was until this one came and its last counters are not in.
        self.followed = self.follows = False
        self.numbers = ZEROS

    def place(self, job: Job) -> None:
        """Take the job's port, which may come later, or be another. Where no switch is named it is one of its host:
        ports of two hosts may have one name."""
        self.datapath = shared(job.host.lower()) if job.datapath is None else job.datapath
        self.port_name = job.port

    def opened(self) -> array[int]:
        """The numbers, to be changed: until then all accounts have the same zeros."""
        if self.numbers is ZEROS:
            self.numbers = ZEROS[:]
        return self.numbers

    def unchanged_until(self, at: float) -> bool:
        """Note that the counters were read at that time, too, and that nothing was new; True where a highest rate
        is known by that."""
        if at <= self.last or self.restored:
            return False
        self.opened()
        rose = keep_highest(self.numbers, self.sums, self.last, at)
        self.at = at
        return rose

    @property
    def last(self) -> float:
        """The time of the last reading, or of the job's beginning."""
        return self.at or self.created

    @property
    def latest(self) -> float:
        """The time of the last reading or report."""
        return max(self.at, self.moved_at)

    @property
    def port(self) -> tuple[int | str, str | None]:
        """The datapath, or else the host, and the name of the job's port."""
        return self.datapath, self.port_name

    @property
    def sums(self) -> array[int]:
        """The numbers of :attr:`usage`, which cost less as they are."""
        return self.numbers[:SUMS]

    @property
    def usage(self) -> Usage:
        """The job's use so far."""
        return Usage(*self.numbers[:SUMS])

    @property
    def peak(self) -> Peak:
        """The highest rates that the job has kept up so far."""
        return Peak(*self.numbers[PEAK:STRETCH])


def millis(at: float) -> int:
    """A time in milliseconds, as a stretch's beginning has it: 0 is none."""
    return max(1, round(1000 * at))

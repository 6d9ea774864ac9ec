"""The sums of each job's own queues, calculated from readings of single queues that come and go. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lark_controller.accounting.readings import QueueReading
from lark_controller.accounting.usage import MOST

# A queue: the port's name, and its number.
Place = tuple[str, int]


class JobQueue(NamedTuple):
    """A queue of a job, by the job's number; ``inward`` for what is sent to the job."""

    number: int
    inward: bool


class QueueSums:
    """The sums of one switch's jobs.

    They never fall while a job is here: what a queue had counted that goes, or is made anew, stays its job's.
    """

    def __init__(self) -> None:
        self._seen: dict[Place, tuple[JobQueue, int, int]] = {}
        self._gone: dict[int, QueueReading] = {}

    def read(
        self, job_queues: Mapping[Place, JobQueue], dropped: Mapping[Place, int], waited: Mapping[Place, float]
    ) -> dict[int, QueueReading]:
        """The sums by the job's number, now that its queues have dropped so many packets and held them back for so many
        seconds; jobs without any are left out."""
        now = {
            place: (job_queues[place], dropped.get(place, 0), round(1000 * waited.get(place, 0.0)))
            for place in {*dropped, *waited}
            if place in job_queues
        }
        for place, (job_queue, packets, millis) in self._seen.items():
            new = now.get(place)
            if new is None or new[0] != job_queue or new[1] < packets or new[2] < millis:
                self._gone[job_queue.number] = _plus(self._gone.get(job_queue.number), job_queue, packets, millis)
        here = {job_queue.number for job_queue in job_queues.values()}
        self._seen = now
        self._gone = {number: sums for number, sums in self._gone.items() if number in here}
        found = dict(self._gone)
        for job_queue, packets, millis in now.values():
            found[job_queue.number] = _plus(found.get(job_queue.number), job_queue, packets, millis)
        return found


def _plus(sums: QueueReading | None, job_queue: JobQueue, packets: int, millis: int) -> QueueReading:
    old = sums or QueueReading()
    # A switch's database may hold any numbers, and let them fall again and again.
    if job_queue.inward:
        return old._replace(dropped_in=min(old.dropped_in + packets, MOST), waited_in=min(old.waited_in + millis, MOST))
    return old._replace(dropped_out=min(old.dropped_out + packets, MOST), waited_out=min(old.waited_out + millis, MOST))

"""Lines about what jobs change by themselves: as many as jobs need, then few, and the others are counted.

A program that adapts changes its reserved flows now and then; one in a loop would fill the audit trail and the log for
as long as its job runs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from lark_common.limits import Buckets
from lark_common.log import event
from lark_controller.api.reservations import Change
from lark_controller.qos.reservation import Reservation
from lark_controller.qos.topology import requested_rate
from lark_controller.store import Store
from lark_controller.store.audit_and_policies import entry

# Lines of one job: at once, as for all its flows and some changes of each, and a second afterwards.
LINES_AT_ONCE: Final = 512
LINES_A_SECOND: Final = 1 / 60
# Jobs whose lines are counted; of more, those that have changed nothing for longest begin again.
_JOBS: Final = 16_384


def is_renewal(known: Reservation | None, change: Change) -> bool:
    """True for a change of nothing but the end: an application puts that off again and again while it runs."""
    if known is None:
        return False
    kbps = known.kbps if change.rate is None else requested_rate(change.rate)
    return kbps == known.kbps and change.steady in (None, known.steady)


class OwnChanges:
    """Lines about what jobs reserve, change and release by themselves, and what ends. Not thread-safe."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._trail = store.trail
        self._lines = Buckets(LINES_A_SECOND, LINES_AT_ONCE, _JOBS, clock)
        # Changes without a line, by the job's id.
        self._left_out: Counter[str] = Counter()

    def has_line(self, job_id: str | None, of_job: bool = True) -> bool:
        """True if a change has a line of its own, as all have that are not ``of_job``. Of a job none has while others
        are counted."""
        return not of_job or job_id is None or (job_id not in self._left_out and not self._lines.until(job_id))

    def count(self, job_id: str | None, has_line: bool, of_job: bool = True) -> None:
        """Count a change that was made, and was not refused: with its line, or as one without."""
        if not of_job or job_id is None:
            return
        if has_line:
            self._lines.take(job_id)
        else:
            self._left_out[job_id] += 1

    def write(self, now: float) -> None:
        """Write how many changes had no line, of each job that may have a line again. Raises StoreError."""
        due = {job_id: count for job_id, count in self._left_out.items() if not self._lines.take(job_id)}
        if not due:
            return
        words = "changes of its own reservations without a line each"
        self._trail.record_all([entry(now, "lark", "change", each, f"{count} {words}") for each, count in due.items()])
        for job_id, count in due.items():
            del self._left_out[job_id]
            event("reservations changed", job=job_id, changes=count)

"""A feed of changes that another instance makes: runs written into the database, at a rate of their own.

Where all instances share a machine, the active one takes fewer changes a second than on one of its own. What a feed
costs the instances that stand by is measured with a writer of rows in its place, which does nothing else.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, bindparam, update

from bench.changes import insert_runs
from lark_controller.jobs.job import Job, JobState
from lark_controller.policies.decide import needed_attributes
from lark_controller.policies.file import load
from lark_controller.services.described_job import names_digest
from lark_controller.store.database import Database, connect
from lark_controller.store.schema import runs

# Runs a second, each of which comes, is enforced and ends: 300 changes.
RUNS: Final = 100.0
# Seconds from a run's start to its end, and the part of them until it is enforced: a copy that is compared every 2 s
# sees each of the three.
LIFE: Final = 8.0
PENDING: Final = 0.4
# Seconds between two transactions, of a start, a state and an end each.
TICK: Final = 0.05
# Beyond those of the runs that the active one has numbered.
FIRST_NUMBER: Final = 100_000_000
_STATE: Final = update(runs).where(runs.c.number == bindparam("of")).values(state=bindparam("to"))
_END: Final = (
    update(runs).where(runs.c.number == bindparam("of")).values(state="ended", live=False, ended_at=bindparam("at"))
)


@dataclass(slots=True)
class Feed:
    """The changes that were written so far."""

    changes: int = 0


@contextmanager
def written(url: str, text: str, fresh: Iterator[Job], rate: float = RUNS, life: float = LIFE) -> Iterator[Feed]:
    """Write runs of these jobs, ``rate`` of them a second that live for ``life`` seconds, until the block ends; then
    all of them end.

    The block begins when as many runs end as start.
    """
    database, digest = connect(url), names_digest(needed_attributes(load(text)))
    feed, done, steady = Feed(), threading.Event(), threading.Event()
    failed: list[BaseException] = []

    def go() -> None:
        try:
            _write(database, digest, fresh, (rate, life), feed, done, steady)
        except BaseException as error:
            failed.append(error)
            steady.set()

    writer = threading.Thread(target=go, name="feed")
    writer.start()
    steady.wait()
    try:
        yield feed
    finally:
        done.set()
        writer.join()
        database.close()
    if failed:
        raise failed[0]


def _write(
    database: Database,
    digest: str,
    fresh: Iterator[Job],
    pace: tuple[float, float],
    feed: Feed,
    done: threading.Event,
    steady: threading.Event,
) -> None:
    (rate, life), lease = pace, time.time() + 86_400
    began, numbers, started = time.monotonic(), itertools.count(FIRST_NUMBER), 0
    # When each run started, and its number, until it is enforced and until it has ended.
    coming: deque[tuple[float, int]] = deque()
    standing: deque[tuple[float, int]] = deque()
    while not done.is_set() or standing:
        now, last = time.monotonic(), done.is_set()
        due = 0 if last else int((now - began) * rate) - started
        started += due
        change = Change(
            [replace(next(fresh), number=next(numbers), state=JobState.PENDING) for _ in range(due)],
            [{"of": number, "to": JobState.ENFORCED.value} for number in _over(coming, now - PENDING * life, last)],
            [{"of": number, "at": time.time()} for number in _over(standing, now - life, last)],
        )
        database.write(partial(change.write, digest=digest, lease=lease))
        coming.extend((now, job.number) for job in change.new)
        standing.extend((now, job.number) for job in change.new)
        feed.changes += len(change.new) + len(change.enforced) + len(change.ended)
        if change.ended:
            steady.set()
        done.wait(TICK)


@dataclass(frozen=True, slots=True)
class Change:
    """The lines of one transaction: runs that come, and the parameters of those that are enforced and that end."""

    new: list[Job]
    enforced: list[dict[str, Any]]
    ended: list[dict[str, Any]]

    def write(self, connection: Connection, digest: str, lease: float) -> None:
        """Write them, as far as there are any."""
        if self.new:
            insert_runs(connection, self.new, digest, lease)
        if self.enforced:
            connection.execute(_STATE, self.enforced)
        if self.ended:
            connection.execute(_END, self.ended)


def _over(waiting: deque[tuple[float, int]], until: float, every: bool) -> Iterator[int]:
    while waiting and (every or waiting[0][0] <= until):
        yield waiting.popleft()[1]

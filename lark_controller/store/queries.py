"""Questions about runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from sqlalchemy import Connection, bindparam, select

from lark_controller.api.jobs import JobFilter, JobPage
from lark_controller.jobs.job import Job
from lark_controller.store.cursors import cursor_for, number_in
from lark_controller.store.rows import JOB_COLUMNS, job_from
from lark_controller.store.schema import LIVE, run_ads, runs

_ROWS_AT_ONCE: Final = 2_000
_BY_ID: Final = select(*JOB_COLUMNS).where(runs.c.id == bindparam("job_id"))


class LiveAds(NamedTuple):
    """The ads of a live run, to take facts from."""

    number: int
    id: str
    job_ad: str
    machine_ad: str


class Ending(NamedTuple):
    """The end of a run: when (seconds since 1970), why, and its exit ad (``""`` if none was posted)."""

    at: float
    why: str
    exit_ad: str


def live_jobs(connection: Connection) -> Iterator[Job]:
    """The live runs in order of number, read piece by piece."""
    query = select(*JOB_COLUMNS).where(LIVE).order_by(runs.c.number)
    for part in connection.execution_options(yield_per=_ROWS_AT_ONCE).execute(query).partitions():
        yield from map(job_from, part)


def find(connection: Connection, job_id: str) -> Job | None:
    """The run of that id, live or not."""
    row = connection.execute(_BY_ID, {"job_id": job_id}).one_or_none()
    return None if row is None else job_from(row)


def ending(connection: Connection, job_id: str) -> Ending | None:
    """Reads the end of a run; None where it has not, or there is none."""
    query = (
        select(runs.c.ended_at, runs.c.reason, run_ads.c.exit_ad)
        .join(run_ads)
        .where(runs.c.id == job_id, runs.c.ended_at.is_not(None))
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else Ending(*row)


def ads(connection: Connection, job_id: str) -> tuple[str, str] | None:
    """Job ad and machine ad of a run."""
    query = select(run_ads.c.job_ad, run_ads.c.machine_ad).join(runs).where(runs.c.id == job_id)
    row = connection.execute(query).one_or_none()
    return None if row is None else (row.job_ad, row.machine_ad)


def ads_of_live(connection: Connection, after_number: int, limit: int, stale_for: str | None = None) -> list[LiveAds]:
    """The next live runs after a number, with their ads; with ``stale_for`` only those without facts for it."""
    query = (
        select(runs.c.number, runs.c.id, run_ads.c.job_ad, run_ads.c.machine_ad)
        .join(run_ads)
        .where(LIVE, runs.c.number > after_number)
        .order_by(runs.c.number)
        .limit(limit)
    )
    if stale_for is not None:
        query = query.where(runs.c.facts_for != stale_for)
    return [LiveAds(*row) for row in connection.execute(query)]


def page(connection: Connection, chosen: JobFilter, cursor: str | None, limit: int) -> JobPage:
    """A page in order of number, or from the last number down. Raises NotFoundError for a cursor that is none."""
    query = select(*JOB_COLUMNS)
    for column, value in (
        (runs.c.owner, chosen.owner),
        (runs.c.group_name, chosen.group),
        (runs.c.host, chosen.host),
        (runs.c.global_job_id, chosen.global_job_id),
    ):
        if value is not None:
            query = query.where(column == value)
    if chosen.state == "live":
        query = query.where(LIVE)
    elif chosen.state is not None:
        query = query.where(runs.c.state == chosen.state)
    if cursor is not None:
        number = number_in(cursor)
        query = query.where(runs.c.number < number if chosen.newest else runs.c.number > number)
    order = runs.c.number.desc() if chosen.newest else runs.c.number
    rows = connection.execute(query.order_by(order).limit(limit + 1)).all()
    jobs = tuple(job_from(row) for row in rows[:limit])
    return JobPage(jobs, cursor_for(jobs[-1].number) if len(rows) > limit else None)


def expired(connection: Connection, now: float) -> list[Job]:
    """The live runs whose lease is over."""
    query = select(*JOB_COLUMNS).where(LIVE, runs.c.lease_until < now).order_by(runs.c.number)
    return [job_from(row) for row in connection.execute(query)]

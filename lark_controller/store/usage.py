"""The use of jobs: written beside the readings that it was counted from, asked by subject and time."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    bindparam,
    delete,
    false,
    func,
    literal,
    or_,
    select,
    tuple_,
    update,
)

from lark_common.turns import by_portions
from lark_controller.accounting.buckets import DAY, HOUR, buckets
from lark_controller.accounting.entry import Entry
from lark_controller.accounting.usage import JobUsage, Peak, Usage
from lark_controller.api.usage import UsageFilter, UsagePage, UsageRow
from lark_controller.store import bulk
from lark_controller.store.cursors import cursor_of, parts_in
from lark_controller.store.queries import hosts_meant, in_groups, names_called, one_of, parameters_of
from lark_controller.store.rows import read_by_portions
from lark_controller.store.schema import PEAK_COLUMNS, USAGE_COLUMNS, usage, usage_jobs

# When a job that lives has ended: a time that comes after all others (9999-12-31), so that an index over the end
# serves the living as well.
NOT_ENDED: Final = 253_402_300_799.0
_ROWS_AT_ONCE: Final = 2_000
_REPLACED: Final = ("at", "readings", *PEAK_COLUMNS)
_NUMBER, _ENDED_AT = (list(usage_jobs.columns.keys()).index(name) for name in ("number", "ended_at"))
_OVER: Final = "SELECT number FROM usage_jobs WHERE number IN (SELECT value FROM json_each(?)) AND ended_at <> ?"

_JOB_SUMS: Final = tuple(usage_jobs.c[name] for name in USAGE_COLUMNS)
_PEAKS: Final = tuple(usage_jobs.c[name] for name in PEAK_COLUMNS)
_SUMS: Final = tuple(usage.c[name] for name in USAGE_COLUMNS)
_GROUPS_OF_JOBS: Final = names_called("usage_jobs", "group_name")
_GROUPS_CALLED: Final = names_called("usage", "group_name", "kind = :kind AND seconds = :seconds")
_OF_JOB: Final = {"group": usage_jobs.c.group_name, "user": usage_jobs.c.user_name, "host": usage_jobs.c.host}


class Readings(NamedTuple):
    """The last readings written of a live job, and the sums that they go up to, in the order of Usage."""

    number: int
    readings: str
    sums: Sequence[int]


# Without a call of Python: a start makes one for each job.
_readings: Final[Callable[[Iterable[Any]], Readings]] = partial(tuple.__new__, Readings)


class NewUse(NamedTuple):
    """The rows of new use: of the jobs, and of the buckets that it is added to."""

    jobs: Sequence[bulk.Row]
    sums: Sequence[bulk.Row]


def new_use(entries: Sequence[Entry]) -> NewUse:
    """The rows of some entries. They are made before the transaction, so that on SQLite others write meanwhile."""
    jobs = [
        (
            number, job_id, owner, user, group, host, since, at if final else NOT_ENDED, at, *new, readings, *peak,
        )
        for number, job_id, owner, user, group, host, since, _, at, _, new, readings, final, peak in sorted(
            entries, key=itemgetter(0)
        )
    ]  # fmt: skip
    sums = [(kind, seconds, start, name, group, *use) for (kind, name, group), seconds, start, use in buckets(entries)]
    return NewUse(jobs, sums)


def write(connection: Connection, use: NewUse) -> None:
    """Add the new use of some jobs to their rows and to the buckets, and keep the readings that it goes up to.

    One transaction: a reading that is kept is counted, once, and one that is not kept is counted by the next.
    """
    others = use.jobs if connection.dialect.name == "postgresql" else _write_live(connection, use.jobs)
    bulk.add(connection, usage_jobs, others, USAGE_COLUMNS, ("ended_at", *_REPLACED))
    bulk.add(connection, usage, use.sums, USAGE_COLUMNS, ())


def _write_live(connection: Connection, jobs: Sequence[bulk.Row]) -> Sequence[bulk.Row]:
    """Write the rows of jobs that live and lived before; returns all others. SQLite writes every index anew that names
    a column which is set, whatever it is set to; four of them have the time of the end."""
    live = [row for row in jobs if row[_ENDED_AT] == NOT_ENDED]
    ended = [row for row in jobs if row[_ENDED_AT] != NOT_ENDED]
    if bulk.add(connection, usage_jobs, live, USAGE_COLUMNS, _REPLACED, same="ended_at") == len(live):
        return ended
    # Jobs whose end was none have been left out.
    numbers = json.dumps([row[_NUMBER] for row in live])
    over = {number for (number,) in connection.exec_driver_sql(_OVER, (numbers, NOT_ENDED))}
    return [*ended, *(row for row in live if row[_NUMBER] in over)]


def unended(connection: Connection) -> Iterator[Readings]:
    """The jobs that had not ended when they were written last, in order of number, read piece by piece."""
    query = (
        select(usage_jobs.c.number, usage_jobs.c.readings, *_JOB_SUMS)
        .where(usage_jobs.c.ended_at == NOT_ENDED)
        .order_by(usage_jobs.c.number)
    )
    for part in connection.execution_options(yield_per=_ROWS_AT_ONCE).execute(query).partitions():
        for row in part:
            yield _readings((row[0], row[1], row[2:]))


def finish(connection: Connection, numbers: Collection[int]) -> int:
    """Mark these jobs as over, with nothing more to write; returns how many they were."""
    query = (
        update(usage_jobs).where(usage_jobs.c.number == bindparam("job")).values(ended_at=usage_jobs.c.at, readings="")
    )
    if numbers:
        connection.execute(query, [{"job": number} for number in sorted(numbers)])
    return len(numbers)


def of_jobs(connection: Connection, numbers: Collection[int]) -> dict[int, JobUsage]:
    """The use of some jobs, by number, as far as it is written."""
    query = select(usage_jobs.c.number, usage_jobs.c.at, usage_jobs.c.ended_at, *_PEAKS, *_JOB_SUMS)
    rows = connection.execute(query.where(usage_jobs.c.number.in_(numbers)))
    return {
        number: JobUsage(Usage(*sums), at=at, final=ended_at != NOT_ENDED, peak=Peak(inward, outward))
        for number, at, ended_at, inward, outward, *sums in rows
    }


def prune(connection: Connection, seconds: int, before: float, limit: int) -> int:
    """Remove up to ``limit`` buckets of a width that began before ``before``."""
    key = tuple_(*usage.primary_key.columns)
    chosen = (
        select(*usage.primary_key.columns)
        .where(usage.c.kind.in_(("group", "host", "user")), usage.c.seconds == seconds, usage.c.start < int(before))
        .limit(limit)
    )
    return connection.execute(delete(usage).where(key.in_(chosen))).rowcount


def prune_jobs(connection: Connection, before: float, limit: int) -> int:
    """Remove up to ``limit`` jobs that ended before ``before``."""
    chosen = select(usage_jobs.c.number).where(usage_jobs.c.ended_at < before).order_by(usage_jobs.c.ended_at)
    query = delete(usage_jobs).where(usage_jobs.c.number.in_(chosen.limit(limit).scalar_subquery()))
    return connection.execute(query).rowcount


def page(connection: Connection, chosen: UsageFilter, cursor: str | None, limit: int) -> UsagePage:
    """A page of use; a host may be named without its domain. Raises NotFoundError for a cursor that is none."""
    hosts = () if chosen.host is None else hosts_meant(connection, chosen.host)
    groups = () if chosen.group is None else _groups_meant(connection, chosen, chosen.group)
    if chosen.by == "job":
        return _jobs_page(connection, chosen, hosts, groups, cursor, limit)
    return _buckets_page(connection, chosen, hosts, groups, cursor, limit)


def _groups_meant(connection: Connection, chosen: UsageFilter, name: str) -> list[str]:
    """The groups of the history of that name in any case, as HTCondor compares them, and their subgroups."""
    if chosen.by == "job":
        return sorted({name, *connection.execute(_GROUPS_OF_JOBS, parameters_of(name)).scalars()})
    found = {name}
    for seconds in {chosen.seconds, DAY}:
        parameters = {**parameters_of(name), "kind": chosen.by, "seconds": seconds}
        found |= set(connection.execute(_GROUPS_CALLED, parameters).scalars())
    return sorted(found)


def jobs_query(
    chosen: UsageFilter, hosts: Sequence[str], cursor: str | None, limit: int, groups: Sequence[str] = ()
) -> Select[Any]:
    """The jobs that lived in a stretch of time, in the order in which they ended; those that live come last."""
    columns = (
        usage_jobs.c.ended_at, usage_jobs.c.number, usage_jobs.c.id, usage_jobs.c.owner, usage_jobs.c.user_name,
        usage_jobs.c.group_name, usage_jobs.c.host, usage_jobs.c.since, usage_jobs.c.at,
    )  # fmt: skip
    query = select(*columns, *_JOB_SUMS).where(usage_jobs.c.ended_at >= chosen.start, usage_jobs.c.since < chosen.end)
    for name, values in _names(chosen, hosts, groups).items():
        column = _OF_JOB[name]
        named = chosen.group if name == "group" else None
        query = query.where(one_of(column, values) if named is None else in_groups(column, named, values))
    order = (usage_jobs.c.ended_at, usage_jobs.c.number)
    if cursor is not None:
        ended_at, number = parts_in(cursor, (float, int))
        query = query.where(tuple_(*order) > tuple_(literal(ended_at), literal(number)))
    return query.order_by(*order).limit(limit + 1)


def _names(chosen: UsageFilter, hosts: Sequence[str], groups: Sequence[str]) -> dict[str, Sequence[str]]:
    """The names that are asked for, by subject."""
    names: dict[str, Sequence[str]] = {"host": hosts} if hosts else {}
    if chosen.group is not None:
        names["group"] = groups or (chosen.group,)
    if chosen.user is not None:
        names["user"] = (chosen.user,)
    return names


def _jobs_page(
    connection: Connection,
    chosen: UsageFilter,
    hosts: Sequence[str],
    groups: Sequence[str],
    cursor: str | None,
    limit: int,
) -> UsagePage:
    rows = read_by_portions(connection.execute(jobs_query(chosen, hosts, cursor, limit, groups)))
    found = [
        UsageRow(
            usage=Usage(*row[9:]),
            start=row.since,
            end=row.at if row.ended_at == NOT_ENDED else row.ended_at,
            job=row.id,
            owner=row.owner,
            user=row.user_name,
            group=row.group_name,
            host=row.host,
            final=row.ended_at != NOT_ENDED,
        )
        for row in by_portions(rows[:limit])
    ]
    following = cursor_of(rows[limit - 1].ended_at, rows[limit - 1].number) if len(rows) > limit else None
    return UsagePage(tuple(found), chosen.start, chosen.end, None, following)


def buckets_query(
    chosen: UsageFilter, hosts: Sequence[str], cursor: str | None, limit: int, groups: Sequence[str] = ()
) -> Select[Any]:
    """The buckets of a stretch of time by subject, or of all subjects together; without ``chosen.bucket`` as one."""
    kind = chosen.by
    by_user = kind == "user"
    by_subject = not chosen.together
    one_each = by_subject and chosen.bucket is not None
    start = literal(0).label("start") if chosen.bucket is None else usage.c.start
    name = usage.c.name if by_subject else literal(None).label("name")
    group = usage.c.group_name if by_user and by_subject else literal(None).label("group_name")
    keys = [usage.c.name, *([usage.c.group_name] if by_user else [])] if by_subject else []
    order = keys if chosen.bucket is None else [usage.c.start, *keys]
    sums = _SUMS if one_each else tuple(func.sum(column).label(column.name) for column in _SUMS)
    query = select(start, name, group, *sums).where(usage.c.kind == kind, _between(chosen))
    if names := _names(chosen, hosts, groups).get(kind):
        named = chosen.group if kind == "group" else None
        query = query.where(one_of(usage.c.name, names) if named is None else in_groups(usage.c.name, named, names))
    if by_user and chosen.group is not None:
        query = query.where(in_groups(usage.c.group_name, chosen.group, groups or (chosen.group,)))
    if not one_each:
        # Without a bucket, and of all together: no row where there is nothing to add up.
        query = query.group_by(*order) if order else query.having(func.count() > 0)
    if cursor is not None:
        kinds = (*((int,) if chosen.bucket is not None else ()), *(str for _ in keys))
        parts = parts_in(cursor, kinds)
        query = query.where(tuple_(*order) > tuple_(*map(literal, parts))) if order else query.where(false())
    return query.order_by(*order).limit(limit + 1)


def _between(chosen: UsageFilter) -> ColumnElement[bool]:
    """The buckets that make up a stretch of time. One sum takes whole days as days, and hours before and after them:
    it is the same sum, of a twentieth of the rows."""
    start, end = int(chosen.start), int(chosen.end)
    first, last = start + -start % DAY, end - end % DAY
    if chosen.bucket is not None or chosen.seconds != HOUR or first >= last:
        return _within(chosen.seconds, start, end)
    return or_(_within(DAY, first, last), _within(HOUR, start, first), _within(HOUR, last, end))


def _within(seconds: int, start: int, end: int) -> ColumnElement[bool]:
    return and_(usage.c.seconds == seconds, usage.c.start >= start, usage.c.start < end)


def _buckets_page(
    connection: Connection,
    chosen: UsageFilter,
    hosts: Sequence[str],
    groups: Sequence[str],
    cursor: str | None,
    limit: int,
) -> UsagePage:
    rows = connection.execute(buckets_query(chosen, hosts, cursor, limit, groups)).all()
    found = tuple(_bucket_row(chosen, row) for row in rows[:limit])
    following = None
    if len(rows) > limit:
        last = rows[limit - 1]
        key = (
            *(() if chosen.bucket is None else (last.start,)),
            *(() if chosen.together else (last.name,)),
            *((last.group_name,) if chosen.by == "user" and not chosen.together else ()),
        )
        following = cursor_of(*key)
    return UsagePage(found, chosen.start, chosen.end, chosen.seconds, following)


def _bucket_row(chosen: UsageFilter, row: Row[Any]) -> UsageRow:
    start, end = chosen.start, chosen.end
    if chosen.bucket is not None:
        start, end = float(row.start), float(row.start + chosen.seconds)
    who = {chosen.by: row.name, **({"group": row.group_name} if chosen.by == "user" else {})}
    # PostgreSQL adds up to NUMERIC, which arrives as Decimal.
    return UsageRow(usage=Usage(*map(int, row[3:])).bounded(), start=start, end=end, **who)


__all__ = [
    "NOT_ENDED", "Readings", "buckets_query", "finish", "jobs_query", "of_jobs", "page", "prune", "prune_jobs",
    "unended", "write",
]  # fmt: skip

"""Questions about runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    Row,
    Select,
    TextClause,
    bindparam,
    func,
    literal,
    or_,
    select,
    text,
)

from lark_common.runs import JobNumber
from lark_common.turns import by_portions
from lark_controller.api.jobs import JobFilter, JobPage
from lark_controller.jobs.job import Job, Standing
from lark_controller.store.cursors import cursor_for, number_in
from lark_controller.store.rows import JOB_COLUMNS, columns_with, job_from, live_job_from, read_by_portions
from lark_controller.store.schema import LIVE, leases, run_ads, runs

_ROWS_AT_ONCE: Final = 2_000
# The groups of one name that a statement names.
_MOST_NAMED: Final = 500


def names_called(table: str, column: str, among: str = "true") -> TextClause:
    """The query for the values of a column that are a name in any case, whole or before a dot (:func:`parameters_of`).

    From each value to the next in the index: the cost is that of the values there are, not that of their rows.
    """
    return text(
        f"WITH RECURSIVE found (name) AS (SELECT min({column}) FROM {table} WHERE {among} UNION ALL"
        f" SELECT (SELECT min({column}) FROM {table} WHERE {among} AND {table}.{column} > found.name)"
        " FROM found WHERE found.name IS NOT NULL)"
        " SELECT name FROM found WHERE lower(name) = :whole OR substr(lower(name), 1, :length) = :start"
    )


_HOSTS_CALLED: Final = names_called("runs", "host")
_GROUPS_CALLED: Final = names_called("runs", "group_name")
_BY_ID: Final = select(*JOB_COLUMNS).where(runs.c.id == bindparam("job_id"))


class LiveAds(NamedTuple):
    """The ads of a live run, to take facts from, and what was read of them when they were posted."""

    number: int
    id: str
    owner: str
    user: str
    group: str
    inbound: bool | None
    outbound: bool | None
    job_ad: str
    machine_ad: str


class Ending(NamedTuple):
    """The end of a run: when (seconds since 1970), why, and its exit ad (``""`` if none was posted)."""

    at: float
    why: str
    exit_ad: str


class Called(NamedTuple):
    """The parts of a job's names."""

    id: str
    cluster: int
    proc: int
    global_job_id: str


def called(connection: Connection, ids: Collection[str]) -> list[Called]:
    """The names of the runs among these ids, live or not."""
    query = select(runs.c.id, runs.c.cluster, runs.c.proc, runs.c.global_job_id).where(runs.c.id.in_(sorted(ids)))
    return [Called(*row) for row in connection.execute(query).all()]


def live_jobs(connection: Connection) -> Iterator[Job]:
    """The live runs in order of number, read piece by piece."""
    return map(job_from, _live_rows(connection, JOB_COLUMNS))


def loaded_jobs(connection: Connection, lease_until: float) -> Iterator[tuple[Job, Standing]]:
    """As :func:`live_jobs`, each as live jobs are held, with how far it was; its lease as one that begins anew."""
    columns = columns_with(literal(lease_until, Float(53)).label("lease_until"))
    return map(live_job_from, _live_rows(connection, columns))


def _live_rows(connection: Connection, columns: Sequence[ColumnElement[Any]]) -> Iterator[Row[Any]]:
    query = select(*columns).where(LIVE).order_by(runs.c.number)
    for part in connection.execution_options(yield_per=_ROWS_AT_ONCE).execute(query).partitions():
        yield from part


def find(connection: Connection, job_id: str) -> Job | None:
    """The run of that id, live or not."""
    row = connection.execute(_BY_ID, {"job_id": job_id}).one_or_none()
    return None if row is None else job_from(row)


def with_ids(connection: Connection, ids: Collection[str], owner: str) -> list[Job]:
    """The runs of an owner among these ids, live or not."""
    query = select(*JOB_COLUMNS).where(runs.c.id.in_(sorted(ids)), runs.c.owner == owner)
    return [job_from(row) for row in connection.execute(query)]


def with_number(connection: Connection, number: JobNumber, limit: int, owner: str | None = None) -> list[Job]:
    """The live runs (of an owner) of CLUSTER.PROC or of a cluster, or where none lives those that have ended; the
    newest first, and the last jobs of a cluster."""
    query = select(*JOB_COLUMNS).where(*_numbered(number), *_of(owner))
    # In the order of the index, so that of a large cluster no more is read than is asked for.
    query = query.order_by(runs.c.proc.desc(), runs.c.number.desc()).limit(limit)
    for each in (query.where(LIVE), query):
        if rows := connection.execute(each).all():
            return [job_from(row) for row in rows]
    return []


def with_global_id(connection: Connection, global_job_id: str, limit: int, owner: str | None = None) -> list[Job]:
    """The runs (of an owner) of a GlobalJobId, the newest first."""
    chosen = runs.c.global_job_id == global_job_id
    query = select(*JOB_COLUMNS).where(chosen, *_of(owner)).order_by(runs.c.number.desc()).limit(limit)
    return [job_from(row) for row in connection.execute(query)]


def with_prefix(connection: Connection, prefix: str, limit: int, owner: str | None = None) -> list[Job]:
    """The runs (of an owner) whose id begins so, in order of id."""
    # "g" comes after every hexadecimal digit, in every collation.
    query = select(*JOB_COLUMNS).where(runs.c.id >= prefix, runs.c.id < prefix + "g", *_of(owner))
    return [job_from(row) for row in connection.execute(query.order_by(runs.c.id).limit(limit))]


def _numbered(number: JobNumber) -> list[ColumnElement[bool]]:
    """The conditions of a number; its access point is the name in front of the GlobalJobId, or its first part, whatever
    the case."""
    chosen = [runs.c.cluster == number.cluster]
    if number.proc is not None:
        chosen.append(runs.c.proc == number.proc)
    if number.access_point is not None:
        name = number.access_point.lower()
        starts = func.substr(func.lower(runs.c.global_job_id), 1, len(name) + 1)
        chosen.append(or_(*(starts == name + mark for mark in "#.@")))
    return chosen


def _of(owner: str | None) -> list[ColumnElement[bool]]:
    return [] if owner is None else [runs.c.owner == owner]


def hosts_called(connection: Connection, name: str) -> list[str]:
    """The hosts of runs of this name in any case, or else those with this first part of theirs, without a domain."""
    found = sorted(connection.execute(_HOSTS_CALLED, parameters_of(name)).scalars())
    return [each for each in found if each.lower() == name.lower()] or found


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
    read = (runs.c.owner, runs.c.user_name, runs.c.group_name, runs.c.inbound, runs.c.outbound)
    query = (
        select(runs.c.number, runs.c.id, *read, run_ads.c.job_ad, run_ads.c.machine_ad)
        .join(run_ads)
        .where(LIVE, runs.c.number > after_number)
        .order_by(runs.c.number)
        .limit(limit)
    )
    if stale_for is not None:
        query = query.where(runs.c.facts_for != stale_for)
    return [LiveAds(*row) for row in connection.execute(query)]


def page(
    connection: Connection, chosen: JobFilter, cursor: str | None, limit: int, among: Sequence[int] | None = None
) -> JobPage:
    """A page in order of number, or from the last number down; with ``among`` of the runs with these numbers alone.
    Raises NotFoundError for a cursor that is none."""
    query = _chosen(connection, select(*JOB_COLUMNS), chosen, None if cursor is None else number_in(cursor))
    if among is not None:
        query = query.where(runs.c.number.in_(among))
    rows = read_by_portions(connection.execute(query.limit(limit + 1)))
    jobs = tuple(job_from(row) for row in by_portions(rows[:limit]))
    return JobPage(jobs, cursor_for(jobs[-1].number) if len(rows) > limit else None)


def numbers(connection: Connection, chosen: JobFilter, after: int | None, limit: int) -> list[int]:
    """The numbers of a page that begins after a run."""
    return list(connection.execute(_chosen(connection, select(runs.c.number), chosen, after).limit(limit)).scalars())


def _chosen(connection: Connection, query: Select[Any], chosen: JobFilter, after: int | None) -> Select[Any]:
    """The query for the runs that are chosen, in order, those after a number."""
    for column, value in (
        (runs.c.owner, chosen.owner),
        (runs.c.user_name, chosen.user),
        (runs.c.global_job_id, chosen.global_job_id),
    ):
        if value is not None:
            query = query.where(column == value)
    if chosen.group is not None:
        query = query.where(in_groups(runs.c.group_name, chosen.group, groups_meant(connection, chosen.group)))
    if chosen.host is not None:
        hosts = hosts_meant(connection, chosen.host)
        query = query.where(runs.c.host == hosts[0] if len(hosts) == 1 else runs.c.host.in_(hosts))
    if chosen.numbered is not None:
        query = query.where(*_numbered(chosen.numbered))
    if chosen.state == "live":
        query = query.where(LIVE)
    elif chosen.state is not None:
        query = query.where(runs.c.state == chosen.state)
    if after is not None:
        query = query.where(runs.c.number < after if chosen.newest else runs.c.number > after)
    return query.order_by(runs.c.number.desc() if chosen.newest else runs.c.number)


def hosts_meant(connection: Connection, name: str) -> list[str]:
    """The host of that name, or where none has it one in another case, or those with this first part of theirs."""
    known = connection.execute(select(runs.c.number).where(runs.c.host == name).limit(1)).first()
    return [name] if known else hosts_called(connection, name) or [name]


def groups_meant(connection: Connection, name: str) -> list[str]:
    """The groups of runs of that name in any case, as HTCondor compares them, and their subgroups."""
    found = connection.execute(_GROUPS_CALLED, parameters_of(name)).scalars()
    return sorted({name, *found})


def in_groups(column: ColumnElement[str], name: str, meant: Sequence[str]) -> ColumnElement[bool]:
    """The condition that a column has one of the groups ``meant`` by a name.

    Users choose the names of subgroups, and a statement has no room for any number of them: beyond some each row's is
    compared instead.
    """
    if len(meant) <= _MOST_NAMED:
        return one_of(column, meant)
    whole, start = name.lower(), f"{name.lower()}."
    lower = func.lower(column)
    return or_(lower == whole, func.substr(lower, 1, len(start)) == start)


def one_of(column: ColumnElement[str], values: Sequence[str]) -> ColumnElement[bool]:
    """The condition that a column has one of these values."""
    return column == values[0] if len(values) == 1 else column.in_(values)


def parameters_of(name: str) -> dict[str, str | int]:
    """The parameters of a search for a name in any case, whole or before a dot."""
    whole = name.lower()
    return {"whole": whole, "start": f"{whole}.", "length": len(whole) + 1}


def expired(connection: Connection, now: float) -> list[Job]:
    """The live runs whose lease is over."""
    over = select(leases.c.number).where(leases.c.lease_until < now)
    query = select(*JOB_COLUMNS).where(LIVE, runs.c.number.in_(over)).order_by(runs.c.number)
    return [job_from(row) for row in connection.execute(query)]

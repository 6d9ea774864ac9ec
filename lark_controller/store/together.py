"""Many posts and ends in one transaction: a statement each for all that concern nobody else.

A post concerns nobody else where its run is new, nobody holds its addresses, nobody lives on its slot and it books no
bandwidth. Every other one is carried out by itself (:mod:`.runs`) in a savepoint: where it raises, nothing of it is
kept, and all others are.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection, bindparam, delete, insert, update
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, StatementError

from lark_common.errors import LarkError, StoreError
from lark_controller.jobs.job import Job, JobState, numbered
from lark_controller.store import external_addresses, reservations, runs, sqlite
from lark_controller.store.audit_and_policies import entry, record_all
from lark_controller.store.rows import columns_of, job_from
from lark_controller.store.runs import Post, StoredRun
from lark_controller.store.schema import HOLDS_ADDRESS, LIVE, leases, run_ads
from lark_controller.store.schema import runs as table

# Tries of one that another process was faster than.
_ATTEMPTS: Final = 3
# Seconds after which no further one is carried out by itself: with a database that is slow, a transaction of 64 of
# them, each some ten statements, would take minutes, and all who wait for it would give up before it ends.
_PATIENCE: Final = 3.0

_FIND: Final = runs.JOBS.where(table.c.id.in_(bindparam("ids", expanding=True))).order_by(table.c.number)
_INSERT: Final = insert(table).inline()
_INSERT_ADS: Final = insert(run_ads).inline()
_EXIT_AD: Final = (
    update(run_ads)
    .where(run_ads.c.number == bindparam("run"), run_ads.c.exit_ad == "")
    .values(exit_ad=bindparam("text"))
)
_SQLITE_END: Final = (
    f"UPDATE runs SET state = '{JobState.ENDED.value}', live = 0, reason = new.column2, ended_at = new.column3"
    " FROM (VALUES {rows}) AS new WHERE runs.number = new.column1"
)
_SQLITE_EXIT_AD: Final = (
    "UPDATE run_ads SET exit_ad = new.column2 FROM (VALUES {rows}) AS new"
    " WHERE run_ads.number = new.column1 AND run_ads.exit_ad = ''"
)
_END_LEASES: Final = delete(leases).where(leases.c.number.in_(bindparam("runs", expanding=True)))
# A list as one parameter, so that the statement is the same however many it has.
_AMONG: Final = {"sqlite": "IN (SELECT value FROM json_each(?))", "postgresql": "= ANY(%s::text[])"}
_TAKEN: Final = """
SELECT 'id', id FROM runs WHERE id {among}
UNION ALL SELECT 'slot', slot FROM runs WHERE {live} AND slot {among}
UNION ALL SELECT 'address', ipv4 FROM runs WHERE {holds} AND ipv4 {among}
UNION ALL SELECT 'address', ipv6 FROM runs WHERE {holds} AND ipv6 {among}
"""
_TAKEN_STATEMENT: Final = {
    dialect: _TAKEN.format(among=among, live=LIVE.text, holds=HOLDS_ADDRESS.text) for dialect, among in _AMONG.items()
}
_LOCK_SLOTS: Final = (
    "SELECT pg_advisory_xact_lock(hashtextextended(slot, 0)) FROM unnest(%s::text[]) WITH ORDINALITY AS t (slot, place)"
    " ORDER BY place"
)
_NEXT_NUMBERS: Final = "SELECT nextval(pg_get_serial_sequence('runs', 'number')) FROM generate_series(1, %s)"
_LAST_NUMBER: Final = "SELECT seq FROM sqlite_sequence WHERE name = 'runs'"


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of one run: when, why, with which exit ad (``""``: none), and by whom."""

    job_id: str
    now: float
    why: str
    exit_ad: str
    actor: str


Request = Post | Finish
# For a post a registration, or the unseen run that was left as it is; for an end the job (None: there is none). Or the
# error, and then nothing of it was done.
Outcome = StoredRun | Job | None | Exception


class NotAtOnceError(Exception):
    """One of them holds something that no database takes; which one, shows when each is carried out by itself."""


def at_once(connection: Connection, requests: Sequence[Request]) -> list[Outcome]:
    """Carry out all, ends first, in the transaction. Raises NotAtOnceError; then nothing of it may be committed."""
    found: dict[int, Outcome] = {}
    lines: list[dict[str, Any]] = []
    alone: list[int] = []
    try:
        _keep_links(connection, requests)
        _finish(connection, _places(requests, Finish), found, lines, alone)
        _register(connection, _places(requests, Post), found, lines, alone)
        record_all(connection, lines)
    except Exception as error:
        if _of_the_data(error):
            raise NotAtOnceError from error
        raise
    found |= _in_time(connection, [(place, requests[place]) for place in sorted(alone)])
    return [found[place] for place in range(len(requests))]


def one_by_one(connection: Connection, requests: Sequence[Request]) -> list[Outcome]:
    """As :func:`at_once`, each in a savepoint, ends first: the error of one is its outcome."""
    _keep_links(connection, requests)
    turns = sorted(range(len(requests)), key=lambda place: isinstance(requests[place], Post))
    found = _in_time(connection, [(place, requests[place]) for place in turns])
    return [found[place] for place in range(len(requests))]


def _keep_links(connection: Connection, requests: Iterable[Request]) -> None:
    """Keep the speeds of workers' links that are new with these posts."""
    links = {each.job.host: each.link for each in requests if isinstance(each, Post) and each.link is not None}
    # In one order, so that no two controllers wait for each other.
    for host, megabits in sorted(links.items()):
        reservations.set_worker_capacity(connection, host, megabits)


def _in_time(connection: Connection, requests: Sequence[tuple[int, Request]]) -> dict[int, Outcome]:
    """The outcomes of requests by themselves, by place: of the first, and of those after it as far as there is time."""
    found: dict[int, Outcome] = {}
    end = time.monotonic() + _PATIENCE
    for place, request in requests:
        if found and time.monotonic() > end:
            found[place] = StoreError("The database is slow: nothing of this was written; ask again.")
        else:
            found[place] = _by_itself(connection, request)
    return found


def _places(requests: Sequence[Request], kind: type) -> list[tuple[int, Any]]:
    return [(place, each) for place, each in enumerate(requests) if isinstance(each, kind)]


def _by_itself(connection: Connection, request: Request) -> Outcome:
    work: Callable[[], StoredRun | Job | None]
    if isinstance(request, Post):
        post = request

        def work() -> StoredRun | Job:
            left = runs.given_up(connection, post.job.id) if post.unseen else None
            return left or runs.register_post(connection, post)

    else:
        finish = request

        def work() -> Job | None:
            return runs.end(connection, finish.job_id, finish.now, finish.why, finish.exit_ad, finish.actor)

    failed: Exception | None = None
    for _ in range(_ATTEMPTS):
        try:
            with connection.begin_nested():
                return work()
        except IntegrityError as error:
            # Another process has written what this one has not seen yet.
            failed = error
        except Exception as error:
            if isinstance(error, LarkError) or _of_the_data(error):
                return error
            raise
    return failed


def _of_the_data(error: Exception) -> bool:
    """True for an error in what was to be written, False for one of the database."""
    if isinstance(error, DBAPIError):
        return isinstance(error, DataError)
    return isinstance(error, StatementError | OverflowError | UnicodeError)


def _finish(
    connection: Connection,
    requests: Collection[tuple[int, Finish]],
    found: dict[int, Outcome],
    lines: list[dict[str, Any]],
    alone: list[int],
) -> None:
    if not requests:
        return
    ids = sorted({finish.job_id for _, finish in requests})
    known = {job.id: job for job in map(job_from, connection.execute(_FIND, {"ids": ids}))}
    ended: list[tuple[Job, Finish]] = []
    seen: set[str] = set()
    for place, finish in requests:
        job = known.get(finish.job_id)
        if job is None:
            found[place] = None
        elif job.state is JobState.ENDED or job.id in seen:
            alone.append(place)
        else:
            seen.add(job.id)
            ended.append((job, finish))
            lines.append(entry(finish.now, finish.actor, runs.ending_action(finish.why), job.id, finish.why))
            found[place] = replace(job, state=JobState.ENDED, reason=finish.why)
    if not ended:
        return
    exit_ads = [{"run": job.number, "text": each.exit_ad} for job, each in ended if each.exit_ad]
    if connection.dialect.name == "sqlite":
        ends = [(job.number, each.why, each.now) for job, each in ended]
        sqlite.with_rows(connection, _SQLITE_END, ends)
        sqlite.with_rows(connection, _SQLITE_EXIT_AD, [tuple(each.values()) for each in exit_ads])
    else:
        connection.execute(runs.END, [{"run": job.number, "why": each.why, "at": each.now} for job, each in ended])
        if exit_ads:
            connection.execute(_EXIT_AD, exit_ads)
    connection.execute(_END_LEASES, {"runs": [job.number for job, _ in ended]})
    last = max(finish.now for _, finish in ended)
    reservations.release_of_jobs(connection, sorted(seen), last)
    external_addresses.release_of_jobs(connection, sorted(seen), last)


def _register(
    connection: Connection,
    requests: Collection[tuple[int, Post]],
    found: dict[int, Outcome],
    lines: list[dict[str, Any]],
    alone: list[int],
) -> None:
    if not requests:
        return
    taken = _taken(connection, [post.job for _, post in requests])
    fresh: list[tuple[int, Post]] = []
    for place, post in requests:
        claims = _claims(post.job)
        if post.booking is not None or post.flows or post.rest or not post.job.live or not taken.isdisjoint(claims):
            alone.append(place)
        else:
            fresh.append((place, post))
        # Of two in one transaction for the same, the second is to find the first.
        taken.update(claims)
    if not fresh:
        return
    numbers = _numbers(connection, len(fresh))
    rows, ads, new_leases = [], [], []
    for number, (place, post) in zip(numbers, fresh, strict=True):
        job = numbered(post.job, number, post.now)
        rows.append(columns_of(job) | {"number": number, "facts_for": post.facts_for, "ended_at": None})
        ads.append({"number": number, "job_ad": post.job_ad, "machine_ad": post.machine_ad, "exit_ad": ""})
        new_leases.append({"number": number, "lease_until": job.lease_until})
        lines.append(entry(post.now, post.actor, "register", job.id, runs.registered_words(job)))
        found[place] = StoredRun(job, True)
    if connection.dialect.name == "sqlite":
        sqlite.insert_rows(connection, table, rows)
        sqlite.insert_rows(connection, run_ads, ads)
        sqlite.insert_rows(connection, leases, new_leases, runs.RENEWED)
    else:
        connection.execute(_INSERT, rows)
        connection.execute(_INSERT_ADS, ads)
        connection.execute(runs.PUT_LEASE, new_leases)


def _claims(job: Job) -> list[tuple[str, str]]:
    """All that a run must have for itself."""
    addresses = job.addresses if job.has_pool_address else ()
    return [("id", job.id), ("slot", job.run.slot), *(("address", str(address)) for address in addresses)]


def _taken(connection: Connection, jobs: Iterable[Job]) -> set[tuple[str, str]]:
    """The claims of these runs that others in the database have, by whatever right."""
    ids: set[str] = set()
    slots: set[str] = set()
    v4: set[str] = set()
    v6: set[str] = set()
    for job in jobs:
        ids.add(job.id)
        slots.add(job.run.slot)
        if job.has_pool_address:
            v4.update(() if job.ipv4 is None else (str(job.ipv4),))
            v6.update(() if job.ipv6 is None else (str(job.ipv6),))
    dialect = connection.dialect.name
    lists: list[list[str]] = [sorted(each) for each in (ids, slots, v4, v6)]
    parameters: tuple[object, ...] = tuple(lists)
    if dialect == "postgresql":
        # In one order, so that no two wait for each other.
        connection.exec_driver_sql(_LOCK_SLOTS, (lists[1],))
    else:
        parameters = tuple(json.dumps(each) for each in lists)
    return {(what, value) for what, value in connection.exec_driver_sql(_TAKEN_STATEMENT[dialect], parameters)}


def _numbers(connection: Connection, count: int) -> list[int]:
    """The numbers of the next runs."""
    if connection.dialect.name == "postgresql":
        return [number for (number,) in connection.exec_driver_sql(_NEXT_NUMBERS, (count,))]
    # The transaction is the only writer, and SQLite takes note of numbers that it is given.
    last = connection.exec_driver_sql(_LAST_NUMBER).scalar_one_or_none() or 0
    return list(range(last + 1, last + 1 + count))

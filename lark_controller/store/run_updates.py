"""Updates runs while they live and after: leases, states, facts, quarantine, and the removal of what is old."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection, Float, Update, bindparam, delete, or_, select, text, update

from lark_common.errors import StateError
from lark_controller.jobs.job import Facts, Job, JobState
from lark_controller.store import reservations, sqlite
from lark_controller.store.audit_and_policies import record
from lark_controller.store.rows import facts_text
from lark_controller.store.runs import find_for_update
from lark_controller.store.schema import LIVE, audit, leases, runs

_BY_ID: Final = runs.c.id == bindparam("job_id")
# Without ``live``: SQLite writes every index anew whose condition names a column that is set, whatever it is set to.
_SET_STATE: Final = update(runs).where(_BY_ID, LIVE).values(state=bindparam("to"), reason=bindparam("why"))
_SET_FACTS: Final = update(runs).where(_BY_ID, LIVE).values(facts=bindparam("taken"), facts_for=bindparam("taken_for"))
_SQLITE_STATES: Final = (
    "UPDATE runs SET state = new.column2, reason = new.column3 FROM (VALUES {rows}) AS new"
    " WHERE runs.id = new.column1 AND live"
)
_SQLITE_FACTS: Final = (
    "UPDATE runs SET facts = new.column2, facts_for = new.column3 FROM (VALUES {rows}) AS new"
    " WHERE runs.id = new.column1 AND live"
)
_SET_REFUSED: Final = update(runs).where(_BY_ID, LIVE).values(live=False)
_RENEW: Final = (
    "UPDATE leases SET lease_until = new.column2 FROM (VALUES {rows}) AS new WHERE leases.number = new.column1"
)
_RENEW_ARRAYS: Final = (
    "UPDATE leases SET lease_until = new.lease_until"
    " FROM unnest(%s::bigint[], %s::float8[]) AS new (number, lease_until) WHERE leases.number = new.number"
)
_BEGIN: Final = text(
    "INSERT INTO leases (number, lease_until) SELECT number, :until FROM runs WHERE live"
    " ON CONFLICT (number) DO UPDATE SET lease_until = excluded.lease_until"
    " WHERE leases.lease_until <> excluded.lease_until"
).bindparams(bindparam("until", type_=Float(53)))


@dataclass(frozen=True, slots=True)
class Pruned:
    """The number of ended runs, and of lines of the audit trail, that were removed."""

    runs: int
    audit: int


def renew(connection: Connection, job_id: str, lease_until: float) -> bool:
    """Set a live run's lease; False where no such run lives."""
    of_run = select(runs.c.number).where(runs.c.id == job_id, LIVE).scalar_subquery()
    query = update(leases).where(leases.c.number == of_run).values(lease_until=lease_until)
    return connection.execute(query).rowcount > 0


def renew_many(connection: Connection, renewed: Collection[tuple[int, float]]) -> int:
    """Set the leases of live runs, by number; returns how many of them live."""
    rows = sorted(renewed)
    if not rows:
        return 0
    if connection.dialect.name == "postgresql":
        numbers, ends = zip(*rows, strict=True)
        return connection.exec_driver_sql(_RENEW_ARRAYS, (list(numbers), list(ends))).rowcount
    return sqlite.with_rows(connection, _RENEW, rows)


def begin_leases(connection: Connection, until: float) -> int:
    """Let every live run's lease end at ``until`` (after a start, before workers could renew, and where leases end by a
    clock that was set since); returns how many changed."""
    return connection.execute(_BEGIN, {"until": until}).rowcount


def set_states(connection: Connection, states: Collection[tuple[str, JobState, str]]) -> int:
    """Set state and reason of live runs; returns how many of them live. A refused run gives up its address and
    what is reserved for it, and lives again only when it is registered again. Raises ValueError for ``ended``."""
    rows: list[dict[str, Any]] = []
    gone: list[str] = []
    for job_id, state, reason in states:
        if state is JobState.ENDED:
            raise ValueError("a run is ended by runs.end, which takes why and by whom")
        rows.append({"job_id": job_id, "to": state.value, "why": reason})
        if state is JobState.REFUSED:
            gone.append(job_id)
    changed = _set(connection, _SET_STATE, _SQLITE_STATES, rows)
    if gone:
        connection.execute(_SET_REFUSED, [{"job_id": job_id} for job_id in gone])
        of_runs = select(runs.c.number).where(runs.c.id.in_(gone))
        connection.execute(delete(leases).where(leases.c.number.in_(of_runs)))
    reservations.release_of_jobs(connection, gone, time.time())
    return changed


def update_facts(connection: Connection, facts: Collection[tuple[str, Facts]], facts_for: str) -> int:
    """Set the facts of live runs and the names that they were taken for; returns how many of them live."""
    rows = [{"job_id": job_id, "taken": facts_text(of_job), "taken_for": facts_for} for job_id, of_job in facts]
    return _set(connection, _SET_FACTS, _SQLITE_FACTS, rows)


def _set(connection: Connection, one: Update, on_sqlite: str, rows: Sequence[dict[str, Any]]) -> int:
    """Set columns of runs; the values of each row are in the order of the statement for SQLite."""
    if not rows:
        return 0
    if connection.dialect.name == "sqlite":
        return sqlite.with_rows(connection, on_sqlite, [tuple(row.values()) for row in rows])
    return connection.execute(one, rows).rowcount


def quarantine(connection: Connection, job_id: str, reason: str, actor: str, now: float) -> Job | None:
    """Stores the pool's contradiction of a live run; None where no such run lives."""
    job = find_for_update(connection, job_id)
    if job is None or not job.live:
        return None
    if job.quarantine == reason:
        return job
    connection.execute(update(runs).where(runs.c.number == job.number).values(quarantine=reason))
    record(connection, now, actor, "quarantine", job_id, reason)
    return replace(job, quarantine=reason)


def lift(connection: Connection, job_id: str, reason: str, actor: str, now: float, vouched: bool = False) -> Job | None:
    """End a live run's quarantine; None where no such run lives. With ``vouched`` it will not be in one again, and
    StateError is raised for a run that is in none: there is no contradiction that anybody could lift."""
    job = find_for_update(connection, job_id)
    if job is None or not job.live:
        return None
    if vouched and not job.quarantine:
        raise StateError(f"job {job.called} is in no quarantine, so there is none to lift")
    after = replace(job, quarantine="", vouched=job.vouched or vouched)
    if after == job:
        return job
    connection.execute(update(runs).where(runs.c.number == job.number).values(quarantine="", vouched=after.vouched))
    record(connection, now, actor, "lift", job_id, reason)
    return after


def prune_runs(connection: Connection, before: float, limit: int) -> int:
    """Remove up to ``limit`` runs that ended, or were refused and whose lease was over, before ``before``."""
    over = or_(
        runs.c.ended_at < before,
        (runs.c.state == JobState.REFUSED.value) & (runs.c.lease_until < before) & (runs.c.created_at < before),
    )
    chosen = select(runs.c.number).where(over).order_by(runs.c.number).limit(limit)
    return connection.execute(delete(runs).where(runs.c.number.in_(chosen.scalar_subquery()))).rowcount


def prune_audit(connection: Connection, before: float, limit: int) -> int:
    """Remove up to ``limit`` lines of the audit trail that are older than ``before``."""
    chosen = select(audit.c.number).where(audit.c.at < before).order_by(audit.c.number).limit(limit)
    return connection.execute(delete(audit).where(audit.c.number.in_(chosen.scalar_subquery()))).rowcount

"""Instances of the controller, and the term of the active one: functions on a connection.

Whoever writes holds the one row of ``term`` FOR SHARE to the end of its transaction (:func:`check`), and a takeover
changes that row (:func:`take`): it waits for what is being written, and what comes later finds another generation.
All times are the database's clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Float,
    delete,
    insert,
    inspect,
    literal,
    literal_column,
    null,
    select,
    text,
    true,
    update,
)
from sqlalchemy.exc import OperationalError

from lark_common.errors import StoreError
from lark_controller.api.instances import (
    AWAY_SECONDS,
    STANDBY,
    STARTING,
    STOPPED,
    Identity,
    Instance,
    Instances,
    Look,
    Reached,
    Sign,
    Why,
)
from lark_controller.store.schema import instances, term, term_keys

# Columns of ``instances`` that the tables of earlier releases do not have.
_ADDED: Final = (
    instances.c.tokens,
    instances.c.copied_at,
    instances.c.counters_read,
    instances.c.kept,
    instances.c.away,
    instances.c.reached,
    instances.c.tables,
)
LATER: Final = frozenset(each.name for each in _ADDED)

# The class of the session lock by which others see that the holder of a term lives: "term" in ASCII. The lock's own
# number is the generation's last 31 bits.
_LOCK_CLASS: Final = 0x7465726D
_LOCK_MASK: Final = 0x7FFFFFFF
# The lock that controllers before version 0009 of the schema held while they ran: "runs" in ASCII.
_OLDER_LOCK: Final = 0x72756E73
# A process that is paused in the middle of a write must not keep a takeover waiting.
_IDLE_MS: Final = 5_000
_TAKE_WAIT_MS: Final = 10_000
# That limit counts between statements alone. In the middle of one (COPY, statements sent in a row, a long result) the
# server waits for its client as long as TCP does: for hours where the client's machine is gone. So it does between two
# where statements were sent in a row: it does not count again after it was asked to send what it has (Flush).
_STALLED_MS: Final = 5_000
# Between two looks at the sessions that hold the row of the term, while it is waited for.
_TAKE_LOOK_MS: Final = 1_000
# Seconds between two looks at the writes that are to end.
_SETTLE_SECONDS: Final = 0.02
# The SQLSTATE of a lock that was waited for too long (lock_not_available).
_LOCK_TIMEOUT: Final = "55P03"
# Instances that gave no sign of life for so many seconds are forgotten.
_FORGOTTEN_SECONDS: Final = 86_400

_NOW: Final = {
    "postgresql": literal_column("extract(epoch FROM clock_timestamp())::double precision", Float),
    "sqlite": literal_column("((julianday('now') - 2440587.5) * 86400.0)", Float),
}
_TABLES: Final = "SELECT max(version_num) FROM alembic_version"
_BRIEF: Final = f"set_config('idle_in_transaction_session_timeout', '{_IDLE_MS}', true)"
_CHECK: Final = {
    "postgresql": f"SELECT generation, {_BRIEF} FROM term FOR SHARE",
    "sqlite": "SELECT generation, 0 FROM term",
}
_HELD: Final = f"""
SELECT EXISTS (
    SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid::bigint = {_LOCK_CLASS} AND objid::bigint = :number
), pg_postmaster_start_time()::text
"""
_END_STALLED: Final = """
SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE relation = 'term'::regclass AND pg_locks.database = datid AND datname = current_database()
AND mode = 'RowShareLock' AND granted AND pid <> pg_backend_pid() AND usename = current_user
AND state IN ('active', 'idle in transaction') AND wait_event_type = 'Client'
AND state_change < clock_timestamp() - :stalled * interval '1 millisecond'
"""
# A transaction's own number on the server, which no later one has.
_WRITING: Final = """
SELECT virtualtransaction FROM pg_locks WHERE relation = 'term'::regclass
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND mode = 'RowShareLock' AND granted AND pid <> pg_backend_pid()
"""


def is_there(connection: Connection) -> bool:
    """True if the database has the tables of this module."""
    return inspect(connection).has_table("term")


def older_one_runs(connection: Connection) -> bool:
    """True while a controller of a release without instances uses the database; else none can begin until the end of
    the transaction."""
    if connection.dialect.name == "sqlite":
        return False
    return not connection.execute(text(f"SELECT pg_try_advisory_xact_lock({_OLDER_LOCK})")).scalar_one()


def check(connection: Connection) -> int:
    """The generation of the present term, which no other transaction changes before the end of this one."""
    row = connection.exec_driver_sql(_CHECK[connection.dialect.name]).one()
    return int(row[0])


def settle(connection: Connection) -> None:
    """Wait for the ends of all writes that have begun: the server may still carry out one whose answer was lost. Raises
    StoreError where one of them does not end.

    The row itself would be the wrong thing to wait for: the server lets each further FOR SHARE pass whoever waits for
    all to end, so that writes which overlap would hold this one up for ever.
    """
    if connection.dialect.name != "postgresql":
        return
    begun = _writing(connection)
    deadline = time.monotonic() + _TAKE_WAIT_MS / 1000
    while begun:
        if time.monotonic() > deadline:
            raise StoreError(f"{len(begun)} writes that began before are not over; it is tried again.")
        _end_stalled(connection)
        connection.exec_driver_sql(f"SELECT pg_sleep({_SETTLE_SECONDS})")
        begun &= _writing(connection)


def _writing(connection: Connection) -> set[str]:
    """The transactions that hold the row of the term now, but for this one. Each is there until what it has written
    can be seen."""
    return set(connection.exec_driver_sql(_WRITING).scalars())


def register(connection: Connection, me: Identity) -> None:
    """Write an instance down as one that stands by, and forget those that it replaces, and those long gone."""
    _keep_brief(connection)
    now = _NOW[connection.dialect.name]
    holder = select(term.c.holder).scalar_subquery()
    gone = _replaced(me) | (instances.c.at < now - _FORGOTTEN_SECONDS)
    connection.execute(delete(instances).where(gone, instances.c.id != holder, instances.c.id != me.id))
    values = {"name": me.name, "url": me.url, "version": me.version, "boot": me.boot}
    found = connection.execute(update(instances).where(instances.c.id == me.id).values(values))
    if not found.rowcount:
        fresh = values | {"id": me.id, "beat": 0, "state": STANDBY, "started_at": now, "at": now}
        connection.execute(insert(instances).values(fresh))


def later_columns(connection: Connection) -> frozenset[str]:
    """Those of :data:`LATER` that are there: one that stands by does not change tables that an older release uses."""
    return LATER & {each["name"] for each in inspect(connection).get_columns(instances.name)}


def beat(connection: Connection, me: Identity, state: str, more: Mapping[str, object] = MappingProxyType({})) -> None:
    """Give a sign of life of an instance, which is written down anew where its row is gone; with ``more`` columns of
    :data:`LATER`."""
    _keep_brief(connection)
    now = _NOW[connection.dialect.name]
    change = update(instances).where(instances.c.id == me.id)
    found = connection.execute(change.values(beat=instances.c.beat + 1, state=state, at=now, **more))
    if not found.rowcount:
        register(connection, me)


def has_keys(connection: Connection) -> bool:
    """True if the tables are new enough for the key of each term."""
    return inspect(connection).has_table(term_keys.name)


def share_key(connection: Connection, generation: int, key: str) -> None:
    """Write the key of a term down for all instances; those of earlier terms are good for nothing any more."""
    connection.execute(delete(term_keys))
    connection.execute(insert(term_keys).values(generation=generation, key=key))


def look(connection: Connection, with_key: bool = False, later: frozenset[str] = frozenset()) -> Look:
    """The term as it is, with its holder, and ``with_key`` where :func:`has_keys`; with those of the
    :func:`later_columns` that are there."""
    columns = instances.c
    away = columns.away if columns.away.name in later else _absent(columns.away)
    age = (_NOW[connection.dialect.name] - columns.at).label("age")
    query = select(term, columns.id, columns.name, columns.url, columns.beat, columns.boot, away, age)
    # By one statement: a database may take long for each.
    rows = connection.execute(query.select_from(term.outerjoin(instances, true()))).all()
    if not rows:
        raise StoreError("The table term has no row: restore the database.")
    row = rows[0]
    holder = next((each for each in rows if each.id == row.holder), None)
    held, server, alone = False, "", connection.dialect.name == "sqlite"
    if not alone:
        number = {"number": row.generation & _LOCK_MASK}
        held, server = connection.execute(text(_HELD), number).one()
    found = Look(
        row.generation,
        row.holder,
        held=held,
        server=server,
        why=row.why,
        since=row.since,
        alone=alone,
        key=_key_of(connection, row.generation) if with_key else "",
        tables=_tables(connection),
        signs=tuple(Sign(each.id, each.beat, each.age) for each in rows if each.id is not None),
    )
    if holder is None:
        return found
    missed = tuple(int(each, 16) for each in (holder.away or "").split(",") if each)
    return replace(found, name=holder.name, url=holder.url, beat=holder.beat, boot=holder.boot or "", away=missed)


def _tables(connection: Connection) -> str:
    """The version of the tables."""
    return connection.exec_driver_sql(_TABLES).scalar_one() or ""


def asked(away: Iterable[int]) -> str:
    """Switches as the column ``away`` has them."""
    return ",".join(f"{each:x}" for each in away)


def reached(connection: Connection) -> list[Reached]:
    """Those that stand by and know the tables, if they live, with the number of switches that they reach of those that
    the active one misses."""
    columns = select(instances.c.id, instances.c.name, instances.c.reached)
    knowing = (instances.c.state == STANDBY) & (instances.c.tables >= _tables(connection))
    rows = connection.execute(columns.where(knowing).order_by(instances.c.name))
    return [Reached(row.id, row.name, row.reached or 0) for row in rows]


def _key_of(connection: Connection, generation: int) -> str:
    key = connection.execute(select(term_keys.c.key).where(term_keys.c.generation == generation))
    return str(key.scalar_one_or_none() or "")


def take(connection: Connection, me: Identity, seen: int, why: Why) -> int | None:
    """Make an instance the holder of a new term, if the term is still the one that it has ``seen``; returns the new
    generation, or None.

    A generation is at least the seconds since 1970, so that it is higher than all before also where the database was
    made anew or restored from a backup: switches keep the highest that they were given. By the row's own count it only
    ever grows, whatever the clock shows.
    """
    # One that is lost before it has committed holds the row of the term, by which all others write and take over.
    _keep_brief(connection)
    now = _NOW[connection.dialect.name]
    if connection.dialect.name == "postgresql":
        _hold_row(connection)
        highest = text("GREATEST(generation + 1, extract(epoch FROM clock_timestamp())::bigint)")
    else:
        highest = text("MAX(generation + 1, CAST(strftime('%s', 'now') AS INTEGER))")
    change = update(term).where(term.c.number == 1, term.c.generation == seen)
    values = {"generation": highest, "holder": me.id, "since": now, "why": str(why)}
    generation = connection.execute(change.values(values).returning(term.c.generation)).scalar_one_or_none()
    if generation is None:
        return None
    hold(connection, generation)
    # The one that it was before it was started again had the term until now, and so is in the table still.
    connection.execute(delete(instances).where(_replaced(me), instances.c.id != me.id))
    beat(connection, me, STARTING)
    return int(generation)


def _hold_row(connection: Connection) -> None:
    """Wait for the row of the term, for a bounded time, and end the sessions that would hold it for hours."""
    deadline = time.monotonic() + _TAKE_WAIT_MS / 1000
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {min(_TAKE_LOOK_MS, _TAKE_WAIT_MS)}")
    while True:
        _end_stalled(connection)
        try:
            with connection.begin_nested():
                connection.exec_driver_sql("SELECT 1 FROM term FOR NO KEY UPDATE")
            return
        except OperationalError as error:
            if getattr(error.orig, "sqlstate", None) != _LOCK_TIMEOUT or time.monotonic() > deadline:
                raise


def _end_stalled(connection: Connection) -> None:
    # A transaction sees the sessions as they were at its first look, but for this.
    connection.exec_driver_sql("SELECT pg_stat_clear_snapshot()")
    connection.execute(text(_END_STALLED), {"stalled": _STALLED_MS})


def _replaced(me: Identity) -> ColumnElement[bool]:
    return (instances.c.name == me.name) & (instances.c.url == me.url)


def _keep_brief(connection: Connection) -> None:
    # An instance that is paused here, or whose machine is lost, must not keep its own successor from its row.
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT {_BRIEF}")


def hold(connection: Connection, generation: int) -> None:
    """Show, as long as the session lasts, that the holder of a term lives. Whether another session of its own shows it
    already does not matter."""
    if connection.dialect.name == "postgresql":
        number = {"number": generation & _LOCK_MASK}
        connection.execute(text(f"SELECT pg_try_advisory_lock({_LOCK_CLASS}, :number)"), number)


def release(connection: Connection, me: Identity, generation: int, why: Why) -> bool:
    """Let a term go, so that another takes over at once; False where it is no more the instance's own."""
    _keep_brief(connection)
    change = update(term).where(term.c.holder == me.id, term.c.generation == generation)
    found = connection.execute(change.values(holder="", why=str(why)))
    return bool(found.rowcount)


def leave(connection: Connection, me: Identity) -> None:
    """Write down that an instance has stopped."""
    connection.execute(update(instances).where(instances.c.id == me.id).values(state=STOPPED))


def all_of(connection: Connection, later: frozenset[str] = frozenset()) -> Instances:
    """All instances and the term, the active one first, then by name, each in the state of its last sign of life; with
    those of the :func:`later_columns` that are there."""
    now = _NOW[connection.dialect.name]
    present = connection.execute(select(term)).one()
    columns = [each if each.name not in LATER or each.name in later else _absent(each) for each in instances.c]
    rows = connection.execute(select(*columns, now.label("now")).order_by(instances.c.name, instances.c.started_at))
    tables, told = _tables(connection), instances.c.tables.name in later
    found = []
    for row in rows:
        stands_by = row.state == STANDBY
        copy_age = None if row.copied_at is None else round(max(0.0, float(row.now) - row.copied_at), 3)
        found.append(
            Instance(
                row.id, row.name, row.url, row.version, row.state, row.started_at,
                round(max(0.0, float(row.now) - row.at), 3), row.tokens,
                copy_age if stands_by else None,
                row.counters_read if stands_by else None,
                row.kept if stands_by else None,
                row.tables >= tables if told and stands_by else None,
            )
        )  # fmt: skip
    found.sort(key=lambda each: each.id != present.holder)
    return Instances(present.generation, present.holder or None, present.since or None, present.why, tuple(found))


def _absent(column: Column[Any]) -> ColumnElement[Any]:
    return (null() if column.nullable else literal("")).label(column.name)


def user_of(connection: Connection) -> str:
    """The name of the controller that uses the database now, ``""`` where none does; none takes over before the end of
    the transaction."""
    if not is_there(connection):
        return "a controller of an older release" if older_one_runs(connection) else ""
    check(connection)
    found = look(connection)
    # By its session, too: a sign of life may take longer than that to be seen.
    age = next((each.age for each in found.signs if each.instance == found.holder), math.inf)
    return found.name if found.held or age < AWAY_SECONDS else ""

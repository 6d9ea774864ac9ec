"""Names of external addresses: wanted and given up with the address, in its transaction; added and removed later.

A row whose name is not as it is to be has the time of the next attempt. It is moved on before an attempt begins, so
that neither a crash nor another controller makes two of them at a time. A name is withheld while its address is closed:
it is its job's, and not in the zone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Final

from sqlalchemy import Connection, Row, case, null, select, update

from lark_common.errors import ExternalAddressError
from lark_controller.jobs.external import Association, listed
from lark_controller.jobs.external_names import FullName, NameState
from lark_controller.store.audit_and_policies import record
from lark_controller.store.schema import NAME_DUE, NAME_WANTED
from lark_controller.store.schema import external_addresses as table

# Names that wait for a server, of which the reason is written at a time.
_BATCH: Final = 1_000
_ACTOR: Final = "lark"
CLOSED: Final = "the address is closed"
# Most rows have one of few.
_listed: Final = lru_cache(maxsize=1_024)(listed)
_WITHHELD: Final = select(*table.c).where(NAME_WANTED, table.c.name_state == "withheld")
# A name that was sent to its zone, or one that is still to be taken out.
_MAY_BE_THERE: Final = (
    (table.c.name_state == "registered")
    | (table.c.name_attempts > 0)
    | ((table.c.name_state == "withheld") & table.c.name_due.is_not(None))
)
_IN_TURN: Final = select(*table.c).where(NAME_DUE).order_by(table.c.name_due, table.c.number)


def check_free(connection: Connection, name: FullName) -> None:
    """Raise ExternalAddressError where a name is another live job's."""
    if connection.execute(select(table.c.number).where(NAME_WANTED, table.c.name == name.text)).first() is not None:
        raise ExternalAddressError(f"the name {name.text} is another job's")


def columns(name: FullName | None, now: float) -> Mapping[str, Any]:
    """The columns of a new row."""
    if name is None:
        return {}
    return {"name": name.text, "zone": name.zone, "ttl": name.ttl, "name_state": "pending", "name_due": now}


def remove(connection: Connection, number: int, now: float) -> None:
    """Let a name be removed from its zone. One that was never sent there is removed; one that may be on its way is
    removed once that attempt is over."""
    values = {
        "name_state": case((_MAY_BE_THERE, "removing"), else_="removed"),
        "name_due": case((_MAY_BE_THERE, _next_turn(now)), else_=null()),
        "name_reason": "",
        "name_attempts": 0,
    }
    connection.execute(update(table).where(table.c.number == number, NAME_WANTED).values(values))


def withhold(connection: Connection, number: int, now: float, why: str) -> None:
    """Let the name of a live address be out of its zone, because nobody reaches the job by it."""
    values = {
        "name_state": "withheld",
        "name_due": case((_MAY_BE_THERE, _next_turn(now)), else_=null()),
        "name_reason": case((_MAY_BE_THERE, ""), else_=CLOSED),
        "name_attempts": 0,
    }
    mine = update(table).where(table.c.number == number, NAME_WANTED, table.c.name_state != "withheld")
    row = connection.execute(mine.values(values).returning(*table.c)).first()
    if row is not None:
        record(connection, now, _ACTOR, "name withheld", row.job, f"{row.name}: {row.address} is closed: {why}")


def offer(connection: Connection, number: int, now: float) -> None:
    """Let a withheld name be added to its zone again."""
    values = {
        "name_state": "pending",
        "name_due": _next_turn(now),
        "name_reason": "",
        # A name that is still to be removed may be there.
        "name_attempts": case((table.c.name_due.is_not(None), 1), else_=0),
    }
    mine = update(table).where(table.c.number == number, table.c.name_state == "withheld")
    connection.execute(mine.values(values))


def withheld(connection: Connection) -> list[Association]:
    """The associations whose names are withheld."""
    return [association(row) for row in connection.execute(_WITHHELD)]


def _next_turn(now: float) -> Any:
    """The time at which an attempt that may be under way is over."""
    return case((table.c.name_due > now, table.c.name_due), else_=now)


def drop(connection: Connection, association_id: str, now: float, why: str) -> Association | None:
    """Let the name of a live address be removed, because the policy gives it no more."""
    row = connection.execute(select(*table.c).where(table.c.id == association_id, NAME_WANTED)).first()
    if row is None:
        return None
    remove(connection, row.number, now)
    record(connection, now, "policy", "name over", row.job, f"{row.name}: {why}")
    return association(connection.execute(select(*table.c).where(table.c.number == row.number)).one())


def due(connection: Connection, now: float, limit: int) -> list[Association]:
    """Addresses whose names are to be added or removed now, those that have waited longest first."""
    return [association(row) for row in connection.execute(_IN_TURN.where(table.c.name_due <= now).limit(limit))]


def begin(connection: Connection, number: int, state: NameState, now: float, until: float) -> int:
    """Begin an attempt, which is over ``until`` then; returns the attempts so far with it, and 0 where it is another's
    or no more to be made."""
    mine = update(table).where(table.c.number == number, table.c.name_state == str(state), table.c.name_due <= now)
    begun = mine.values(name_due=until, name_attempts=table.c.name_attempts + 1).returning(table.c.name_attempts)
    return int(connection.execute(begun).scalar_one_or_none() or 0)


def added(connection: Connection, number: int, now: float) -> None:
    """Note that a name is in its zone. Where it was given up meanwhile, it is to be removed now."""
    row = connection.execute(select(*table.c).where(table.c.number == number).with_for_update()).one()
    mine = update(table).where(table.c.number == number)
    if row.name_state != NameState.PENDING:
        connection.execute(mine.where(NAME_DUE).values(name_due=now))
        return
    connection.execute(mine.values(name_state="registered", name_due=None, name_reason="", name_attempts=0))
    record(connection, now, _ACTOR, "name added", row.job, f"{row.name}: {row.address}")


def removed(connection: Connection, number: int, now: float) -> None:
    """Note that a name is out of its zone. An address that is over rests as long as others may keep the name."""
    mine = update(table).where(table.c.number == number)
    kept = table.c.ttl + now
    free = case((table.c.free_at < kept, kept), else_=table.c.free_at)
    done: Mapping[str, Any] = {"name_due": None, "name_attempts": 0}
    gone = mine.where(table.c.name_state == "removing")
    row = connection.execute(
        gone.values(name_state="removed", name_reason="", free_at=free, **done).returning(*table.c)
    ).first()
    if row is None:
        out = mine.where(table.c.name_state == "withheld", NAME_DUE)
        row = connection.execute(out.values(name_reason=CLOSED, **done).returning(*table.c)).first()
    if row is not None:
        record(connection, now, _ACTOR, "name removed", row.job, f"{row.name}: {row.address}")
    else:
        # It is wanted again meanwhile.
        connection.execute(mine.where(NAME_DUE).values(name_due=now))


def failed(
    connection: Connection,
    number: int,
    state: NameState,
    reason: str,
    now: float,
    until: float,
    untouched: int = 0,
) -> None:
    """Note why a name is not yet as it is to be, and when it is tried again: now, where its state has changed.

    ``untouched`` is the attempt's number, as :func:`begin` has counted it, where it has left the zone untouched for
    certain (0: it may have changed it). It counts for none then: given up, the name leads nowhere. Where the name was
    withheld and offered meanwhile, another count has begun, which has the attempts before this one as well.
    """
    row = connection.execute(select(*table.c).where(table.c.number == number, NAME_DUE)).first()
    if row is None:
        return
    if row.name_state == state:
        if untouched:
            less = update(table).where(table.c.number == number, table.c.name_attempts == untouched)
            connection.execute(less.values(name_attempts=table.c.name_attempts - 1))
        _put_off(connection, row, reason, now, until)
    else:
        connection.execute(update(table).where(table.c.number == number).values(name_due=now))


def put_off(connection: Connection, reason: str, now: float, until: float) -> None:
    """Let all that is due wait for a server that does not answer."""
    for row in connection.execute(_IN_TURN.where(table.c.name_due <= now).limit(_BATCH)).all():
        _put_off(connection, row, reason, now, until)


def _put_off(connection: Connection, row: Row[Any], reason: str, now: float, until: float) -> None:
    mine = update(table).where(table.c.number == row.number, NAME_DUE)
    connection.execute(mine.values(name_reason=reason, name_due=until))
    # Once for each name and what is done with it, however often it is tried.
    if not row.name_reason:
        record(connection, now, _ACTOR, "name waits", row.job, f"{row.name}, {row.name_state}: {reason}")


def association(row: Row[Any]) -> Association:
    """The association of a row."""
    return Association(
        number=row.number,
        id=row.id,
        address=ip_address(row.address),
        pool=row.pool,
        job=row.job,
        owner=row.owner,
        group=row.group_name,
        openings=_listed(row.openings),
        created=row.created_at,
        until=row.until,
        reservation=row.reservation,
        released=row.released_at,
        free=row.free_at,
        why=row.why,
        actor=row.actor,
        name=row.name,
        zone=row.zone,
        ttl=row.ttl,
        name_state=NameState(row.name_state),
        name_reason=row.name_reason,
    )

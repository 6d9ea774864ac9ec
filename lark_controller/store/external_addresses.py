"""External addresses: given, released and given again, in the transaction of whatever they belong to.

Whoever gives one holds one lock until the transaction ends (PostgreSQL: an advisory lock; SQLite: the database's write
lock), so that limits hold in every order. That an address is given once is the database's own rule (``held``).
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import islice
from typing import Any, Final

from sqlalchemy import Connection, and_, bindparam, delete, func, insert, not_, or_, select, update

from lark_common.errors import ExternalAddressError, NotFoundError, PoolExhaustedError
from lark_common.runs import Address, Network
from lark_common.turns import by_portions
from lark_controller.jobs.external import Association, Opening, renamed, rotated, size
from lark_controller.jobs.external_names import FullName, NameState
from lark_controller.jobs.job import Job
from lark_controller.store import external_names as names
from lark_controller.store.audit_and_policies import record
from lark_controller.store.rows import read_by_portions
from lark_controller.store.schema import HELD, LIVE, MAY_REST, NOT_RELEASED, runs
from lark_controller.store.schema import external_addresses as table

# The key of the advisory lock of PostgreSQL: "extn" in ASCII.
_ADVISORY_KEY: Final = 0x6578746E
_BATCH: Final = 1_000
# Addresses of a pool that are looked at first, and in each step after that, for one that is free.
_FEW: Final = 16
_MANY: Final = 4_096
JOB_ENDED: Final = "the job has ended"
RESERVATION_OVER: Final = "its reservation is over"

# Asked at each end of a job, and mostly answered with no: made once.
_OF_JOBS: Final = select(*table.c).where(NOT_RELEASED, table.c.job.in_(bindparam("jobs", expanding=True)))
_ANY_HELD: Final = select(table.c.number).where(HELD).limit(1)


@dataclass(frozen=True, slots=True)
class Claim:
    """The terms on which a job may have an address: from which networks of which pool, how many its user's and its
    group's jobs may have (None: no limit), until when, and the seconds that the address rests afterwards. ``own`` is
    the job's own address that is opened instead, ``name`` the name that it is to have (None: none), ``reservation`` the
    number of the one with which it ends (None: none). ``exhausted``: the networks had no address left, and nothing has
    been freed since but by the transaction itself."""

    job: Job
    pool: str
    networks: tuple[Network, ...]
    openings: tuple[Opening, ...]
    per_user: int
    per_group: int | None
    until: float | None
    quarantine: float
    own: Address | None = None
    name: FullName | None = None
    reservation: int | None = None
    exhausted: bool = False

    @property
    def family(self) -> int:
        """The family of the address."""
        return 4 if self.own is None else self.own.version


def associate(
    connection: Connection, claim: Claim, now: float, actor: str, *, past: float | None = None
) -> Association:
    """Give a job an address; it keeps the one that it has, and has again the one of its own that rests. ``past`` is the
    time up to which others are over and have rested, where that is not ``now``. Raises ExternalAddressError where there
    is none for it, and NotFoundError where the job has ended."""
    past = now if past is None else past
    job = claim.job
    # It does not end before the transaction does, so that its end finds the address.
    live = select(runs.c.number).where(runs.c.id == job.id, LIVE).with_for_update()
    if connection.execute(live).first() is None:
        raise NotFoundError(f"no live job has the id {job.id}")
    _lock(connection)
    _expire(connection, now, past, claim)
    theirs = table.c.job == job.id, table.c.family == claim.family
    for has in _found(connection, select(*table.c).where(NOT_RELEASED, *theirs)):
        return has
    freed = _free(connection, past)
    # Counted no more where it is given again, and where it is not, nothing of this is written.
    again = _take_back(connection, claim)
    _check_counts(connection, claim, past)
    if claim.name is not None:
        names.check_free(connection, claim.name)
    if claim.exhausted and again is None and not freed:
        raise _none_left(claim)
    address = _chosen(connection, claim) if again is None else again.address
    # An address that was given before stays closed to others for as long as was set then, whatever is set now.
    rest = 0.0 if again is None else (again.free or now) - now
    values = {
        "id": secrets.token_hex(8),
        "address": str(address),
        "family": address.version,
        "pool": claim.pool,
        "job": job.id,
        "owner": job.owner,
        "group_name": job.group,
        "openings": " ".join(map(str, claim.openings)),
        "quarantine": max(claim.quarantine, rest),
        "created_at": now,
        "until": claim.until,
        "reservation": claim.reservation,
        "held": True,
        "why": "",
        "actor": actor,
        **names.columns(claim.name, now),
    }
    made = names.association(connection.execute(insert(table).values(values).returning(*table.c)).one())
    called = f" as {made.name}" if made.name else ""
    record(connection, now, actor, "associate", job.id, f"{address} of pool {claim.pool}: {values['openings']}{called}")
    return made


def release(connection: Connection, association_id: str, now: float, why: str, actor: str) -> Association | None:
    """Release an association; one that is released stays as it is. None where there never was one."""
    _lock(connection)
    found = _one(connection, association_id)
    if found is None or found.released is not None:
        return found
    _release(connection, [found], now, why, actor)
    return _one(connection, association_id)


def release_of_jobs(connection: Connection, job_ids: Collection[str], now: float, actor: str = "lark") -> None:
    """Release what these jobs have, because they have ended."""
    chosen = list(job_ids)
    for start in range(0, len(chosen), _BATCH):
        rows = connection.execute(_OF_JOBS, {"jobs": chosen[start : start + _BATCH]})
        if theirs := [names.association(row) for row in rows]:
            _release(connection, theirs, now, JOB_ENDED, actor)


def release_of_reservations(connection: Connection, numbers: Collection[int], now: float) -> None:
    """Release what was to end with these reservations."""
    chosen = list(numbers)
    for start in range(0, len(chosen), _BATCH):
        theirs = table.c.reservation.in_(chosen[start : start + _BATCH])
        found = _found(connection, select(*table.c).where(NOT_RELEASED, theirs))
        _release(connection, found, now, RESERVATION_OVER, "lark")


def expire(connection: Connection, now: float, past: float | None = None) -> int:
    """Release what is past its end, and free what has rested; returns how many were released. ``past`` is the time up
    to which that is so, where that is not ``now``."""
    past = now if past is None else past
    if connection.execute(_ANY_HELD).first() is None:
        return 0
    _lock(connection)
    count = _expire(connection, now, past)
    _free(connection, past)
    return count


def held(
    connection: Connection, after: int = 0, limit: int | None = None, job: str | None = None, owner: str | None = None
) -> list[Association]:
    """The addresses that are jobs' or rest, of all, of one job or of one user's jobs, in order of number; with a
    ``limit`` so many at most, those ``after`` a number."""
    query = select(*table.c).where(HELD, table.c.number > after).order_by(table.c.number).limit(limit)
    for column, value in ((table.c.job, job), (table.c.owner, owner)):
        if value is not None:
            query = query.where(column == value)
    return [names.association(row) for row in by_portions(read_by_portions(connection.execute(query)))]


def name_pools(connection: Connection, pools: Mapping[str, tuple[Network, ...]]) -> None:
    """Call the addresses that are jobs' or rest by the pools that they are in now: what a user has of a pool, and the
    address after which the next one is looked for, are asked for by that name."""
    if connection.execute(_ANY_HELD).first() is None:
        return
    _lock(connection)
    there = {each.number: each for each in _found(connection, select(*table.c).where(HELD))}
    numbers: dict[str, list[int]] = {}
    for number, each in renamed(there, pools).items():
        numbers.setdefault(each.pool, []).append(number)
    for name, theirs in numbers.items():
        for start in range(0, len(theirs), _BATCH):
            chosen = table.c.number.in_(theirs[start : start + _BATCH])
            connection.execute(update(table).where(chosen).values(pool=name))


def places(connection: Connection, now: float) -> list[tuple[Address, bool]]:
    """The addresses that are a job's (True), or rest until another job may get them, and while a name leads there
    (False). It is all that the state of a pool needs, for which every worker asks."""
    lives = and_(NOT_RELEASED, or_(table.c.until.is_(None), table.c.until > now))
    free = table.c.free_at.is_not(None), table.c.free_at <= now, table.c.name_state != str(NameState.REMOVING)
    chosen = select(table.c.address, lives).where(HELD, or_(lives, not_(and_(*free))))
    rows: list[Any] = read_by_portions(connection.execute(chosen))
    return [(ip_address(address), bool(has)) for address, has in by_portions(rows)]


def find(connection: Connection, association_id: str) -> Association | None:
    """An association, also one that is over."""
    return _one(connection, association_id)


def had(connection: Connection, job_id: str, family: int) -> bool:
    """True if a job has or had an external address of a family."""
    query = select(table.c.number).where(table.c.job == job_id, table.c.family == family).limit(1)
    return connection.execute(query).first() is not None


def prune(connection: Connection, before: float, limit: int) -> int:
    """Remove associations that are over since ``before``, at most ``limit``; returns how many."""
    old = select(table.c.number).where(~table.c.held, table.c.released_at < before).limit(limit)
    return connection.execute(delete(table).where(table.c.number.in_(old))).rowcount


def _chosen(connection: Connection, claim: Claim) -> Address:
    """The address that a job gets: its own, or the pool's next. Raises ExternalAddressError, PoolExhaustedError."""
    if claim.own is not None:
        row = connection.execute(select(*table.c).where(HELD, table.c.address == str(claim.own))).first()
        if row is None:
            return claim.own
        if row.released_at is None:
            raise ExternalAddressError(f"{claim.own} is open as the address of job {row.job}")
        raise ExternalAddressError(f"the name {row.name} still leads to {claim.own}, as the address of job {row.job}")
    last = connection.execute(
        select(table.c.address).where(table.c.pool == claim.pool).order_by(table.c.number.desc()).limit(1)
    ).scalar()
    # Mostly the next one is free: what a job costs here does not grow with the pool.
    candidates = rotated(claim.networks, None if last is None else ip_address(last))
    at_once, address = _FEW, None
    while address is None and (few := list(islice(candidates, at_once))):
        texts = [str(each) for each in few]
        query = select(table.c.address).where(HELD, table.c.address.in_(texts))
        held = set(connection.execute(query).scalars())
        address = next((each for each, text in zip(few, texts, strict=True) if text not in held), None)
        at_once = _MANY
    if address is None:
        raise _none_left(claim)
    return address


def _none_left(claim: Claim) -> PoolExhaustedError:
    return PoolExhaustedError(f"pool {claim.pool} has no address left: all {size(claim.networks)} are given or rest")


def _take_back(connection: Connection, claim: Claim) -> Association | None:
    """Let a job have again at once what it had itself, in this run or an earlier one, unless a name of that is still to
    be removed. Asking and releasing in a loop takes one address, however long each rests."""
    over = MAY_REST, table.c.released_at.is_not(None)
    theirs = table.c.family == claim.family, table.c.owner == claim.job.owner
    same_job = runs.c.global_job_id == claim.job.run.global_job_id
    query = select(*table.c).join(runs, runs.c.id == table.c.job).where(*over, *theirs, same_job)
    for each in _found(connection, query.order_by(table.c.number.desc())):
        if each.address == claim.own or any(each.address in network for network in claim.networks):
            connection.execute(update(table).where(table.c.number == each.number).values(held=False))
            return each
    return None


def _check_counts(connection: Connection, claim: Claim, now: float) -> None:
    job = claim.job
    of_family = table.c.family == claim.family

    def count(*whose: Any) -> int:
        return int(connection.execute(select(func.count()).select_from(table).where(of_family, *whose)).scalar_one())

    # Rows that are not released are held; by that word an index has them.
    if (has := count(HELD, NOT_RELEASED, table.c.owner == job.owner)) >= claim.per_user:
        raise ExternalAddressError(f"the jobs of {job.owner} have {has} external addresses; at most {claim.per_user}")
    # One job after the other takes no more out of the pool than so many at a time twice.
    resting = HELD, table.c.released_at.is_not(None), table.c.owner == job.owner, table.c.pool == claim.pool
    if claim.own is None and has + (rest := count(*resting)) >= 2 * claim.per_user:
        timed = *resting, table.c.free_at > now
        soonest = connection.execute(select(func.min(table.c.free_at)).where(*timed)).scalar_one()
        # The others wait for the DNS, as long as that takes.
        when = "their names are still to be removed" if soonest is None else _rested(soonest - now)
        raise ExternalAddressError(
            f"the jobs of {job.owner} have {has} external addresses, and {rest} of theirs still rest; at most "
            f"{2 * claim.per_user} in all; {when}"
        )
    if claim.per_group is None:
        return
    if (has := count(NOT_RELEASED, table.c.group_name == job.group)) >= claim.per_group:
        group = job.group or "no group"
        raise ExternalAddressError(f"the jobs of {group} have {has} external addresses; at most {claim.per_group}")


def _rested(seconds: float) -> str:
    return f"the first has rested in {max(1, round(seconds))} s"


def _expire(connection: Connection, now: float, until: float, claim: Claim | None = None) -> int:
    """Release what is past its end, and what jobs have that have ended; with a ``claim`` of those jobs alone that count
    for its limits, since that takes a look at each."""
    past = _found(connection, select(*table.c).where(NOT_RELEASED, table.c.until <= until))
    _release(connection, past, now, "its time is over", "lark")
    # A run that a switch refused ends by its state alone.
    ended = NOT_RELEASED, ~select(runs.c.number).where(runs.c.id == table.c.job, LIVE).exists()
    whose: list[tuple[Any, ...]] = [()]
    if claim is not None:
        whose = [(HELD, table.c.owner == claim.job.owner)]
        whose += [] if claim.per_group is None else [(table.c.group_name == claim.job.group,)]
    count = len(past)
    for theirs in whose:
        over = _found(connection, select(*table.c).where(*ended, *theirs))
        _release(connection, over, now, JOB_ENDED, "lark")
        count += len(over)
    return count


def _release(connection: Connection, gone: Collection[Association], now: float, why: str, actor: str) -> None:
    for each in gone:
        query = update(table).where(table.c.number == each.number, NOT_RELEASED)
        connection.execute(query.values(released_at=now, free_at=table.c.quarantine + now, why=why))
        if each.name:
            names.remove(connection, each.number, now)
        record(connection, now, actor, "dissociate", each.job, f"{each.address} of pool {each.pool}: {why}")


def _free(connection: Connection, now: float) -> int:
    """Let those be given again that have rested; not one that a name in the DNS still leads to. Returns how many."""
    return connection.execute(update(table).where(MAY_REST, table.c.free_at <= now).values(held=False)).rowcount


def _lock(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_ADVISORY_KEY)))


def _one(connection: Connection, association_id: str) -> Association | None:
    found = _found(connection, select(*table.c).where(table.c.id == association_id))
    return found[0] if found else None


def _found(connection: Connection, query: Any) -> list[Association]:
    return [names.association(row) for row in connection.execute(query)]

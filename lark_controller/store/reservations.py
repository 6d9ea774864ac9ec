"""Reservations: admitted, changed and released in the transaction of whatever they belong to.

``reserved`` holds the sum for each channel, so that a reservation costs the same however many there are. A change holds
one lock until the transaction ends (PostgreSQL: an advisory lock; SQLite: the database's write lock),
so that no reservation is admitted on sums that another is about to change. That lock is taken after those of runs.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from ipaddress import ip_network
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, bindparam, delete, func, insert, or_, select, update

from lark_common.errors import CapacityError, NotFoundError, PathError
from lark_common.runs import Network
from lark_controller.qos.admission import NOTHING, ChannelRates, ReservedCapacity, rates_of
from lark_controller.qos.reservation import (
    Booking,
    Reservation,
    ReservationKind,
    ReservationPage,
    words,
)
from lark_controller.qos.topology import KILO, Demand
from lark_controller.store import external_addresses
from lark_controller.store.audit_and_policies import record
from lark_controller.store.cluster_rates import rates_of_cluster
from lark_controller.store.cursors import cursor_for, number_in
from lark_controller.store.schema import LIVE, reservations, reserved, runs, worker_links

# The key of the advisory lock under which PostgreSQL lets one transaction change what is reserved: "room" in ASCII.
_ADVISORY_KEY: Final = 0x726F6F6D
# SQLite takes at most 32,766 variables in a statement.
_BATCH: Final = 1_000

# Asked at each post or end, and mostly answered with no: made once.
_OF_JOBS: Final = or_(
    reservations.c.job.in_(bindparam("jobs", expanding=True)),
    reservations.c.peer.in_(bindparam("jobs", expanding=True)),
)
_ANY_OF_JOBS: Final = select(reservations.c.number).where(_OF_JOBS).limit(1)
_BANDWIDTH_OF_JOB: Final = select(reservations.c.number).where(
    reservations.c.kind == ReservationKind.JOB, reservations.c.job == bindparam("job_id")
)
_PAST: Final = select(reservations.c.number).where(reservations.c.until <= bindparam("now")).limit(1)


def admit(connection: Connection, booking: Booking, now: float, actor: str, *, has_line: bool = True) -> Reservation:
    """Admit a booking; a job's RequestBandwidth takes the place of what the same job had. ``has_line``: the audit trail
    has a line of it. Raises CapacityError, NotFoundError where a flow's job has ended."""
    keep_ends(connection, [booking])
    return _admit(connection, booking, now, actor, has_line)


def _admit(connection: Connection, booking: Booking, now: float, actor: str, has_line: bool = True) -> Reservation:
    _lock(connection)
    before = None
    if booking.kind is ReservationKind.JOB:
        before = _one(connection, (reservations.c.kind == ReservationKind.JOB) & (reservations.c.job == booking.job))
    if before is not None:
        return _replace(connection, before, booking.kbps, booking.until, booking.steady, booking.demand, now, actor)
    holds = _move(connection, booking.what, booking.demand, job=booking.job)
    values = _values(booking, holds, now, actor)
    row = connection.execute(insert(reservations).values(values).returning(*reservations.c)).one()
    made = _reservation(row)
    if booking.kind is ReservationKind.FLOW and has_line:
        _note(connection, now, actor, "reserve", made, booking.what + _peer(connection, made))
    return made


def admit_together(
    connection: Connection, job_id: str, bookings: Collection[Booking], what: str, rest: Demand, now: float, actor: str
) -> tuple[Reservation, ...]:
    """Admit these bookings of one job, after :func:`keep_ends`, where there is room for the ``rest`` of a pattern as
    well, whose words are ``what``. Raises CapacityError."""
    made = tuple(_admit(connection, each, now, actor) for each in bookings)
    if rest:
        _lock(connection)
        _check_room(connection, what, rest, job=job_id)
    return made


def keep_ends(connection: Connection, bookings: Collection[Booking]) -> None:
    """Let the jobs at the ends of flows live until the transaction ends: before anything that may take the lock of what
    is reserved. Raises NotFoundError where one is over."""
    ends = {end for each in bookings if each.kind is ReservationKind.FLOW for end in (each.job, each.peer)}
    _keep_alive(connection, sorted(end for end in ends if end is not None))


def change(
    connection: Connection,
    reservation_id: str,
    rebook: Callable[[Reservation], tuple[int, float | None, bool, Demand]],
    now: float,
    actor: str,
    *,
    has_line: bool = True,
    past: float | None = None,
) -> Reservation | None:
    """Give a reservation the rate (kb/s), end, steadiness and demand that ``rebook`` makes of it; None where there is
    none (any more). ``has_line``: the audit trail has a line of it. ``past`` is the time up to which one is over, where
    that is not ``now``. Raises CapacityError, and what ``rebook`` raises; then nothing has changed."""
    _lock_job_of(connection, reservation_id)
    _lock(connection)
    before = _one(connection, (reservations.c.id == reservation_id) & _valid(now if past is None else past))
    if before is None:
        return None
    return _replace(connection, before, *rebook(before), now, actor, has_line=has_line)


def release(
    connection: Connection, reservation_id: str, now: float, actor: str, *, has_line: bool = True
) -> Reservation | None:
    """Release a reservation; None where there is none (any more). ``has_line``: the audit trail has a line of it."""
    _lock_job_of(connection, reservation_id)
    _lock(connection)
    gone = _remove(connection, reservations.c.id == reservation_id)
    for each in gone:
        if each.kind is ReservationKind.JOB:
            _resize(connection, each.job, None)
        if has_line:
            _note(connection, now, actor, "release", each)
    _end_addresses(connection, gone, now)
    return gone[0] if gone else None


def release_of_jobs(connection: Connection, job_ids: Collection[str], now: float) -> None:
    """Release what these jobs have, and the flows that go to them."""
    chosen = list(job_ids)
    for start in range(0, len(chosen), _BATCH):
        part = chosen[start : start + _BATCH]
        # Most jobs have none, and their ends need not wait for each other.
        if connection.execute(_ANY_OF_JOBS, {"jobs": part}).first() is not None:
            _lock(connection)
            gone = _remove(connection, or_(reservations.c.job.in_(part), reservations.c.peer.in_(part)))
            # Those of the jobs themselves end with them: a flow may have been another's, to one of these.
            _end_addresses(connection, [each for each in gone if each.job not in part], now)


def release_of_job(connection: Connection, job_id: str) -> None:
    """Release a job's RequestBandwidth; its flows stay."""
    if connection.execute(_BANDWIDTH_OF_JOB, {"job_id": job_id}).first() is not None:
        _lock(connection)
        _remove(connection, (reservations.c.kind == ReservationKind.JOB) & (reservations.c.job == job_id))


def sweep(
    connection: Connection,
    now: float,
    but: Collection[str] = (),
    quiet: Collection[str] = (),
    past: float | None = None,
) -> int:
    """Release what is past its end, ``but`` for the reservations with these ids; returns how many reservations. The
    audit trail has a line of each that is not among the ``quiet``. ``past`` is the time up to which one is over, where
    that is not ``now``.

    Until then what they hold is not free: the queues that were made for them may still stand.
    """
    until = now if past is None else past
    if connection.execute(_PAST, {"now": until}).first() is None:
        return 0
    _lock(connection)
    over = (reservations.c.until <= until) & reservations.c.id.not_in(list(but)[:_BATCH])
    gone = _remove(connection, over)
    for each in gone:
        if each.id not in quiet:
            _note(connection, now, "lark", "expire", each, "the time that was reserved is over")
    _end_addresses(connection, gone, now)
    return len(gone)


def reroute(
    connection: Connection,
    demand_of: Callable[[Reservation], Demand],
    promised: Mapping[str, Booking],
    now: float,
    is_over: Callable[[Reservation], bool] = lambda _: False,
    followed: Callable[[Reservation], Reservation] = lambda each: each,
) -> list[str]:
    """Count every reservation on the links of a new topology, and make the sums anew; returns the ids of those that
    the topology has no path for. Reservations stay, also where a link has become too small, but for those that are over
    by the new policy; what is ``promised`` to live jobs, by id, takes the place of what they had, or is added.
    ``followed`` has each with the destination and addresses that it has now."""
    of_jobs = select(reservations.c.job).where(reservations.c.kind == ReservationKind.JOB.value)
    have = set(connection.execute(of_jobs).scalars())
    live = _lock_live(connection, [job_id for job_id in promised if job_id not in have])
    _lock(connection)
    if live:
        rows = [_values(promised[job_id], NOTHING, now, "lark") for job_id in live]
        connection.execute(insert(reservations), rows)
    lost: list[str] = []
    total: dict[str, int] = {}
    changed: list[dict[str, Any]] = []
    over: list[int] = []
    for row in connection.execute(select(*reservations.c).order_by(reservations.c.number)):
        before = _reservation(row)
        after = followed(before)
        booking = promised.get(before.job or "") if before.kind is ReservationKind.JOB else None
        if booking is None and is_over(before):
            over.append(before.number)
            continue
        if booking is not None:
            after = replace(before, kbps=booking.kbps, source=booking.source, destination=booking.destination)
        try:
            demand = demand_of(after) if booking is None else booking.demand
            without = booking is not None and not demand
        except PathError:
            demand, without = (), True
        if without:
            lost.append(after.id)
        holds = rates_of(demand)
        after = replace(after, holds=holds)
        for channel, kbps in holds.items():
            total[channel] = total.get(channel, 0) + kbps
        if after != before:
            ends = {"from": after.source, "to": after.destination, "at": _addresses(after.target)}
            changed.append({"of": after.number, "rate": after.kbps, "now": _text(holds)} | ends)
    if changed:
        query = update(reservations).where(reservations.c.number == bindparam("of"))
        query = query.values(kbps=bindparam("rate"), source=bindparam("from"), destination=bindparam("to"))
        connection.execute(query.values(holds=bindparam("now"), target=bindparam("at")), changed)
    for start in range(0, len(over), _BATCH):
        # The sums are without them already.
        connection.execute(delete(reservations).where(reservations.c.number.in_(over[start : start + _BATCH])))
    if total != dict(use(connection)):
        connection.execute(delete(reserved))
        if total:
            connection.execute(insert(reserved), [{"channel": key, "kbps": kbps} for key, kbps in total.items()])
    return lost


def find(connection: Connection, reservation_id: str, now: float, owner: str | None = None) -> Reservation | None:
    """A reservation (of one of this user's jobs) that is not past its end."""
    chosen = (reservations.c.id == reservation_id) & _valid(now)
    return _one(connection, chosen if owner is None else chosen & _of_owner(owner))


def flows(connection: Connection, now: float) -> list[Reservation]:
    """Every reserved flow that is not past its end, in order of number."""
    query = select(*reservations.c).where(reservations.c.kind == ReservationKind.FLOW.value, _valid(now))
    return [_reservation(row) for row in connection.execute(query.order_by(reservations.c.number)).all()]


def page(
    connection: Connection, job: str | None, now: float, cursor: str | None, limit: int, owner: str | None = None
) -> ReservationPage:
    """A page of reservations in order of number, of all or of one job (its own, and flows that go to it); with
    ``owner`` those alone that are of this user's jobs. Raises NotFoundError for a cursor that is none."""
    query = select(*reservations.c).where(_valid(now))
    if job is not None:
        query = query.where(or_(reservations.c.job == job, reservations.c.peer == job))
    if owner is not None:
        query = query.where(_of_owner(owner))
    if cursor is not None:
        query = query.where(reservations.c.number > number_in(cursor))
    rows = connection.execute(query.order_by(reservations.c.number).limit(limit + 1)).all()
    found = tuple(_reservation(row) for row in rows[:limit])
    return ReservationPage(found, cursor_for(found[-1].number) if len(rows) > limit else None)


def _of_owner(owner: str) -> ColumnElement[bool]:
    return select(runs.c.id).where(runs.c.id == reservations.c.job, runs.c.owner == owner).exists()


def use(connection: Connection) -> ChannelRates:
    """The reserved rate of each channel, in kb/s."""
    rows = connection.execute(select(reserved.c.channel, reserved.c.kbps).where(reserved.c.kbps > 0))
    return {row.channel: row.kbps for row in rows}


def worker_capacities(connection: Connection) -> dict[str, float]:
    """The capacities of workers' access links, in Mb/s, by host in lower case."""
    return {row.host: row.megabits for row in connection.execute(select(*worker_links.c)).all()}


def set_worker_capacity(connection: Connection, host: str, megabits: float) -> None:
    """Stores a machine ad's capacity of its worker's access link."""
    query = update(worker_links).where(worker_links.c.host == host.lower()).values(megabits=megabits)
    if not connection.execute(query).rowcount:
        connection.execute(insert(worker_links).values(host=host.lower(), megabits=megabits))


def _lock(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_ADVISORY_KEY)))


def _values(booking: Booking, holds: ChannelRates, now: float, actor: str) -> dict[str, Any]:
    return {
        "id": secrets.token_hex(8),
        "kind": booking.kind.value,
        "kbps": booking.kbps,
        "source": booking.source,
        "destination": booking.destination,
        "holds": _text(holds),
        "job": booking.job,
        "peer": booking.peer,
        "target": _addresses(booking.target),
        "until": booking.until,
        "created_at": now,
        "actor": actor,
        "steady": booking.steady,
        "to_host": booking.to_host,
    }


def _keep_alive(connection: Connection, job_ids: Collection[str]) -> None:
    """Let these jobs not end before the transaction does. Raises NotFoundError where one has ended already."""
    live = set(_lock_live(connection, job_ids))
    for job_id in job_ids:
        if job_id not in live:
            raise NotFoundError(f"no live job has the id {job_id}")


def _lock_job_of(connection: Connection, reservation_id: str) -> None:
    """Locks the job whose row defines this reservation."""
    theirs = (reservations.c.id == reservation_id) & (reservations.c.kind == ReservationKind.JOB.value)
    _lock_live(connection, connection.execute(select(reservations.c.job).where(theirs)).scalars().all())


def _lock_live(connection: Connection, job_ids: Collection[str]) -> list[str]:
    """Those of these jobs that live; they do not end before the transaction does."""
    chosen = list(job_ids)
    live: list[str] = []
    for start in range(0, len(chosen), _BATCH):
        part = chosen[start : start + _BATCH]
        query = select(runs.c.id).where(runs.c.id.in_(part), LIVE).order_by(runs.c.number).with_for_update()
        live += connection.execute(query).scalars()
    return live


def _valid(now: float) -> ColumnElement[bool]:
    return or_(reservations.c.until.is_(None), reservations.c.until > now)


def _one(connection: Connection, chosen: ColumnElement[bool]) -> Reservation | None:
    row = connection.execute(select(*reservations.c).where(chosen)).one_or_none()
    return None if row is None else _reservation(row)


def _replace(
    connection: Connection,
    before: Reservation,
    kbps: int,
    until: float | None,
    steady: bool,
    demand: Demand,
    now: float,
    actor: str,
    *,
    has_line: bool = True,
) -> Reservation:
    after = replace(before, kbps=kbps, until=until, steady=steady)
    what = words(after.kind, kbps, after.source, after.destination)
    holds = _move(connection, what, demand, before.holds, job=before.job, number=before.number)
    after = replace(after, holds=holds)
    if after != before:
        connection.execute(
            update(reservations)
            .where(reservations.c.number == before.number)
            .values(kbps=kbps, until=until, steady=steady, holds=_text(holds))
        )
        if after.kind is ReservationKind.JOB and after.kbps != before.kbps:
            _resize(connection, after.job, after.rate)
        if not has_line:
            return after
        detail = "when it ends"
        if before.kbps != kbps:
            detail = f"{before.rate:g} to {after.rate:g} Mb/s"
        elif before.steady != steady:
            detail = "steady" if steady else "not steady"
        _note(connection, now, actor, "change", before, detail)
    return after


def _note(connection: Connection, now: float, actor: str, action: str, of: Reservation, detail: str = "") -> None:
    """A line of the audit trail: of the job that has the reservation, else of the reservation itself."""
    if of.job is None:
        record(connection, now, actor, action, of.id, detail)
    else:
        record(connection, now, actor, action, of.job, f"reservation {of.id}{f': {detail}' if detail else ''}")


def _peer(connection: Connection, made: Reservation) -> str:
    """The job at the other end, in words; empty where there is none."""
    row = connection.execute(select(runs.c.cluster, runs.c.proc).where(runs.c.id == made.peer)).one_or_none()
    return "" if row is None else f", to job {row.cluster}.{row.proc}"


def _resize(connection: Connection, job_id: str | None, bandwidth: float | None) -> None:
    """Set a job's row to the rate that is reserved for it."""
    connection.execute(update(runs).where(runs.c.id == job_id, LIVE).values(bandwidth=bandwidth))


def _remove(connection: Connection, chosen: ColumnElement[bool]) -> list[Reservation]:
    rows = connection.execute(delete(reservations).where(chosen).returning(*reservations.c))
    gone = [_reservation(row) for row in rows]
    given: dict[str, int] = {}
    for each in gone:
        for channel, kbps in each.holds.items():
            given[channel] = given.get(channel, 0) + kbps
    _write(connection, given, NOTHING)
    return sorted(gone, key=lambda each: each.number)


def _end_addresses(connection: Connection, gone: Collection[Reservation], now: float) -> None:
    """End the external addresses that were to end with these."""
    if numbers := [each.number for each in gone if each.kind is ReservationKind.FLOW]:
        external_addresses.release_of_reservations(connection, numbers, now)


def _move(
    connection: Connection,
    what: str,
    demand: Demand,
    instead_of: ChannelRates = NOTHING,
    *,
    job: str | None,
    number: int | None = None,
) -> ChannelRates:
    """Admit a demand of a job in place of the one that the reservation of that number holds; returns what is held now.
    Raises CapacityError."""
    holds = rates_of(demand)
    if holds != instead_of:
        _check_room(connection, what, demand, instead_of, job=job, number=number)
        _write(connection, instead_of, holds)
    return holds


def _check_room(
    connection: Connection,
    what: str,
    demand: Demand,
    instead_of: ChannelRates = NOTHING,
    *,
    job: str | None,
    number: int | None = None,
) -> None:
    """Raise CapacityError where there is no room: with what the job's cluster holds of the links by other reservations,
    since who asks takes its own flows for no others'."""
    keys = {channel.key for channel, _ in demand} | set(instead_of)
    try:
        ReservedCapacity(_use_of(connection, keys)).admit(what, demand, instead_of)
    except CapacityError as error:
        own = rates_of_cluster(connection, job, number)
        held = [None if own is None else own.get(each.channel, 0) / KILO for each in error.shortages]
        short = (replace(each, own=part) for each, part in zip(error.shortages, held, strict=True))
        raise CapacityError(what, tuple(short)) from None


def _use_of(connection: Connection, channels: Collection[str]) -> ChannelRates:
    query = select(reserved.c.channel, reserved.c.kbps).where(reserved.c.channel.in_(channels))
    return {row.channel: row.kbps for row in connection.execute(query).all()}


def _write(connection: Connection, before: ChannelRates, after: ChannelRates) -> None:
    """Add what changed to the sums."""
    for channel in sorted({*before, *after}):
        more = after.get(channel, 0) - before.get(channel, 0)
        if not more:
            continue
        query = update(reserved).where(reserved.c.channel == channel).values(kbps=reserved.c.kbps + more)
        if not connection.execute(query).rowcount:
            connection.execute(insert(reserved).values(channel=channel, kbps=more))


def _text(holds: ChannelRates) -> str:
    return json.dumps(dict(holds), separators=(",", ":"), ensure_ascii=False)


def _addresses(target: tuple[Network, ...]) -> str:
    return " ".join(map(str, target))


def _reservation(row: Row[Any]) -> Reservation:
    return Reservation(
        number=row.number,
        id=row.id,
        kind=ReservationKind(row.kind),
        kbps=row.kbps,
        source=row.source,
        destination=row.destination,
        holds=MappingProxyType(json.loads(row.holds)),
        job=row.job,
        peer=row.peer,
        target=tuple(ip_network(text) for text in row.target.split()),
        until=row.until,
        created=row.created_at,
        actor=row.actor,
        steady=row.steady,
        to_host=row.to_host,
    )

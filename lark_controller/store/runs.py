"""Registers runs and ends them: conflicts over an address or a slot, and the end of older runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

from sqlalchemy import Connection, bindparam, delete, func, insert, select, text, update

from lark_common.errors import AddressError, NotFoundError
from lark_common.runs import Address
from lark_controller.jobs.job import Job, JobState
from lark_controller.qos.reservation import Booking, Reservation
from lark_controller.qos.topology import Demand
from lark_controller.store import external_addresses, reservations
from lark_controller.store.audit_and_policies import record
from lark_controller.store.rows import JOB_COLUMNS, columns_of, job_from
from lark_controller.store.schema import HOLDS_ADDRESS, LIVE, leases, run_ads, runs

SUPERSEDED: Final = "superseded"
LEASE_EXPIRED: Final = "lease expired"

_ENDING_ACTIONS: Final = {SUPERSEDED: "supersede", LEASE_EXPIRED: "expire"}

# Columns whose changes get no line in the audit trail.
_UNAUDITED: Final = frozenset({"lease_until", "facts"})

# Statements of each post and each end are made once: SQLAlchemy takes longer to put one together than a database takes
# to carry it out.
JOBS: Final = select(*JOB_COLUMNS).with_for_update()
_BY_ID: Final = JOBS.where(runs.c.id == bindparam("job_id"))
_HOLDERS: Final = {
    version: JOBS.where(HOLDS_ADDRESS, column == bindparam("address"), runs.c.id != bindparam("but"))
    for version, column in ((4, runs.c.ipv4), (6, runs.c.ipv6))
}
_RIVALS: Final = JOBS.where(
    LIVE, runs.c.slot == bindparam("at_slot"), runs.c.host == bindparam("at_host"), runs.c.id != bindparam("but")
).order_by(runs.c.number)
_INSERT: Final = insert(runs).returning(runs.c.number)
_INSERT_ADS: Final = insert(run_ads)
END: Final = (
    update(runs)
    .where(runs.c.number == bindparam("run"))
    .values(state=JobState.ENDED.value, live=False, reason=bindparam("why"), ended_at=bindparam("at"))
)
END_LEASE: Final = delete(leases).where(leases.c.number == bindparam("run"))
# Of a lease that is there already.
RENEWED: Final = " ON CONFLICT (number) DO UPDATE SET lease_until = excluded.lease_until"
PUT_LEASE: Final = text(f"INSERT INTO leases (number, lease_until) VALUES (:number, :lease_until){RENEWED}")
_LOCK_SLOT: Final = select(func.pg_advisory_xact_lock(func.hashtextextended(bindparam("name"), 0)))


@dataclass(frozen=True, slots=True)
class StoredRun:
    """The result of a registration: the job as it is stored now, whether it was made by this call, and the runs that
    ended because of it (they have lost their slot or address to this one)."""

    job: Job
    created: bool
    superseded: tuple[Job, ...] = ()
    reserved: tuple[Reservation, ...] = ()


@dataclass(frozen=True, slots=True)
class Post:
    """One registration: the run, its ads, who posts it and when, what its facts were taken for, and the bandwidth that
    it needs. ``unseen``: nothing is known of the run; if its lease has ended it, it is to be left as it is. ``flows``
    are to be reserved with it, where the ``rest`` of their pattern (``what``) has room as well. ``link`` is the speed
    of its worker's access link in Mb/s, to be kept whatever becomes of the run; None where it is kept already."""

    job: Job
    job_ad: str
    machine_ad: str
    actor: str
    now: float
    facts_for: str
    booking: Booking | None = None
    unseen: bool = False
    flows: tuple[Booking, ...] = ()
    what: str = ""
    rest: Demand = ()
    link: float | None = None


def register(
    connection: Connection,
    job: Job,
    job_ad: str,
    machine_ad: str,
    actor: str,
    now: float,
    facts_for: str = "",
    booking: Booking | None = None,
) -> StoredRun:
    """Take a run in; ``job.number`` and ``job.created`` are set by the store.

    A run that is there already (the same id) is updated with what this post has, and keeps what it leaves out; a
    refused one, or one that its lease has ended, is taken in again; any other ended one stays ended and comes back
    as it is, with ``created`` False.

    A live run with one of the addresses loses it, and ends, where it is an older run on the same slot and port;
    otherwise AddressError names it. An older live run on the same slot ends whatever its address.
    A run that started before one that lives on its slot is recorded as ended. ``facts_for`` is the digest of the
    attribute names that ``job.facts`` were taken for.

    ``booking`` is the bandwidth that the run needs: where there is no room for it, CapacityError is raised and nothing
    of the run is kept. Without one the run gives up what it had.
    """
    return register_post(connection, Post(job, job_ad, machine_ad, actor, now, facts_for, booking))


def register_post(connection: Connection, post: Post) -> StoredRun:
    """As :func:`register`."""
    job, actor, now = post.job, post.actor, post.now
    _lock_slot(connection, job.run.slot)
    stored = find_for_update(connection, job.id)
    if stored is not None and stored.state is JobState.ENDED and stored.reason != LEASE_EXPIRED:
        return StoredRun(stored, False)
    fresh = replace(job, created=now) if stored is None else _merged(stored, job)
    ended: list[Job] = []
    if fresh.live:
        ended = _free_addresses(connection, fresh, stored, actor, now)
        if stored is None or not stored.live:
            newer, older = _rivals(connection, fresh, stored)
            ended += [end_run(connection, rival, now, SUPERSEDED, "", actor, _by(fresh)) for rival in older]
            if newer is not None:
                over = _stillborn(connection, post, stored, fresh, newer)
                return StoredRun(over, stored is None, tuple(ended))
    if stored is None:
        fresh = _insert(connection, post, fresh)
    else:
        _update(connection, post, stored, fresh)
    if fresh.live:
        reservations.keep_ends(connection, post.flows)
    if fresh.live and post.booking is not None:
        reservations.admit(connection, post.booking, now, actor)
    elif stored is not None:
        reservations.release_of_job(connection, fresh.id)
    made: tuple[Reservation, ...] = ()
    if fresh.live and (post.flows or post.rest):
        made = reservations.admit_together(connection, fresh.id, post.flows, post.what, post.rest, now, actor)
    return StoredRun(fresh, stored is None, tuple(ended), made)


def end_run(connection: Connection, job: Job, now: float, why: str, exit_ad: str, actor: str, detail: str = "") -> Job:
    """End a run that has not ended, and its reservations, in the caller's transaction; returns it as it is then."""
    connection.execute(END, {"run": job.number, "why": why, "at": now})
    connection.execute(END_LEASE, {"run": job.number})
    keep_exit_ad(connection, job.number, exit_ad)
    record(connection, now, actor, ending_action(why), job.id, detail or why)
    reservations.release_of_jobs(connection, [job.id], now)
    external_addresses.release_of_jobs(connection, [job.id], now)
    return replace(job, state=JobState.ENDED, reason=why)


def ending_action(why: str) -> str:
    """The word of the audit trail for an end."""
    return _ENDING_ACTIONS.get(why, "end")


def registered_words(job: Job) -> str:
    """The detail of a registration in the audit trail."""
    return f"{job.run.global_job_id} of {job.owner} on {job.run.slot}"


def keep_exit_ad(connection: Connection, number: int, exit_ad: str) -> None:
    """Keep the exit ad of a run that has none yet."""
    if exit_ad:
        connection.execute(
            update(run_ads).where(run_ads.c.number == number, run_ads.c.exit_ad == "").values(exit_ad=exit_ad)
        )


def end(connection: Connection, job_id: str, now: float, why: str, exit_ad: str, actor: str) -> Job | None:
    """End a run and free its address; None where there is none. Idempotent: an ended run keeps why and when it ended,
    and takes an exit ad if it has none."""
    job = find_for_update(connection, job_id)
    if job is None:
        return None
    if job.state is JobState.ENDED:
        keep_exit_ad(connection, job.number, exit_ad)
        return job
    return end_run(connection, job, now, why, exit_ad, actor)


def set_address(
    connection: Connection,
    job_id: str,
    ipv4: IPv4Address | None,
    ipv6: IPv6Address | None,
    blocks: tuple[IPv4Network | None, IPv6Network | None],
    actor: str,
    now: float,
) -> StoredRun:
    """Give a live run its addresses and the blocks that they came from; None takes one away.

    A run that holds an address loses it as in :func:`register`. Raises AddressError where the holder has the right to
    it, NotFoundError where no such run lives.
    """
    job = find_for_update(connection, job_id)
    if job is None or not job.live:
        raise NotFoundError(f"no live job has the id {job_id}")
    fresh = replace(job, ipv4=ipv4, ipv6=ipv6, ipv4_block=blocks[0], ipv6_block=blocks[1])
    ended = _free_addresses(connection, fresh, job, actor, now)
    values = columns_of(fresh)
    connection.execute(
        update(runs)
        .where(runs.c.number == fresh.number)
        .values({name: values[name] for name in ("ipv4", "ipv6", "ipv4_block", "ipv6_block")})
    )
    record(connection, now, actor, "address", fresh.id, ", ".join(map(str, fresh.addresses)) or "none")
    return StoredRun(fresh, False, tuple(ended))


def given_up(connection: Connection, job_id: str) -> Job | None:
    """The run where its lease has ended it: if it still runs, then with the addresses that it had."""
    stored = find_for_update(connection, job_id)
    ended = stored is not None and stored.state is JobState.ENDED and stored.reason == LEASE_EXPIRED
    return stored if ended else None


def find_for_update(connection: Connection, job_id: str) -> Job | None:
    """The run of that id, locked until the transaction ends (SQLite: the whole database is)."""
    row = connection.execute(_BY_ID, {"job_id": job_id}).one_or_none()
    return None if row is None else job_from(row)


def _lock_slot(connection: Connection, slot: str) -> None:
    """Let two registrations on one slot happen one after the other. SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(_LOCK_SLOT, {"name": slot})


def _merged(stored: Job, posted: Job) -> Job:
    """The stored run with the values of a later post; what the post leaves out (None) stays as it was."""
    ipv4, ipv4_block = posted.ipv4, posted.ipv4_block
    if ipv4 is None or (ipv4 == stored.ipv4 and ipv4_block is None):
        ipv4, ipv4_block = stored.ipv4, stored.ipv4_block
    ipv6, ipv6_block = posted.ipv6, posted.ipv6_block
    if ipv6 is None or (ipv6 == stored.ipv6 and ipv6_block is None):
        ipv6, ipv6_block = stored.ipv6, stored.ipv6_block
    return replace(
        posted,
        number=stored.number,
        created=stored.created,
        ipv4=ipv4,
        ipv4_block=ipv4_block,
        ipv6=ipv6,
        ipv6_block=ipv6_block,
        datapath=stored.datapath if posted.datapath is None else posted.datapath,
        port=stored.port if posted.port is None else posted.port,
        mac=stored.mac if posted.mac is None else posted.mac,
        vlan=stored.vlan if posted.vlan is None else posted.vlan,
        state=stored.state if stored.live else posted.state,
        reason=stored.reason if stored.live else posted.reason,
        lease_until=max(stored.lease_until, posted.lease_until),
        quarantine=stored.quarantine,
        vouched=stored.vouched,
    )


def _free_addresses(connection: Connection, fresh: Job, stored: Job | None, actor: str, now: float) -> list[Job]:
    """End the live runs that hold an address of ``fresh`` without a right to it. Raises AddressError for one that
    has the right; the caller's transaction is then rolled back as a whole."""
    ended: list[Job] = []
    if not fresh.has_pool_address:
        return ended
    for address in fresh.addresses:
        holder = _holder(connection, fresh, address)
        if holder is None:
            continue
        # A lease that is over ends nothing here: it may have been renewed a moment ago, or the clock was set.
        if _same_place(holder, fresh) and holder.port == fresh.port and _is_older(holder, fresh, stored):
            ended.append(end_run(connection, holder, now, SUPERSEDED, "", actor, _by(fresh)))
        else:
            raise AddressError(
                f"LarkInnerAddressIPv{address.version}",
                f"{address} is held by the live job {holder.called} ({holder.run.global_job_id} on {holder.run.slot})",
                holder.id,
            )
    return ended


def _holder(connection: Connection, fresh: Job, address: Address) -> Job | None:
    row = connection.execute(_HOLDERS[address.version], {"address": str(address), "but": fresh.id}).one_or_none()
    return None if row is None else job_from(row)


def _rivals(connection: Connection, fresh: Job, stored: Job | None) -> tuple[Job | None, list[Job]]:
    """The live run on the same slot that comes after this one, if there is one, and those that it comes after. A slot
    has one job at a time: of two with one start, or none that is known, the one that was stored first is over."""
    where = {"at_slot": fresh.run.slot, "at_host": fresh.host, "but": fresh.id}
    rivals = [job_from(row) for row in connection.execute(_RIVALS, where)]
    # One that is taken in again has kept its number, and the slot may have gone on meanwhile.
    own = (fresh.run.started, math.inf if stored is None else stored.number)
    newer = max((rival for rival in rivals if _order(rival) > own), key=_order, default=None)
    return newer, [rival for rival in rivals if _order(rival) < own]


def _order(job: Job) -> tuple[int, int]:
    return job.run.started, job.number


def _same_place(one: Job, other: Job) -> bool:
    return one.host == other.host and one.run.slot == other.run.slot


def _is_older(holder: Job, fresh: Job, stored: Job | None) -> bool:
    """True if ``holder`` must be over because ``fresh`` runs. Where starts are unknown or equal, the one that was
    stored first is older, unless both are of the same job."""
    if holder.run.started and fresh.run.started and holder.run.started != fresh.run.started:
        return holder.run.started < fresh.run.started
    was_first = stored is None or holder.number < stored.number
    return was_first and holder.run.global_job_id != fresh.run.global_job_id


def _by(winner: Job) -> str:
    return f"by run {winner.id} ({winner.run.global_job_id} on {winner.run.slot})"


def _insert(connection: Connection, post: Post, job: Job) -> Job:
    values = columns_of(job) | {
        "facts_for": post.facts_for,
        "ended_at": post.now if job.state is JobState.ENDED else None,
    }
    number = connection.execute(_INSERT, values).scalar_one()
    ads = {"number": number, "job_ad": post.job_ad, "machine_ad": post.machine_ad, "exit_ad": ""}
    connection.execute(_INSERT_ADS, ads)
    if job.live:
        connection.execute(PUT_LEASE, {"number": number, "lease_until": job.lease_until})
    record(connection, post.now, post.actor, "register", job.id, registered_words(job))
    return replace(job, number=number)


def _update(connection: Connection, post: Post, stored: Job, fresh: Job) -> None:
    before, after = columns_of(stored), columns_of(fresh)
    changed = {name: value for name, value in after.items() if value != before[name]}
    connection.execute(
        update(runs)
        .where(runs.c.number == fresh.number)
        .values(changed | {"facts_for": post.facts_for, "ended_at": None})
    )
    if fresh.live:
        connection.execute(PUT_LEASE, {"number": fresh.number, "lease_until": fresh.lease_until})
    ads = connection.execute(
        update(run_ads)
        .where(run_ads.c.number == fresh.number)
        .where((run_ads.c.job_ad != post.job_ad) | (run_ads.c.machine_ad != post.machine_ad))
        .values(job_ad=post.job_ad, machine_ad=post.machine_ad)
    )
    named = [item.name for item in fields(Job) if getattr(stored, item.name) != getattr(fresh, item.name)]
    audited = [name for name in named if name not in _UNAUDITED] + (["ads"] if ads.rowcount else [])
    if audited:
        record(connection, post.now, post.actor, "update", fresh.id, ", ".join(audited))


def _stillborn(connection: Connection, post: Post, stored: Job | None, fresh: Job, newer: Job) -> Job:
    """Record a run whose slot has gone on to a later one: it is over when its post comes."""
    if stored is not None:
        return end_run(connection, stored, post.now, SUPERSEDED, "", post.actor, _by(newer))
    job = _insert(connection, post, replace(fresh, state=JobState.ENDED, reason=SUPERSEDED))
    record(connection, post.now, post.actor, "supersede", job.id, _by(newer))
    return job

"""The tables, and what the store's functions do to them, as one step each.

A thin second form of ``lark_controller/store``, which is SQL: the conditions and the order are its, and whatever it
calculates without the database is called there. ``tests/cluster/test_simulated_tables.py`` holds the two against each
other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from types import MappingProxyType
from typing import Any, Final

from lark_common.errors import AddressError, ExternalAddressError, LarkError, NotFoundError, PathError
from lark_controller.jobs.external import Association, rotated
from lark_controller.jobs.job import Job, JobState
from lark_controller.qos.admission import NOTHING, ChannelRates, ReservedCapacity, rates_of
from lark_controller.qos.reservation import Booking, Reservation, ReservationKind, words
from lark_controller.qos.topology import Demand
from lark_controller.store import runs
from lark_controller.store.external_addresses import JOB_ENDED, RESERVATION_OVER, Claim
from lark_controller.store.runs import LEASE_EXPIRED, SUPERSEDED, Post, StoredRun
from lark_controller.store.together import Finish, Outcome, Request
from tests.cluster.simulation.world import ALL, Guards

ROOM: Final = "room"
EXTERNAL: Final = "external"
_NAMES: Final = ("runs", "leases", "reservations", "reserved", "links", "external")


@dataclass
class Tables:
    """Runs by number, the leases of live ones, reservations and their sums by channel, the links of workers, external
    addresses; ``lines`` are those of the audit trail: action and subject. ``locks`` are taken by the present work."""

    runs: dict[int, Job] = field(default_factory=dict)
    leases: dict[int, float] = field(default_factory=dict)
    reservations: dict[int, Reservation] = field(default_factory=dict)
    reserved: dict[str, int] = field(default_factory=dict)
    links: dict[str, float] = field(default_factory=dict)
    external: dict[int, Association] = field(default_factory=dict)
    lines: list[tuple[str, str]] = field(default_factory=list)
    locks: set[tuple[Any, ...]] = field(default_factory=set)
    # Sequences, which no rollback sets back.
    numbers: Any = field(default_factory=lambda: count(1))
    before: Tables | None = None
    guards: Guards = ALL

    def copy(self) -> Tables:
        """The rows that a transaction sees, and changes for itself."""
        found: dict[str, Any] = {name: dict(getattr(self, name)) for name in _NAMES}
        return Tables(**found, numbers=self.numbers, before=self, guards=self.guards)

    def saved(self) -> Callable[[], None]:
        """A savepoint; the call of what is returned goes back to it."""
        found = {name: dict(getattr(self, name)) for name in _NAMES}
        lines = len(self.lines)

        def back() -> None:
            for name, each in found.items():
                setattr(self, name, each)
            del self.lines[lines:]

        return back

    def keys_beside(self, committed: Tables) -> frozenset[tuple[Any, ...]]:
        """Things that no other may change before this is over: changed rows, addresses by their indexes, locks."""
        keys = set(self.locks)
        # Sums are added to, whatever they are by then: the lock of what is reserved is what keeps others away.
        for name in _NAMES:
            here, there = getattr(self, name), getattr(committed, name)
            if name == "reserved":
                continue
            if here is there or here == there:
                continue
            keys.update((name, key) for key in here.keys() | there.keys() if here.get(key) != there.get(key))
        for job in self.runs.values():
            if committed.runs.get(job.number) != job:
                keys.add(("run", job.id))
                keys.update(("address", each) for each in job.addresses)
        for each in self.external.values():
            if committed.external.get(each.number) != each:
                keys.add(("external address", each.address))
        return frozenset(keys)

    def with_changes_of(self, other: Tables) -> Tables:
        """These tables with what a transaction has changed of what it saw."""
        seen = other.before
        assert seen is not None
        made = replace(self, lines=[*self.lines, *other.lines], before=None)
        for name in _NAMES:
            mine, was, now = getattr(self, name), getattr(seen, name), getattr(other, name)
            if was == now:
                continue
            if name == "reserved":
                setattr(made, name, _added(mine, was, now))
                continue
            if was is mine:
                setattr(made, name, now)
                continue
            fresh = dict(mine)
            for key in was.keys() | now.keys():
                if was.get(key) == now.get(key):
                    continue
                if key in now:
                    fresh[key] = now[key]
                else:
                    fresh.pop(key, None)
            setattr(made, name, fresh)
        return made

    # -- runs ----------------------------------------------------------------------------------------------------------

    def find(self, job_id: str) -> Job | None:
        """The run of an id, with its lease."""
        job = next((each for each in self.runs.values() if each.id == job_id), None)
        return None if job is None else replace(job, lease_until=self.leases.get(job.number, job.lease_until))

    def live(self) -> list[Job]:
        return [each for each in self.runs.values() if each.live]

    def carry_out(self, requests: Sequence[Request]) -> list[Outcome]:
        """Posts and ends, each in a savepoint, ends first (store/together.py)."""
        for each in requests:
            if isinstance(each, Post) and each.link is not None:
                self.links[each.job.host.lower()] = each.link
        found: dict[int, Outcome] = {}
        for place in sorted(range(len(requests)), key=lambda place: isinstance(requests[place], Post)):
            request, back = requests[place], self.saved()
            try:
                found[place] = self._end_by(request) if isinstance(request, Finish) else self._register(request)
            except LarkError as error:
                back()
                found[place] = error
        return [found[place] for place in range(len(requests))]

    def _end_by(self, finish: Finish) -> Job | None:
        return self.end(finish.job_id, finish.now, finish.why, finish.exit_ad, finish.actor)

    def end(self, job_id: str, now: float, why: str, _exit_ad: str, _actor: str) -> Job | None:
        job = self._for_update(job_id)
        return job if job is None or job.state is JobState.ENDED else self._end_run(job, now, why)

    def _for_update(self, job_id: str) -> Job | None:
        self.locks.add(("run", job_id))
        return self.find(job_id)

    def _register(self, post: Post) -> StoredRun | Job:
        if post.unseen:
            stored = self._for_update(post.job.id)
            if stored is not None and stored.state is JobState.ENDED and stored.reason == LEASE_EXPIRED:
                return stored
        return self.register(post)

    def register(self, post: Post) -> StoredRun:
        """As store/runs.py:register_post."""
        job, now = post.job, post.now
        self.locks.add(("slot", job.run.slot))
        stored = self._for_update(job.id)
        if stored is not None and stored.state is JobState.ENDED and stored.reason != LEASE_EXPIRED:
            return StoredRun(stored, False)
        fresh = replace(job, created=now) if stored is None else runs._merged(stored, job)
        ended: list[Job] = []
        if fresh.live:
            ended = self._free_addresses(fresh, stored, now)
            if stored is None or not stored.live:
                newer, older = self._rivals(fresh, stored)
                ended += [self._end_run(rival, now, SUPERSEDED) for rival in older]
                if newer is not None:
                    return StoredRun(self._stillborn(post, stored, fresh), stored is None, tuple(ended))
        if stored is None:
            fresh = self._insert(fresh)
        else:
            self._put(fresh)
            if not stored.live:
                self.lines.append(("again", fresh.id))
        if fresh.live:
            self._keep_ends(post.flows)
        if fresh.live and post.booking is not None:
            self.admit(post.booking, now, post.actor)
        elif stored is not None:
            self._release_of_job(fresh.id)
        return StoredRun(fresh, stored is None, tuple(ended))

    def _insert(self, job: Job) -> Job:
        made = replace(job, number=next(self.numbers))
        self._put(made)
        self.lines.append(("register", made.id))
        return made

    def _put(self, job: Job) -> None:
        self.runs[job.number] = replace(job, reserved=(), external=())
        if job.live:
            self.leases[job.number] = job.lease_until

    def _stillborn(self, post: Post, stored: Job | None, fresh: Job) -> Job:
        if stored is not None:
            return self._end_run(stored, post.now, SUPERSEDED)
        job = self._insert(replace(fresh, state=JobState.ENDED, reason=SUPERSEDED))
        self.lines.append(("end", job.id))
        return job

    def _end_run(self, job: Job, now: float, why: str) -> Job:
        """As store/runs.py:end_run."""
        self.locks.add(("run", job.id))
        row = self.runs[job.number]
        self.runs[job.number] = replace(row, state=JobState.ENDED, reason=why)
        self.leases.pop(job.number, None)
        self.lines.append(("end", job.id))
        self._release_of_jobs([job.id], now)
        self._release_external(lambda each: each.job == job.id, now, JOB_ENDED)
        return replace(job, state=JobState.ENDED, reason=why)

    def _free_addresses(self, fresh: Job, stored: Job | None, now: float) -> list[Job]:
        ended: list[Job] = []
        for address in fresh.addresses if fresh.has_pool_address else ():
            others = (each for each in self.live() if each.has_pool_address and each.id != fresh.id)
            holder = next((each for each in others if address in each.addresses), None)
            if holder is None:
                continue
            older = runs._is_older(holder, fresh, stored)
            if runs._same_place(holder, fresh) and holder.port == fresh.port and older:
                ended.append(self._end_run(holder, now, SUPERSEDED))
            else:
                raise AddressError(f"LarkInnerAddressIPv{address.version}", f"{address} is held", holder.id)
        return ended

    def _rivals(self, fresh: Job, stored: Job | None) -> tuple[Job | None, list[Job]]:
        where = fresh.run.slot, fresh.host
        rivals = [each for each in self.live() if (each.run.slot, each.host) == where and each.id != fresh.id]
        own = (fresh.run.started, float("inf") if stored is None else stored.number)
        newer = max((each for each in rivals if runs._order(each) > own), key=runs._order, default=None)
        return newer, [each for each in rivals if runs._order(each) < own]

    def renew_many(self, renewed: Collection[tuple[int, float]]) -> int:
        known = [(number, until) for number, until in renewed if number in self.leases]
        self.leases.update(known)
        return len(known)

    def renew(self, job_id: str, until: float) -> bool:
        job = self.find(job_id)
        return job is not None and job.live and self.renew_many([(job.number, until)]) > 0

    def begin_leases(self, until: float) -> int:
        self.leases = {job.number: until for job in self.live()}
        return len(self.leases)

    def expired(self, now: float) -> list[Job]:
        late = [number for number, until in sorted(self.leases.items()) if until < now]
        return [replace(self.runs[number], lease_until=self.leases[number]) for number in late]

    # -- reservations --------------------------------------------------------------------------------------------------

    def _lock(self, name: str) -> None:
        if self.guards.room_is_locked:
            self.locks.add((name,))

    def _keep_ends(self, bookings: Collection[Booking]) -> None:
        ends = {end for each in bookings if each.kind is ReservationKind.FLOW for end in (each.job, each.peer)}
        for job_id in sorted(end for end in ends if end is not None):
            job = self._for_update(job_id)
            if job is None or not job.live:
                raise NotFoundError(f"no live job has the id {job_id}")

    def admit(self, booking: Booking, now: float, actor: str, *, has_line: bool = True) -> Reservation:
        """As store/reservations.py:admit."""
        del has_line
        self._keep_ends([booking])
        self._lock(ROOM)
        if booking.kind is ReservationKind.JOB:
            for each in self.reservations.values():
                if (each.kind, each.job) == (ReservationKind.JOB, booking.job):
                    return self._replace(each, booking.kbps, booking.until, booking.steady, booking.demand)
        number = next(self.numbers)
        made = Reservation(
            number, f"{number:016x}", booking.kind, booking.kbps, booking.source, booking.destination,
            self._move(booking.what, booking.demand), booking.job, booking.peer, booking.target, booking.until, now,
            actor, booking.steady, booking.to_host,
        )  # fmt: skip
        self.reservations[number] = made
        return made

    def change(
        self,
        reservation_id: str,
        rebook: Callable[[Reservation], tuple[int, float | None, bool, Demand]],
        now: float,
        actor: str,
        *,
        has_line: bool = True,
        past: float | None = None,
    ) -> Reservation | None:
        """As store/reservations.py:change."""
        del actor, has_line
        self._lock(ROOM)
        before = self.reservation(reservation_id, now if past is None else past)
        return None if before is None else self._replace(before, *rebook(before))

    def reservation(self, reservation_id: str, now: float) -> Reservation | None:
        return next(
            (each for each in self.reservations.values() if each.id == reservation_id and _valid(each, now)), None
        )

    def flows(self, now: float) -> list[Reservation]:
        return [each for each in self.reservations.values() if each.kind is ReservationKind.FLOW and _valid(each, now)]

    def _replace(
        self, before: Reservation, kbps: int, until: float | None, steady: bool, demand: Demand
    ) -> Reservation:
        what = words(before.kind, kbps, before.source, before.destination)
        holds = self._move(what, demand, before.holds)
        after = replace(before, kbps=kbps, until=until, steady=steady, holds=holds)
        self.reservations[before.number] = after
        return after

    def release(self, reservation_id: str, now: float, actor: str, *, has_line: bool = True) -> Reservation | None:
        """As store/reservations.py:release."""
        del actor, has_line
        self._lock(ROOM)
        gone = self._remove(lambda each: each.id == reservation_id)
        self._end_addresses(gone, now)
        return gone[0] if gone else None

    def sweep(
        self,
        now: float,
        but: Collection[str] = (),
        quiet: Collection[str] = (),
        past: float | None = None,
    ) -> int:
        """As store/reservations.py:sweep."""
        del quiet
        until = now if past is None else past
        self._lock(ROOM)
        gone = self._remove(lambda each: each.until is not None and each.until <= until and each.id not in but)
        self._end_addresses(gone, now)
        return len(gone)

    def _release_of_jobs(self, job_ids: Collection[str], now: float) -> None:
        gone = self._remove(lambda each: each.job in job_ids or each.peer in job_ids)
        self._end_addresses([each for each in gone if each.job not in job_ids], now)

    def _release_of_job(self, job_id: str) -> None:
        self._remove(lambda each: (each.kind, each.job) == (ReservationKind.JOB, job_id))

    def _remove(self, chosen: Callable[[Reservation], bool]) -> list[Reservation]:
        gone = [each for each in self.reservations.values() if chosen(each)]
        for each in gone:
            self._lock(ROOM)
            del self.reservations[each.number]
            self._write(each.holds, NOTHING)
        return gone

    def _end_addresses(self, gone: Collection[Reservation], now: float) -> None:
        numbers = {each.number for each in gone if each.kind is ReservationKind.FLOW}
        if numbers:
            self._release_external(lambda each: each.reservation in numbers, now, RESERVATION_OVER)

    def _move(self, what: str, demand: Demand, instead_of: ChannelRates = NOTHING) -> ChannelRates:
        holds = rates_of(demand)
        if holds != instead_of:
            keys = {channel.key for channel, _ in demand} | set(instead_of)
            here = {key: kbps for key, kbps in self.reserved.items() if key in keys}
            ReservedCapacity(MappingProxyType(here)).admit(what, demand, instead_of)
            self._write(instead_of, holds)
        return holds

    def _write(self, before: ChannelRates, after: ChannelRates) -> None:
        moved = ReservedCapacity(MappingProxyType(self.reserved)).moved(before, after)
        self.reserved = dict(moved.reserved)

    def reroute(
        self,
        demand_of: Callable[[Reservation], Demand],
        promised: Mapping[str, Booking],
        now: float,
        is_over: Callable[[Reservation], bool] = lambda _: False,
        followed: Callable[[Reservation], Reservation] = lambda each: each,
    ) -> list[str]:
        """As store/reservations.py:reroute, of the policy that was in force before."""
        del now, is_over
        self._lock(ROOM)
        lost = []
        self.reserved = {}
        for number, before in self.reservations.items():
            each = followed(before)
            booking = promised.get(each.job or "") if each.kind is ReservationKind.JOB else None
            try:
                demand = demand_of(each) if booking is None else booking.demand
            except PathError:
                demand = ()
                lost.append(each.id)
            self.reservations[number] = replace(each, holds=rates_of(demand))
            self._write(NOTHING, rates_of(demand))
        return lost

    # -- external addresses --------------------------------------------------------------------------------------------

    def held(self, job: str | None = None) -> list[Association]:
        """Those that are a job's or rest."""
        return [each for each in self.external.values() if _is_held(each) and job in (None, each.job)]

    def associate(self, claim: Claim, now: float, actor: str, *, past: float | None = None) -> Association:
        """As store/external_addresses.py:associate, without names, limits, and one that a job has again."""
        past = now if past is None else past
        job = self._for_update(claim.job.id)
        if job is None or not job.live:
            raise NotFoundError(f"no live job has the id {claim.job.id}")
        self._lock(EXTERNAL)
        self._expire_external(now, past)
        for each in self.external.values():
            if each.released is None and (each.job, each.address.version) == (job.id, claim.family):
                return each
        self._free(past)
        last = max(self.external.values(), key=lambda each: each.number, default=None)
        held = {each.address for each in self.held()}
        order = rotated(claim.networks, None if last is None else last.address)
        address = next((each for each in order if each not in held), None)
        if address is None:
            raise ExternalAddressError(f"pool {claim.pool} has no address left")
        number = next(self.numbers)
        made = Association(
            number, f"{number:016x}", address, claim.pool, job.id, job.owner, job.group, claim.openings, now,
            claim.until, claim.reservation, actor=actor,
        )  # fmt: skip
        self.external[number] = made
        return made

    def release_external(self, association_id: str, now: float, why: str, _actor: str) -> Association | None:
        self._lock(EXTERNAL)
        self._release_external(lambda each: each.id == association_id, now, why)
        return next((each for each in self.external.values() if each.id == association_id), None)

    def _release_external(self, chosen: Callable[[Association], bool], now: float, why: str) -> int:
        gone = [each for each in self.external.values() if each.released is None and chosen(each)]
        for each in gone:
            self.external[each.number] = replace(each, released=now, free=now + REST, why=why)
        return len(gone)

    def expire_external(self, now: float, past: float | None = None) -> int:
        past = now if past is None else past
        self._lock(EXTERNAL)
        count = self._expire_external(now, past)
        self._free(past)
        return count

    def _expire_external(self, now: float, until: float) -> int:
        count = self._release_external(lambda each: each.until is not None and each.until <= until, now, "over")
        live = {each.id for each in self.live()}
        return count + self._release_external(lambda each: each.job not in live, now, JOB_ENDED)

    def _free(self, now: float) -> None:
        for each in list(self.external.values()):
            if each.free is not None and each.free <= now:
                # Nothing is asked of one that is free, and the row may go.
                self.external[each.number] = replace(each, free=None)


# Seconds for which an external address rests, as the policy has it.
REST: Final = 5.0


def _added(mine: Mapping[str, int], was: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    sums = {key: mine.get(key, 0) + now.get(key, 0) - was.get(key, 0) for key in mine.keys() | now.keys() | was.keys()}
    return {key: kbps for key, kbps in sums.items() if kbps}


def _valid(each: Reservation, now: float) -> bool:
    return each.until is None or each.until > now


def _is_held(each: Association) -> bool:
    return each.released is None or each.free is not None

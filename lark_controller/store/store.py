"""The store as the rest of the program sees it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from itertools import islice
from typing import Final, Self, TypeVar

from sqlalchemy import Connection, text

from lark_common.errors import NotFoundError
from lark_controller.accounting.ledger import Entry
from lark_controller.accounting.usage import JobUsage
from lark_controller.api.jobs import JobFilter, JobPage
from lark_controller.api.usage import UsageFilter, UsagePage
from lark_controller.jobs.job import Facts, Job, JobState
from lark_controller.qos.admission import Held
from lark_controller.qos.reservation import Booking, Reservation, ReservationPage
from lark_controller.qos.topology import Demand
from lark_controller.store import (
    audit_and_policies as trail,
)
from lark_controller.store import (
    migrate,
    quarantine,
    queries,
    reservations,
    runs,
    usage,
)
from lark_controller.store import (
    run_updates as upkeep,
)
from lark_controller.store.database import Database, connect
from lark_controller.store.queries import Ending, LiveAds
from lark_controller.store.run_updates import Pruned
from lark_controller.store.runs import Post, Registration
from lark_controller.store.subject import Reads, Subject, Writes
from lark_controller.store.usage import Readings

T = TypeVar("T")

# How many rows one transaction changes at most, so that other writers get their turn.
_BATCH: Final = 2_000


class Trail(Subject):
    """The audit trail and the policy versions."""

    record = Writes(trail.record)
    page = Reads(trail.page)
    put_policy = Writes(trail.put_policy)
    latest_policy = Reads(trail.latest_policy)
    policy = Reads(trail.policy)


class Store:
    """The job directory on disk, the audit trail and the policy versions; SQLite or PostgreSQL.

    Every method may be called from any thread, is one transaction where nothing else is said, and raises StoreError
    where the database cannot be reached or refuses. Times are seconds since 1970; the store has no clock of its own.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.trail = Trail(database)

    @classmethod
    def open(cls, url: str) -> Self:
        """Open ``sqlite:////path/to/file`` or ``postgresql://user:password@host/database``.

        Raises StoreError with a sentence that says what to do and never holds the password. The tables are made by
        :meth:`migrate`.
        """
        return cls(connect(url))

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    def ping(self) -> None:
        """Ask the database one question; returns when it has answered.

        Raises StoreError, too, where the file of an SQLite database is gone: what is written to it then goes with it.
        """
        self._database.read(lambda connection: connection.execute(text("SELECT 1")).scalar_one())
        self._database.check_file()

    def check_writes(self) -> None:
        """Write something that changes nothing. Raises StoreError where the database takes no writes."""
        self._database.check_writes()

    def check_room(self) -> None:
        """Raise StoreError where SQLite's file is gone or was replaced, or its disk is full. Asks no database."""
        self._database.check_room()

    def failed_write(self, seconds: float) -> str:
        """The sentence of a write that the database refused in the last ``seconds``; ``""`` where it refused none."""
        return self._database.failed_write(seconds)

    def claim(self) -> bool:
        """Claim the database for one controller, as long as the store is open; False where another may have it.

        Raises StoreError where another has it for certain (SQLite).
        """
        return self._database.claim()

    def migrate(self) -> None:
        """Make or change the tables as this program needs them. Of two that start at once, one does it.

        Raises StoreError, too, where the tables are of a newer Lark.
        """
        self._database.write(migrate.upgrade)

    def schema_version(self) -> str | None:
        """The version of the tables, None where there are none yet."""
        return self._database.read(migrate.current)

    @staticmethod
    def newest_schema() -> str:
        """The version that :meth:`migrate` leads to."""
        return migrate.newest()

    # Runs

    def register(
        self,
        job: Job,
        job_ad: str,
        machine_ad: str,
        actor: str,
        now: float,
        facts_for: str = "",
        booking: Booking | None = None,
    ) -> Registration:
        """Take a run in; ``job.number`` and ``job.created`` are the store's to say.

        A run that is there already (the same id) is updated with what this post says, and keeps what it leaves out; a
        refused one, or one that its lease has ended, is taken in again; any other ended one stays ended and comes back
        as it is, with ``created`` False.

        A live run with one of the addresses loses it, and ends, where its lease is over or where it is an older run
        on the same slot and port; otherwise AddressError names it. An older live run on the same slot ends whatever
        its address. A run that started before one that lives on its slot is recorded as ended. ``facts_for`` is the
        digest of the attribute names that ``job.facts`` were taken for.

        ``booking`` is the bandwidth that the run needs: where there is no room for it, CapacityError says so and
        nothing of the run is kept. Without one the run gives up what it had.
        """
        post = Post(job, job_ad, machine_ad, actor, now, facts_for, booking)
        return self._database.write(partial(runs.register, post=post))

    def end(self, job_id: str, now: float, why: str, exit_ad: str, actor: str) -> Job | None:
        """End a run and free its address; None where there is none. May be repeated: an ended run keeps why and when
        it ended, and takes an exit ad if it has none."""

        def work(connection: Connection) -> Job | None:
            job = runs.find_for_update(connection, job_id)
            if job is None:
                return None
            if job.state is JobState.ENDED:
                runs.keep_exit_ad(connection, job.number, exit_ad)
                return job
            return runs.end_run(connection, job, now, why, exit_ad, actor)

        return self._database.write(work)

    def set_address(
        self,
        job_id: str,
        ipv4: IPv4Address | None,
        ipv6: IPv6Address | None,
        blocks: tuple[IPv4Network | None, IPv6Network | None],
        actor: str,
        now: float,
    ) -> Registration:
        """Give a live run its addresses and the blocks that they came from; None takes one away.

        Who holds an address loses it as in :meth:`register`. Raises AddressError where the holder has the right to
        it, NotFoundError where no such run lives.
        """

        def work(connection: Connection) -> Registration:
            job = runs.find_for_update(connection, job_id)
            if job is None or not job.live:
                raise NotFoundError(f"no live job has the id {job_id}")
            wanted = replace(job, ipv4=ipv4, ipv6=ipv6, ipv4_block=blocks[0], ipv6_block=blocks[1])
            return Registration(wanted, False, runs.set_address(connection, wanted, actor, now))

        return self._database.write(work)

    def renew(self, job_id: str, lease_until: float) -> bool:
        """Set a live run's lease; False where no such run lives."""
        return self._database.write(partial(upkeep.renew, job_id=job_id, lease_until=lease_until))

    def renew_many(self, leases: Collection[tuple[str, float]]) -> int:
        """Set the leases of live runs, (id, until) each; returns how many of them live. In batches."""
        return sum(self._database.write(partial(upkeep.renew_many, leases=part)) for part in _batches(leases))

    def extend_leases(self, until: float) -> int:
        """Let no live run's lease end before ``until`` (after a start, before workers could renew); returns how many
        were extended."""
        return self._database.write(partial(upkeep.extend_leases, until=until))

    def set_states(self, states: Collection[tuple[str, JobState, str]]) -> int:
        """Set states, (id, state, reason) each, of live runs; returns how many of them live. In batches.

        A refused run gives up its address and is live again only when it is registered again. Raises ValueError for
        ``ended``, which is :meth:`end`'s.
        """
        return sum(self._database.write(partial(upkeep.set_states, states=part)) for part in _batches(states))

    def update_facts(self, facts: Collection[tuple[str, Facts]], facts_for: str) -> int:
        """Set facts, (id, facts) each, of live runs and what they were taken for; returns how many live. In batches."""
        return sum(
            self._database.write(partial(upkeep.update_facts, facts=part, facts_for=facts_for))
            for part in _batches(facts)
        )

    def live_jobs(self) -> Generator[Job, None, None]:
        """The live runs in order of number, read piece by piece; their facts as they were stored last."""
        with self._database.stream() as connection:
            yield from queries.live_jobs(connection)

    def find(self, job_id: str) -> Job | None:
        """A run, live or not."""
        return self._database.read(partial(queries.find, job_id=job_id))

    def ads(self, job_id: str) -> tuple[str, str] | None:
        """The job ad and machine ad of a run as they were posted last."""
        return self._database.read(partial(queries.ads, job_id=job_id))

    def ending(self, job_id: str) -> Ending | None:
        """When and why a run ended, and its exit ad; None where it has not."""
        return self._database.read(partial(queries.ending, job_id=job_id))

    def ads_of_live(self, after_number: int, limit: int, stale_for: str | None = None) -> list[LiveAds]:
        """The ads of the next live runs after a number; with ``stale_for`` only of those whose facts were taken for
        another digest of attribute names."""
        return self._database.read(
            partial(queries.ads_of_live, after_number=after_number, limit=limit, stale_for=stale_for)
        )

    def page(self, chosen: JobFilter, cursor: str | None, limit: int) -> JobPage:
        """A page of runs in order of number. Raises NotFoundError for a cursor that is none."""
        return self._database.read(partial(queries.page, chosen=chosen, cursor=cursor, limit=limit))

    def expired(self, now: float) -> list[Job]:
        """The live runs whose lease ended before ``now``."""
        return self._database.read(partial(queries.expired, now=now))

    # Reservations

    def reserve(self, booking: Booking, now: float, actor: str) -> Reservation:
        """Admit a reservation. Raises CapacityError; then nothing has changed."""
        return self._database.write(partial(reservations.admit, booking=booking, now=now, actor=actor))

    def change_reservation(
        self,
        reservation_id: str,
        rebook: Callable[[Reservation], tuple[int, float | None, Demand]],
        now: float,
        actor: str,
    ) -> Reservation | None:
        """Give a reservation the rate (kb/s), end and demand that ``rebook`` makes of it; None where there is none.
        Raises CapacityError, and what ``rebook`` raises; then nothing has changed."""
        return self._database.write(
            partial(reservations.change, reservation_id=reservation_id, rebook=rebook, now=now, actor=actor)
        )

    def release(self, reservation_id: str, now: float, actor: str) -> Reservation | None:
        """Release a reservation; returns it as it was, None where there is none."""
        return self._database.write(partial(reservations.release, reservation_id=reservation_id, now=now, actor=actor))

    def release_expired(self, now: float) -> int:
        """Release the reservations that are past their end; returns how many."""
        return self._database.write(partial(reservations.sweep, now=now))

    def reroute(
        self, demand_of: Callable[[Reservation], Demand], promised: Mapping[str, Booking], now: float
    ) -> list[str]:
        """Count all reservations on the links of a new topology, and what is ``promised`` to live jobs, by id, in place
        of what they had; returns the ids of those without a path there."""
        work = partial(reservations.reroute, demand_of=demand_of, promised=promised, now=now)
        return self._database.write(work)

    def reservation(self, reservation_id: str, now: float) -> Reservation | None:
        """A reservation, unless it is past its end."""
        return self._database.read(partial(reservations.find, reservation_id=reservation_id, now=now))

    def reserved_flows(self, now: float) -> list[Reservation]:
        """Every reserved flow that is not past its end."""
        return self._database.read(partial(reservations.flows, now=now))

    def reservations(self, job: str | None, now: float, cursor: str | None, limit: int) -> ReservationPage:
        """A page of reservations, of all or of one job. Raises NotFoundError for a cursor that is none."""
        return self._database.read(partial(reservations.page, job=job, now=now, cursor=cursor, limit=limit))

    def reserved(self) -> Held:
        """How much of each channel is reserved, in kb/s."""
        return self._database.read(reservations.use)

    def worker_capacities(self) -> dict[str, float]:
        """What machine ads said of the access links of workers: Mb/s by host in lower case."""
        return self._database.read(reservations.worker_capacities)

    def set_worker_capacity(self, host: str, megabits: float) -> None:
        """Keep what a machine ad says of its worker's access link."""
        self._database.write(partial(reservations.set_worker_capacity, host=host.lower(), megabits=megabits))

    def quarantine(self, job_id: str, reason: str, actor: str, now: float) -> Job | None:
        """Note against a live run, and in the audit trail, what speaks against it; None where no such run lives."""
        return self._database.write(partial(quarantine.quarantine, job_id=job_id, reason=reason, actor=actor, now=now))

    def lift(self, job_id: str, reason: str, actor: str, now: float, *, vouched: bool = False) -> Job | None:
        """End a live run's quarantine; None where no such run lives. With ``vouched`` it will not be in one again.

        Raises StateError with ``vouched`` where it is in none.
        """
        return self._database.write(
            partial(quarantine.lift, job_id=job_id, reason=reason, actor=actor, now=now, vouched=vouched)
        )

    # Usage

    def write_usage(self, entries: Sequence[Entry]) -> None:
        """Add what is new of jobs' use to their sums and the buckets, and keep the readings that it goes up to."""
        self._database.write(partial(usage.write, entries=entries))

    def unended_usage(self) -> Generator[Readings, None, None]:
        """The jobs that had not ended when their use was written last, read piece by piece."""
        with self._database.stream() as connection:
            yield from usage.unended(connection)

    def finish_usage(self, numbers: Collection[int]) -> None:
        """These jobs are over, and what is written of them is all. In batches."""
        for part in _batches(numbers):
            self._database.write(partial(usage.finish, numbers=part))

    def usage_of(self, numbers: Collection[int]) -> dict[int, JobUsage]:
        """What jobs have used, by number, as far as it is written."""
        return self._database.read(partial(usage.of_jobs, numbers=numbers))

    def usage_page(self, chosen: UsageFilter, cursor: str | None, limit: int) -> UsagePage:
        """A page of use. Raises NotFoundError for a cursor that is none."""
        return self._database.read(partial(usage.page, chosen=chosen, cursor=cursor, limit=limit))

    def prune_usage(self, before: Mapping[int, float], jobs_before: float) -> int:
        """Remove buckets that began before a time, by width (seconds), and jobs that ended before ``jobs_before``; 0 is
        never. In batches; returns how many rows went."""
        count = 0
        works = [partial(usage.prune, seconds=seconds, before=at, limit=_BATCH) for seconds, at in before.items() if at]
        if jobs_before:
            works.append(partial(usage.prune_jobs, before=jobs_before, limit=_BATCH))
        for work in works:
            while removed := self._database.write(work):
                count += removed
        return count

    def prune(self, before: float) -> Pruned:
        """Remove ended runs with their ads, and lines of the audit trail, that are older than ``before``. In batches.
        Policy versions stay."""
        removed = Pruned(0, 0)
        while True:
            batch = self._database.write(
                lambda connection: Pruned(
                    upkeep.prune_runs(connection, before, _BATCH), upkeep.prune_audit(connection, before, _BATCH)
                )
            )
            removed = Pruned(removed.runs + batch.runs, removed.audit + batch.audit)
            if batch.runs < _BATCH and batch.audit < _BATCH:
                return removed


def _batches(items: Collection[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, _BATCH)):
        yield batch

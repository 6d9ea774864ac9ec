"""The store, for the rest of the program: a subject each for runs, reservations, use, the trail, and joined workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Self

from sqlalchemy import Connection, text

from lark_common.errors import StoreError
from lark_common.turns import aside
from lark_controller.accounting.entry import Entry
from lark_controller.accounting.pairs import PairEntry
from lark_controller.store import audit_and_policies as trail
from lark_controller.store import (
    copies,
    external_addresses,
    external_names,
    instances,
    joins,
    migrate,
    pairs,
    queries,
    replication,
    reservations,
    runs,
    together,
    usage,
)
from lark_controller.store import run_updates as updates
from lark_controller.store.database import Database, connect
from lark_controller.store.membership import Instances
from lark_controller.store.run_updates import Pruned
from lark_controller.store.subject import BATCH, BRIEF, Reads, ReadsOneState, Streams, Subject, Writes, WritesMany


class Runs(Subject):
    """The runs of jobs, live and ended, with their ads."""

    register = Writes(runs.register)
    end = Writes(runs.end)
    set_address = Writes(runs.set_address)
    renew = Writes(updates.renew)
    renew_many = WritesMany(updates.renew_many)
    begin_leases = Writes(updates.begin_leases)
    set_states = WritesMany(updates.set_states)
    update_facts = WritesMany(updates.update_facts)
    quarantine = Writes(updates.quarantine)
    lift = Writes(updates.lift)
    live = Streams(queries.live_jobs)
    loaded = Streams(queries.loaded_jobs)
    copied = Reads(copies.page)
    difference = ReadsOneState(copies.difference)
    find = Reads(queries.find)
    called = Reads(queries.called)
    with_ids = Reads(queries.with_ids)
    with_number = Reads(queries.with_number)
    with_global_id = Reads(queries.with_global_id)
    with_prefix = Reads(queries.with_prefix)
    ads = Reads(queries.ads)
    ending = Reads(queries.ending)
    ads_of_live = Reads(queries.ads_of_live)
    page = Reads(queries.page)
    numbers = Reads(queries.numbers)
    hosts_meant = Reads(queries.hosts_meant)
    expired = Reads(queries.expired)

    def carry_out(self, requests: Sequence[together.Request]) -> list[together.Outcome]:
        """Carry out posts and ends in one transaction; the error of one is its outcome, and fails no other.

        Raises StoreError where none was written.
        """
        try:
            found = self.database.write(partial(together.at_once, requests=requests))
        except together.NotAtOnceError:
            found = self.database.write(partial(together.one_by_one, requests=requests))
        return [self.database.as_store_error(each) if isinstance(each, Exception) else each for each in found]


class Reservations(Subject):
    """Reservations, what they take of each channel, and what the links of workers carry."""

    admit = Writes(reservations.admit)
    change = Writes(reservations.change)
    release = Writes(reservations.release)
    sweep = Writes(reservations.sweep)
    reroute = Writes(reservations.reroute)
    find = Reads(reservations.find)
    flows = Reads(reservations.flows)
    page = Reads(reservations.page)
    use = Reads(reservations.use)
    worker_capacities = Reads(reservations.worker_capacities)
    set_worker_capacity = Writes(reservations.set_worker_capacity)


class ExternalAddresses(Subject):
    """Addresses outside of the site that jobs have, or had a while ago."""

    associate = Writes(external_addresses.associate)
    release = Writes(external_addresses.release)
    expire = Writes(external_addresses.expire)
    name_pools = Writes(external_addresses.name_pools)
    held = Reads(external_addresses.held)
    places = Reads(external_addresses.places)
    find = Reads(external_addresses.find)
    had = Reads(external_addresses.had)
    drop_name = Writes(external_names.drop)
    withhold_name = Writes(external_names.withhold)
    offer_name = Writes(external_names.offer)
    names_withheld = Reads(external_names.withheld)
    names_due = Reads(external_names.due)
    begin_name = Writes(external_names.begin)
    name_added = Writes(external_names.added)
    name_removed = Writes(external_names.removed)
    name_failed = Writes(external_names.failed)
    names_put_off = Writes(external_names.put_off)


class UsageHistory(Subject):
    """The history of jobs' use: their sums, those of the pairs that they reserved, and the buckets by group, user and
    host."""

    unended = Streams(usage.unended)
    finish = WritesMany(usage.finish)
    of_jobs = Reads(usage.of_jobs)
    page = Reads(usage.page)
    unended_pairs = Streams(pairs.unended)
    finish_pairs = WritesMany(pairs.finish)
    pairs_of = Reads(pairs.of_jobs)
    senders_to = Reads(pairs.senders_to)

    @property
    def portion(self) -> int:
        """The number of jobs whose use :meth:`write` should be given at a time."""
        return BRIEF if self.database.is_sqlite else BATCH

    def write(self, entries: Sequence[Entry]) -> None:
        """Add the new use of some jobs, in one transaction. Raises StoreError."""
        self.database.write(partial(usage.write, use=usage.new_use(entries)))

    def write_pairs(self, entries: Sequence[PairEntry]) -> None:
        """Write the use of some pairs as it is now, in one transaction. Raises StoreError."""
        self.database.write(partial(pairs.write, rows=pairs.rows_of(entries)))

    def prune(self, before: Mapping[int, float], jobs_before: float) -> int:
        """Remove buckets that began before a time, by width (seconds), and jobs that ended before ``jobs_before``; 0 is
        never. In batches; returns how many rows went."""
        count = 0
        works = [partial(usage.prune, seconds=seconds, before=at, limit=BATCH) for seconds, at in before.items() if at]
        if jobs_before:
            works.append(partial(usage.prune_jobs, before=jobs_before, limit=BATCH))
            works.append(partial(pairs.prune, before=jobs_before, limit=BATCH))
        for work in works:
            while removed := self.database.write(work):
                count += removed
        return count


class Trail(Subject):
    """The audit trail and the policy versions."""

    record = Writes(trail.record)
    record_all = Writes(trail.record_all)
    page = Reads(trail.page)
    lately = Reads(trail.lately)
    put_policy = Writes(trail.put_policy)
    latest_policy = Reads(trail.latest_policy)
    has_policy = Reads(trail.has_policy)
    files_read = Reads(trail.files_read)
    note_file = Writes(trail.note_file)
    policy = Reads(trail.policy)
    policy_at = Reads(trail.policy_at)
    began = Reads(trail.began)
    policy_history = Reads(trail.policy_history)


class Joins(Subject):
    """The join tokens, and the tokens of workers that have joined."""

    add = Writes(joins.add)
    remove = Writes(joins.remove)
    use = Writes(joins.use)
    use_foreign = Writes(joins.use_foreign)
    revoke = Writes(joins.revoke)
    take_over = Writes(joins.take_over)
    listed = Reads(joins.listed)
    workers = Reads(joins.workers)
    changes = Reads(joins.changes)


class Store:
    """The job directory on disk, the audit trail and the policy versions; SQLite or PostgreSQL.

    Every operation may be called from any thread, is one transaction unless its description differs, and raises
    StoreError where the database cannot be reached or refuses. Times are seconds since 1970; the store has no clock of
    its own.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._settling = Lock()
        self.runs = Runs(database)
        self.reservations = Reservations(database)
        self.external_addresses = ExternalAddresses(database)
        self.usage = UsageHistory(database)
        self.trail = Trail(database)
        self.joins = Joins(database)
        self.instances = Instances(database)

    @classmethod
    def open(cls, url: str) -> Self:
        """Open ``sqlite:////path/to/file`` or ``postgresql://user:password@host/database``.

        Raises StoreError with advice, never with the password. The tables are made by
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

    def settle(self) -> None:
        """Wait for the ends of all writes that have begun: the server may still carry out one that it has not answered.
        Raises StoreError."""
        with aside():
            # It is a write itself: two that begin at a time would wait for each other.
            self._settling.acquire()
        try:
            self._database.write(instances.settle)
        finally:
            self._settling.release()

    def replication_risk(self) -> str:
        """The risk of a failover of the database's server in a sentence; ``""`` where nothing can be lost."""
        return self._database.read(replication.risk)

    def check_writes(self) -> None:
        """Write something that changes nothing. Raises StoreError where the database takes no writes."""
        self._database.check_writes()

    def check_room(self) -> None:
        """Raise StoreError where SQLite's file is gone or was replaced, or its disk is full. Asks no database."""
        self._database.check_room()

    def failed_write(self, seconds: float) -> str:
        """The sentence of a write that the database refused in the last ``seconds``; ``""`` where it refused none."""
        return self._database.failed_write(seconds)

    def claim(self) -> None:
        """Claim an SQLite database, as long as the store is open. Raises StoreError where another controller has it."""
        self._database.claim()

    def guard(self, generation: int, fenced: Callable[[str], None]) -> None:
        """Let this store write in the term of this generation alone (0: not at all); ``fenced`` is called once for each
        write that is refused since the term is over. Without a guard every write is let through."""
        self._database.guard(generation, fenced)

    def migrate(self) -> None:
        """Make or change the tables as this program needs them. Of two that start at once, one does it.

        Raises StoreError, too, where the tables are of a newer Lark.
        """
        self._database.write(migrate.upgrade)

    def migrate_by_hand(self) -> None:
        """Make or change the tables as :meth:`migrate`, for a program that is no controller.

        Raises StoreError, too, where they would change under a controller that uses them.
        """
        self._database.write(_migrate_unused)

    def schema_version(self) -> str | None:
        """The version of the tables, None where there are none yet."""
        return self._database.read(migrate.current)

    @staticmethod
    def newest_schema() -> str:
        """The version that :meth:`migrate` leads to."""
        return migrate.newest()

    def prune(self, before: float) -> Pruned:
        """Remove ended runs with their ads, and lines of the audit trail, that are older than ``before``. In batches.
        Policy versions stay."""
        while self._database.write(partial(external_addresses.prune, before=before, limit=BATCH)):
            pass
        removed = Pruned(0, 0)
        while True:
            batch = self._database.write(
                lambda connection: Pruned(
                    updates.prune_runs(connection, before, BATCH), updates.prune_audit(connection, before, BATCH)
                )
            )
            removed = Pruned(removed.runs + batch.runs, removed.audit + batch.audit)
            if batch.runs < BATCH and batch.audit < BATCH:
                return removed


def _migrate_unused(connection: Connection) -> None:
    # Before it looks: a controller of this release that just makes the tables is none of an older one.
    migrate.take_turn(connection)
    if migrate.known_version(connection) != migrate.newest() and (user := instances.user_of(connection)):
        raise StoreError(
            f"{user} uses the tables, which are of an older Lark. Have a controller of this version take over "
            "(`lark drain`), or stop all of them first."
        )
    migrate.upgrade(connection)

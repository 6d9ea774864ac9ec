"""An instance's own place in the database: its row, the term that it takes, and the session by which others see that
it lives. Nothing here is guarded by the term, but each change of the term names the generation that it is for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import partial
from typing import Final

from sqlalchemy import Connection

from lark_controller.api.instances import Identity, Look, Reached, Why
from lark_controller.api.instances import Instances as AllInstances
from lark_controller.store import instances, migrate
from lark_controller.store.database import Database

# The reasons for which an instance cannot make the tables.
OTHER_MAKES: Final = "another controller makes the tables"
OLDER_RUNS: Final = "a controller of an older release uses the database"


class Instances:
    """Operations for one thread, but for :meth:`all`. Each raises StoreError where the database cannot be reached."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # PostgreSQL: the session of the holder of a term, for as long as it holds it.
        self._session: Connection | None = None
        self._later: frozenset[str] = frozenset()
        self._has_keys = False

    def prepare(self) -> str:
        """Make the tables if there are none of instances yet; the reason for which they cannot be made now, empty where
        they are there."""
        if self._database.read(instances.is_there):
            return ""
        return self._database.write(_prepare, unguarded=True)

    def check_schema(self) -> None:
        """Raise StoreError where the tables are of a newer Lark than this, so that this one cannot use them."""
        self._database.read(migrate.known_version)

    def meet(
        self,
        me: Identity,
        state: str,
        tokens: str = "",
        counters: int = 0,
        kept: int = 0,
        *,
        knows: str = "",
        away: Iterable[int] = (),
        reached: int = 0,
        copied_at: float | None = None,
    ) -> Look:
        """Give a sign of life, with the digest of this instance's tokens, the number of switches whose counters it
        reads and of those that it keeps, and look at the term. ``knows`` are the newest tables that it knows. ``away``
        are switches that the active one asks for, ``reached`` is how many of those one that stands by has;
        ``copied_at`` is when its copy of the directory was as the database had it, by the database's clock, None where
        it has none."""
        if self._later != instances.LATER:
            self._later = self._database.read(instances.later_columns)
        if not self._has_keys:
            self._has_keys = self._database.read(instances.has_keys)

        def work(connection: Connection) -> Look:
            more: dict[str, object] = {"tokens": tokens, "counters_read": counters, "kept": kept}
            more |= {"away": instances.asked(away), "reached": reached, "tables": knows, "copied_at": copied_at}
            instances.beat(connection, me, state, {name: more[name] for name in more.keys() & self._later})
            return instances.look(connection, self._has_keys, self._later)

        if self._session is None:
            return self._database.write(work, unguarded=True)
        try:
            with self._database.translated(), self._session.begin():
                return work(self._session)
        except BaseException as error:
            # Each other session would take a connection away from reading, and there may be no more to be had.
            if not self._database.look_for_writer(error.__cause__):
                self._end_session()
            raise

    def register(self, me: Identity) -> None:
        """Write this instance down as one that stands by."""
        self._database.write(partial(instances.register, me=me), unguarded=True)

    def take(self, me: Identity, seen: int, why: Why) -> int | None:
        """Begin a new term if the present one is still of the generation ``seen``; returns the new generation, or None.

        Waits for what the present holder is writing. Where the answer of the database is lost, :meth:`meet` finds who
        holds the term.
        """
        work = partial(instances.take, me=me, seen=seen, why=why)
        if self._database.is_sqlite:
            return self._database.write(work, unguarded=True)
        self._end_session()
        with self._database.translated():
            session = self._database.session()
            try:
                with session.begin():
                    generation = work(session)
            except BaseException:
                with contextlib.suppress(Exception):
                    session.close()
                raise
            if generation is None:
                session.close()
                return None
            self._session = session
            return generation

    def hold(self, generation: int) -> None:
        """Show again that the holder of this term lives, where its session has ended."""
        if self._database.is_sqlite or self._session is not None:
            return
        with self._database.translated():
            session = self._database.session()
            try:
                with session.begin():
                    instances.hold(session, generation)
            except BaseException:
                with contextlib.suppress(Exception):
                    session.close()
                raise
            self._session = session

    def share_key(self, generation: int, key: str) -> None:
        """Write down the key of this instance's term, by which the others show that they are instances too."""
        self._database.write(partial(instances.share_key, generation=generation, key=key))

    def release(self, me: Identity, generation: int, why: Why) -> bool:
        """Let the term go; False where it was another's already."""
        try:
            return self._database.write(
                partial(instances.release, me=me, generation=generation, why=why), unguarded=True
            )
        finally:
            self._end_session()

    def leave(self, me: Identity) -> None:
        """Write down that this instance has stopped."""
        self._database.write(partial(instances.leave, me=me), unguarded=True)

    def all(self) -> AllInstances:
        """All instances and the present term; from any thread."""
        return self._database.read(partial(instances.all_of, later=self._later))

    def reached(self) -> list[Reached]:
        """Those that stand by, with what they reach of the switches that the active one asks for; where the tables are
        of this release."""
        return self._database.read(instances.reached)

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(Exception):
                session.close()


def _prepare(connection: Connection) -> str:
    # In this order: while it makes them, another one of this release is not to be taken for one of an older.
    if not migrate.is_first(connection):
        return OTHER_MAKES
    if instances.older_one_runs(connection):
        return OLDER_RUNS
    migrate.upgrade(connection)
    return ""

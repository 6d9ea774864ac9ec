"""One engine, its transactions, and the translation of every failure into a StoreError that a person can read."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, SQLAlchemyError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from lark_common.errors import FencedError, StoreError, UnansweredError
from lark_common.turns import aside
from lark_controller.store import instances, sqlite
from lark_controller.store.claim import FileClaim, claim_file

T = TypeVar("T")

ACCEPTED: Final = "sqlite:////path/to/lark.db or postgresql://user:password@host/database"

# Exceptions that SQLAlchemy passes on as they are: an integer beyond 64 bits, text with lone surrogates, a directory
# that may not be read.
_FAILURES: Final = (SQLAlchemyError, OverflowError, UnicodeError, OSError)

_WRITES: Final = "lark_writes"
_SQLITE_WAIT_MS: Final = 10_000
# Defaults of libpq's options, unless the URL has others. The kernel would wait a quarter of an hour for a server that
# vanishes with its connections open (a cut cable, a paused machine), and every post with it.
_LIBPQ: Final = {
    "connect_timeout": "5",
    "application_name": "lark",
    "tcp_user_timeout": "20000",
    "keepalives_idle": "20",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    # Text is text whatever the database's own encoding: with SQL_ASCII it would come as bytes, which SQLAlchemy cannot
    # read the version from.
    "client_encoding": "utf8",
}

# A database whose disk has less room is about to refuse what is written: a post with its ads takes a part of it.
_ROOM: Final = 1 << 20

# PostgreSQL: serialization failure and deadlock; the transaction did nothing and may be tried again.
_TRY_AGAIN_STATES: Final = frozenset({"40001", "40P01"})
# PostgreSQL: the server takes no writes.
_READ_ONLY_STATE: Final = "25006"
_ATTEMPTS: Final = 5


class Database:
    """A database that may be used from many threads.

    Work is given as a function of a connection, because it may be called again: when two transactions wanted the same
    row, and once when the server went away before anything was committed.
    """

    def __init__(self, engine: Engine, place: str, password: str = "", file: Path | None = None) -> None:
        self.engine = engine
        self._file = file
        self._inode: tuple[int, int] | None = None
        self.place = place
        self._password = password
        self._claim: FileClaim | None = None
        # The generation of the term in which writes are allowed; None where nobody guards them.
        self._generation: int | None = None
        self._fenced: Callable[[str], None] = _unnoticed
        # When a write failed last (monotonic), and the sentence.
        self._failed: tuple[float, str] | None = None
        # SQLite has one writer at a time, and a thread that waits in its busy handler polls.
        self._writer: AbstractContextManager[Any] = sqlite.Turns() if self.is_sqlite else nullcontext()

    @property
    def is_sqlite(self) -> bool:
        """True for SQLite, False for PostgreSQL."""
        return self.engine.dialect.name == "sqlite"

    def read(self, work: Callable[[Connection], T], *, one_state: bool = False) -> T:
        """Run ``work`` in a transaction, each statement of which sees one state of the database; with ``one_state``
        they all see the same. Raises StoreError."""
        for attempt in range(_ATTEMPTS):
            try:
                with self._connected() as connection:
                    if one_state and not self.is_sqlite:
                        connection.execution_options(isolation_level="REPEATABLE READ")
                    return work(connection)
            except _FAILURES as error:
                if not self._again(error, attempt):
                    raise self.failure(error) from error
        raise AssertionError("unreachable: the last attempt raises")

    def _connected(self) -> Connection:
        with aside():
            return self.engine.connect()

    @contextmanager
    def stream(self) -> Iterator[Connection]:
        """A connection for a result that is read piece by piece. Raises StoreError."""
        try:
            with self._connected() as connection:
                yield connection
        except _FAILURES as error:
            raise self.failure(error) from error

    def guard(self, generation: int, fenced: Callable[[str], None]) -> None:
        """Let :meth:`write` write in the term of this generation alone, from now on; 0 is none. ``fenced`` is called
        with the reason, from any thread, when a write is refused because the term is over."""
        self._generation, self._fenced = generation, fenced

    def write(self, work: Callable[[Connection], T], *, unguarded: bool = False) -> T:
        """Run ``work`` in a transaction and commit it. Raises StoreError; then nothing was written, unless its text
        leaves that open. Raises FencedError where :meth:`guard` forbids it; ``unguarded`` is for an instance's own
        signs of life."""
        for attempt in range(_ATTEMPTS):
            committing = False
            try:
                # One at a time on SQLite; what PostgreSQL does, takes no turn of this process.
                with aside(), self._writer, self.engine.connect() as connection:
                    connection.execution_options(**{_WRITES: True})
                    with connection.begin():
                        if not unguarded:
                            self._check_term(connection)
                        result = work(connection)
                        committing = True
                    return result
            except _FAILURES as error:
                self._note_failure(error, attempt)
                if unguarded:
                    self.look_for_writer(error)
                if committing:
                    raise UnansweredError(
                        f"{self.failure(error)} The change may or may not have been written; ask again."
                    ) from error
                if not self._again(error, attempt):
                    raise self.failure(error) from error
        raise AssertionError("unreachable: the last attempt raises")

    def look_for_writer(self, error: BaseException | None) -> bool:
        """Look for a server that takes writes, where this failure is of a write to one that takes none, and leave the
        connections to that one if there is another: it was promoted while the former one lives on. True where none was
        found: reading goes on there."""
        if _state(error) != _READ_ONLY_STATE:
            return False
        pool = self.engine.pool.recreate()
        found = False
        # Where none is found, the error for which it was looked is raised.
        with suppress(*_FAILURES, self.engine.dialect.loaded_dbapi.Error), closing(pool.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute("SHOW transaction_read_only")
            found = cursor.fetchall() == [("off",)]
        pool.dispose()
        if found:
            self.engine.dispose()
        return not found

    def _check_term(self, connection: Connection) -> None:
        own = self._generation
        if own is None:
            return
        if not own:
            raise FencedError(f"{self.place}: this controller stands by; nothing was written.")
        present = instances.check(connection)
        if present != own:
            reason = f"generation {present} has taken over from generation {own}, which this controller has"
            self._fenced(reason)
            raise FencedError(f"{self.place}: {reason}; nothing was written.")

    def failed_write(self, seconds: float) -> str:
        """The sentence of a write that the database refused in the last ``seconds``; ``""`` where it refused none.

        A write that failed because of its data does not count against the database.
        """
        failed = self._failed
        return "" if failed is None or time.monotonic() - failed[0] > seconds else failed[1]

    def _note_failure(self, error: BaseException, attempt: int) -> None:
        of_the_database = isinstance(error, (DBAPIError, PoolTimeoutError, OSError))
        if of_the_database and not isinstance(error, (DataError, IntegrityError)) and not self._again(error, attempt):
            self._failed = time.monotonic(), str(self.failure(error))

    def check_writes(self) -> None:
        """Write something that changes nothing. Raises StoreError where that fails."""
        self.write(_write_nothing)

    def check_room(self) -> None:
        """Raise StoreError where the disk of SQLite's file has hardly any room, or as :meth:`check_file`. Asks the file
        system alone."""
        self.check_file()
        if self._file is None:
            return
        try:
            disk = os.statvfs(self._file.parent)
        except OSError:
            return
        free = (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail) * disk.f_frsize
        if free < _ROOM:
            raise StoreError(f"{self.place}: its disk has {free // 1024} KiB left. Make room on the disk.")

    def check_file(self) -> None:
        """Raise StoreError where SQLite's file is not the one that was there at the first call.

        Connections that are open go on with a deleted file, so that nothing else would tell.
        """
        if self._file is None:
            return
        try:
            found = self._file.stat()
        except OSError as error:
            raise StoreError(
                f"{self.place}: its file cannot be found ({error.strerror}). Restore it and start the controller again."
            ) from None
        inode = (found.st_dev, found.st_ino)
        if self._inode is None:
            self._inode = inode
        if inode != self._inode:
            raise StoreError(f"{self.place}: another file has taken its place. Start the controller again.")

    def claim(self) -> None:
        """Claim an SQLite database for the one controller that uses it, until :meth:`close`. Raises StoreError where
        another has it. On PostgreSQL the term decides (:mod:`.instances`)."""
        if self._file is None or self._claim is not None:
            return
        try:
            self._claim = claim_file(self._file)
        except _FAILURES as error:
            raise self.failure(error) from error

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise StoreError for every failure of SQLAlchemy or a driver."""
        try:
            yield
        except _FAILURES as error:
            raise self.failure(error) from error

    def session(self) -> Connection:
        """A connection of its own to PostgreSQL, which nothing else is given. Raises what SQLAlchemy raises."""
        connection = self.engine.connect()
        connection.detach()
        return connection

    def close(self) -> None:
        """Close every connection."""
        if self._claim is not None:
            self._claim.release()
        self.engine.dispose()

    def failure(self, error: BaseException) -> StoreError:
        """The sentence for a failure of SQLAlchemy or a driver."""
        if isinstance(error, PoolTimeoutError):
            return StoreError(f"{self.place}: all connections are in use; try again in a moment.")
        cause: BaseException = error
        if isinstance(error, StatementError) and error.orig is not None:
            cause = error.orig
        if isinstance(cause, UnicodeError):
            return StoreError(f"{self.place}: text that is not valid Unicode (a lone surrogate) cannot be stored.")
        message = " ".join(str(cause).split()) or type(cause).__name__
        if self._password:
            message = message.replace(self._password, "***")
        end = "" if message.endswith(("?", "!")) else "."
        return StoreError(f"{self.place}: {message.rstrip('.')}{end}{_advice(message)}")

    def as_store_error(self, error: Exception) -> Exception:
        """The error for callers of the store: a StoreError in the place of one of SQLAlchemy or a driver."""
        return self.failure(error) if isinstance(error, _FAILURES) else error

    def _again(self, error: BaseException, attempt: int) -> bool:
        if attempt + 1 >= _ATTEMPTS or not isinstance(error, DBAPIError):
            return False
        if error.connection_invalidated:
            return attempt == 0
        return isinstance(error, IntegrityError) or _state(error) in _TRY_AGAIN_STATES


def _state(error: BaseException | None) -> str | None:
    return getattr(error.orig, "sqlstate", None) if isinstance(error, DBAPIError) else None


def _unnoticed(_reason: str) -> None:
    """Does nothing where this controller is fenced."""


def _write_nothing(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        # Lark gives this number no meaning; writing it writes a page, so that a full disk shows.
        connection.exec_driver_sql("PRAGMA user_version = 0")
    else:
        connection.execute(text("UPDATE runs SET live = live WHERE number < 0"))


def _advice(message: str) -> str:
    """Advice on the failures that operators meet."""
    for sign, advice in (
        ("database is locked", "Another process has held it for 10 s; stop that process."),
        ("no such table", "It has no tables of Lark; run `lark db upgrade`."),
        ("no such column", "Its tables are of an older Lark; run `lark db upgrade`."),
        ("lock timeout", "Another session has held it for long; it is tried again."),
        ('relation "', "Its tables are not those of this Lark; run `lark db upgrade`."),
        ("password authentication failed", "Correct user and password in LARK_DATABASE_URL."),
        ('role "', "Create the role, or correct the user in LARK_DATABASE_URL."),
        ('database "', "Create the database, or correct its name in LARK_DATABASE_URL."),
        ("unable to open database file", "Check that the directory exists and that this user may write to it."),
        (
            "read-only transaction",
            "The server takes no writes: it is a standby, or default_transaction_read_only is on.",
        ),
        ("readonly database", "Let this user write to the file and its directory."),
        ("Permission denied", "Let this user read and write the directory."),
        ("permission denied", "Grant the rights to the role, or correct LARK_DATABASE_URL."),
        ("file is not a database", "LARK_DATABASE_URL names a file that is something else."),
        ("disk is full", "Make room on the disk."),
        ("Connection refused", "Start the server, or correct host and port in LARK_DATABASE_URL."),
        ("failed to resolve host", "Correct the host in LARK_DATABASE_URL."),
        ("No such file or directory", "Start the server, or correct host and port in LARK_DATABASE_URL."),
    ):
        if sign in message:
            return f" {advice}"
    return ""


def connect(url: str) -> Database:
    """Open the database that ``url`` names and ask it one question. Raises StoreError, without the password."""
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, ValueError, SQLAlchemyError):
        raise StoreError(f"LARK_DATABASE_URL cannot be read as a database URL; accepted: {ACCEPTED}.") from None
    if backend == "sqlite":
        database = _sqlite(parsed)
    elif backend in ("postgresql", "postgres"):
        database = _postgresql(parsed)
    else:
        raise StoreError(f"LARK_DATABASE_URL names the database {backend!r}; accepted: {ACCEPTED}.")
    try:
        database.read(lambda connection: connection.execute(text("SELECT 1")).scalar_one())
        database.check_file()
    except StoreError:
        database.close()
        raise
    return database


def _sqlite(url: URL) -> Database:
    name = url.database
    if not name or name == ":memory:" or name.startswith("file:"):
        raise StoreError(f"SQLite needs a file, or a restart would lose everything; accepted: {ACCEPTED}.")
    path = Path(name)
    if not path.parent.is_dir():
        raise StoreError(
            f"The directory {path.parent} of the SQLite database does not exist; make it, or set LARK_DATABASE_URL."
        )
    _make_private(path)
    engine = create_engine(
        url.set(drivername="sqlite+pysqlite"),
        hide_parameters=True,
        pool_size=8,
        max_overflow=32,
        connect_args={"timeout": _SQLITE_WAIT_MS / 1000},
    )

    def configure(connection: sqlite3.Connection, _record: object) -> None:
        # The driver's own BEGIN would come late and deferred; the engine's begin event below chooses.
        connection.isolation_level = None
        # The first change to WAL does not wait for another process that makes it, too, but fails.
        with _locked(path.parent):
            connection.execute("PRAGMA journal_mode=WAL").close()
        connection.execute("PRAGMA synchronous=NORMAL").close()
        connection.execute("PRAGMA foreign_keys=ON").close()

    def begin(connection: Connection) -> None:
        # A deferred transaction that turns into a writer fails at once where another wrote since; it must not wait.
        writes = connection.get_execution_options().get(_WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    event.listen(engine, "connect", configure)
    event.listen(engine, "begin", begin)
    event.listen(engine, "do_executemany", sqlite.insert_many)
    return Database(engine, f"SQLite database {path}", file=path)


def _make_private(path: Path) -> None:
    """Make the file where there is none, for its owner alone: ads may hold secrets. SQLite gives the files
    beside it the same mode."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError:
        # It is there, or SQLite gives the better reason why it cannot be.
        return


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold an advisory lock on a directory; a lock on SQLite's file would disturb SQLite's own."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _postgresql(url: URL) -> Database:
    passwords = [part for part in (url.password, url.query.get("password")) if isinstance(part, str)]
    hosts = url.host or url.query.get("host") or "the local socket"
    host = hosts if isinstance(hosts, str) else ", ".join(hosts)
    try:
        from lark_controller.store.lost_answers import connected

        engine = create_engine(
            url.set(drivername="postgresql+psycopg").update_query_dict({**_LIBPQ, **url.query}),
            hide_parameters=True,
            pool_pre_ping=True,
            pool_size=8,
            max_overflow=16,
            pool_timeout=10,
        )
    except ModuleNotFoundError:
        raise StoreError(
            "PostgreSQL needs the Python package psycopg; install it with `pip install psycopg`."
        ) from None
    event.listen(engine, "do_connect", connected)
    place = f"PostgreSQL database {url.database or url.username or ''} at {host}"
    return Database(engine, place, passwords[0] if passwords else "")

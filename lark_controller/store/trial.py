"""The trial of a database before a controller uses it: its server, its encoding, the role's rights."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError

from lark_common.errors import StoreError
from lark_controller.store import migrate
from lark_controller.store.database import Database, connect

# The oldest PostgreSQL that is accepted: that of Enterprise Linux 9, the oldest of the systems with packages.
OLDEST: Final = 13
_ENCODING: Final = "UTF8"


def try_out(url: str) -> str:
    """Try whether a controller can keep its tables there, and leave nothing behind; returns the server in words.

    Raises:
        StoreError: it cannot be reached, or is not fit; with what is accepted, and never with the password.
    """
    if (file := _file_of(url)) is not None:
        return _try_file(file)
    database = connect(url)
    try:
        # The writes of a reading transaction are undone at its end.
        return database.read(lambda connection: _try_server(connection, database))
    finally:
        database.close()


def _file_of(url: str) -> Path | None:
    """The file of an SQLite database, None of any other, or of a URL that :func:`connect` refuses."""
    try:
        parsed = make_url(url)
        name = parsed.database if parsed.get_backend_name() == "sqlite" else None
    except (ArgumentError, ValueError):
        return None
    return None if not name or name == ":memory:" or name.startswith("file:") else Path(name)


def _try_file(path: Path) -> str:
    """Look at the directory of an SQLite file; to open one would make it."""
    if not path.parent.is_dir():
        raise StoreError(f"SQLite database {path}: there is no directory {path.parent}; make it, or name another file.")
    for each, rights in ((path.parent, os.R_OK | os.W_OK | os.X_OK), (path, os.R_OK | os.W_OK)):
        if each.exists() and not os.access(each, rights):
            raise StoreError(f"SQLite database {path}: the controller's user may not read and write {each}.")
    return f"SQLite database {path}"


def _try_server(connection: Connection, database: Database) -> str:
    number = int(_shown(connection, "server_version_num"))
    if number // 10_000 < OLDEST:
        raise StoreError(f"{database.place}: it is PostgreSQL {number // 10_000}; accepted: {OLDEST} or newer.")
    encoding = _shown(connection, "server_encoding")
    if encoding != _ENCODING:
        raise StoreError(
            f"{database.place}: its encoding is {encoding}; accepted: {_ENCODING}. "
            "Make it anew by `createdb --owner=ROLE --encoding=UTF8 --template=template0 NAME`."
        )
    if _shown(connection, "transaction_read_only") == "on":
        raise StoreError(
            f"{database.place}: it takes no writes; accepted: the primary server, and a role and a database without "
            "default_transaction_read_only."
        )
    tables = migrate.known_version(connection)
    try:
        if tables is None:
            migrate.upgrade(connection)
        else:
            connection.execute(text("UPDATE runs SET live = live WHERE number < 0"))
    except DBAPIError as error:
        role = connection.engine.url.username or "the role"
        raise StoreError(
            f"{database.failure(error)} Accepted: a role that owns the database and its tables, such as by "
            f"`ALTER DATABASE NAME OWNER TO {role}`."
        ) from None
    return f"{database.place}, version {number // 10_000}.{number % 10_000}"


def _shown(connection: Connection, name: str) -> str:
    return str(connection.exec_driver_sql(f"SHOW {name}").scalar_one())

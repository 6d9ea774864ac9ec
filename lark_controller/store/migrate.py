"""Bring a database to the schema of this program, once, however many controllers start at the same time."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, func, select

import lark_controller
from lark_common.errors import StoreError

# Alembic keeps the migration that runs in module globals, so two threads cannot migrate at once.
_one_at_a_time: Final = Lock()

# The key of the advisory lock under which PostgreSQL lets one controller migrate: "lark" in ASCII.
_ADVISORY_KEY: Final = 0x6C61726B


def migrations_directory() -> Path:
    """The directory of the migrations: inside the package in a wheel, beside it in a checkout. Raises StoreError."""
    package = Path(lark_controller.__file__).resolve().parent
    for directory in (package / "migrations", package.parent / "migrations"):
        if (directory / "env.py").is_file():
            return directory
    raise StoreError(
        f"The migrations are neither in {package / 'migrations'} nor in {package.parent / 'migrations'}; "
        "install lark-controller again."
    )


def configuration(connection: Connection | None = None) -> Config:
    """Alembic's configuration; with a connection its commands work in that connection's transaction."""
    config = Config()
    config.set_main_option("script_location", str(migrations_directory()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def newest() -> str:
    """The schema version that this program is made for."""
    head = ScriptDirectory.from_config(configuration()).get_current_head()
    if head is None:
        raise StoreError(f"There are no migrations in {migrations_directory()}; install lark-controller again.")
    return head


def current(connection: Connection) -> str | None:
    """The schema version of a database, None where it has no tables of Lark."""
    return MigrationContext.configure(connection).get_current_revision()


def known_version(connection: Connection) -> str | None:
    """The schema version of a database, as :func:`current`. Raises StoreError where it is of a newer Lark than this."""
    version = current(connection)
    known = {script.revision for script in ScriptDirectory.from_config(configuration()).walk_revisions()}
    if version is not None and version not in known:
        raise StoreError(
            f"The database has schema {version}, made by a newer Lark than this one, which has schemas up to "
            f"{newest()}. Install the newer Lark, or restore a backup from before the upgrade."
        )
    return version


def upgrade(connection: Connection) -> None:
    """Bring the database to :func:`newest` in the caller's writing transaction. Raises StoreError where it is of a
    newer Lark than this."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_ADVISORY_KEY)))
    if known_version(connection) != newest():
        with _one_at_a_time:
            command.upgrade(configuration(connection), "head")

"""Bring a database to the schema of this program, once, however many controllers start at the same time."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, func, inspect, select, text

import lark_controller
from lark_common.errors import StoreError

if TYPE_CHECKING:
    from alembic.config import Config

# The line of a migration that names the schema version that it leads to. The files sort in the order of migrations.
_REVISION: Final = re.compile(r'^revision = "(\w+)"$', re.MULTILINE)
# The table in which Alembic keeps the version.
_VERSION_TABLE: Final = "alembic_version"

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


def versions() -> tuple[str, ...]:
    """All schema versions that this program knows, the oldest first. Raises StoreError."""
    texts = (each.read_text() for each in sorted((migrations_directory() / "versions").glob("[0-9]*.py")))
    found = tuple(named[1] for each in texts if (named := _REVISION.search(each)) is not None)
    if not found:
        raise StoreError(f"There are no migrations in {migrations_directory()}; install lark-controller again.")
    return found


def configuration(connection: Connection | None = None) -> Config:
    """Alembic's configuration; with a connection its commands work in that connection's transaction."""
    # Most starts change no tables, and Alembic takes as long to be imported as 10,000 jobs to be loaded.
    from alembic.config import Config

    # By default it writes to the output of the moment in which it was imported.
    config = Config(stdout=sys.stdout)
    config.set_main_option("script_location", str(migrations_directory()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def newest() -> str:
    """The schema version that this program is made for."""
    return versions()[-1]


def current(connection: Connection) -> str | None:
    """The schema version of a database, None where it has no tables of Lark. Raises StoreError where it has several."""
    if not inspect(connection).has_table(_VERSION_TABLE):
        return None
    found = connection.execute(text(f"SELECT version_num FROM {_VERSION_TABLE}")).scalars().all()
    if len(found) > 1:
        raise StoreError(
            f"The database has several schema versions ({', '.join(sorted(found))}), of which one alone can be right. "
            "Restore a backup."
        )
    return found[0] if found else None


def known_version(connection: Connection) -> str | None:
    """The schema version of a database, as :func:`current`. Raises StoreError where it is of a newer Lark than this."""
    version = current(connection)
    if version is not None and version not in versions():
        raise StoreError(
            f"The database has schema {version}, made by a newer Lark than this one, which has schemas up to "
            f"{newest()}. Install the newer Lark, or restore a backup from before the upgrade."
        )
    return version


def is_first(connection: Connection) -> bool:
    """True if no other transaction migrates; none begins to before the end of this one."""
    if connection.dialect.name == "sqlite":
        return True
    return bool(connection.execute(select(func.pg_try_advisory_xact_lock(_ADVISORY_KEY))).scalar_one())


def take_turn(connection: Connection) -> None:
    """Wait until no other transaction migrates; none begins to before the end of this one."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_ADVISORY_KEY)))


def upgrade(connection: Connection) -> None:
    """Bring the database to :func:`newest` in the caller's writing transaction. Raises StoreError where it is of a
    newer Lark than this."""
    take_turn(connection)
    if known_version(connection) != newest():
        from alembic import command

        with _one_at_a_time:
            command.upgrade(configuration(connection), "head")

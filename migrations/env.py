"""Alembic's entry. The controller hands its own connection and transaction over; the ``alembic`` command opens
LARK_DATABASE_URL."""

from __future__ import annotations

import os

from alembic import context
from sqlalchemy import Connection

from lark_controller.store.database import ACCEPTED, connect
from lark_controller.store.schema import metadata


def migrate(connection: Connection) -> None:
    """Run what the caller asked for on a connection that is in a transaction."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        compare_type=True,
        # SQLite changes most things of a table only by making it anew.
        render_as_batch=connection.dialect.name == "sqlite",
    )
    context.run_migrations()


def main() -> None:
    """Use the connection that was handed over, or open the database that the environment names."""
    if context.is_offline_mode():
        raise SystemExit("Lark migrates a database that it can reach; --sql is not supported.")
    given = context.config.attributes.get("connection")
    if given is not None:
        migrate(given)
        return
    url = os.environ.get("LARK_DATABASE_URL")
    if not url:
        raise SystemExit(f"Set LARK_DATABASE_URL; accepted: {ACCEPTED}.")
    database = connect(url)
    try:
        database.write(migrate)
    finally:
        database.close()


main()

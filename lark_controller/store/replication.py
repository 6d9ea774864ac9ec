"""The risk of a failover of the database's server."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, text

# Values of synchronous_commit with which a commit waits for a standby, where one is named.
_WAITS: Final = ("on", "remote_write", "remote_apply")
_SETTINGS: Final = text(
    "SELECT current_setting('synchronous_standby_names'), current_setting('synchronous_commit'),"
    " (SELECT count(*) FROM pg_stat_replication)"
)


def risk(connection: Connection) -> str:
    """The risk in a sentence; ``""`` where there is none: SQLite, no standby, or commits that wait for a standby."""
    if connection.dialect.name != "postgresql":
        return ""
    names, commit, standbys = connection.execute(_SETTINGS).one()
    hosts = connection.engine.url.query.get("host", "")
    several = not isinstance(hosts, str) or "," in hosts
    if not (standbys or several) or (names and commit in _WAITS):
        return ""
    return (
        "the database is replicated asynchronously: if another server takes its place, jobs, ends and reservations "
        "that were acknowledged just before may be missing; synchronous_standby_names prevents that"
    )

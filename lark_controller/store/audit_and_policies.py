"""The audit trail and the policies that were in force: written, never changed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, func, insert, select, update

from lark_common.turns import by_portions
from lark_controller.api.audit import AuditEntry, AuditPage
from lark_controller.api.policy import PastPolicy, PolicyHistory, PolicyVersion
from lark_controller.store import sqlite
from lark_controller.store.cursors import cursor_for, number_in
from lark_controller.store.rows import read_by_portions
from lark_controller.store.schema import audit, policy_files, policy_versions

POLICY_SUBJECT: Final = "policy"
# The newest lines among which a start looks for what was told of links and guarantees.
LATELY: Final = 50_000

_RECORD: Final = insert(audit).inline()


def record(connection: Connection, at: float, actor: str, action: str, subject: str, detail: str = "") -> None:
    """Write one line of the audit trail in the caller's transaction."""
    connection.execute(_RECORD, entry(at, actor, action, subject, detail))


def entry(at: float, actor: str, action: str, subject: str, detail: str = "") -> dict[str, Any]:
    """One line of the audit trail, for :func:`record_all`."""
    return {"at": at, "actor": actor, "action": action, "subject": subject, "detail": detail}


def record_all(connection: Connection, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write lines of the audit trail in the caller's transaction."""
    if connection.dialect.name == "sqlite":
        sqlite.insert_rows(connection, audit, lines)
    elif lines:
        connection.execute(_RECORD, lines)


def page(connection: Connection, subject: str | None, cursor: str | None, limit: int) -> AuditPage:
    """A page of the trail, newest first. Raises NotFoundError for a cursor that is none."""
    query = select(audit.c.number, audit.c.at, audit.c.actor, audit.c.action, audit.c.subject, audit.c.detail)
    if subject is not None:
        query = query.where(audit.c.subject == subject)
    if cursor is not None:
        query = query.where(audit.c.number < number_in(cursor))
    rows: list[Any] = read_by_portions(connection.execute(query.order_by(audit.c.number.desc()).limit(limit + 1)))
    entries = tuple(AuditEntry(*row) for row in by_portions(rows[:limit]))
    return AuditPage(entries, cursor_for(entries[-1].number) if len(rows) > limit else None)


def lately(connection: Connection, actions: Sequence[str], seconds: float = math.inf) -> list[AuditEntry]:
    """The lines with these actions of the last seconds before the newest line of all, the oldest first. Of a trail that
    is longer, those among the last :data:`LATELY`: no takeover waits for more."""
    columns = audit.c.number, audit.c.at, audit.c.actor, audit.c.action, audit.c.subject, audit.c.detail
    query = select(*columns).where(
        audit.c.number > select(func.max(audit.c.number)).scalar_subquery() - LATELY, audit.c.action.in_(actions)
    )
    if seconds < math.inf:
        query = query.where(audit.c.at >= select(func.max(audit.c.at)).scalar_subquery() - seconds)
    return [AuditEntry(*row) for row in connection.execute(query.order_by(audit.c.number))]


def put_policy(
    connection: Connection,
    text: str,
    digest: str,
    actor: str,
    now: float,
    again: int | None = None,
    file_of: str | None = None,
) -> PolicyVersion:
    """Write a policy version; of the policy that is the latest already, no second version is made. ``again`` is the
    earlier version whose text it is, ``file_of`` the instance whose file it was read from."""
    if file_of is not None:
        note_file(connection, file_of, digest)
    latest = latest_policy(connection)
    if latest is not None and latest.digest == digest:
        return latest
    values = {"text": text, "digest": digest, "at": now, "actor": actor}
    version = connection.execute(
        insert(policy_versions).values(values).returning(policy_versions.c.version)
    ).scalar_one()
    words = f"version {version}, " + (f"version {again} again, " if again is not None else "") + f"SHA-256 {digest}"
    record(connection, now, actor, "policy", POLICY_SUBJECT, words)
    return PolicyVersion(version, text, digest, now, actor)


def latest_policy(connection: Connection, actor: str | None = None) -> PolicyVersion | None:
    """The policy version that was put last (by an actor)."""
    query = select(*policy_versions.c).order_by(policy_versions.c.version.desc()).limit(1)
    if actor is not None:
        query = query.where(policy_versions.c.actor == actor)
    return _version(connection.execute(query).one_or_none())


def has_policy(connection: Connection, digest: str) -> bool:
    """True if a text with this digest was ever put."""
    found = select(policy_versions.c.version).where(policy_versions.c.digest == digest).limit(1)
    return connection.execute(found).one_or_none() is not None


def files_read(connection: Connection) -> Mapping[str, str]:
    """The digest of each instance's policy file when it was read last, by the instance's name."""
    return {row.instance: row.digest for row in connection.execute(select(policy_files))}


def note_file(connection: Connection, instance: str, digest: str) -> None:
    """Note that an instance has read its policy file."""
    columns = policy_files.c
    change = update(policy_files).where(columns.instance == instance).values(digest=digest)
    if not connection.execute(change).rowcount:
        connection.execute(insert(policy_files).values(instance=instance, digest=digest))


def policy(connection: Connection, version: int) -> PolicyVersion | None:
    """One policy version."""
    return _version(
        connection.execute(select(*policy_versions.c).where(policy_versions.c.version == version)).one_or_none()
    )


def policy_at(connection: Connection, moment: float) -> int | None:
    """The version that was in force at a time; None where none had been put."""
    versions = policy_versions.c
    query = select(versions.version).where(versions.at <= moment).order_by(versions.version.desc()).limit(1)
    found: int | None = connection.execute(query).scalar_one_or_none()
    return found


def began(connection: Connection) -> float:
    """The time of the first policy, which is never removed; 0 where there is none."""
    return connection.execute(select(func.min(policy_versions.c.at))).scalar_one() or 0.0


def policy_history(connection: Connection, cursor: str | None, limit: int) -> PolicyHistory:
    """A page of the policy versions without their texts, newest first. Raises NotFoundError for a cursor that is
    none."""
    columns = policy_versions.c
    query = select(columns.version, columns.digest, columns.at, columns.actor)
    if cursor is not None:
        query = query.where(columns.version < number_in(cursor))
    rows = connection.execute(query.order_by(columns.version.desc()).limit(limit + 1)).all()
    versions = tuple(PastPolicy(*row) for row in rows[:limit])
    return PolicyHistory(versions, cursor_for(versions[-1].version) if len(rows) > limit else None)


def _version(row: Row[Any] | None) -> PolicyVersion | None:
    return None if row is None else PolicyVersion(row.version, row.text, row.digest, row.at, row.actor)

"""Join tokens, and the tokens of workers that have joined: functions on a connection.

Whoever changes anything locks the one row of ``join_revision`` first (:func:`_locked`), so that of two uses of a join
token at a time the second finds the first. Readers ask for what has changed since a revision.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any, Final

from sqlalchemy import Connection, Row, delete, func, insert, inspect, select, update

from lark_common.errors import BusyError, NotFoundError, StateError
from lark_controller.api.joins import MOST_TOKENS, ForeignJoin, JoinChanges, Joined, JoinedWorker, JoinToken, TakenOver
from lark_controller.store.audit_and_policies import record
from lark_controller.store.schema import join_hosts, join_revision, join_tokens, joined_workers

JOIN_SUBJECT: Final = "joins"
# Hosts that a line of the audit trail names.
_NAMED: Final = 10


def add(connection: Connection, token: JoinToken, now: float) -> None:
    """Keep a new join token; what has expired goes. Raises BusyError where too many are good already."""
    revision = _locked(connection)
    connection.execute(delete(join_tokens).where(join_tokens.c.expires <= now))
    count = connection.execute(select(func.count()).where(~join_tokens.c.removed)).scalar_one()
    if count >= MOST_TOKENS:
        raise BusyError(f"{MOST_TOKENS} join tokens are good already; remove one (lark join remove ID)")
    _insert(connection, token, revision)
    end = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(token.expires))
    detail = f"{token.id} until {end} for {_listed(token.hosts)}"
    record(connection, now, token.actor, "join token made", JOIN_SUBJECT, detail)
    _changed(connection, revision)


def remove(connection: Connection, join_id: str, actor: str, now: float) -> None:
    """Take a join token out of force; what has joined by it stays. Raises NotFoundError."""
    revision = _locked(connection)
    change = update(join_tokens).where(join_tokens.c.id == join_id, *_good(now))
    if not connection.execute(change.values(removed=True, revision=revision)).rowcount:
        raise NotFoundError(f"there is no join token {join_id}")
    record(connection, now, actor, "join token removed", JOIN_SUBJECT, join_id)
    _changed(connection, revision)


def use(connection: Connection, join_id: str, host: str, peer: str, sha256: str, now: float) -> str:
    """Let a host join with the hash of its own token; returns its name as the join token has it. Raises NotFoundError
    and StateError."""
    revision = _locked(connection)
    folded = host.lower()
    columns = join_hosts.c
    of_host = (columns.join_id == join_id) & (columns.folded == folded)
    query = select(columns.host, columns.at, columns.peer, columns.sha256).join(join_tokens)
    before = connection.execute(query.where(of_host, *_good(now))).one_or_none()
    if before is None:
        raise NotFoundError(f"the join token is not for {host}; make one: lark join add {host}")
    name = str(before.host)
    if before.sha256 is not None and before.sha256 != sha256:
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(before.at))
        raise StateError(
            f"the join token was used for {name} already, at {when} from {before.peer}. If that was not this machine, "
            f"refuse it: lark join revoke {name}; for a new installation make another token: lark join add {name}"
        )
    known = _known(connection, name)
    in_force = known is not None and known.sha256 == sha256 and not known.revoked
    if before.sha256 is not None:
        if not in_force:
            raise StateError(
                f"the token with which {name} has joined was revoked, or another has taken its place; make another "
                f"join token: lark join add {name}"
            )
        return name
    _refuse_others(connection, name, sha256, known)
    connection.execute(update(join_hosts).where(of_host).values(at=now, peer=peer, sha256=sha256))
    _join(connection, JoinedWorker(name, sha256, now, peer, join_id), revision)
    return name


def use_foreign(connection: Connection, join: ForeignJoin, host: str, peer: str, sha256: str, now: float) -> str:
    """Let a host join by a token that was not made here. Raises NotFoundError and StateError.

    It is used once: whoever joins leaves a time behind, and so does a revocation, and older tokens are refused.
    """
    revision = _locked(connection)
    name = join.host
    if host.lower() != name.lower():
        raise NotFoundError(f"the token is for {name}, not for {host}")
    if sha256 == join.sha256:
        # It would be good beyond its own end.
        raise StateError(
            f"{name} joins by the token that it has itself; remove /etc/lark/worker.token there, so that it makes one"
        )
    known = _known(connection, name)
    if known is not None and known.sha256 == sha256 and not known.revoked:
        # An answer that was lost, or a certificate made anew.
        return name
    if known is not None and (join.made <= known.at or join.id == known.join_id):
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(known.at))
        what = "was revoked" if known.revoked else f"has joined from {known.peer}"
        raise StateError(
            f"{name} {what} at {when}, and the token is no newer. If that was not this machine, refuse it: lark join "
            f"revoke {name}; for a new installation make another token"
        )
    _refuse_others(connection, name, sha256, known)
    _join(connection, JoinedWorker(name, sha256, now, peer, join.id), revision)
    return name


def _known(connection: Connection, host: str) -> Row[Any] | None:
    """The worker that has joined, revoked or not."""
    query = select(joined_workers).where(joined_workers.c.folded == host.lower())
    return connection.execute(query).one_or_none()


def _refuse_others(connection: Connection, name: str, sha256: str, known: Row[Any] | None) -> None:
    """Refuse a worker's own token that was revoked, or is another worker's. Raises StateError."""
    workers = joined_workers.c
    if known is not None and known.sha256 == sha256 and known.revoked:
        raise StateError(
            f"the token that {name} has was revoked; remove /etc/lark/worker.token there, so that it makes another"
        )
    with_it = select(workers.host).where(workers.sha256 == sha256, workers.folded != name.lower()).limit(1)
    if (other := connection.execute(with_it).scalar_one_or_none()) is not None:
        raise StateError(
            f"{other} has joined with the same token as {name}; remove /etc/lark/worker.token there, so that it makes "
            "another"
        )


def _join(connection: Connection, worker: JoinedWorker, revision: int) -> None:
    """Keep a worker's token in place of the one that it had."""
    connection.execute(delete(joined_workers).where(joined_workers.c.folded == worker.host.lower()))
    connection.execute(insert(joined_workers), _row(worker, revision))
    detail = f"{worker.host} from {worker.peer}"
    record(connection, worker.at, f"join {worker.join_id}", "worker joined", JOIN_SUBJECT, detail)
    _changed(connection, revision)


def revoke(connection: Connection, host: str, actor: str, now: float) -> None:
    """Refuse a worker's token from now on, and what was made before to join by. Raises NotFoundError."""
    revision = _locked(connection)
    columns = joined_workers.c
    change = update(joined_workers).where(columns.folded == host.lower(), ~columns.revoked)
    name = connection.execute(change.values(revoked=True, at=now, revision=revision).returning(columns.host)).scalar()
    if name is None:
        raise NotFoundError(f"no worker {host} has joined by a join token")
    record(connection, now, actor, "worker's token revoked", JOIN_SUBJECT, name)
    _changed(connection, revision)


def listed(connection: Connection, now: float) -> tuple[JoinToken, ...]:
    """The join tokens that are good, the first to expire first."""
    found = connection.execute(
        select(join_tokens).where(*_good(now)).order_by(join_tokens.c.expires, join_tokens.c.id)
    ).all()
    hosts: dict[str, dict[str, Joined | None]] = {row.id: {} for row in found}
    rows = connection.execute(select(join_hosts).join(join_tokens).where(*_good(now)).order_by(join_hosts.c.folded))
    for row in rows:
        used = None if row.sha256 is None else Joined(row.at, row.peer, row.sha256)
        # One that was made since the first question comes with the next list.
        hosts.get(row.join_id, {})[row.host] = used
    return tuple(JoinToken(row.id, row.sha256, row.expires, row.actor, hosts[row.id]) for row in found)


def workers(connection: Connection) -> tuple[JoinedWorker, ...]:
    """The workers that have joined, by host."""
    columns = joined_workers.c
    query = select(joined_workers).where(~columns.revoked).order_by(columns.folded)
    return tuple(map(_worker, connection.execute(query)))


def changes(connection: Connection, seen: int) -> JoinChanges | None:
    """The changes since a revision (0: all); None where there are none, or no tables yet.

    A revision lower than the one seen is of another database in the old one's place, and everything is read.
    """
    if not inspect(connection).has_table(join_revision.name):
        return None
    revision = connection.execute(select(join_revision.c.revision)).scalar_one()
    if revision == seen:
        return None
    whole = not 0 < seen < revision
    after = 0 if whole else seen
    tokens = connection.execute(select(join_tokens).where(join_tokens.c.revision > after)).all()
    found = connection.execute(select(joined_workers).where(joined_workers.c.revision > after)).all()
    return JoinChanges(
        revision,
        whole,
        {row.id: (row.sha256, row.expires) for row in tokens if not row.removed},
        tuple(row.id for row in tokens if row.removed),
        tuple(_worker(row) for row in found if not row.revoked),
        tuple(row.folded for row in found if row.revoked),
    )


def take_over(
    connection: Connection, tokens: Collection[JoinToken], workers: Collection[JoinedWorker], place: str, now: float
) -> TakenOver:
    """Keep the tokens that a former release had in files; what is known, or was revoked, stays as it is."""
    revision = _locked(connection)
    ids = set(connection.execute(select(join_tokens.c.id)).scalars())
    hosts = set(connection.execute(select(joined_workers.c.folded)).scalars())
    fresh_tokens = [each for each in tokens if each.id not in ids and each.expires > now]
    fresh = {each.host.lower(): each for each in workers if each.host.lower() not in hosts}
    for token in fresh_tokens:
        _insert(connection, token, revision)
    if fresh:
        connection.execute(insert(joined_workers), [_row(each, revision) for each in fresh.values()])
    taken = TakenOver(tuple(each.host for each in fresh.values()), tuple(each.id for each in fresh_tokens))
    if taken.workers or taken.join_tokens:
        detail = f"from {place}: {len(taken.join_tokens)} join tokens; workers: {_listed(taken.workers) or 'none'}"
        record(connection, now, "controller", "joined workers taken over", JOIN_SUBJECT, detail)
        _changed(connection, revision)
    return taken


def _locked(connection: Connection) -> int:
    """The revision that a change has; no other transaction changes anything before the end of this one."""
    query = select(join_revision.c.revision).with_for_update()
    return int(connection.execute(query).scalar_one()) + 1


def _changed(connection: Connection, revision: int) -> None:
    connection.execute(update(join_revision).values(revision=revision))


def _good(now: float) -> tuple[Any, ...]:
    return (join_tokens.c.expires > now, ~join_tokens.c.removed)


def _insert(connection: Connection, token: JoinToken, revision: int) -> None:
    values = {"id": token.id, "sha256": token.sha256, "expires": token.expires, "actor": token.actor}
    connection.execute(insert(join_tokens), {**values, "removed": False, "revision": revision})
    connection.execute(insert(join_hosts), [_host(token.id, host, used) for host, used in token.hosts.items()])


def _host(join_id: str, host: str, used: Joined | None) -> Mapping[str, object]:
    at, peer, sha256 = (None, None, None) if used is None else (used.at, used.peer, used.sha256)
    return {"join_id": join_id, "folded": host.lower(), "host": host, "at": at, "peer": peer, "sha256": sha256}


def _row(worker: JoinedWorker, revision: int) -> Mapping[str, object]:
    return {
        "folded": worker.host.lower(),
        "host": worker.host,
        "sha256": worker.sha256,
        "at": worker.at,
        "peer": worker.peer,
        "join_id": worker.join_id,
        "revoked": False,
        "revision": revision,
    }


def _worker(row: Row[Any]) -> JoinedWorker:
    return JoinedWorker(row.host, row.sha256, row.at, row.peer, row.join_id)


def _listed(hosts: Collection[str]) -> str:
    named = ", ".join(list(hosts)[:_NAMED])
    return f"{named} and {len(hosts) - _NAMED} more" if len(hosts) > _NAMED else named

"""The use of reserved flows by pair, as it was when it was written last: a row for each pair of a job."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from sqlalchemy import Connection, bindparam, delete, select, tuple_, update

from lark_controller.accounting.pairs import PairEntry, PairUse
from lark_controller.store import bulk
from lark_controller.store.schema import runs, usage_pairs
from lark_controller.store.usage import NOT_ENDED

_ROWS_AT_ONCE: Final = 2_000
# SQLite takes at most 32,766 variables in a statement.
_BATCH: Final = 1_000
_USE: Final = tuple(usage_pairs.c[name] for name in PairUse._fields if name not in ("final", "left_out"))
_REPLACED: Final = tuple(column.name for column in usage_pairs.columns if column.name not in ("number", "key", "id"))


class StoredPair(NamedTuple):
    """A pair of the job with that number and id, and the readings to go on from."""

    number: int
    id: str
    key: str
    use: PairUse
    readings: str


def rows_of(entries: Sequence[PairEntry]) -> list[bulk.Row]:
    """The rows of some entries; made before the transaction, as those of jobs are."""
    found: list[bulk.Row] = []
    for entry in sorted(entries, key=lambda each: (each.number, each.key)):
        use, ended_at = entry.use, NOT_ENDED if entry.ended_at is None else entry.ended_at
        found.append(
            (
                entry.number, entry.key, entry.job_id, use.peer, use.node, use.target, int(use.steady), int(use.inside),
                use.kbps, use.least, use.sent, use.dropped, use.counted, use.settled, use.throttled, use.peak,
                use.peak_millis, use.at, use.left_out, ended_at, entry.readings,
            )
        )  # fmt: skip
    return found


def write(connection: Connection, rows: Sequence[bulk.Row]) -> None:
    """Write the use of some pairs as it is now."""
    bulk.add(connection, usage_pairs, rows, (), _REPLACED)


def unended(connection: Connection) -> Iterator[StoredPair]:
    """The pairs of jobs that had not ended when they were written last, in order of number, read piece by piece."""
    query = (
        select(usage_pairs.c.number, usage_pairs.c.id, usage_pairs.c.key, usage_pairs.c.readings)
        .add_columns(usage_pairs.c.left_out, *_USE)
        .where(usage_pairs.c.ended_at == NOT_ENDED)
        .order_by(usage_pairs.c.number, usage_pairs.c.key)
    )
    for part in connection.execution_options(yield_per=_ROWS_AT_ONCE).execute(query).partitions():
        for number, id_, key, readings, left_out, *use in part:
            yield StoredPair(number, id_, key, PairUse._make((*use, False, left_out)), readings)


def finish(connection: Connection, numbers: Collection[int]) -> int:
    """Mark the pairs of these jobs as final, with nothing more to write; returns how many jobs they were."""
    query = update(usage_pairs).where(usage_pairs.c.number == bindparam("job"))
    if numbers:
        values = query.values(ended_at=usage_pairs.c.at, readings="")
        connection.execute(values, [{"job": number} for number in sorted(numbers)])
    return len(numbers)


def of_jobs(connection: Connection, numbers: Collection[int]) -> dict[int, tuple[PairUse, ...]]:
    """The pairs of jobs with these numbers, by number, as far as they are written."""
    chosen, found = sorted(numbers), dict[int, list[PairUse]]()
    for start in range(0, len(chosen), _BATCH):
        query = select(usage_pairs.c.number, usage_pairs.c.ended_at, usage_pairs.c.left_out, *_USE)
        query = query.where(usage_pairs.c.number.in_(chosen[start : start + _BATCH]))
        for number, ended_at, left_out, *use in connection.execute(query.order_by(*usage_pairs.primary_key)):
            pair = PairUse._make((*use, ended_at != NOT_ENDED, left_out))
            found.setdefault(number, []).append(pair)
    return {number: tuple(pairs) for number, pairs in found.items()}


def senders_to(connection: Connection, job_id: str, owner: str, limit: int) -> list[str]:
    """The ids of an owner's jobs that have had bandwidth reserved to a job, as far as that is written."""
    senders = select(usage_pairs.c.number).where(usage_pairs.c.peer == job_id)
    query = select(runs.c.id).where(runs.c.number.in_(senders), runs.c.owner == owner)
    return list(connection.execute(query.order_by(runs.c.number).limit(limit)).scalars())


def prune(connection: Connection, before: float, limit: int) -> int:
    """Remove up to ``limit`` pairs of jobs that ended before ``before``."""
    key = tuple_(*usage_pairs.primary_key.columns)
    chosen = select(*usage_pairs.primary_key.columns).where(usage_pairs.c.ended_at < before).limit(limit)
    return connection.execute(delete(usage_pairs).where(key.in_(chosen))).rowcount

"""Live runs for a copy of the directory that follows the database: by pages, then what has changed since.

PostgreSQL alone. A row's version is its ``xmin``, the number of the transaction that wrote it: each change of a row
gives it another, whoever makes it, and no sequence or clock has a part in it. A comparison is of one state of the
database.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import BigInteger, Connection, Float, bindparam, literal, literal_column, select, text

from lark_controller.jobs.job import Job, Standing
from lark_controller.store.rows import columns_with, live_job_from
from lark_controller.store.schema import LIVE, policy_versions, runs

_VERSION: Final = literal_column("runs.xmin::text::bigint", BigInteger).label("row_version")
# A lease that begins anew with a takeover is none of a run's row.
_COLUMNS: Final = (_VERSION, *columns_with(literal(0.0, Float(53)).label("lease_until")))
_PAGE: Final = (
    select(*_COLUMNS).where(LIVE, runs.c.number > bindparam("after")).order_by(runs.c.number).limit(bindparam("most"))
)
_ROWS: Final = select(*_COLUMNS).where(LIVE, runs.c.number.in_(bindparam("numbers", expanding=True)))
_VERSIONS: Final = text("SELECT number, xmin::text::bigint FROM runs WHERE live")
_POLICY: Final = select(policy_versions.c.digest).order_by(policy_versions.c.version.desc()).limit(1)
_SERVER: Final = text(
    "SELECT pg_postmaster_start_time()::text, extract(epoch FROM clock_timestamp())::double precision"
)
_ROWS_AT_ONCE: Final = 2_000
# The server keeps the rest of the versions meanwhile.
_VERSIONS_AT_ONCE: Final = 5_000


class Copied(NamedTuple):
    """A live run as it is held while it lives, how far it was, and its row's version."""

    version: int
    job: Job
    standing: Standing


class Moved(NamedTuple):
    """A live run that is as far as told here, and otherwise as it is held."""

    version: int
    number: int
    standing: Standing


@dataclass(frozen=True, slots=True)
class Difference:
    """The changes since the versions that were known: ``server`` is the run of the database server that has shown
    it, ``at`` the time of that by the server's clock, ``policy`` the digest of the newest version of the policy
    (``""``: there is none). In those that have ``moved`` nothing else can be another than what is held."""

    server: str
    at: float
    policy: str
    changed: tuple[Copied, ...]
    moved: tuple[Moved, ...]
    gone: tuple[int, ...]

    @property
    def others(self) -> int:
        """The number of runs that live and have another row."""
        return len(self.changed) + len(self.moved)


def page(connection: Connection, after: int, most: int) -> list[Copied]:
    """The next live runs in order of number."""
    return [_copied(row) for row in connection.execute(_PAGE, {"after": after, "most": most}).all()]


def difference(connection: Connection, known: Mapping[int, int], held: Callable[[int], Job | None]) -> Difference:
    """The live runs whose rows have other versions than those that are known by number, and the numbers of which none
    lives any more. ``held`` is the job that is held of a number.

    With switches that come, rows of all jobs have changed, and their jobs have not: these are read in portions, so that
    no second one of each is in memory.
    """
    server, at = connection.execute(_SERVER).one()
    digest = connection.execute(_POLICY).scalar_one_or_none()
    gone, other = set(known), list[int]()
    for part in connection.execute(_VERSIONS, execution_options={"yield_per": _VERSIONS_AT_ONCE}).partitions():
        other += [number for number, version in part if known.get(number) != version]
        gone.difference_update([number for number, _ in part])
    changed, moved = list[Copied](), list[Moved]()
    for first in range(0, len(other), _ROWS_AT_ONCE):
        for each in _rows(connection, other[first : first + _ROWS_AT_ONCE]):
            job = held(each.job.number)
            if job is not None and job == each.job:
                moved.append(Moved(each.version, job.number, each.standing))
            else:
                changed.append(each)
    return Difference(str(server), float(at), digest or "", tuple(changed), tuple(moved), tuple(gone))


def _rows(connection: Connection, numbers: Collection[int]) -> list[Copied]:
    return [_copied(row) for row in connection.execute(_ROWS, {"numbers": sorted(numbers)}).all()]


def _copied(row: Any) -> Copied:
    return Copied(row[0], *live_job_from(row[1:]))

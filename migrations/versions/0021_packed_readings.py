"""Readings of jobs' use as numbers in base64, where they were JSON. Both are read; a version before this reads the
JSON alone, and would not start with the other."""

from __future__ import annotations

import base64
import json
import struct

import sqlalchemy as sa
from alembic import op

revision = "0021_packed_readings"
down_revision = "0020_kept_switches"
branch_labels = None
depends_on = None

# A time and two flags; counters of port and flows, those of worker and queues (none where all are 0), highest rates.
HEAD = struct.Struct("<dB")
COUNTED, OTHERS, DROPS, PEAK = 18, 14, 4, 2
# Rows that are in memory at a time.
ROWS = 1_000


def upgrade() -> None:
    """To this schema: each row is written as it is to be with the job's next use."""


def downgrade() -> None:
    """With JSON, which the version before reads. Drops are counted from the sums there."""
    connection, last = op.get_bind(), -1
    some = sa.text(
        "SELECT number, readings FROM usage_jobs WHERE number > :last AND readings <> '' AND readings NOT LIKE '{%'"
        " ORDER BY number LIMIT :rows"
    )
    write = sa.text("UPDATE usage_jobs SET readings = :readings WHERE number = :number")
    while rows := connection.execute(some, {"last": last, "rows": ROWS}).all():
        connection.execute(write, [{"number": number, "readings": _json(readings)} for number, readings in rows])
        last = rows[-1].number


def _json(readings: str) -> str:
    data = base64.b64decode(readings)
    at, flags = HEAD.unpack_from(data)
    numbers = list(struct.unpack(f"<{(len(data) - HEAD.size) // 8}Q", data[HEAD.size :]))
    others = numbers[COUNTED:-PEAK] or [0] * OTHERS
    counters = [*numbers[:COUNTED], *others, *[0] * DROPS, *numbers[-PEAK:]]
    stored = {"at": at, "started": bool(flags & 1), "reported": bool(flags & 2), "counters": counters}
    return json.dumps(stored, separators=(",", ":"))

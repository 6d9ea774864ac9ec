"""The network use of jobs: by job, and by group, user and host in buckets of a minute, an hour and a day."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005_usage"
down_revision = "0004_live_indices"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
SUMS = (
    "bytes_in",
    "bytes_out",
    "packets_in",
    "packets_out",
    "wan_bytes_in",
    "wan_bytes_out",
    "wan_packets_in",
    "wan_packets_out",
    "policy_drops_in",
    "policy_drops_out",
    "rate_drops_in",
    "rate_drops_out",
    "throttled",
)


def upgrade() -> None:
    """To this schema."""
    op.create_table(
        "usage_jobs",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("user_name", sa.Text, nullable=False),
        sa.Column("group_name", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("since", sa.Float(53), nullable=False),
        sa.Column("ended_at", sa.Float(53), nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in SUMS),
        sa.Column("readings", sa.Text, nullable=False),
        postgresql_with={"fillfactor": "80"},
    )
    op.create_index("usage_jobs_ended", "usage_jobs", ["ended_at", "number"])
    for name, column in (("group", "group_name"), ("user", "user_name"), ("host", "host")):
        op.create_index(f"usage_jobs_{name}", "usage_jobs", [column, "ended_at", "number"])

    op.create_table(
        "usage",
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("seconds", sa.Integer, primary_key=True),
        sa.Column("start", sa.BigInteger, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("group_name", sa.Text, primary_key=True),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in SUMS),
    )
    op.create_index("usage_name", "usage", ["kind", "seconds", "name", "start"])
    op.create_index("usage_group", "usage", ["kind", "seconds", "group_name", "start"])


def downgrade() -> None:
    """Without usage."""
    for table in ("usage", "usage_jobs"):
        op.drop_table(table)

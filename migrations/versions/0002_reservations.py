"""Reservations, what is reserved of each channel, and what workers' access links carry."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002_reservations"
down_revision = "0001"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """To this schema."""
    op.create_table(
        "reservations",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("kbps", sa.BigInteger, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("destination", sa.Text, nullable=False),
        sa.Column("holds", sa.Text, nullable=False),
        sa.Column("job", sa.Text),
        sa.Column("peer", sa.Text),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("until", sa.Float(53)),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.CheckConstraint("kbps > 0", name="reservations_kbps_positive"),
        sqlite_autoincrement=True,
    )
    of_job = sa.text("kind = 'job'")
    op.create_index("reservations_id", "reservations", ["id"], unique=True)
    op.create_index(
        "reservations_of_job", "reservations", ["job"], unique=True, sqlite_where=of_job, postgresql_where=of_job
    )
    for column in ("job", "peer", "until"):
        op.create_index(f"reservations_{column}", "reservations", [column])
    op.create_table(
        "reserved",
        sa.Column("channel", sa.Text, primary_key=True),
        sa.Column("kbps", sa.BigInteger, nullable=False),
        sa.CheckConstraint("kbps >= 0", name="reserved_kbps_not_negative"),
    )
    op.create_table(
        "worker_links",
        sa.Column("host", sa.Text, primary_key=True),
        sa.Column("megabits", sa.Float(53), nullable=False),
    )


def downgrade() -> None:
    """Back to 0001."""
    for table in ("worker_links", "reserved", "reservations"):
        op.drop_table(table)

"""External addresses: whose each is, since when, until when, and when it may be given again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012_external_addresses"
down_revision = "0011_joins"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """To this schema."""
    op.create_table(
        "external_addresses",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("family", sa.Integer, nullable=False),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("group_name", sa.Text, nullable=False),
        sa.Column("openings", sa.Text, nullable=False),
        sa.Column("quarantine", sa.Float(53), nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("until", sa.Float(53)),
        sa.Column("released_at", sa.Float(53)),
        sa.Column("free_at", sa.Float(53)),
        sa.Column("held", sa.Boolean, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.CheckConstraint("held OR released_at IS NOT NULL", name="external_addresses_free_once_released"),
        sqlite_autoincrement=True,
    )
    held, live = sa.text("held"), sa.text("released_at IS NULL")
    op.create_index("external_addresses_id", "external_addresses", ["id"], unique=True)
    op.create_index(
        "external_addresses_held",
        "external_addresses",
        ["address"],
        unique=True,
        sqlite_where=held,
        postgresql_where=held,
    )
    op.create_index(
        "external_addresses_job",
        "external_addresses",
        ["job", "family"],
        unique=True,
        sqlite_where=live,
        postgresql_where=live,
    )
    op.create_index("external_addresses_of_job", "external_addresses", ["job"])
    op.create_index("external_addresses_pool", "external_addresses", ["pool", "number"])


def downgrade() -> None:
    """Without external addresses."""
    op.drop_table("external_addresses")

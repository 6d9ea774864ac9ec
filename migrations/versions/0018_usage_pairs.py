"""The use of reserved flows by pair: a job, and where it has sent with bandwidth reserved for that."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018_usage_pairs"
down_revision = "0017_copied_at"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
SUMS = ("kbps", "least", "sent", "dropped", "counted", "settled", "throttled", "peak", "peak_millis")


def upgrade() -> None:
    """To this schema; of jobs from before, the pairs that they still have are counted from now on."""
    op.create_table(
        "usage_pairs",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("peer", sa.Text, nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("steady", sa.Boolean, nullable=False),
        sa.Column("inside", sa.Boolean, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in SUMS),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("left_out", sa.BigInteger, nullable=False),
        sa.Column("ended_at", sa.Float(53), nullable=False),
        sa.Column("readings", sa.Text, nullable=False),
        postgresql_with={"fillfactor": "80"},
    )
    op.create_index("usage_pairs_ended", "usage_pairs", ["ended_at"])
    op.create_index("usage_pairs_peer", "usage_pairs", ["peer"])


def downgrade() -> None:
    """Without these pairs."""
    op.drop_table("usage_pairs")

"""The number of switches that an instance which stands by keeps, those that the active one misses, and how many of
these another reaches."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020_kept_switches"
down_revision = "0019_counters_read"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this schema; each instance writes its own with its next sign of life."""
    op.add_column("instances", sa.Column("kept", sa.Integer()))
    op.add_column("instances", sa.Column("away", sa.Text, nullable=False, server_default=""))
    op.add_column("instances", sa.Column("reached", sa.Integer()))


def downgrade() -> None:
    """Without them."""
    op.drop_column("instances", "reached")
    op.drop_column("instances", "away")
    op.drop_column("instances", "kept")

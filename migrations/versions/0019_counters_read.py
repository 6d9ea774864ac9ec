"""The number of switches whose counters an instance that stands by has read of late for the active one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019_counters_read"
down_revision = "0018_usage_pairs"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this schema; each instance writes its number with its next sign of life."""
    op.add_column("instances", sa.Column("counters_read", sa.Integer()))


def downgrade() -> None:
    """Without these numbers."""
    op.drop_column("instances", "counters_read")

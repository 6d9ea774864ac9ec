"""The number of switches that an instance which stands by keeps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020_kept_switches"
down_revision = "0019_counters_read"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this schema; each instance writes its number with its next sign of life."""
    op.add_column("instances", sa.Column("kept", sa.Integer()))


def downgrade() -> None:
    """Without these numbers."""
    op.drop_column("instances", "kept")

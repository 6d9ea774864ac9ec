"""The newest tables that each instance knows: one that does not know those that are there takes over nothing."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022_known_tables"
down_revision = "0021_packed_readings"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this schema; each instance writes its own with its next sign of life, and an older release never does."""
    op.add_column("instances", sa.Column("tables", sa.Text, nullable=False, server_default=""))


def downgrade() -> None:
    """Without them."""
    op.drop_column("instances", "tables")

"""The objection of the pool to a run, and whether an operator vouches for it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003_quarantine"
down_revision = "0002_reservations"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this schema."""
    op.add_column("runs", sa.Column("quarantine", sa.Text, nullable=False, server_default=""))
    op.add_column("runs", sa.Column("vouched", sa.Boolean, nullable=False, server_default=sa.false()))


def downgrade() -> None:
    """Back to runs without quarantine."""
    op.drop_column("runs", "vouched")
    op.drop_column("runs", "quarantine")

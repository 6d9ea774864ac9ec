"""Reservations that are steady: their rate is the most as well."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013_steady"
down_revision = "0012_external_addresses"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this schema."""
    op.add_column("reservations", sa.Column("steady", sa.Boolean, nullable=False, server_default=sa.false()))


def downgrade() -> None:
    """Without what is steady."""
    op.drop_column("reservations", "steady")

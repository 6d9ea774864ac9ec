"""Reservations to a host of the topology, which follow the addresses that the policy gives it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023_to_host"
down_revision = "0022_known_tables"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this schema; of those made before it is not known whether they go to a host or to one address of it, but of
    those without an address."""
    op.add_column("reservations", sa.Column("to_host", sa.Boolean, nullable=False, server_default=sa.false()))
    op.execute(
        "UPDATE reservations SET to_host = true "
        "WHERE kind = 'flow' AND peer IS NULL AND target = '' AND destination NOT LIKE 'wan%'"
    )


def downgrade() -> None:
    """Without it."""
    op.drop_column("reservations", "to_host")

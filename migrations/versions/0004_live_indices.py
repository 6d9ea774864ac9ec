"""Live runs by owner, group and host, without a look at those that have ended."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004_live_indices"
down_revision = "0003_quarantine"
branch_labels = None
depends_on = None

_INDICES = {"runs_owner_live": "owner", "runs_group_name_live": "group_name", "runs_host_live": "host"}


def upgrade() -> None:
    """To this schema."""
    live = sa.text("live")
    for name, column in _INDICES.items():
        op.create_index(name, "runs", [column, "number"], sqlite_where=live, postgresql_where=live)


def downgrade() -> None:
    """Back to indices of all runs alone."""
    for name in _INDICES:
        op.drop_index(name, "runs")

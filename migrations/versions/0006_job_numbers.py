"""Runs by the number that HTCondor's users know, CLUSTER.PROC; the live ones without a look at the rest."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006_job_numbers"
down_revision = "0005_usage"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this schema."""
    live = sa.text("live")
    columns = ["cluster", "proc", "number"]
    op.create_index("runs_cluster_proc", "runs", columns)
    op.create_index("runs_cluster_proc_live", "runs", columns, sqlite_where=live, postgresql_where=live)


def downgrade() -> None:
    """Back to runs by id, GlobalJobId, owner, group and host."""
    for name in ("runs_cluster_proc", "runs_cluster_proc_live"):
        op.drop_index(name, "runs")

"""The highest rates that each job has kept up."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008_peaks"
down_revision = "0007_leases"
branch_labels = None
depends_on = None

PEAKS = ("peak_in", "peak_out")


def upgrade() -> None:
    """To this schema. A default that is the same for all rows rewrites none of them, on either database."""
    for name in PEAKS:
        op.add_column("usage_jobs", sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    """Without peaks."""
    for name in PEAKS:
        op.drop_column("usage_jobs", name)

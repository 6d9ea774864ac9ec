"""The bytes that HTCondor moved for jobs outside of their own networks, beside their own use."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010_transfers"
down_revision = "0009_instances"
branch_labels = None
depends_on = None

SUMS = (
    "transfer_bytes_in",
    "transfer_bytes_out",
    "transfer_wan_bytes_in",
    "transfer_wan_bytes_out",
    "transfer_millis",
)


def upgrade() -> None:
    """To this schema. A default that is the same for all rows rewrites none of them, on either database."""
    for table in ("usage_jobs", "usage"):
        for name in SUMS:
            op.add_column(table, sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    """Without transfers."""
    for table in ("usage_jobs", "usage"):
        for name in SUMS:
            op.drop_column(table, name)

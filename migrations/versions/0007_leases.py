"""The leases of live runs, apart from their rows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007_leases"
down_revision = "0006_job_numbers"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """To this schema."""
    op.create_table(
        "leases",
        sa.Column(
            "number",
            NUMBER,
            sa.ForeignKey("runs.number", name="leases_number_fkey", ondelete="CASCADE"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("lease_until", sa.Float(53), nullable=False),
        postgresql_with={"fillfactor": "50"},
    )
    op.execute("INSERT INTO leases (number, lease_until) SELECT number, lease_until FROM runs WHERE live")


def downgrade() -> None:
    """Back to leases in the rows of runs."""
    op.execute(
        "UPDATE runs SET lease_until = (SELECT leases.lease_until FROM leases WHERE leases.number = runs.number)"
        " WHERE number IN (SELECT number FROM leases)"
    )
    op.drop_table("leases")

"""Instances of the controller, and the term of the active one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009_instances"
down_revision = "0008_peaks"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this schema. The one row of ``term`` is there from the beginning: an insert has nothing to wait for."""
    op.create_table(
        "instances",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("boot", sa.Text, nullable=False),
        sa.Column("started_at", sa.Float(53), nullable=False),
        sa.Column("beat", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
    )
    term = op.create_table(
        "term",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("since", sa.Float(53), nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.CheckConstraint("number = 1", name="term_is_one_row"),
    )
    op.bulk_insert(term, [{"number": 1, "generation": 0, "holder": "", "since": 0.0, "why": ""}])
    op.create_table(
        "policy_files",
        sa.Column("instance", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False),
    )


def downgrade() -> None:
    """Without instances."""
    for name in ("policy_files", "term", "instances"):
        op.drop_table(name)

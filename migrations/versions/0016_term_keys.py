"""The key of a term, by which its instances recognise each other."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016_term_keys"
down_revision = "0015_external_lookups"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this schema; the next takeover writes the first key."""
    op.create_table(
        "term_keys",
        sa.Column("generation", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("key", sa.Text, nullable=False),
    )


def downgrade() -> None:
    """Without keys: nothing is handed on."""
    op.drop_table("term_keys")

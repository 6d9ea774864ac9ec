"""The time at which the copy of the directory, of an instance that stands by, was as the database had it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017_copied_at"
down_revision = "0016_term_keys"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this schema; each instance writes its time with its next comparison."""
    op.add_column("instances", sa.Column("copied_at", sa.Float(53)))


def downgrade() -> None:
    """Without these times."""
    op.drop_column("instances", "copied_at")

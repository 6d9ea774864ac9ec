"""Names of external addresses in the DNS: which each has, and which are still to be added to their zone or removed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014_external_names"
down_revision = "0013_steady"
branch_labels = None
depends_on = None

TABLE = "external_addresses"
COLUMNS = ("name", "zone", "ttl", "name_state", "name_reason", "name_attempts", "name_due")


def upgrade() -> None:
    """To this schema."""
    for name, default in (("name", ""), ("zone", ""), ("name_state", "none"), ("name_reason", "")):
        op.add_column(TABLE, sa.Column(name, sa.Text, nullable=False, server_default=default))
    for name in ("ttl", "name_attempts"):
        op.add_column(TABLE, sa.Column(name, sa.Integer, nullable=False, server_default="0"))
    op.add_column(TABLE, sa.Column("name_due", sa.Float(53)))
    wanted, due = sa.text("name_state IN ('pending', 'registered')"), sa.text("name_due IS NOT NULL")
    op.create_index(
        "external_addresses_name", TABLE, ["name"], unique=True, sqlite_where=wanted, postgresql_where=wanted
    )
    op.create_index("external_addresses_name_due", TABLE, ["name_due"], sqlite_where=due, postgresql_where=due)


def downgrade() -> None:
    """Without names."""
    for index in ("external_addresses_name_due", "external_addresses_name"):
        op.drop_index(index, TABLE)
    for name in COLUMNS:
        op.drop_column(TABLE, name)

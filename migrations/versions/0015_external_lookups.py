"""Indices of external addresses for what a request looks at; names that are withheld are still their jobs'; addresses
that end with a reservation."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015_external_lookups"
down_revision = "0014_external_names"
branch_labels = None
depends_on = None

TABLE = "external_addresses"
NAME = "external_addresses_name"
HELD, NOT_RELEASED = "held", "released_at IS NULL"
INDICES = {
    "external_addresses_listed": (["number"], HELD),
    "external_addresses_owner": (["owner", "number"], HELD),
    "external_addresses_group": (["group_name"], NOT_RELEASED),
    "external_addresses_until": (["until"], NOT_RELEASED),
    "external_addresses_free": (["free_at"], "held AND name_state <> 'removing'"),
}


def upgrade() -> None:
    """To this schema."""
    op.add_column(TABLE, sa.Column("reservation", sa.BigInteger))
    for name, (columns, where) in INDICES.items():
        op.create_index(name, TABLE, columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
    _names("'pending', 'registered', 'withheld'")


def downgrade() -> None:
    """Back to names that are in their zones whatever becomes of their addresses."""
    for name in INDICES:
        op.drop_index(name, TABLE)
    again = "UPDATE external_addresses SET name_state = 'pending', name_due = created_at, name_reason = ''"
    op.execute(f"{again} WHERE name_state = 'withheld'")
    _names("'pending', 'registered'")
    op.drop_column(TABLE, "reservation")


def _names(states: str) -> None:
    op.drop_index(NAME, TABLE)
    wanted = sa.text(f"name_state IN ({states})")
    op.create_index(NAME, TABLE, ["name"], unique=True, sqlite_where=wanted, postgresql_where=wanted)

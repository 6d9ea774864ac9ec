"""Join tokens, the tokens of workers that have joined, and the digest of each instance's own file of tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011_joins"
down_revision = "0010_transfers"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this schema. The one row of ``join_revision`` is there from the beginning: whoever changes anything waits for
    it."""
    op.create_table(
        "join_tokens",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("expires", sa.Float(53), nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("removed", sa.Boolean, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "join_hosts",
        sa.Column(
            "join_id",
            sa.Text,
            sa.ForeignKey("join_tokens.id", name="join_hosts_join_id_fkey", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("folded", sa.Text, primary_key=True),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("at", sa.Float(53)),
        sa.Column("peer", sa.Text),
        sa.Column("sha256", sa.Text),
    )
    op.create_table(
        "joined_workers",
        sa.Column("folded", sa.Text, primary_key=True),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("peer", sa.Text, nullable=False),
        sa.Column("join_id", sa.Text, nullable=False),
        sa.Column("revoked", sa.Boolean, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
    )
    op.create_index("joined_workers_sha256", "joined_workers", ["sha256"])
    op.create_index("joined_workers_revision", "joined_workers", ["revision"])
    counted = op.create_table(
        "join_revision",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.CheckConstraint("number = 1", name="join_revision_is_one_row"),
    )
    op.bulk_insert(counted, [{"number": 1, "revision": 1}])
    op.add_column("instances", sa.Column("tokens", sa.Text, nullable=False, server_default=""))


def downgrade() -> None:
    """Without joins: workers that have joined are strangers to an older release."""
    op.drop_column("instances", "tokens")
    for name in ("join_revision", "joined_workers", "join_hosts", "join_tokens"):
        op.drop_table(name)

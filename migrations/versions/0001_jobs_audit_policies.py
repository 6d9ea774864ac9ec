"""Runs with their ads, the audit trail, policy versions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """To this schema."""
    op.create_table(
        "runs",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("global_job_id", sa.Text, nullable=False),
        sa.Column("started", sa.BigInteger, nullable=False),
        sa.Column("slot", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("user_name", sa.Text, nullable=False),
        sa.Column("group_name", sa.Text, nullable=False),
        sa.Column("cluster", sa.BigInteger, nullable=False),
        sa.Column("proc", sa.BigInteger, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("network_type", sa.Text, nullable=False),
        sa.Column("address_type", sa.Text, nullable=False),
        sa.Column("ipv4", sa.Text),
        sa.Column("ipv6", sa.Text),
        sa.Column("ipv4_block", sa.Text),
        sa.Column("ipv6_block", sa.Text),
        sa.Column("datapath", sa.Text),
        sa.Column("port", sa.Text),
        sa.Column("mac", sa.Text),
        sa.Column("vlan", sa.Integer),
        sa.Column("bandwidth", sa.Float(53)),
        sa.Column("inbound", sa.Boolean),
        sa.Column("outbound", sa.Boolean),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("live", sa.Boolean, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("lease_until", sa.Float(53), nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("ended_at", sa.Float(53)),
        sa.Column("facts", sa.Text, nullable=False),
        sa.Column("facts_for", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    live = sa.text("live")
    holds_address = sa.text("live AND network_type IN ('ovs_bridge', 'bridge')")
    op.create_index("runs_id", "runs", ["id"], unique=True)
    for family in ("ipv4", "ipv6"):
        op.create_index(
            f"runs_{family}_held",
            "runs",
            [family],
            unique=True,
            sqlite_where=holds_address,
            postgresql_where=holds_address,
        )
    op.create_index("runs_slot_live", "runs", ["slot"], sqlite_where=live, postgresql_where=live)
    op.create_index("runs_live", "runs", ["number"], sqlite_where=live, postgresql_where=live)
    for column in ("owner", "group_name", "host", "state", "global_job_id"):
        op.create_index(f"runs_{column}", "runs", [column, "number"])
    op.create_index("runs_ended_at", "runs", ["ended_at"])

    op.create_table(
        "run_ads",
        sa.Column(
            "number",
            NUMBER,
            sa.ForeignKey("runs.number", name="run_ads_number_fkey", ondelete="CASCADE"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("job_ad", sa.Text, nullable=False),
        sa.Column("machine_ad", sa.Text, nullable=False),
        sa.Column("exit_ad", sa.Text, nullable=False),
    )

    op.create_table(
        "audit",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("audit_subject", "audit", ["subject", "number"])
    op.create_index("audit_at", "audit", ["at"])

    op.create_table(
        "policy_versions",
        sa.Column("version", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )


def downgrade() -> None:
    """Back to an empty database."""
    for table in ("policy_versions", "audit", "run_ads", "runs"):
        op.drop_table(table)

"""The tables, as SQLAlchemy metadata. ``migrations/`` makes the same; a test holds the two together.

The addresses stand in ``runs`` itself, one IPv4 and one IPv6 a run, and two partial unique indexes keep an address with
one live run of the pool. The ads stand apart in ``run_ads``, since both databases write a whole row when one column
changes, and the leases of live runs in ``leases``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    TextClause,
    TypeDecorator,
    false,
    text,
)


class PlainText(TypeDecorator[str]):
    """Text without NUL. PostgreSQL cannot hold one, so SQLite may not either: what one takes the other takes."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Refuse NUL. Raises ValueError, which SQLAlchemy wraps."""
        if value is not None and "\0" in value:
            raise ValueError("text with a NUL character (code 0) cannot be stored")
        return value


metadata: Final = MetaData()

# SQLite numbers rows on its own only in a column whose type is exactly INTEGER.
_NUMBER: Final = BigInteger().with_variant(Integer, "sqlite")

# Bare text, because SQLite uses a partial index only for a query that repeats the index's condition word for word.
LIVE: Final[TextClause] = text("live")
HOLDS_ADDRESS: Final[TextClause] = text("live AND network_type IN ('ovs_bridge', 'bridge')")
HELD: Final[TextClause] = text("held")
NOT_RELEASED: Final[TextClause] = text("released_at IS NULL")
# Addresses that a job has or that rest, but for those that a name is still to be removed from.
MAY_REST: Final[TextClause] = text("held AND name_state <> 'removing'")
NAME_WANTED: Final[TextClause] = text("name_state IN ('pending', 'registered', 'withheld')")
NAME_DUE: Final[TextClause] = text("name_due IS NOT NULL")
IS_OF_JOB: Final[TextClause] = text("kind = 'job'")

runs: Final = Table(
    "runs",
    metadata,
    Column("number", _NUMBER, primary_key=True, autoincrement=True),
    Column("id", PlainText, nullable=False),
    Column("global_job_id", PlainText, nullable=False),
    Column("started", BigInteger, nullable=False),
    Column("slot", PlainText, nullable=False),
    Column("owner", PlainText, nullable=False),
    Column("user_name", PlainText, nullable=False),
    Column("group_name", PlainText, nullable=False),
    Column("cluster", BigInteger, nullable=False),
    Column("proc", BigInteger, nullable=False),
    Column("host", PlainText, nullable=False),
    Column("network_type", PlainText, nullable=False),
    Column("address_type", PlainText, nullable=False),
    Column("ipv4", PlainText),
    Column("ipv6", PlainText),
    Column("ipv4_block", PlainText),
    Column("ipv6_block", PlainText),
    Column("datapath", PlainText),
    Column("port", PlainText),
    Column("mac", PlainText),
    Column("vlan", Integer),
    Column("bandwidth", Float(53)),
    Column("inbound", Boolean),
    Column("outbound", Boolean),
    Column("state", PlainText, nullable=False),
    Column("live", Boolean, nullable=False),
    Column("reason", PlainText, nullable=False),
    Column("lease_until", Float(53), nullable=False),
    Column("created_at", Float(53), nullable=False),
    Column("ended_at", Float(53)),
    Column("facts", PlainText, nullable=False),
    Column("facts_for", PlainText, nullable=False),
    Column("quarantine", PlainText, nullable=False, server_default=""),
    Column("vouched", Boolean, nullable=False, server_default=false()),
    Index("runs_id", "id", unique=True),
    Index("runs_ipv4_held", "ipv4", unique=True, sqlite_where=HOLDS_ADDRESS, postgresql_where=HOLDS_ADDRESS),
    Index("runs_ipv6_held", "ipv6", unique=True, sqlite_where=HOLDS_ADDRESS, postgresql_where=HOLDS_ADDRESS),
    Index("runs_slot_live", "slot", sqlite_where=LIVE, postgresql_where=LIVE),
    Index("runs_live", "number", sqlite_where=LIVE, postgresql_where=LIVE),
    Index("runs_owner", "owner", "number"),
    Index("runs_group_name", "group_name", "number"),
    Index("runs_host", "host", "number"),
    # A user, group or host has far more runs that have ended than live ones, and the live ones are asked for.
    Index("runs_owner_live", "owner", "number", sqlite_where=LIVE, postgresql_where=LIVE),
    Index("runs_group_name_live", "group_name", "number", sqlite_where=LIVE, postgresql_where=LIVE),
    Index("runs_host_live", "host", "number", sqlite_where=LIVE, postgresql_where=LIVE),
    Index("runs_state", "state", "number"),
    Index("runs_global_job_id", "global_job_id", "number"),
    Index("runs_cluster_proc", "cluster", "proc", "number"),
    Index("runs_cluster_proc_live", "cluster", "proc", "number", sqlite_where=LIVE, postgresql_where=LIVE),
    Index("runs_ended_at", "ended_at"),
    sqlite_autoincrement=True,
)

run_ads: Final = Table(
    "run_ads",
    metadata,
    Column(
        "number",
        _NUMBER,
        ForeignKey("runs.number", name="run_ads_number_fkey", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    ),
    Column("job_ad", PlainText, nullable=False),
    Column("machine_ad", PlainText, nullable=False),
    Column("exit_ad", PlainText, nullable=False),
)

# The leases of live runs. Each is renewed every few minutes: apart from the run, whose row is wide and has many
# indices, that changes a page of some hundred leases and no index.
leases: Final = Table(
    "leases",
    metadata,
    Column(
        "number",
        _NUMBER,
        ForeignKey("runs.number", name="leases_number_fkey", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    ),
    Column("lease_until", Float(53), nullable=False),
    postgresql_with={"fillfactor": "50"},
)

audit: Final = Table(
    "audit",
    metadata,
    Column("number", _NUMBER, primary_key=True, autoincrement=True),
    Column("at", Float(53), nullable=False),
    Column("actor", PlainText, nullable=False),
    Column("action", PlainText, nullable=False),
    Column("subject", PlainText, nullable=False),
    Column("detail", PlainText, nullable=False),
    Index("audit_subject", "subject", "number"),
    Index("audit_at", "at"),
    sqlite_autoincrement=True,
)

policy_versions: Final = Table(
    "policy_versions",
    metadata,
    Column("version", _NUMBER, primary_key=True, autoincrement=True),
    Column("text", PlainText, nullable=False),
    Column("digest", PlainText, nullable=False),
    Column("at", Float(53), nullable=False),
    Column("actor", PlainText, nullable=False),
    sqlite_autoincrement=True,
)

# Rates are whole kb/s: sums of whole numbers are exact.
reservations: Final = Table(
    "reservations",
    metadata,
    Column("number", _NUMBER, primary_key=True, autoincrement=True),
    Column("id", PlainText, nullable=False),
    Column("kind", PlainText, nullable=False),
    Column("kbps", BigInteger, nullable=False),
    Column("source", PlainText, nullable=False),
    Column("destination", PlainText, nullable=False),
    Column("holds", PlainText, nullable=False),
    Column("job", PlainText),
    Column("peer", PlainText),
    Column("target", PlainText, nullable=False),
    Column("until", Float(53)),
    Column("created_at", Float(53), nullable=False),
    Column("actor", PlainText, nullable=False),
    Column("steady", Boolean, nullable=False, server_default=false()),
    Column("to_host", Boolean, nullable=False, server_default=false()),
    CheckConstraint("kbps > 0", name="reservations_kbps_positive"),
    Index("reservations_id", "id", unique=True),
    Index("reservations_of_job", "job", unique=True, sqlite_where=IS_OF_JOB, postgresql_where=IS_OF_JOB),
    Index("reservations_job", "job"),
    Index("reservations_peer", "peer"),
    Index("reservations_until", "until"),
    sqlite_autoincrement=True,
)

reserved: Final = Table(
    "reserved",
    metadata,
    Column("channel", PlainText, primary_key=True),
    Column("kbps", BigInteger, nullable=False),
    CheckConstraint("kbps >= 0", name="reserved_kbps_not_negative"),
)

# A row for each time that an address was a job's. ``held`` is true from then until the address may be given again, so
# the database itself refuses to give one twice; a job has one of each family.
external_addresses: Final = Table(
    "external_addresses",
    metadata,
    Column("number", _NUMBER, primary_key=True, autoincrement=True),
    Column("id", PlainText, nullable=False),
    Column("address", PlainText, nullable=False),
    Column("family", Integer, nullable=False),
    Column("pool", PlainText, nullable=False),
    Column("job", PlainText, nullable=False),
    Column("owner", PlainText, nullable=False),
    Column("group_name", PlainText, nullable=False),
    Column("openings", PlainText, nullable=False),
    Column("quarantine", Float(53), nullable=False),
    Column("created_at", Float(53), nullable=False),
    Column("until", Float(53)),
    Column("reservation", BigInteger),
    Column("released_at", Float(53)),
    Column("free_at", Float(53)),
    Column("held", Boolean, nullable=False),
    Column("why", PlainText, nullable=False),
    Column("actor", PlainText, nullable=False),
    # The name in the DNS: one that is not as it is to be has the time of the next attempt in ``name_due``.
    Column("name", PlainText, nullable=False, server_default=""),
    Column("zone", PlainText, nullable=False, server_default=""),
    Column("ttl", Integer, nullable=False, server_default="0"),
    Column("name_state", PlainText, nullable=False, server_default="none"),
    Column("name_reason", PlainText, nullable=False, server_default=""),
    Column("name_attempts", Integer, nullable=False, server_default="0"),
    Column("name_due", Float(53)),
    CheckConstraint("held OR released_at IS NOT NULL", name="external_addresses_free_once_released"),
    Index("external_addresses_id", "id", unique=True),
    Index("external_addresses_held", "address", unique=True, sqlite_where=HELD, postgresql_where=HELD),
    Index(
        "external_addresses_job", "job", "family", unique=True, sqlite_where=NOT_RELEASED, postgresql_where=NOT_RELEASED
    ),
    Index("external_addresses_of_job", "job"),
    Index("external_addresses_name", "name", unique=True, sqlite_where=NAME_WANTED, postgresql_where=NAME_WANTED),
    Index("external_addresses_name_due", "name_due", sqlite_where=NAME_DUE, postgresql_where=NAME_DUE),
    Index("external_addresses_pool", "pool", "number"),
    # The rows that a request looks at, without those of others.
    Index("external_addresses_listed", "number", sqlite_where=HELD, postgresql_where=HELD),
    Index("external_addresses_owner", "owner", "number", sqlite_where=HELD, postgresql_where=HELD),
    Index("external_addresses_group", "group_name", sqlite_where=NOT_RELEASED, postgresql_where=NOT_RELEASED),
    Index("external_addresses_until", "until", sqlite_where=NOT_RELEASED, postgresql_where=NOT_RELEASED),
    Index("external_addresses_free", "free_at", sqlite_where=MAY_REST, postgresql_where=MAY_REST),
    sqlite_autoincrement=True,
)

worker_links: Final = Table(
    "worker_links",
    metadata,
    Column("host", PlainText, primary_key=True),
    Column("megabits", Float(53), nullable=False),
)

# The sums of lark_controller.accounting.usage.Usage, in its order.
USAGE_COLUMNS: Final = (
    "bytes_in",
    "bytes_out",
    "packets_in",
    "packets_out",
    "wan_bytes_in",
    "wan_bytes_out",
    "wan_packets_in",
    "wan_packets_out",
    "policy_drops_in",
    "policy_drops_out",
    "rate_drops_in",
    "rate_drops_out",
    "throttled",
    "transfer_bytes_in",
    "transfer_bytes_out",
    "transfer_wan_bytes_in",
    "transfer_wan_bytes_out",
    "transfer_millis",
)


def _sums() -> Iterator[Column[int]]:
    """A column for each sum. Those of transfers came later, and rows of before them have none."""
    for name in USAGE_COLUMNS:
        yield Column(name, BigInteger, nullable=False, server_default="0" if name.startswith("transfer") else None)


# The rates of lark_controller.accounting.usage.Peak, in its order.
PEAK_COLUMNS: Final = ("peak_in", "peak_out")

usage_jobs: Final = Table(
    "usage_jobs",
    metadata,
    Column("number", _NUMBER, primary_key=True, autoincrement=False),
    Column("id", PlainText, nullable=False),
    Column("owner", PlainText, nullable=False),
    Column("user_name", PlainText, nullable=False),
    Column("group_name", PlainText, nullable=False),
    Column("host", PlainText, nullable=False),
    Column("since", Float(53), nullable=False),
    Column("ended_at", Float(53), nullable=False),
    Column("at", Float(53), nullable=False),
    *_sums(),
    Column("readings", PlainText, nullable=False),
    *(Column(name, BigInteger, nullable=False, server_default="0") for name in PEAK_COLUMNS),
    # A live job's row is rewritten every minute: no index may hold what changes then, so that the row's new version
    # stays beside the old one.
    Index("usage_jobs_ended", "ended_at", "number"),
    Index("usage_jobs_group", "group_name", "ended_at", "number"),
    Index("usage_jobs_user", "user_name", "ended_at", "number"),
    Index("usage_jobs_host", "host", "ended_at", "number"),
    postgresql_with={"fillfactor": "80"},
)

# A row for each job and where it has sent with bandwidth reserved for that; at most PAIRS_OF_JOB of a job.
usage_pairs: Final = Table(
    "usage_pairs",
    metadata,
    Column("number", _NUMBER, primary_key=True, autoincrement=False),
    Column("key", PlainText, primary_key=True),
    Column("id", PlainText, nullable=False),
    # The members of lark_controller.accounting.pairs.PairUse, but for the last two.
    Column("peer", PlainText, nullable=False),
    Column("node", PlainText, nullable=False),
    Column("target", PlainText, nullable=False),
    Column("steady", Boolean, nullable=False),
    Column("inside", Boolean, nullable=False),
    Column("kbps", BigInteger, nullable=False),
    Column("least", BigInteger, nullable=False),
    Column("sent", BigInteger, nullable=False),
    Column("dropped", BigInteger, nullable=False),
    Column("counted", BigInteger, nullable=False),
    Column("settled", BigInteger, nullable=False),
    Column("throttled", BigInteger, nullable=False),
    Column("peak", BigInteger, nullable=False),
    Column("peak_millis", BigInteger, nullable=False),
    Column("at", Float(53), nullable=False),
    Column("left_out", BigInteger, nullable=False),
    Column("ended_at", Float(53), nullable=False),
    Column("readings", PlainText, nullable=False),
    Index("usage_pairs_ended", "ended_at"),
    Index("usage_pairs_peer", "peer"),
    postgresql_with={"fillfactor": "80"},
)

usage: Final = Table(
    "usage",
    metadata,
    Column("kind", PlainText, primary_key=True),
    Column("seconds", Integer, primary_key=True),
    Column("start", BigInteger, primary_key=True),
    Column("name", PlainText, primary_key=True),
    Column("group_name", PlainText, primary_key=True),
    *_sums(),
    Index("usage_name", "kind", "seconds", "name", "start"),
    Index("usage_group", "kind", "seconds", "group_name", "start"),
)

instances: Final = Table(
    "instances",
    metadata,
    Column("id", PlainText, primary_key=True),
    Column("name", PlainText, nullable=False),
    Column("url", PlainText, nullable=False),
    Column("version", PlainText, nullable=False),
    Column("boot", PlainText, nullable=False),
    Column("started_at", Float(53), nullable=False),
    Column("beat", BigInteger, nullable=False),
    Column("state", PlainText, nullable=False),
    Column("at", Float(53), nullable=False),
    Column("tokens", PlainText, nullable=False, server_default=""),
    Column("copied_at", Float(53)),
    Column("counters_read", Integer),
    Column("kept", Integer),
    Column("away", PlainText, nullable=False, server_default=""),
    Column("reached", Integer),
    Column("tables", PlainText, nullable=False, server_default=""),
)

# One row for ever. Whoever writes holds it FOR SHARE, so that a change of it waits for what is being written.
term: Final = Table(
    "term",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("generation", BigInteger, nullable=False),
    Column("holder", PlainText, nullable=False),
    Column("since", Float(53), nullable=False),
    Column("why", PlainText, nullable=False),
    CheckConstraint("number = 1", name="term_is_one_row"),
)

# The key of a term, by which its instances recognise each other.
term_keys: Final = Table(
    "term_keys",
    metadata,
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("key", PlainText, nullable=False),
)

# The digest of each instance's policy file when that instance has read it last.
policy_files: Final = Table(
    "policy_files",
    metadata,
    Column("instance", PlainText, primary_key=True),
    Column("digest", PlainText, nullable=False),
)

join_tokens: Final = Table(
    "join_tokens",
    metadata,
    Column("id", PlainText, primary_key=True),
    Column("sha256", PlainText, nullable=False),
    Column("expires", Float(53), nullable=False),
    Column("actor", PlainText, nullable=False),
    Column("removed", Boolean, nullable=False),
    Column("revision", BigInteger, nullable=False),
)

# Hosts in small letters, too: they are compared so.
join_hosts: Final = Table(
    "join_hosts",
    metadata,
    Column(
        "join_id",
        PlainText,
        ForeignKey("join_tokens.id", name="join_hosts_join_id_fkey", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("folded", PlainText, primary_key=True),
    Column("host", PlainText, nullable=False),
    Column("at", Float(53)),
    Column("peer", PlainText),
    Column("sha256", PlainText),
)

# A revoked token's row stays, so that neither a copy of an older file nor the worker itself brings the token back.
joined_workers: Final = Table(
    "joined_workers",
    metadata,
    Column("folded", PlainText, primary_key=True),
    Column("host", PlainText, nullable=False),
    Column("sha256", PlainText, nullable=False),
    Column("at", Float(53), nullable=False),
    Column("peer", PlainText, nullable=False),
    Column("join_id", PlainText, nullable=False),
    Column("revoked", Boolean, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Index("joined_workers_sha256", "sha256"),
    Index("joined_workers_revision", "revision"),
)

# One row for ever, which each change of the three tables above raises by one: so changes are one after the other, and
# readers find what has changed since they looked.
join_revision: Final = Table(
    "join_revision",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("revision", BigInteger, nullable=False),
    CheckConstraint("number = 1", name="join_revision_is_one_row"),
)

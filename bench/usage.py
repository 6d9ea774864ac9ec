"""The history of use: 30 days of 200,000 jobs a day in PostgreSQL, its size, and what questions about it cost."""

from __future__ import annotations

import gc
import itertools
import os
import re
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import psycopg
from sqlalchemy import Select
from sqlalchemy.dialects import postgresql

from bench.percentiles import percentile
from bench.population import jobs
from lab.postgres import PostgresServer
from lark_controller.accounting.buckets import DAY, HOUR, MINUTE, WIDTHS
from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.pairs import PairLedger
from lark_controller.accounting.readings import CountKind, FlowReading, PortReading
from lark_controller.api.usage import UsageFilter
from lark_controller.services.account_writer import KEPT, AccountWriter
from lark_controller.store import Store
from lark_controller.store.usage import NOT_ENDED, buckets_query, jobs_query

END: Final = 1_700_006_400  # a midnight in UTC
GROUPS, USERS, HOSTS = 20, 500, 1_000
_SUMS: Final = (
    "bytes_in, bytes_out, packets_in, packets_out, wan_bytes_in, wan_bytes_out, wan_packets_in, wan_packets_out, "
    "policy_drops_in, policy_drops_out, rate_drops_in, rate_drops_out, throttled"
)
_VALUES: Final = "n * 977, n * 1201, n, n * 2, n * 400, n * 500, n / 3, n / 2, 0, n %% 7, 0, 0, 0"
_JOBS: Final = f"""
INSERT INTO usage_jobs (number, id, owner, user_name, group_name, host, since, ended_at, at, {_SUMS}, readings)
SELECT n, lpad(to_hex(n), 16, '0'), 'user' || n %% {USERS}, 'user' || n %% {USERS} || '@example',
       'group_' || n %% {USERS} %% {GROUPS}, 'worker' || n %% {HOSTS},
       %(end)s - %(spread)s::bigint * (%(jobs)s - n) / %(jobs)s - 14400,
       CASE WHEN n > %(jobs)s - %(live)s THEN {NOT_ENDED}
            ELSE %(end)s - %(spread)s::bigint * (%(jobs)s - n) / %(jobs)s END,
       %(end)s, {_VALUES}, ''
FROM generate_series(1::bigint, %(jobs)s) n
"""
_BUCKETS: Final = f"""
INSERT INTO usage (kind, seconds, start, name, group_name, {_SUMS})
SELECT %(kind)s, %(width)s, start, %(name)s || n, %(group)s || n %% {GROUPS}, {_VALUES}
FROM generate_series(%(first)s, %(end)s - %(width)s, %(width)s) start, generate_series(0, %(count)s - 1) n
"""


def measure(days: int, jobs_a_day: int, requests: int, minute_days: float = 2.0) -> dict[str, Any]:
    """Time questions about ``days`` of ``jobs_a_day`` jobs, with a day's jobs live, and what a write costs.

    ``minute_days`` is how long use is kept by the minute.
    """
    # PostgreSQL's own user must be able to enter, and a socket's path must be short.
    directory = Path(tempfile.mkdtemp(prefix="lark-bench-", dir="/tmp"))
    directory.chmod(0o755)
    (directory / "pg").mkdir()
    server = PostgresServer(directory / "pg")
    try:
        server.create()
        server.start()
        url = server.new_database()
        store = Store.open(url)
        store.migrate()
        sizes = _fill(url, days, jobs_a_day, minute_days)
        rows = [_ask(store, url, name, chosen, requests) for name, chosen in _questions(days).items()]
        found = {"days": days, "jobs_a_day": jobs_a_day, **sizes, "questions": rows, **_write(store, url, jobs_a_day)}
        store.close()
        return found
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


def _fill(url: str, days: int, jobs_a_day: int, minute_days: float) -> dict[str, Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        # Rows first, then their indexes: what takes minutes otherwise is not what is measured.
        connection.execute("SET maintenance_work_mem = '512MB'")
        indexes = connection.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE tablename IN ('usage', 'usage_jobs')"
            " AND indexname NOT LIKE '%pkey'"
        ).fetchall()
        for name, _ in indexes:
            connection.execute(f"DROP INDEX {name}")
        said = {"end": END, "spread": days * DAY, "jobs": days * jobs_a_day, "live": jobs_a_day}
        connection.execute(_JOBS, said)
        for width in WIDTHS:
            kept = min(days, minute_days) if width == MINUTE else days
            first = END - int(kept * DAY)
            for kind, name, group, count in (
                ("group", "group_", "group_", GROUPS),
                ("user", "user", "group_", USERS),
                ("host", "worker", "", HOSTS),
            ):
                # A host's rows have no group: the number that stands there instead makes them no smaller.
                given = {"kind": kind, "width": width, "name": name, "group": group, "count": count}
                connection.execute(_BUCKETS, {**given, "first": first, "end": END})
        for _, made in indexes:
            connection.execute(made)
        connection.execute("VACUUM ANALYZE usage_jobs")
        connection.execute("VACUUM ANALYZE usage")
        sizes = {}
        for table in ("usage_jobs", "usage"):
            row = connection.execute(
                f"SELECT count(*), pg_table_size('{table}'), pg_indexes_size('{table}') FROM {table}"
            ).fetchone()
            assert row is not None
            sizes[table] = {"rows": row[0], "bytes": row[1], "index_bytes": row[2]}
    return sizes


def _questions(days: int) -> dict[str, UsageFilter]:
    week, month, day = END - min(days, 7) * DAY, END - days * DAY, END - DAY
    return {
        "groups of the month": UsageFilter("group", month, END, HOUR),
        "users of the month": UsageFilter("user", month, END, HOUR),
        "users of a group, by day": UsageFilter("user", month, END, DAY, "day", group="group_5"),
        "a group's week by the hour": UsageFilter("group", week, END, HOUR, "hour", group="group_5"),
        "a user's day by the minute": UsageFilter("user", day, END, MINUTE, "minute", user="user5"),
        "hosts of the week": UsageFilter("host", week, END, HOUR),
        "jobs of a day": UsageFilter("job", day - DAY, day, MINUTE),
        "jobs of a group in a day": UsageFilter("job", day - DAY, day, MINUTE, group="group_5"),
        "jobs of a user in the month": UsageFilter("job", month, END, HOUR, user="user5@example"),
    }


def _ask(store: Store, url: str, name: str, chosen: UsageFilter, requests: int) -> dict[str, Any]:
    took = []
    rows = 0
    for _ in range(requests):
        started = time.perf_counter()
        rows = len(store.usage.page(chosen, None, 1000).rows)
        took.append((time.perf_counter() - started) * 1000)
    took.sort()
    query = jobs_query(chosen, (), None, 1000) if chosen.by == "job" else buckets_query(chosen, (), None, 1000)
    return {
        "question": name,
        "rows": rows,
        "p50": percentile(took, 50),
        "p95": percentile(took, 95),
        "plan": _plan(url, query),
    }


def _plan(url: str, query: Select[Any]) -> list[str]:
    """The steps that read tables or sort, of EXPLAIN."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]  # the one function that SQLAlchemy left without types
    text = str(query.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
    with psycopg.connect(url) as connection:
        lines = [str(line) for (line,) in connection.execute(f"EXPLAIN {text}".encode())]
    shown = [re.sub(r"  ?\(cost.*", "", line).strip(" ->") for line in lines if "(cost" in line]
    return [line for line in shown if re.search(r"Scan|Sort|Aggregate", line)]


def _write(store: Store, url: str, count: int) -> dict[str, float]:
    """The cost of the accounts of ``count`` live jobs: memory, a reading of each, and a write as in operation.

    The reference is one UPDATE of as many rows, which is the least that PostgreSQL can be asked to do.
    """
    live = [replace(job, number=10**9 + job.number) for job in itertools.islice(jobs(count, 22), count)]
    gc.collect()
    before = _memory()
    ledger = Ledger()
    for job in live:
        ledger.begin(job, job.group)
    account_writer = AccountWriter(store, ledger, PairLedger(), KEPT)
    times, reads, references = [], [], []
    for turn in range(1, 4):
        started = time.process_time()
        for job in live:
            port = PortReading(977 * turn, 1_201_000 * turn, 977 * turn, 1_201_000 * turn)
            counted = [FlowReading(kind, 400 * turn, 500_000 * turn) for kind in (CountKind.WAN_OUT, CountKind.WAN_IN)]
            ledger.read(job.number, END + 60.0 * turn, port, counted, 5.0)
        reads.append((time.process_time() - started) / count)
        started = time.perf_counter()
        account_writer.write()
        times.append(time.perf_counter() - started)
        if ledger.changed():
            raise RuntimeError("not everything was written")
        references.append(_update(url))
    return {
        "first_write_seconds": times[0], "write_seconds": times[-1], "reference_seconds": references[-1],
        "read_seconds": reads[-1], "accounts_mib": _memory() - before,
    }  # fmt: skip


def _update(url: str) -> float:
    """Seconds to change one column of every live job's row."""
    with psycopg.connect(url, autocommit=True) as connection:
        started = time.perf_counter()
        connection.execute("UPDATE usage_jobs SET throttled = throttled + 1 WHERE number > 1000000000")
        took = time.perf_counter() - started
        connection.execute("VACUUM usage_jobs")
    return took


def _memory() -> float:
    """This process's resident memory, MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

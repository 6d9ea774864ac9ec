"""Opening, migrating, losing and finding the database again."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from functools import partial
from ipaddress import ip_network
from pathlib import Path

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, inspect, text

from lab.postgres import PostgresServer
from lark_common.errors import StoreError
from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.readings import PortReading, WorkerCounts
from lark_controller.api.jobs import JobFilter
from lark_controller.qos.reservation import Booking, ReservationKind
from lark_controller.store import Store, migrate
from lark_controller.store.database import connect
from lark_controller.store.schema import HOLDS_ADDRESS, LIVE, metadata
from tests.fixtures.databases import NOW, a_run
from tests.fixtures.stored_readings import as_json

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("", "accepted: sqlite:"),
        ("lark.db", "accepted: sqlite:"),
        ("mysql://lark:secret@db/lark", "names the database 'mysql'"),
        ("postgresql://lark:secret@db:port/lark", "accepted: sqlite:"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("sqlite:////nowhere/at/all/lark.db", "/nowhere/at/all .* does not exist; make it"),
        ("postgresql://lark:secret@127.0.0.1:1/lark", "Start the server, or correct host and port"),
        ("postgresql://lark@127.0.0.1:1/lark?password=secret", "Start the server, or correct host and port"),
        ("postgres://lark:secret@/lark?host=/nowhere", "Start the server, or correct host and port"),
        ("postgresql://lark:secret@127.0.0.1:1/lark?sslmode=secret", "sslmode"),
    ],
)
def test_a_url_that_cannot_be_used_says_what_to_do_and_not_the_password(url: str, sentence: str) -> None:
    with pytest.raises(StoreError, match=sentence) as raised:
        Store.open(url)
    assert "secret" not in str(raised.value)


@pytest.mark.postgres
def test_an_unknown_role_or_database_says_so(postgres_server: PostgresServer) -> None:
    with pytest.raises(StoreError, match="Create the database"):
        Store.open(postgres_server.url("nothing"))
    with pytest.raises(StoreError, match="Create the role"):
        Store.open(postgres_server.url("postgres").replace("lark@", "nobody:secret@"))


@pytest.mark.postgres
@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_every_spelling_of_postgresql_is_accepted(postgres_url: str, scheme: str) -> None:
    store = Store.open(postgres_url.replace("postgresql", scheme, 1))
    store.ping()
    store.close()


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "lark.db"
    path.write_text("version: 1\n" * 1000)
    with pytest.raises(StoreError, match="is not a database"):
        Store.open(f"sqlite:///{path}")


def test_a_database_without_tables_says_so(empty_url: str) -> None:
    store = Store.open(empty_url)
    assert store.schema_version() is None
    with pytest.raises(StoreError, match="run `lark db upgrade`"):
        store.runs.page(JobFilter(), None, 10)
    store.close()


def test_a_database_of_a_newer_lark_is_left_alone(store: Store, store_url: str) -> None:
    database = connect(store_url)
    database.write(lambda connection: connection.execute(text("UPDATE alembic_version SET version_num = '9999'")))
    database.close()
    with pytest.raises(StoreError, match="schema 9999, made by a newer Lark"):
        store.migrate()


def test_a_database_of_several_versions_is_left_alone(store: Store, store_url: str) -> None:
    database = connect(store_url)
    database.write(
        lambda connection: connection.execute(text("INSERT INTO alembic_version VALUES ('0003_quarantine')"))
    )
    database.close()
    with pytest.raises(StoreError, match=r"several schema versions \(0003_quarantine, 00\d\d_\w+\)"):
        store.migrate()


def test_versions_are_those_of_the_migrations_in_their_order() -> None:
    scripts = ScriptDirectory.from_config(migrate.configuration())
    assert list(migrate.versions()) == [each.revision for each in scripts.walk_revisions()][::-1]
    assert migrate.newest() == scripts.get_current_head()


def test_without_its_migrations_it_is_to_be_installed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "versions").mkdir()
    monkeypatch.setattr(migrate, "migrations_directory", lambda: tmp_path)
    with pytest.raises(StoreError, match="install lark-controller again"):
        migrate.newest()


def test_the_migrations_make_the_tables_of_the_program(store_url: str) -> None:
    database = connect(store_url)
    database.write(lambda connection: command.check(migrate.configuration(connection)))
    assert indexes(store_url) == {
        (table.name, str(index.name), index.unique, tuple(column.name for column in index.columns))
        for table in metadata.tables.values()
        for index in table.indexes
    }
    database.close()


def indexes(url: str) -> set[tuple[str, str, bool, tuple[str, ...]]]:
    engine = connect(url).engine
    seen = inspect(engine)
    found = {
        (table, str(index["name"]), bool(index["unique"]), tuple(map(str, index["column_names"])))
        for table in metadata.tables
        for index in seen.get_indexes(table)
    }
    engine.dispose()
    return found


def test_down_and_up_again(store: Store, store_url: str) -> None:
    def tables(connection: Connection) -> list[str]:
        return sorted(set(inspect(connection).get_table_names()) - {"sqlite_sequence"})

    database = connect(store_url)
    full = database.read(tables)
    assert full == sorted([*metadata.tables, "alembic_version"])
    database.write(lambda connection: command.downgrade(migrate.configuration(connection), "base"))
    assert database.read(tables) == ["alembic_version"]
    assert store.schema_version() is None
    store.migrate()
    assert database.read(tables) == full
    assert store.runs.register(a_run(), "", "", "hook", NOW).created
    database.close()


def test_readings_go_down_to_what_the_version_before_reads(store: Store, store_url: str) -> None:
    ledger = Ledger()
    for number in (1, 2, 3):
        ledger.begin(replace(a_run(), number=number, created=NOW), "group")
        ledger.read(number, NOW + 10, PortReading(5, 500, 7, 700), port_age=10.0)
    ledger.report(2, NOW + 20, WorkerCounts(PortReading(9, 900, 8, 800), wan=(1, 2, 3, 4)), final=True)
    entries = ledger.entries([1, 2, 3])
    earlier = as_json(entries[2].readings)
    store.usage.write([*entries[:2], entries[2]._replace(readings=earlier)])
    database = connect(store_url)
    database.write(lambda connection: command.downgrade(migrate.configuration(connection), "0020_kept_switches"))
    stored = [each.readings for each in store.usage.unended()]
    assert stored == [as_json(entries[0].readings), as_json(entries[1].readings), earlier]
    store.migrate()
    assert [each.readings for each in store.usage.unended()] == stored
    database.close()


def test_of_older_reservations_those_without_an_address_go_to_a_host(store: Store, store_url: str) -> None:
    named, address = (ip_network("10.0.0.5/32"),), (ip_network("192.0.2.7/32"),)
    ends = (("files", ()), ("files", named), ("wan", ()), ("wan", address))
    for to, target in ends:
        booking = Booking(ReservationKind.FLOW, 5, "worker1", to, (), target=target)
        store.reservations.admit(booking, NOW, "ops")
    database = connect(store_url)
    database.write(lambda connection: command.downgrade(migrate.configuration(connection), "0022_known_tables"))
    store.migrate()
    assert [each.to_host for each in store.reservations.flows(NOW)] == [True, False, False, False]
    database.close()


def test_the_alembic_command_uses_the_database_of_the_environment(empty_url: str) -> None:
    def alembic(*arguments: str, url: str = empty_url) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "alembic", "-c", ROOT / "alembic.ini", *arguments],
            env={"LARK_DATABASE_URL": url},
            capture_output=True,
            text=True,
            check=False,
        )

    assert alembic("upgrade", "head").returncode == 0
    assert alembic("check").returncode == 0
    assert "Set LARK_DATABASE_URL" in alembic("current", url="").stderr
    store = Store.open(empty_url)
    assert store.schema_version() == Store.newest_schema()
    store.close()


def test_addresses_and_slots_are_found_by_index(store: Store, store_url: str) -> None:
    for number in range(200):
        store.runs.register(a_run(number), "", "", "hook", NOW)
    database = connect(store_url)
    prefix = "EXPLAIN QUERY PLAN" if database.is_sqlite else "EXPLAIN"

    def plan(connection: Connection, where: str) -> str:
        connection.execute(text("ANALYZE runs"))
        if not database.is_sqlite:
            connection.execute(text("SET LOCAL enable_seqscan = off"))
        return str(connection.execute(text(f"{prefix} SELECT owner FROM runs WHERE {where}")).all())

    for where, index in (
        (f"{HOLDS_ADDRESS} AND ipv4 = '10.64.0.1'", "runs_ipv4_held"),
        (f"{HOLDS_ADDRESS} AND ipv6 = '2001:db8:64::1'", "runs_ipv6_held"),
        (f"{LIVE} AND slot = 'slot1_1@worker0'", "runs_slot_live"),
        ("id = '0123456789abcdef'", "runs_id"),
        ("id >= '0123' AND id < '0123g' ORDER BY id", "runs_id"),
        (f"{LIVE} AND cluster = 7 AND proc = 0 ORDER BY number DESC", "runs_cluster_proc_live"),
        ("cluster = 7 AND proc = 0 ORDER BY number DESC", "runs_cluster_proc"),
        ("global_job_id = 'schedd.example#7.0#1000' ORDER BY number DESC", "runs_global_job_id"),
        ("host > 'worker1' ORDER BY host LIMIT 1", "runs_host"),
    ):
        assert index in database.write(partial(plan, where=where))
    database.close()


def test_sqlite_is_set_as_documented(tmp_path: Path) -> None:
    def pragma(connection: Connection, name: str) -> object:
        return connection.execute(text(f"PRAGMA {name}")).scalar()

    database = connect(f"sqlite:///{tmp_path}/lark.db")
    for name, value in (("journal_mode", "wal"), ("synchronous", 1), ("foreign_keys", 1), ("busy_timeout", 10_000)):
        assert database.read(partial(pragma, name=name)) == value, name
    database.close()


def test_what_was_registered_survives_kill_9(store: Store, store_url: str) -> None:
    program = (
        "import os, signal, sys\n"
        "from lark_controller.store import Store\n"
        "from tests.fixtures.databases import NOW, a_run\n"
        "store = Store.open(sys.argv[1])\n"
        "for number in range(50):\n"
        "    store.runs.register(a_run(number), 'job ad', 'machine ad', 'hook', NOW)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program, store_url], cwd=ROOT, check=False)
    assert ran.returncode == -9
    assert [job.id for job in store.runs.live()] == [a_run(number).id for number in range(50)]


@pytest.mark.postgres
def test_a_restarted_postgresql_is_found_again(postgres_server: PostgresServer) -> None:
    url = postgres_server.new_database("lark_template")
    store = Store.open(url)
    job = store.runs.register(a_run(1), "", "", "hook", NOW).job
    postgres_server.stop()
    try:
        with pytest.raises(StoreError, match="Start the server"):
            store.runs.register(a_run(2), "", "", "hook", NOW)
        with pytest.raises(StoreError, match="Start the server"):
            store.ping()
    finally:
        postgres_server.start()
    assert store.runs.register(a_run(2), "", "", "hook", NOW).created
    assert store.runs.find(job.id) == job
    store.close()
    postgres_server.drop_database(url)


@pytest.mark.postgres
def test_a_connection_cut_inside_a_transaction_is_tried_once_more(postgres_server: PostgresServer) -> None:
    url = postgres_server.new_database("lark_template")
    database = connect(url)
    other = create_engine(postgres_server.url("postgres").replace("postgresql", "postgresql+psycopg", 1))
    calls: list[int] = []

    def work(connection: Connection) -> int:
        process = int(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())
        calls.append(process)
        if len(calls) <= cuts:
            with other.connect() as cutting:
                cutting.execute(text("SELECT pg_terminate_backend(:process, 5000)"), {"process": process})
        return int(connection.execute(text("SELECT 1")).scalar_one())

    cuts = 1
    assert database.write(work) == 1
    assert len(set(calls)) == 2
    calls.clear()
    cuts = 1
    assert database.read(work) == 1
    calls.clear()
    cuts = 2
    with pytest.raises(StoreError, match="terminating connection"):
        database.write(work)
    database.close()
    other.dispose()
    postgres_server.drop_database(url)


def test_a_database_held_by_another_process_is_a_store_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lark_controller.store.database._SQLITE_WAIT_MS", 50)
    store = Store.open(f"sqlite:///{tmp_path}/lark.db")
    store.migrate()
    holder = sqlite3.connect(tmp_path / "lark.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked"):
        store.runs.register(a_run(), "", "", "hook", NOW)
    assert list(store.runs.live()) == []
    holder.execute("ROLLBACK")
    assert store.runs.register(a_run(), "", "", "hook", NOW).created
    holder.close()
    store.close()


def test_the_documentation_names_every_table_and_column() -> None:
    written = (ROOT / "docs/reference/database.md").read_text()
    for table in metadata.tables.values():
        section = written.split(f"### `{table.name}`")[1].split("\n#")[0]
        missing = [column.name for column in table.columns if f"`{column.name}`" not in section]
        assert missing == [], table.name


def test_an_sqlite_file_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = Store.open(f"sqlite:///{tmp_path}/lark.db")
        store.migrate()
        files = list(tmp_path.glob("lark.db*"))
        store.close()
    finally:
        os.umask(before)
    assert len(files) > 1
    assert {file.stat().st_mode & 0o777 for file in files if file.exists()} <= {0o600}

"""Two controllers on one PostgreSQL that takes no writes, that is slow, and whose disk is full.

None of it is a reason for a takeover, posts get a clear answer, and what was answered stands.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from lab.postgres import PostgresServer
from lark_controller.cli.run import HANDED_OVER
from tests.cluster.test_processes import ADS, pair, took_over, until
from tests.store.test_lost_answers import Relay

pytestmark = pytest.mark.postgres

# Longer than one that gives no sign of life is waited for.
SLOW_SECONDS = 8


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own, which it may spoil."""
    with tempfile.TemporaryDirectory(prefix="lark-faults-", dir="/tmp") as directory:
        own = PostgresServer(Path(directory))
        own.create()
        own.start()
        yield own
        own.stop()


def test_a_database_that_takes_no_writes_ends_no_term(server: PostgresServer, tmp_path: Path) -> None:
    with pair(server.new_database(), tmp_path) as (a, b):
        posted = {a.post(1)}
        server.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        server.execute("SELECT pg_reload_conf()")
        until(lambda: all("cannot be looked at" in each.log.read_text() for each in (a, b)))
        for each in (a, b):
            status, body = each.ask("/v1/jobs", "POST", ADS.format(number=2))
            assert (status, body["type"]) == (503, "urn:lark:problem:store")
        # What was there can be read.
        assert a.live() == posted
        server.execute("ALTER SYSTEM RESET default_transaction_read_only")
        server.execute("SELECT pg_reload_conf()")
        until(lambda: a.is_active() and b.ask("/v1/overview")[0] == 200)
        posted |= {a.post(2), b.post(3)}
        assert a.live() == b.live() == posted
        assert len(took_over(a)) == 1
        assert b.stands_by()


def test_a_database_that_stands_still_for_longer_than_signs_of_life_ends_no_term(
    server: PostgresServer, tmp_path: Path
) -> None:
    url = server.new_database()
    with pair(url, tmp_path) as (a, b):
        posted = {a.post(1)}
        with ThreadPoolExecutor(2) as hooks, psycopg.connect(url) as holder:
            holder.execute("LOCK TABLE runs, instances IN ACCESS EXCLUSIVE MODE")
            asked = [
                hooks.submit(each.ask, "/v1/jobs", "POST", ADS.format(number=number))
                for number, each in enumerate((a, b), 2)
            ]
            holder.execute(f"SELECT pg_sleep({SLOW_SECONDS})")
            holder.rollback()
            answers = [each.result() for each in asked]
        assert {status for status, _ in answers} <= {201, 503}
        posted |= {body["id"] for status, body in answers if status == 201}
        until(lambda: a.is_active() and b.ask("/v1/overview")[0] == 200)
        # Asked again, each is the job that it was, or is one now.
        posted |= {a.post(2), b.post(3)}
        assert a.live() == b.live() == posted
        assert len(posted) == 3
        assert len(took_over(a)) == 1
        assert b.stands_by()


def test_one_that_alone_has_lost_the_database_is_followed_and_ends_once_it_is_back(
    server: PostgresServer, tmp_path: Path
) -> None:
    url, place = server.new_database(), server.directory / ".s.PGSQL.5432"
    way = Relay(place)
    name = url.partition("?")[0].rpartition("/")[2]
    with pair(url, tmp_path, f"postgresql://lark@127.0.0.1:{way.port}/{name}") as (a, b):
        posted = {a.post(1), b.post(2)}
        way.close()
        until(b.is_active)
        posted.add(b.post(3))
        status, body = a.ask("/v1/jobs", "POST", ADS.format(number=4))
        assert (status, body["type"]) == (503, "urn:lark:problem:store")
        # It has found nothing of the takeover, and so is there.
        assert a.process is not None
        assert a.process.poll() is None
        way = Relay(place, way.port)
        assert a.process.wait(120) == HANDED_OVER
        assert b.live() == posted
    way.close()


def test_a_database_whose_disk_is_full_promises_nothing_and_loses_nothing(
    server: PostgresServer, tmp_path: Path
) -> None:
    disk = server.directory / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "none", disk], check=True)
    try:
        os.chown(disk, *_owner(server.directory / "data"))
        server.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
        server.execute("CREATE DATABASE small TABLESPACE small")
        with pair(server.url("small"), tmp_path) as (a, b):
            posted = {a.post(1)}
            filler = disk / "filler"
            # Until no block is left.
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 16))
            refused = []
            for number in range(2, 250):
                status, body = (a, b)[number % 2].ask("/v1/jobs", "POST", ADS.format(number=number))
                if status == 201:
                    posted.add(body["id"])
                    continue
                assert status == 503, body
                refused.append(number)
                if len(refused) == 2:
                    break
            assert len(refused) == 2
            filler.unlink()
            until(lambda: a.is_active() and b.ask("/v1/overview")[0] == 200)
            # Nothing of what was refused is there, and all that was not.
            assert a.live() == posted
            posted |= {a.post(number) for number in refused}
            assert b.live() == posted
    finally:
        server.stop()
        subprocess.run(["umount", disk], check=True)


def _owner(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_uid, found.st_gid

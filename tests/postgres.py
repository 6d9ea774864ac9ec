"""A real PostgreSQL server for the tests, private to them, and stores on both databases.

The server listens on a Unix socket in a directory of its own and stops with the tests, also when they are killed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.postgres import PostgresServer
from lark_controller.store import Store

_TEMPLATE = "lark_template"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A running server, whose database ``lark_template`` has the tables of Lark."""
    # Not below pytest's temporary directory, which the server's user may not enter; and socket paths must be short.
    directory = Path(tempfile.mkdtemp(prefix="lark-postgres-", dir="/tmp"))
    server = PostgresServer(directory)
    try:
        server.create()
        server.start()
        template = Store.open(server.new_database(name=_TEMPLATE))
        template.migrate()
        template.close()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_url(postgres_server: PostgresServer) -> str:
    """The URL of an empty database, one for the whole session."""
    return postgres_server.new_database()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables, of each kind in turn."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/lark.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.new_database()
    yield url
    server.drop_database(url)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database with the tables of Lark and no rows, of each kind in turn."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/lark.db"
        made = Store.open(url)
        made.migrate()
        made.close()
        yield url
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.new_database(_TEMPLATE)
    yield url
    server.drop_database(url)


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """An open store with tables and no rows, on SQLite and on PostgreSQL."""
    opened = Store.open(store_url)
    yield opened
    opened.close()

"""A real PostgreSQL server for the tests, private to them, and stores on both databases.

The server listens on a Unix socket in a directory of its own and stops with the tests, also when they are killed.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from lark_controller.store import Store

_START_SECONDS = 60
_TEMPLATE = "lark_template"


class PostgresServer:
    """A PostgreSQL server with one data directory, that can be stopped and started."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)

    def create(self) -> None:
        """Make the data directory."""
        subprocess.run(
            [*_as_user(), _binary("initdb"), "--no-sync", "--auth=trust", "--username=lark", "--encoding=UTF8",
             "--locale=C", "-D", self.directory / "data"],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self.directory,
        )  # fmt: skip

    def start(self) -> None:
        """Start, and return when connections are taken."""
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_as_user(), _binary("postgres"), "-D", self.directory / "data", "-k", self.directory,
                 "-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=100"],
                stdout=log,
                stderr=log,
                cwd=self.directory,
            )  # fmt: skip
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"PostgreSQL did not start:\n{(self.directory / 'log').read_text()}")
                time.sleep(0.05)

    def stop(self) -> None:
        """Stop; connections are cut."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def url(self, database: str) -> str:
        """The URL of a database of this server."""
        return f"postgresql://lark@/{database}?host={self.directory}"

    def new_database(self, template: str = "template1", name: str | None = None) -> str:
        """Make a database of its own for a test; returns its URL."""
        name = name or f"test_{next(self._numbers)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Remove a database made by :meth:`new_database`."""
        name = url.split("?", maxsplit=1)[0].rsplit("/", 1)[1]
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _binary(name: str) -> str:
    found = shutil.which(name)
    if found is not None:
        return found
    installed = sorted(
        Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parent.parent.name.split(".")[0])
    )
    if not installed:
        pytest.fail(
            f"PostgreSQL's {name} is neither in PATH nor in /usr/lib/postgresql; `make setup` installs it.",
            pytrace=False,
        )
    return str(installed[-1])


def _as_user() -> list[str]:
    """PostgreSQL refuses to run as root. The server gets SIGINT (stop at once) when this process dies."""
    command = ["setpriv", "--pdeathsig", "INT"]
    if os.geteuid() == 0:
        user = pwd.getpwnam("postgres")
        command += ["--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups"]
    return command


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A running server, whose database ``lark_template`` has the tables of Lark."""
    # Not below pytest's temporary directory, which the server's user may not enter; and socket paths must be short.
    directory = Path(tempfile.mkdtemp(prefix="lark-postgres-", dir="/tmp"))
    server = PostgresServer(directory)
    try:
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(directory, user.pw_uid, user.pw_gid)
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

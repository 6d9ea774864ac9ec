"""A private PostgreSQL server: a data directory and a Unix socket of its own, gone with the process that started it."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psycopg

from lab.run import LabError

START_SECONDS = 60


class PostgresServer:
    """A PostgreSQL server with one data directory, that can be stopped and started.

    As root it runs as the user postgres, who must be able to enter the directory. Paths of sockets must be short.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)

    def create(self) -> None:
        """Make the data directory."""
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self.directory, user.pw_uid, user.pw_gid)
        subprocess.run(
            [*_as_user(), binary("initdb"), "--no-sync", "--auth=trust", "--username=lark", "--encoding=UTF8",
             "--locale=C", "-D", self.directory / "data"],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self.directory,
        )  # fmt: skip

    def copy(self, primary: PostgresServer) -> None:
        """Make the data directory of a standby, which follows a primary by streaming replication once it is started."""
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self.directory, user.pw_uid, user.pw_gid)
        subprocess.run(
            [*_as_user(), binary("pg_basebackup"), "--no-sync", "--checkpoint=fast", "--write-recovery-conf",
             "-d", f"user=lark host={primary.directory}", "-D", self.directory / "data"],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self.directory,
        )  # fmt: skip

    def promote(self) -> None:
        """Make a standby a primary; returns when it takes writes."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute("SELECT pg_promote(true, 60)")

    def kill(self) -> None:
        """End it as a machine's crash does: nothing is written any more, and clients get no message."""
        if self._process is not None:
            # Its children notice that it has gone, and end.
            self._process.kill()
            self._process.wait()
            self._process = None

    def execute(self, statement: str) -> None:
        """Execute a statement as the superuser, outside of any database of Lark."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())

    def start(self) -> None:
        """Start, and return when connections are taken. Raises LabError with the log where it does not start."""
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_as_user(), binary("postgres"), "-D", self.directory / "data", "-k", self.directory,
                 "-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=100"],
                stdout=log,
                stderr=log,
                cwd=self.directory,
            )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    log_text = (self.directory / "log").read_text()
                    raise LabError(f"PostgreSQL did not start:\n{log_text}") from None
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
        """Make a database; returns its URL."""
        name = name or f"test_{next(self._numbers)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Remove a database made by :meth:`new_database`."""
        name = url.split("?", maxsplit=1)[0].rsplit("/", 1)[1]
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def binary(name: str) -> str:
    """The path of one of PostgreSQL's programs. Raises LabError."""
    found = shutil.which(name)
    if found is not None:
        return found
    installed = sorted(
        Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parent.parent.name.split(".")[0])
    )
    if not installed:
        raise LabError(f"PostgreSQL's {name} is neither in PATH nor in /usr/lib/postgresql; `make setup` installs it.")
    return str(installed[-1])


def _as_user() -> list[str]:
    """PostgreSQL refuses to run as root. The server gets SIGINT (stop at once) when this process dies."""
    command = ["setpriv", "--pdeathsig", "INT"]
    if os.geteuid() == 0:
        user = pwd.getpwnam("postgres")
        command += ["--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups"]
    return command

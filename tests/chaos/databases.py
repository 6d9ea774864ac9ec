"""The two kinds of database, and how each is taken away."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import tempfile
import threading
from pathlib import Path
from typing import Final

import psycopg

from lab.postgres import PostgresServer

_MIB: Final = 1 << 20
_FILLER: Final = "filler"


class Sqlite:
    """An SQLite database, where root runs this on a small disk of its own; that goes with the namespace."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.url = f"sqlite:///{directory}/lark.db"
        self._held: sqlite3.Connection | None = None

    def lock(self) -> None:
        """Write to it, and do not commit."""
        held = sqlite3.connect(self._directory / "lark.db", 1.0, isolation_level=None, check_same_thread=False)
        self._held = held
        with contextlib.suppress(sqlite3.OperationalError):
            held.execute("BEGIN IMMEDIATE")

    def unlock(self) -> None:
        """Let others write again."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def fill(self) -> None:
        """Take all room of its disk."""
        size = _MIB
        with (self._directory / _FILLER).open("wb", buffering=0) as file:
            while size >= 512:
                try:
                    file.write(b"\0" * size)
                except OSError:
                    size //= 2

    def make_room(self) -> None:
        """Give the room back."""
        (self._directory / _FILLER).unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is left behind."""
        self.unlock()


class Postgres:
    """A PostgreSQL server of its own, on a Unix socket."""

    def __init__(self) -> None:
        # Its user must be able to enter the directory, and a socket's path must be short.
        self._directory = Path(tempfile.mkdtemp(prefix="lark-chaos-pg-", dir="/tmp"))
        self._server = PostgresServer(self._directory)
        self._one_at_a_time = threading.Lock()
        self._server.create()
        self._server.start()
        self.url = self._server.new_database()

    def stop(self) -> None:
        """Stop the server; sessions are ended."""
        with self._one_at_a_time:
            self._server.stop()

    def crash(self) -> None:
        """End the server without a word to anybody, as a machine does that loses its power."""
        with self._one_at_a_time, contextlib.suppress(FileNotFoundError):
            pid = int((self._directory / "data" / "postmaster.pid").read_text().split()[0])
            os.kill(pid, signal.SIGQUIT)
            self._server.stop()

    def start(self) -> None:
        """Start again, unless another fault's end has."""
        with self._one_at_a_time:
            if not (self._directory / "data" / "postmaster.pid").exists():
                self._server.start()

    def end_sessions(self) -> None:
        """End every session but this one."""
        with (
            contextlib.suppress(psycopg.OperationalError),
            psycopg.connect(self._server.url("postgres"), autocommit=True) as connection,
        ):
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lark'")

    def close(self) -> None:
        """Stop, and leave nothing behind."""
        self._server.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

"""Two PostgreSQL servers with streaming replication, of which one takes writes, and the other takes its place."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Final

import psycopg

from lab.postgres import PostgresServer

NAME: Final = "chaos"
# Seconds for which the server stands still, and then carries on, while it is slow.
STILL: Final = 0.8
BETWEEN: Final = 0.3
_OURS: Final = "FROM pg_stat_activity WHERE application_name = 'lark'"


class Replicated:
    """A primary, which acknowledges nothing that its standby does not have, and that standby; on Unix sockets."""

    def __init__(self) -> None:
        # Their user must be able to enter the directories, and a socket's path must be short.
        made = (Path(tempfile.mkdtemp(prefix="lark-chaos-pg-", dir="/tmp")) for _ in range(2))
        self._primary, self._standby = map(PostgresServer, made)
        self._primary.create()
        self._primary.start()
        self._primary.new_database(name=NAME)
        hosts = f"{self._primary.directory},{self._standby.directory}"
        self.url = f"postgresql://lark@/{NAME}?host={hosts}&target_session_attrs=read-write"
        self._follow()

    def stop(self) -> None:
        """Stop the primary; sessions are ended."""
        self._primary.stop()

    def start(self) -> None:
        """Start it again."""
        self._primary.start()

    def end_sessions(self) -> None:
        """End every session of a controller."""
        with contextlib.suppress(psycopg.OperationalError):
            self._primary.execute(f"SELECT pg_terminate_backend(pid) {_OURS}")

    def promote(self) -> None:
        """Have the primary crash, and the standby take its place; returns when that takes writes."""
        self._primary.kill()
        self._primary, self._standby = self._standby, self._primary
        self._primary.promote()
        self._acknowledge("''")

    def follow(self) -> None:
        """After a promotion: make the crashed server a standby of the other one."""
        self._standby.stop()
        shutil.rmtree(self._standby.directory / "data")
        self._follow()

    def slow(self, seconds: float) -> None:
        """Let every session of a controller stand still at the server again and again for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(psycopg.OperationalError):
                self._stand_still()
            time.sleep(BETWEEN)

    def close(self) -> None:
        """Stop both, and leave nothing behind."""
        for server in (self._primary, self._standby):
            server.stop()
            shutil.rmtree(server.directory, ignore_errors=True)

    def _stand_still(self) -> None:
        with psycopg.connect(self._primary.url("postgres"), autocommit=True) as connection:
            found = [int(row[0]) for row in connection.execute(f"SELECT pid {_OURS}".encode()).fetchall()]
        try:
            for pid in found:
                _send(pid, signal.SIGSTOP)
            time.sleep(STILL)
        finally:
            for pid in found:
                _send(pid, signal.SIGCONT)

    def _follow(self) -> None:
        self._standby.copy(self._primary)
        self._standby.start()
        self._acknowledge("'*'")

    def _acknowledge(self, standbys: str) -> None:
        """Have the primary acknowledge nothing that these standbys do not have."""
        self._primary.execute(f"ALTER SYSTEM SET synchronous_standby_names = {standbys}")
        self._primary.execute("SELECT pg_reload_conf()")


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)

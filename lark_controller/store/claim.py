"""The claim of a controller to a database: held for as long as its process lives, so that a second one notices."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import IO, Final

from sqlalchemy import Connection, Engine, func, select

from lark_common.errors import StoreError

# The key of the advisory lock that a controller holds on PostgreSQL while it runs: "runs" in ASCII.
_ADVISORY_KEY: Final = 0x72756E73
# Seconds that a controller which ends this moment is given, and between two looks.
_PATIENCE: Final = 1.0
_PAUSE: Final = 0.05


class ControllerClaim:
    """Held from its making to :meth:`release`, or to the end of the process, however that comes."""

    def __init__(self, held: IO[str] | Connection | None) -> None:
        self._held = held

    def release(self) -> None:
        """Let another controller have the database. May be called again."""
        held, self._held = self._held, None
        if isinstance(held, Connection):
            held.close()
        elif held is not None:
            # Not by closing alone: a child process that is just being started has the file open as well.
            fcntl.flock(held, fcntl.LOCK_UN)
            held.close()


def claim_file(database: Path) -> ControllerClaim:
    """Claim an SQLite database by a lock on a file beside it. Raises StoreError where a controller has it."""
    path = database.with_name(f"{database.name}.controller")
    file = path.open("a+", encoding="ascii")
    deadline = time.monotonic() + _PATIENCE
    while not _locked(file):
        if time.monotonic() < deadline:
            time.sleep(_PAUSE)
            continue
        file.seek(0)
        other = file.read(20).strip()
        file.close()
        process = f" (process {other})" if other else ""
        raise StoreError(
            f"SQLite database {database}: another controller uses it{process}. Stop that one, or give this one a "
            "database of its own (LARK_STATE_DIR, LARK_DATABASE_URL)."
        )
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return ControllerClaim(file)


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def claim_server(engine: Engine) -> ControllerClaim | None:
    """Claim a PostgreSQL database by an advisory lock of a session; None where another session has it."""
    connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    try:
        if connection.execute(select(func.pg_try_advisory_lock(_ADVISORY_KEY))).scalar_one():
            # Nothing else may be given the session, and at the end it goes with the lock.
            connection.detach()
            return ControllerClaim(connection)
    except BaseException:
        with contextlib.suppress(Exception):
            connection.close()
        raise
    connection.close()
    return None

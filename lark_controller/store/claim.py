"""The hold of a controller on a database: a lock that goes with its process, so that others notice its end at once.

On SQLite it keeps every other controller away. On PostgreSQL it only shows that the active instance lives: the
database is protected by the generation of the term (:mod:`.instances`).
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import IO, Final

from lark_common.errors import StoreError

# Seconds that a controller which ends this moment is given, and between two looks.
_PATIENCE: Final = 1.0
_PAUSE: Final = 0.05


class FileClaim:
    """Held from its making to :meth:`release`, or to the end of the process, however that comes."""

    def __init__(self, held: IO[str]) -> None:
        self._held: IO[str] | None = held

    def release(self) -> None:
        """Let another controller have the database. May be called again."""
        held, self._held = self._held, None
        if held is not None:
            # Not by closing alone: a child process that is just being started has the file open as well.
            fcntl.flock(held, fcntl.LOCK_UN)
            held.close()


def claim_file(database: Path) -> FileClaim:
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
    return FileClaim(file)


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

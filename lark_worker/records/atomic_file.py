"""Files that are replaced atomically: a reader sees the old one or the new one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a new file and rename it to ``path``. Raises OSError where the disk does not take it."""
    fresh = path.with_suffix(".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
        # The umask may be any.
        os.fchmod(file.fileno(), mode)
    fresh.rename(path)


def remove(path: Path) -> None:
    """Remove what stands in a file's place, a directory too; nothing happens where there is nothing."""
    try:
        path.unlink(missing_ok=True)
    except IsADirectoryError:
        shutil.rmtree(path)

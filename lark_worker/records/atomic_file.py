"""Files that are read while they are written: each is the old one or the new one, never half of it."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file beside ``path`` and put it in its place. Raises OSError where the disk does not take it."""
    fresh = path.with_suffix(".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
        # Whatever the umask says.
        os.fchmod(file.fileno(), mode)
    fresh.rename(path)

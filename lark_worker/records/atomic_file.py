"""Files that are replaced atomically: a reader sees the old one or the new one."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path


def write_atomically(path: Path | str, text: str, mode: int = 0o600) -> None:
    """Write a new file and rename it to ``path``. Raises OSError where the disk does not take it; no new file is left.

    A path of which jobs choose a part is a str: ``Path`` keeps each part for ever in Python 3.12.0 to 3.12.6.
    """
    fresh = f"{os.path.splitext(path)[0]}.new"  # noqa: PTH122  # see above
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            # The umask may be any.
            os.fchmod(file.fileno(), mode)
        os.rename(fresh, path)  # noqa: PTH104
    except OSError:
        with suppress(OSError):
            os.unlink(fresh)  # noqa: PTH108
        raise


def remove(path: Path) -> None:
    """Remove what stands in a file's place, a directory too; nothing happens where there is nothing."""
    try:
        path.unlink(missing_ok=True)
    except IsADirectoryError:
        shutil.rmtree(path)

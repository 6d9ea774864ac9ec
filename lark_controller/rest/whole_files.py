"""Files that are read and written whole: a reader sees the former content or the new one, never a part."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from lark_common.errors import SettingError


def read(path: Path) -> bytes | None:
    """The content of a file, None where there is none. Raises SettingError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingError(f"{path}: cannot be read: {error.strerror or error}") from None


def replace(path: Path, text: str) -> None:
    """Write the whole file beside the old one, with its owner and mode 0600, and put it in its place. Raises OSError.

    The directory is made where there is none.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    owner = path.stat() if path.exists() else None
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if owner and (owner.st_uid, owner.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            # The umask may be any: its owner must be able to read it.
            os.fchmod(file.fileno(), 0o600)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise

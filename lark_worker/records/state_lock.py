"""A lock on the state directory: two services would sweep each other's networks and take each other's socket."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from lark_common.errors import SettingError


class StateLock:
    """Locks the state directory, made where it is missing, for this process; the lock ends with the process.

    Raises SettingError where it cannot be used, or another service uses it.
    """

    def __init__(self, state_dir: Path) -> None:
        setting = f"LARK_WORKER_STATE_DIR={state_dir}"
        try:
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SettingError(f"{setting}: cannot be used: {error.strerror}") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise SettingError(f"{setting}: another worker service uses it") from None

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

"""Files that commands read, ``-`` for standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from lark_common.errors import SettingError


def read_text(path: Path) -> str:
    """The file's text. Raises SettingError."""
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")
    except OSError as error:
        raise SettingError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingError(f"{path}: byte {error.start} is not UTF-8") from None

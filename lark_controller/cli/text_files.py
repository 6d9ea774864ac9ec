"""Files that commands read, ``-`` for standard input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from lark_common.errors import SettingError

# Characters; more than any of these files may have. A controller closes the connection on which much more comes.
MOST: Final = 1 << 20


def read_text(path: Path) -> str:
    """The file's text. Raises SettingError."""
    try:
        if str(path) == "-":
            text = sys.stdin.read(MOST + 1)
        else:
            with path.open(encoding="utf-8") as file:
                text = file.read(MOST + 1)
    except OSError as error:
        raise SettingError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingError(f"{path}: byte {error.start} is not UTF-8") from None
    if len(text) > MOST:
        raise SettingError(f"{path}: is too large; at most {MOST} characters are read")
    return text

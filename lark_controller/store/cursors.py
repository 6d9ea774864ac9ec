"""The opaque cursors of pages: the number of the last row seen, so that a page costs the same however far it is."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Sequence
from typing import Any, Final

from lark_common.errors import NotFoundError

# Characters that no database takes as text: NUL, and halves of surrogate pairs.
_NO_TEXT: Final = re.compile("[\0\ud800-\udfff]")


def cursor_for(number: int) -> str:
    """The cursor of the page after the row ``number``."""
    return base64.urlsafe_b64encode(f"n{number}".encode("ascii")).decode("ascii").rstrip("=")


def number_in(cursor: str) -> int:
    """The number in a cursor. Raises NotFoundError for anything that :func:`cursor_for` did not make."""
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        text = ""
    digits = text[1:]
    if text[:1] != "n" or not digits.isascii() or not digits.isdigit() or cursor_for(int(digits[:19])) != cursor:
        raise NotFoundError("cursor: not a cursor of this list; take next_cursor of the page before.")
    return int(digits)


def cursor_of(*parts: float | str) -> str:
    """The cursor of the page after a row with a key of several parts."""
    return base64.urlsafe_b64encode(json.dumps(parts).encode("ascii")).decode("ascii").rstrip("=")


def parts_in(cursor: str, kinds: Sequence[type]) -> list[Any]:
    """The parts of a key, of these types. Raises NotFoundError for anything that :func:`cursor_of` did not make."""
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode("ascii")
        parts = json.loads(text)
    except (ValueError, RecursionError):
        parts = None
    if (
        not isinstance(parts, list)
        or len(parts) != len(kinds)
        or any(type(part) is not kind for part, kind in zip(parts, kinds, strict=True))
        or any(isinstance(part, (int, float)) and not -(2**63) <= part < 2**63 for part in parts)
        or any(isinstance(part, str) and _NO_TEXT.search(part) for part in parts)
    ):
        raise NotFoundError("cursor: not a cursor of this list; take next_cursor of the page before.")
    return parts

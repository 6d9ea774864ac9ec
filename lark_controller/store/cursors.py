"""The opaque cursors of pages: the number of the last row seen, so that a page costs the same however far it is."""

from __future__ import annotations

import base64
import binascii

from lark_controller.errors import NotFoundError


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

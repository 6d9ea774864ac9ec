"""The waits that callers at the socket ask for, as the query of a request has them."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qs

from lark_common.errors import AdError

# Seconds that a caller waits for a change.
LONGEST_WAIT: Final = 60.0
# Letters of a version.
MAX_VERSION: Final = 64
_MOST: Final = 600.0


def wait_in(query: str) -> float:
    """The seconds that a caller waits. Raises AdError."""
    try:
        wait = float(parse_qs(query).get("wait", ["0"])[-1])
    except ValueError:
        wait = -1.0
    if not 0 <= wait <= _MOST:
        raise AdError("", "wait: a number of seconds is accepted")
    return wait


def change_in(query: str) -> tuple[str, float]:
    """The version that a caller has, and how long it waits for another. Raises AdError."""
    after, wait = parse_qs(query).get("after", [""])[-1], wait_in(query)
    if not (len(after) <= MAX_VERSION and after.isascii() and after.isprintable() and wait <= LONGEST_WAIT):
        raise AdError("", f"after: the version of an answer, and wait: at most {LONGEST_WAIT:g} seconds, are accepted")
    return after, wait

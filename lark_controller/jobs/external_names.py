"""Names of external addresses in the DNS: which one a job gets, and how far it is. Pure.

A name is made by the form of a policy's rule, such as ``{name}.{owner}.jobs.example.org``: a user's own label, and the
user. No two names that are wanted at a time are the same.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NamedTuple

# Letters of a whole name (RFC 1035, section 3.1, as text without the last dot).
MAX_NAME: Final = 253
ACCEPTED: Final = "1 to 63 letters, digits and -, none of - at an end"
ACCEPTED_FORM: Final = "{name}, {owner} or not, and labels, with dots between, in a zone of external.zones"

_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NAME, _OWNER = "{name}", "{owner}"
# Seconds between two attempts: the first, and the longest.
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0


class NameState(StrEnum):
    """The state of a name: none, to be added to the zone, in it, kept out of it while the address is closed, to be
    removed from it, or removed."""

    NONE = "none"
    PENDING = "pending"
    REGISTERED = "registered"
    WITHHELD = "withheld"
    REMOVING = "removing"
    REMOVED = "removed"


# Those of a name that is its job's.
WANTED: Final = (NameState.PENDING, NameState.REGISTERED, NameState.WITHHELD)


class FullName(NamedTuple):
    """A whole name, the zone that it is in, and the seconds that others may keep it."""

    text: str
    zone: str
    ttl: int


class NameForm(NamedTuple):
    """The names that a rule gives: ``text`` with ``{name}`` and ``{owner}``, in a zone."""

    text: str
    zone: str
    ttl: int

    def full(self, name: str, owner: str) -> FullName:
        """The name of a job of ``owner`` that asks for the label ``name``. Raises ValueError."""
        # Folded, two users of which one is written with capitals would have the same names.
        if _OWNER in self.text and not _LABEL.fullmatch(owner):
            raise ValueError(f"{owner[:64]!r}, the owner, is no label of a name: small letters, digits and - make one")
        whole = self.text.replace(_NAME, label(name)).replace(_OWNER, owner)
        if len(whole) > MAX_NAME:
            raise ValueError(f"a name of {len(whole)} letters; at most {MAX_NAME} are accepted")
        return FullName(whole, self.zone, self.ttl)


def label(text: str) -> str:
    """A label out of a word; capitals are small letters. Raises ValueError."""
    # Not lower(): a few letters beyond ASCII become ASCII by it.
    found = text.strip()
    if not found.isascii() or not _LABEL.fullmatch(found.lower()):
        raise ValueError(f"{text[:64]!r} is no label of a name; accepted: {ACCEPTED}")
    return found.lower()


def zone(text: str) -> str:
    """A zone out of its word, without a dot at its end. Raises ValueError."""
    found = text.lower().removesuffix(".")
    if len(found) > MAX_NAME or not all(_LABEL.fullmatch(part) for part in found.split(".")):
        raise ValueError(f"{text[:64]!r} is no name of a zone; accepted: labels with dots between, as jobs.example.org")
    return found


def form(text: str, zones: dict[str, int]) -> NameForm:
    """A form out of its word; it is in the longest of ``zones`` that it ends with. Raises ValueError."""
    whole = text.lower().removesuffix(".")
    parts = whole.split(".")
    words = [part for part in parts if part in (_NAME, _OWNER)]
    fixed = [part for part in parts if part not in (_NAME, _OWNER)]
    once = parts[0] == _NAME and words.count(_NAME) == 1 and words.count(_OWNER) <= 1
    if not once or not all(_LABEL.fullmatch(part) for part in fixed):
        raise ValueError(f"{text[:64]!r} is no form of names; accepted: {ACCEPTED_FORM}")
    inside = [each for each in zones if whole.endswith(f".{each}")]
    if not inside or len(whole) > MAX_NAME:
        listed = ", ".join(sorted(zones)[:8]) or "none"
        raise ValueError(f"{text[:64]!r} is in no zone of external.zones ({listed}); accepted: {ACCEPTED_FORM}")
    chosen = max(inside, key=len)
    return NameForm(whole, chosen, zones[chosen])


def pause_after(attempts: int) -> float:
    """Seconds to the next attempt after so many that have failed."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(attempts, 16))

"""The output of ``lark instances``: the controllers on one database as a table."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from lark_controller.cli import printing

Answer = Mapping[str, Any]


def show(found: Answer) -> None:
    """A table of the controllers on one database, and the last takeover."""
    rows = [
        (
            each["name"],
            each["url"],
            each["version"],
            each["state"],
            found["since"] if each["id"] == found["active"] else each["started"],
            found["generation"] if each["id"] == found["active"] else "",
            f"{each['beat_age']:.1f}",
            _copy(each),
            _count(each, "kept"),
            _count(each, "counters_read"),
        )
        for each in found["instances"]
    ]
    printing.table(
        ("NAME", "URL", "VERSION", "STATE", "SINCE", "GENERATION", "BEAT", "COPY", "SWITCHES", "COUNTERS"), rows
    )
    if found.get("age"):
        words = f"this was read {found['age']:.0f} s ago, and whoever is active may be another by now."
        print(f"The database does not answer: {words}", file=sys.stderr)
    if apart := _different_tokens(found):
        words = "differ: a token may be refused after a takeover. Copy the file to each."
        print(f"The tokens files (LARK_TOKENS_FILE) of {' and '.join(apart)} {words}", file=sys.stderr)
    if older := [each["name"] for each in found["instances"] if each.get("successor") is False]:
        words = "take over: the database's tables are of a later release. Install that there."
        print(f"{' and '.join(older)} cannot {words}", file=sys.stderr)
    if found["since"]:
        print(f"last takeover: {found['since']}, {found['why']}, generation {found['generation']}")


def _copy(instance: Answer) -> str:
    """The seconds since the copy of one that stands by was right; others need none."""
    if instance["state"] != "standby":
        return ""
    age = instance.get("copy_age")
    return "none" if age is None else f"{age:.1f}"


def _count(instance: Answer, name: str) -> str:
    """A number of switches that is known of one that stands by: connected to it, or read in the last minute."""
    count = instance.get(name)
    return "" if count is None else str(count)


def _different_tokens(found: Answer) -> list[str]:
    """The names of the instances that run, where their own files have different tokens."""
    known = [each for each in found["instances"] if each.get("tokens") and each["state"] not in ("stopped", "lost")]
    return [each["name"] for each in known] if len({each["tokens"] for each in known}) > 1 else []

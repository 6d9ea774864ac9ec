"""The description of one setting, shared by the settings of controller and worker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class About:
    """What a setting means and accepts: unit, bounds (inclusive), the words of a choice.

    ``unix`` says whether a Unix socket may be given for an address.
    """

    meaning: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    unix: bool = False


def default_text(value: object) -> str:
    """A setting's value as it would be written in the environment."""
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ",".join(str(part) for part in value)
    return f"{value:g}" if isinstance(value, float) else str(value)

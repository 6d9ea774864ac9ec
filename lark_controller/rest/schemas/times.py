"""Times in JSON: ISO 8601 in UTC outside, seconds since 1970 inside."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from marshmallow import ValidationError, fields


def iso(seconds: float) -> str:
    """Seconds since 1970 as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat("T", "milliseconds")[: -len("+00:00")] + "Z"


class Time(fields.String):
    """Seconds since 1970, written as ISO 8601 in UTC."""

    def __init__(self, meaning: str, **options: Any) -> None:
        super().__init__(required=True, metadata={"description": meaning, "format": "date-time"}, **options)

    def _serialize(self, value: Any, attr: str | None, obj: Any, **kwargs: Any) -> str | None:
        return None if value is None else iso(value)


class Moment(fields.String):
    """A time in a query: ISO 8601 (UTC where it names no zone), or seconds since 1970."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        text = str(super()._deserialize(value, attr, data, **kwargs))
        try:
            if text.removeprefix("-").replace(".", "", 1).isdigit() and text.isascii() and len(text) != len("20260101"):
                seconds = float(text)
            else:
                moment = datetime.fromisoformat(text)
                seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            seconds = -1.0
        if not 0 <= seconds <= LATEST:
            raise ValidationError("a time is accepted as ISO 8601 (2026-01-31T12:00:00Z) or in seconds since 1970")
        return seconds


# 9999-01-01; the calendar of Python ends that year.
LATEST = 253_370_764_800.0

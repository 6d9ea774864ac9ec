"""Structured logging on the standard library: one event a line, as ``key=value`` text or JSON.

``event("job registered", job=job.id, datapath=dpid)`` is the whole interface; :func:`failure` is for exceptions that
were not expected, whose traceback is shown at level debug alone.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, TextIO

_LOGGER: Final = logging.getLogger("lark")
_FIELDS: Final = "lark_fields"
# What may stand unquoted as a value; everything else is a JSON string, so a value can neither end the line nor its key.
_PLAIN: Final = re.compile(r"[\w.:/@+,%<>\-\[\]]+", re.ASCII)

DEBUG: Final = logging.DEBUG
INFO: Final = logging.INFO
WARNING: Final = logging.WARNING
ERROR: Final = logging.ERROR


def event(message: str, /, *, level: int = INFO, **fields: object) -> None:
    """Log one event; ``fields`` with value None are left out."""
    if _LOGGER.isEnabledFor(level):
        _LOGGER.log(level, "%s", message, extra={_FIELDS: _present(fields)})


def failure(message: str, error: BaseException, /, **fields: object) -> None:
    """Log an unexpected exception as an error; its traceback only where debug events are logged."""
    shown = error if _LOGGER.isEnabledFor(DEBUG) else None
    described = f"{type(error).__name__}: {error}"
    _LOGGER.error("%s", message, exc_info=shown, extra={_FIELDS: _present({**fields, "error": described})})


def configure(level: str = "info", fmt: str = "text", stream: TextIO | None = None) -> None:
    """Send events (and what libraries log) to ``stream`` (standard error), replacing what was configured before.

    ``level`` is debug, info, warning or error; ``fmt`` is text or json. Libraries are logged from warning on.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if fmt == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    number = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(max(number, WARNING))
    _LOGGER.setLevel(number)


class TextFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.000Z info job registered job=… datapath=…``."""

    def format(self, record: logging.LogRecord) -> str:
        """One line an event; a traceback, where there is one, follows on lines of its own."""
        words = [_time(record), record.levelname.lower(), _one_line(record.getMessage())]
        words += [f"{key}={_value(value)}" for key, value in _fields(record).items()]
        if record.exc_info:
            words.append("\n" + self.formatException(record.exc_info))
        return " ".join(words)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, event, and the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line an event; a traceback is the member ``traceback``."""
        entry: dict[str, object] = {
            **_fields(record),
            "time": _time(record),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str, ensure_ascii=False)


def _present(fields: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in fields.items() if value is not None}


def _fields(record: logging.LogRecord) -> dict[str, object]:
    own = getattr(record, _FIELDS, None)
    return own if isinstance(own, dict) else {"logger": record.name}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _one_line(text: str) -> str:
    return text if text.isprintable() else json.dumps(text, ensure_ascii=False)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)

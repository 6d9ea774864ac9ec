"""Structured logging on the standard library: one event a line, as ``key=value`` text or JSON.

``event("job registered", job=job.id, datapath=dpid)`` is the whole interface; :func:`failure` is for exceptions that
were not expected, whose traceback is shown at level debug alone.
"""

from __future__ import annotations

import json
import logging
import queue
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Final, TextIO

# Not "lark": a parser library of that name silences its logger of the same name where it is imported.
LOGGER: Final = "lark_common"
_LOGGER: Final = logging.getLogger(LOGGER)
_FIELDS: Final = "lark_fields"
# An unquoted value; everything else is a JSON string, so a value can neither end the line nor its key.
_PLAIN: Final = re.compile(r"[\w.:/@+,%<>\-\[\]]+", re.ASCII)
# Characters beyond ASCII, and DEL: json.dumps has escaped every other control character.
_UNPRINTABLE: Final = re.compile(r"[^ -~]")

# Lines that wait for a reader of the log that is slow.
WAITING_LINES: Final = 10_000
# Lines that are written at once.
AT_ONCE: Final = 256
# Seconds between two writes. The first line after a pause is written at once. Where there are hundreds a second, waking
# the thread that writes for each takes the interpreter from whoever logs.
PAUSE: Final = 0.02
# Seconds that the last lines may take at the end.
STOP_SECONDS: Final = 2.0

DEBUG: Final = logging.DEBUG
INFO: Final = logging.INFO
WARNING: Final = logging.WARNING
ERROR: Final = logging.ERROR


def event(message: str, /, *, level: int = INFO, **fields: object) -> None:
    """Log one event; ``fields`` with value None are left out."""
    if _LOGGER.isEnabledFor(level):
        # A record of the logger's own making has the line of code of its caller, for which it goes through the stack.
        record = logging.LogRecord(LOGGER, level, "", 0, "%s", (message,), None)
        setattr(record, _FIELDS, _present(fields))
        _LOGGER.handle(record)


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


@contextmanager
def in_background(most: int = WAITING_LINES) -> Iterator[None]:
    """Write what is logged on a thread of its own, so that no caller waits for the log's reader.

    Lines beyond ``most`` that wait are lost, and their number is logged. At the end what waits is written.
    """
    root = logging.getLogger()
    before = root.handlers[:]
    waiting = [_Waiting(each, most) for each in before if isinstance(each, logging.StreamHandler)]
    root.handlers[:] = waiting
    try:
        yield
    finally:
        root.handlers[:] = before
        for each in waiting:
            each.stop()


def flush() -> None:
    """Write what waits, as far as it is taken within :data:`STOP_SECONDS`; for a process that ends at once."""
    for handler in logging.getLogger().handlers:
        handler.flush()


class _Waiting(logging.Handler):
    """Lines for another thread to write to where ``target`` writes, formatted as they were when they were logged."""

    def __init__(self, target: logging.StreamHandler[TextIO], most: int) -> None:
        super().__init__()
        self.setFormatter(target.formatter)
        self._stream = target.stream
        self._lines: queue.Queue[str | None] = queue.Queue(most)
        self._lost = 0
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a line over; called under this handler's lock."""
        try:
            if self._lost:
                lost = logging.LogRecord(_LOGGER.name, WARNING, "", 0, "log lines lost", None, None)
                setattr(lost, _FIELDS, {"count": self._lost})
                self._lines.put_nowait(self.format(lost))
                self._lost = 0
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._lost += 1
        except Exception:  # as every handler of the standard library: logging ends nobody's work
            self.handleError(record)

    def flush(self) -> None:
        """Wait until what waits is written, as far as it is taken in time."""
        deadline = time.monotonic() + STOP_SECONDS
        with self._lines.all_tasks_done:
            while self._lines.unfinished_tasks and (left := deadline - time.monotonic()) > 0:
                self._lines.all_tasks_done.wait(left)

    def stop(self) -> None:
        """Write what waits, as far as it is taken in time, and end the thread."""
        with suppress(queue.Full):
            self._lines.put(None, timeout=STOP_SECONDS)
        self._thread.join(STOP_SECONDS)

    def _write(self) -> None:
        ending = False
        while not ending:
            lines = [self._lines.get()]
            # Waiting lines are written at once: each write lets other threads in, and then has to wait for them.
            with suppress(queue.Empty):
                while lines[-1] is not None and len(lines) < AT_ONCE:
                    lines.append(self._lines.get_nowait())
            ending = lines[-1] is None
            text = "".join(f"{line}\n" for line in lines if line is not None)
            # An unexpected error must not stop this thread.
            with suppress(OSError, ValueError):
                self._stream.write(text)
                self._stream.flush()
            for _ in lines:
                self._lines.task_done()
            if not ending and len(lines) < AT_ONCE:
                time.sleep(PAUSE)


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
        return _json(entry)


def _present(fields: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in fields.items() if value is not None}


def _fields(record: logging.LogRecord) -> dict[str, object]:
    own = getattr(record, _FIELDS, None)
    return own if isinstance(own, dict) else {"logger": record.name}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _one_line(text: str) -> str:
    return text if text.isprintable() else _json(text)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    return text if _PLAIN.fullmatch(text) else _json(text)


def printable_json(text: str) -> str:
    """JSON on one line, printable throughout.

    More may stand in JSON as it is, but U+009B begins a command to a terminal, U+0085 and U+2028 end a line for some
    readers, and U+202E turns the text around.
    """
    return text if text.isprintable() else _UNPRINTABLE.sub(_escaped, text)


def _json(value: object) -> str:
    return printable_json(json.dumps(value, default=str, ensure_ascii=False))


def _escaped(found: re.Match[str]) -> str:
    letter = found[0]
    if letter.isprintable():
        return letter
    return f"\\u{ord(letter):04x}" if letter <= "\uffff" else json.dumps(letter)[1:-1]

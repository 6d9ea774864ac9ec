"""SQLite as the store uses it: one writer after the other, and many rows in one step.

The driver lets the interpreter's lock go for each step of a statement, and takes it again after it, which lasts up to
``sys.getswitchinterval()`` (5 ms) while another thread calculates. With a step a row 2,000 rows took 3 ms alone, and
1.3 s beside a thread that calculates; so long nobody else could write.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from threading import Lock
from typing import Any, Final

from sqlalchemy import Connection, Table
from sqlalchemy.exc import StatementError

# Rows and characters of one step at most; a row with more text is a step by itself. A statement has 32,766 values at
# most (SQLITE_MAX_VARIABLE_NUMBER).
PORTION: Final = 256
MOST_TEXT: Final = 1 << 18
_ROWS: Final = "{rows}"
_INSERT: Final = re.compile(r"(INSERT INTO [^?]* VALUES )(\(\?(?:, \?)*\))([^?]*)")

Row = Sequence[Any]


class Turns:
    """The turns of writers, in the order in which they came. A plain lock goes to whoever asks first once it is free,
    and a thread that writes one portion after the other asks before those that it wakes."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._taken = False
        self._waiting: deque[Lock] = deque()

    def __enter__(self) -> None:
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            turn = Lock()
            turn.acquire()
            self._waiting.append(turn)
        try:
            turn.acquire()
        except BaseException:
            # Ctrl-C at a command: the turn of one that is gone would be everybody's last.
            with self._lock:
                waits = turn in self._waiting
                if waits:
                    self._waiting.remove(turn)
            if not waits:
                self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False


def with_rows(connection: Connection, statement: str, rows: Sequence[Row], places: Sequence[int] | None = None) -> int:
    """Run an SQLite statement with ``{rows}`` in the place of its VALUES' rows; returns how many it changed. Text is in
    the columns ``places`` alone (None: not known). Raises StatementError for text with NUL."""
    changed = 0
    for part, texts in _portions(rows, places):
        values = tuple(chain.from_iterable(part))
        if "\0" in "".join(texts):
            # As PlainText has it; PostgreSQL cannot hold one.
            problem = "text with a NUL character (code 0) cannot be stored"
            raise StatementError(problem, statement, None, ValueError(problem))
        changed += connection.exec_driver_sql(_of_length(statement, len(part[0]), len(part)), values).rowcount
    return changed


def insert_rows(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], otherwise: str = "") -> None:
    """Insert rows that have the columns of the first; ``otherwise`` is the statement's ON CONFLICT. Raises
    StatementError for text with NUL, and KeyError for a row that lacks a column.

    SQLAlchemy takes as long to put the values of a run into their order as SQLite to write them.
    """
    if rows:
        columns = tuple(rows[0])
        statement = _insertion(table.name, columns, otherwise)
        with_rows(connection, statement, [tuple(map(row.__getitem__, columns)) for row in rows])


@lru_cache(maxsize=64)
def _insertion(table: str, columns: tuple[str, ...], otherwise: str) -> str:
    named = ", ".join(f'"{column}"' for column in columns)
    return f"INSERT INTO {table} ({named}) VALUES {_ROWS}{otherwise}"


def insert_many(cursor: Any, statement: str, parameters: Sequence[Row], _context: object) -> bool:
    """Insert the rows that SQLAlchemy would insert one after the other (its event ``do_executemany``); False for a
    statement that is no INSERT of values."""
    template = _template(statement)
    if template is None:
        return False
    for part, _ in _portions(parameters):
        cursor.execute(_of_length(template, len(part[0]), len(part)), tuple(chain.from_iterable(part)))
    return True


@lru_cache(maxsize=64)
def _template(statement: str) -> str | None:
    found = _INSERT.fullmatch(statement)
    return None if found is None or _ROWS in statement else f"{found[1]}{_ROWS}{found[3]}"


def _portions(rows: Sequence[Row], places: Sequence[int] | None = None) -> Iterator[tuple[Sequence[Row], list[str]]]:
    """The rows in portions of 256, 128, 64 and so on, each with its texts. The driver keeps the last 128 statements of
    each connection with the values that they had last: with a statement for each number of rows these were hundreds of
    megabytes of ads."""
    start = 0
    while start < len(rows):
        size = min(PORTION, 1 << (len(rows) - start).bit_length() - 1)
        texts = _texts(rows[start : start + size], places)
        while size > 1 and sum(map(len, texts)) > MOST_TEXT:
            size //= 2
            texts = _texts(rows[start : start + size], places)
        yield rows[start : start + size], texts
        start += size


def _texts(rows: Sequence[Row], places: Sequence[int] | None) -> list[str]:
    if places is not None:
        # Of a row of use a fifth is text, and to look at the numbers as well takes as long as to calculate one.
        return [row[place] for place in places for row in rows]
    return [value for value in chain.from_iterable(rows) if isinstance(value, str)]


@lru_cache(maxsize=256)
def _of_length(statement: str, columns: int, rows: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return statement.replace(_ROWS, ", ".join([row] * rows), 1)

"""Many rows into a table whose columns are sums: by COPY on PostgreSQL, by a few statements of many rows on SQLite.

A statement for each row costs several times as much as the change of the row; COPY into a temporary table and one
statement from there do not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import chain
from typing import Any, Final

from sqlalchemy import Connection, Integer, Table
from sqlalchemy.types import TypeEngine

from lark_controller.accounting.usage import MOST
from lark_controller.store import sqlite
from lark_controller.store.schema import PlainText

# Characters that COPY's text format escapes (PostgreSQL, COPY, "Text Format").
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_ESCAPED: Final = re.compile(r"[\\\t\n\r]")

Row = Sequence[int | float | str]


def add(
    connection: Connection,
    table: Table,
    rows: Sequence[Row],
    sums: Sequence[str],
    replaced: Sequence[str],
    *,
    same: str = "",
) -> int:
    """Insert rows, each with a value for every column in the table's order and none of them NULL; where the key is
    there, add the columns ``sums`` (up to MOST) and set the columns ``replaced``. No key may come twice. Returns how
    many rows were written: a row that is there with another value in the column ``same`` stays as it is."""
    if not rows:
        return 0
    if connection.dialect.name != "postgresql":
        statement = _statement(table, "VALUES {rows}", sums, replaced, same)
        return sqlite.with_rows(connection, statement, rows, _texts_of(table))
    given = f"new_{table.name}"
    connection.exec_driver_sql(
        f"CREATE TEMPORARY TABLE IF NOT EXISTS {given} (LIKE {table.name}) ON COMMIT DELETE ROWS"
    )
    _copy(connection, f"COPY {given} ({_names(table)}) FROM STDIN", rows, table)
    statement = _statement(table, f"SELECT {_names(table)} FROM {given}", sums, replaced, same)
    written = connection.exec_driver_sql(statement).rowcount
    # Another table's rows, or the same table's, may follow in the transaction.
    connection.exec_driver_sql(f"TRUNCATE {given}")
    return written


@cache
def _texts_of(table: Table) -> tuple[int, ...]:
    """The places of a table's columns that have text."""
    return tuple(place for place, column in enumerate(table.columns) if isinstance(column.type, PlainText))


def _names(table: Table) -> str:
    return ", ".join(column.name for column in table.columns)


@lru_cache(maxsize=16)
def _statement(table: Table, source: str, sums: Sequence[str], replaced: Sequence[str], same: str) -> str:
    key = ", ".join(column.name for column in table.primary_key)
    # A sum that a column cannot hold would keep all rows from being written.
    added = [
        f"{name} = CASE WHEN {table.name}.{name} > {MOST} - excluded.{name} THEN {MOST} "
        f"ELSE {table.name}.{name} + excluded.{name} END"
        for name in sums
    ]
    changes = ", ".join([*added, *(f"{name} = excluded.{name}" for name in replaced)])
    where = f" WHERE {table.name}.{same} = excluded.{same}" if same else ""
    # SQLite takes the ON of a bare SELECT for a join's; VALUES and PostgreSQL have no such doubt.
    return f"INSERT INTO {table.name} ({_names(table)}) {source} ON CONFLICT ({key}) DO UPDATE SET {changes}{where}"


def _copy(connection: Connection, statement: str, rows: Sequence[Row], table: Table) -> None:
    driver: Any = connection.connection.driver_connection
    places = _texts_of(table)
    if _ESCAPED.search("".join([str(row[place]) for place in places for row in rows])):
        rows = [[_escaped(value) if place in places else value for place, value in enumerate(row)] for row in rows]
    # All in one step of the interpreter: a call for each value takes as long as the server does.
    text = _line(table) * len(rows) % tuple(chain.from_iterable(rows))
    with driver.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(text)


@cache
def _line(table: Table) -> str:
    """A row of COPY's text format, for values in the table's order."""
    return "\t".join(_form(column.type) for column in table.columns) + "\n"


def _form(kind: TypeEngine[Any]) -> str:
    return "%s" if isinstance(kind, PlainText) else "%d" if isinstance(kind, Integer) else "%r"


def _escaped(value: object) -> str:
    return str(value).translate(_ESCAPES)

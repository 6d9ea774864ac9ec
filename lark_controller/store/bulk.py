"""Many rows into a table whose columns are sums: by COPY on PostgreSQL, by a few statements of many rows on SQLite.

A statement for each row costs several times as much as the change of the row; COPY into a temporary table and one
statement from there do not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Table

from lark_controller.accounting.usage import MOST
from lark_controller.store import sqlite

# Characters that COPY's text format escapes (PostgreSQL, COPY, "Text Format").
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})

Row = Sequence[int | float | str]


def add(
    connection: Connection, table: Table, rows: Sequence[Row], sums: Collection[str], replaced: Sequence[str]
) -> None:
    """Insert rows, each with a value for every column in the table's order and none of them NULL; where the key is
    there, add the columns ``sums`` (up to MOST) and set the columns ``replaced``. No key may come twice."""
    if not rows:
        return
    if connection.dialect.name != "postgresql":
        sqlite.with_rows(connection, _statement(table, "VALUES {rows}", sums, replaced), rows)
        return
    given = f"new_{table.name}"
    connection.exec_driver_sql(
        f"CREATE TEMPORARY TABLE IF NOT EXISTS {given} (LIKE {table.name}) ON COMMIT DELETE ROWS"
    )
    _copy(connection, f"COPY {given} ({_names(table)}) FROM STDIN", rows)
    connection.exec_driver_sql(_statement(table, f"SELECT {_names(table)} FROM {given}", sums, replaced))
    # Another table's rows, or the same table's, may follow in the transaction.
    connection.exec_driver_sql(f"TRUNCATE {given}")


def _names(table: Table) -> str:
    return ", ".join(column.name for column in table.columns)


def _statement(table: Table, source: str, sums: Collection[str], replaced: Sequence[str]) -> str:
    key = ", ".join(column.name for column in table.primary_key)
    # A sum that a column cannot hold would keep all rows from being written.
    added = [
        f"{name} = CASE WHEN {table.name}.{name} > {MOST} - excluded.{name} THEN {MOST} "
        f"ELSE {table.name}.{name} + excluded.{name} END"
        for name in sums
    ]
    changes = ", ".join([*added, *(f"{name} = excluded.{name}" for name in replaced)])
    # SQLite takes the ON of a bare SELECT for a join's; VALUES and PostgreSQL have no such doubt.
    return f"INSERT INTO {table.name} ({_names(table)}) {source} ON CONFLICT ({key}) DO UPDATE SET {changes}"


def _copy(connection: Connection, statement: str, rows: Iterable[Row]) -> None:
    driver: Any = connection.connection.driver_connection
    text = "".join("\t".join(map(_text, row)) + "\n" for row in rows)
    with driver.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(text)


def _text(value: float | str) -> str:
    return value.translate(_ESCAPES) if isinstance(value, str) else repr(value)

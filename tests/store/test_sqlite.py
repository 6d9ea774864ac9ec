"""SQLite's writers and statements: turns in order, and many rows in one step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, Text, insert, select
from sqlalchemy.exc import StatementError

from lark_controller.store import sqlite
from lark_controller.store.database import connect
from tests.fixtures.service import wait

COLOURS = Table("colours", MetaData(), Column("number", Integer, primary_key=True), Column("name", Text))


@pytest.mark.parametrize("count", [1, sqlite.PORTION, 2 * sqlite.PORTION + 3])
def test_many_rows_are_inserted_and_changed_in_few_steps(tmp_path: Path, count: int) -> None:
    database = connect(f"sqlite:///{tmp_path}/some.db")
    steps: list[str] = []
    change = "UPDATE colours SET name = new.column2 FROM (VALUES {rows}) AS new WHERE number = new.column1"
    with database.engine.connect() as connection, connection.begin():
        COLOURS.create(connection)
        handle = connection.connection.driver_connection
        assert handle is not None
        handle.set_trace_callback(steps.append)
        connection.execute(insert(COLOURS), [{"number": number, "name": "red"} for number in range(count)])
        rows = [(number, f"blue {number}") for number in range(1, count + 1)]
        changed = sqlite.with_rows(connection, change, rows)
        handle.set_trace_callback(None)
        found = [name for _, name in connection.execute(select(COLOURS).order_by(COLOURS.c.number))]
    assert changed == count - 1
    assert found == ["red", *(f"blue {number}" for number in range(1, count))]
    assert len(steps) == 2 * (count // sqlite.PORTION + (count % sqlite.PORTION).bit_count())
    database.engine.dispose()


class Steps(list[tuple[str, tuple[object, ...]]]):
    """A cursor that keeps what it is to carry out."""

    def execute(self, statement: str, values: tuple[object, ...]) -> None:
        self.append((statement, values))


def test_there_are_few_statements_whatever_the_number_of_rows() -> None:
    """The driver keeps statements, with their values."""
    statements: set[str] = set()
    for count in range(1, 2 * sqlite.PORTION):
        steps = Steps()
        rows = [(number, "red") for number in range(count)]
        assert sqlite.insert_many(steps, "INSERT INTO colours (number, name) VALUES (?, ?)", rows, None)
        assert [value for _, values in steps for value in values] == [value for row in rows for value in row]
        statements.update(statement for statement, _ in steps)
    assert len(statements) == sqlite.PORTION.bit_length()


def test_a_step_has_little_text_or_one_row() -> None:
    half, much = "x" * (sqlite.MOST_TEXT // 2), "x" * (2 * sqlite.MOST_TEXT)
    steps = Steps()
    names = [half, half, half, much, half, "red", "blue", "green"]
    sqlite.insert_many(steps, "INSERT INTO colours (name) VALUES (?)", [(name,) for name in names], None)
    assert [values for _, values in steps] == [
        (half, half), (half,), (much,), (half, "red", "blue", "green")
    ]  # fmt: skip


def test_rows_are_inserted_or_changed_where_they_are_there(tmp_path: Path) -> None:
    database = connect(f"sqlite:///{tmp_path}/some.db")
    otherwise = " ON CONFLICT (number) DO UPDATE SET name = excluded.name"
    with database.engine.connect() as connection, connection.begin():
        COLOURS.create(connection)
        sqlite.insert_rows(connection, COLOURS, [])
        sqlite.insert_rows(connection, COLOURS, [{"name": "red", "number": 1}, {"name": None, "number": 2}])
        sqlite.insert_rows(connection, COLOURS, [{"number": 2, "name": "blue"}], otherwise)
        found = list(connection.execute(select(COLOURS).order_by(COLOURS.c.number)))
        with pytest.raises(StatementError, match="NUL"):
            sqlite.insert_rows(connection, COLOURS, [{"number": 3, "name": "red\0"}])
    assert found == [(1, "red"), (2, "blue")]
    database.engine.dispose()


def test_rows_in_another_order_of_columns_are_inserted_by_name(tmp_path: Path) -> None:
    database = connect(f"sqlite:///{tmp_path}/some.db")
    with database.engine.connect() as connection, connection.begin():
        COLOURS.create(connection)
        sqlite.insert_rows(connection, COLOURS, [{"number": 1, "name": "7"}, {"name": "8", "number": 2}])
        assert list(connection.execute(select(COLOURS).order_by(COLOURS.c.number))) == [(1, "7"), (2, "8")]
        with pytest.raises(KeyError, match="name"):
            sqlite.insert_rows(connection, COLOURS, [{"number": 3, "name": "9"}, {"number": 4}])
    database.engine.dispose()


def test_no_text_with_nul_is_stored(tmp_path: Path) -> None:
    database = connect(f"sqlite:///{tmp_path}/some.db")
    with database.engine.connect() as connection, pytest.raises(StatementError, match="NUL"):
        sqlite.with_rows(connection, "INSERT INTO colours VALUES {rows}", [(1, "red\0")])
    database.engine.dispose()


def test_whoever_comes_first_writes_first() -> None:
    """One that writes again and again does not come before those that wait."""
    turns = sqlite.Turns()
    order: list[int] = []

    def write(number: int) -> None:
        with turns:
            order.append(number)

    waiting = []
    turns.__enter__()
    for number in range(5):
        thread = threading.Thread(target=write, args=(number,))
        thread.start()
        waiting.append(thread)
        wait(lambda: len(turns._waiting) == len(waiting))
    turns.__exit__()
    with turns:
        order.append(5)
    for thread in waiting:
        thread.join()
    assert order == [0, 1, 2, 3, 4, 5]


def test_a_turn_ends_with_an_error() -> None:
    turns = sqlite.Turns()
    with pytest.raises(ZeroDivisionError), turns:
        raise ZeroDivisionError
    with turns:
        pass


class Interrupted:
    """A lock at which the main thread is interrupted when it waits; ``before`` runs first."""

    def __init__(self, before: Callable[[], object]) -> None:
        self._before = before
        self._free = True

    def acquire(self) -> None:
        if not self._free:
            self._before()
            raise KeyboardInterrupt
        self._free = False

    def release(self) -> None:
        self._free = True


@pytest.mark.parametrize("handed_over", [False, True])
def test_one_that_is_interrupted_while_it_waits_leaves_its_turn_to_the_others(
    handed_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = sqlite.Turns()
    turns.__enter__()
    before = turns.__exit__ if handed_over else lambda: None
    monkeypatch.setattr(sqlite, "Lock", lambda: Interrupted(before))
    with pytest.raises(KeyboardInterrupt):
        turns.__enter__()
    if not handed_over:
        turns.__exit__()
    assert not turns._taken
    assert not turns._waiting

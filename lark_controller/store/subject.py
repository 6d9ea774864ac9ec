"""Turns a function on a connection into an operation of the store, for any thread: in a transaction of its own.

class Runs(Subject):
find = Reads(queries.find)     # find(connection, job_id) is asked as store.runs.find(job_id)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator
from functools import partial
from itertools import islice
from typing import Concatenate, Final, Generic, ParamSpec, TypeVar

from sqlalchemy import Connection

from lark_controller.store.database import Database

P = ParamSpec("P")
T = TypeVar("T")

# Limit on the rows that one transaction changes, so that other writers get their turn.
BATCH: Final = 2_000
# The same for what is written all the time, where there is one writer: its rows are one step of SQLite
# (:mod:`.sqlite`), and take about as long as a post does.
BRIEF: Final = 256


class Subject:
    """One subject of the store. Its operations raise StoreError where the database cannot be reached or refuses."""

    def __init__(self, database: Database) -> None:
        self.database = database


class Reads(Generic[P, T]):
    """A function that reads."""

    def __init__(self, work: Callable[Concatenate[Connection, P], T]) -> None:
        self._work = work

    def __get__(self, subject: Subject, owner: type[Subject]) -> Callable[P, T]:
        def operation(*args: P.args, **kwargs: P.kwargs) -> T:
            return subject.database.read(lambda connection: self._work(connection, *args, **kwargs))

        return operation


class ReadsOneState(Generic[P, T]):
    """A function that reads by several statements, which all see one state of the database."""

    def __init__(self, work: Callable[Concatenate[Connection, P], T]) -> None:
        self._work = work

    def __get__(self, subject: Subject, owner: type[Subject]) -> Callable[P, T]:
        def operation(*args: P.args, **kwargs: P.kwargs) -> T:
            return subject.database.read(lambda connection: self._work(connection, *args, **kwargs), one_state=True)

        return operation


class Writes(Generic[P, T]):
    """A function that changes rows; where it raises, nothing has changed."""

    def __init__(self, work: Callable[Concatenate[Connection, P], T]) -> None:
        self._work = work

    def __get__(self, subject: Subject, owner: type[Subject]) -> Callable[P, T]:
        def operation(*args: P.args, **kwargs: P.kwargs) -> T:
            return subject.database.write(lambda connection: self._work(connection, *args, **kwargs))

        return operation


class WritesMany(Generic[T, P]):
    """A function that changes rows, many of them, and returns how many it changed: a transaction a batch."""

    def __init__(self, work: Callable[Concatenate[Connection, Collection[T], P], int]) -> None:
        self._work = work

    def __get__(self, subject: Subject, owner: type[Subject]) -> Callable[Concatenate[Collection[T], P], int]:
        def operation(items: Collection[T], /, *args: P.args, **kwargs: P.kwargs) -> int:
            def change(connection: Connection, part: Collection[T]) -> int:
                return self._work(connection, part, *args, **kwargs)

            return sum(subject.database.write(partial(change, part=part)) for part in _batches(items))

        return operation


class Streams(Generic[P, T]):
    """A function that reads piece by piece."""

    def __init__(self, work: Callable[Concatenate[Connection, P], Iterator[T]]) -> None:
        self._work = work

    def __get__(self, subject: Subject, owner: type[Subject]) -> Callable[P, Generator[T, None, None]]:
        def operation(*args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
            with subject.database.stream() as connection:
                yield from self._work(connection, *args, **kwargs)

        return operation


def _batches(items: Collection[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, BATCH)):
        yield batch

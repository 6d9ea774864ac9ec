"""How a function on a connection becomes an operation of the store: one transaction, on any thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, Generic, ParamSpec, TypeVar

from sqlalchemy import Connection

from lark_controller.store.database import Database

P = ParamSpec("P")
T = TypeVar("T")


class Subject:
    """One subject of the store. Its operations raise StoreError where the database cannot be reached or refuses."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def run(self, work: Callable[[Connection], T], writes: bool) -> T:
        """What ``work`` answers in a transaction of its own."""
        return (self._database.write if writes else self._database.read)(work)


class Reads(Generic[P, T]):
    """A function that reads, as an operation of a subject."""

    writes = False

    def __init__(self, work: Callable[Concatenate[Connection, P], T]) -> None:
        self._work = work

    def __get__(self, subject: Subject, owner: type[Subject]) -> Callable[P, T]:
        def operation(*args: P.args, **kwargs: P.kwargs) -> T:
            return subject.run(lambda connection: self._work(connection, *args, **kwargs), self.writes)

        return operation


class Writes(Reads[P, T]):
    """A function that changes rows, as an operation of a subject; where it raises, nothing has changed."""

    writes = True

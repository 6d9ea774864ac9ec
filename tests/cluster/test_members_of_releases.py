"""Instances of several releases on one database: tables that only some of them know, and upgrades."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from sqlalchemy import Connection

from lark_common.errors import StateError, StoreError
from lark_controller.cluster import member as module
from lark_controller.cluster import reach
from lark_controller.store import Store, membership, migrate
from lark_controller.store.instances import _OLDER_LOCK
from tests.cluster.test_members import OLDER, Asked, One, joined, url
from tests.fixtures.controllers import until

__all__ = ["url"]
pytestmark = pytest.mark.postgres


def test_nobody_hands_over_switches_to_an_older_release(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "LOST_SECONDS", 0.0)
    a, older, expected = One("a", url), One("b", url, range(20), knows=OLDER), Asked()
    a.member.join()
    assert a.generation
    older.member.join()
    a.member.serves(expected)
    with psycopg.connect(url, autocommit=True) as connection:
        until(lambda: connection.execute("SELECT max(reached) FROM instances").fetchone() == (20,))
    expected.pass_by(a, reach.READINGS + 5)
    assert not a.drained
    for each in (older, a):
        each.leave()


def test_nobody_hands_over_to_an_older_release_alone(url: str) -> None:
    """It does not know the tables: nobody would be active."""
    newest, older, newer = One("a", url), One("b", url, knows=OLDER), One("c", url)
    newest.member.join()
    assert newest.generation
    older.member.join()
    with pytest.raises(StateError, match=r"of those that stand by, b \(1\), none has said that it knows its tables"):
        newest.member.drain("a", "operator")
    newer.member.join()
    assert {each.name: each.successor for each in newest.member.all().instances} == {"a": None, "b": False, "c": True}
    newest.member.drain("a", "operator")
    assert newest.drained == ["a"]
    for each in (older, newer, newest):
        each.leave()


def test_a_controller_of_an_older_release_is_waited_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STANDBY_SECONDS", 0.01)
    with psycopg.connect(url, autocommit=True) as older:
        older.execute("SELECT pg_advisory_lock(%s)", (_OLDER_LOCK,))
        with joined(url, "a") as (a,):
            until(lambda: "older release" in a.member.standing().sentence)
            other = Store.open(url)
            with pytest.raises(StoreError, match="a controller of an older release uses the tables"):
                other.migrate_by_hand()
            other.close()
            assert a.store.schema_version() is None
            older.execute("SELECT pg_advisory_unlock(%s)", (_OLDER_LOCK,))
            assert a.generation
            assert a.store.schema_version() == Store.newest_schema()


def test_a_program_that_upgrades_waits_for_a_start_that_just_makes_the_tables(url: str) -> None:
    """It is none of an older release."""
    starting, other = Store.open(url), Store.open(url)
    makes, may_end = threading.Event(), threading.Event()

    def make(connection: Connection) -> None:
        assert membership._prepare(connection) == ""
        makes.set()
        assert may_end.wait(60)

    def upgrade() -> None:
        assert makes.wait(60)
        other.migrate_by_hand()

    try:
        with ThreadPoolExecutor(2) as aside, psycopg.connect(url, autocommit=True) as watching:
            made = aside.submit(starting._database.write, make, unguarded=True)
            upgraded = aside.submit(upgrade)
            waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            until(lambda: upgraded.done() or watching.execute(waiting).fetchone() == (1,))
            may_end.set()
            made.result(60)
            upgraded.result(60)
        assert other.schema_version() == Store.newest_schema()
    finally:
        may_end.set()
        other.close()
        starting.close()


def test_one_that_does_not_know_the_tables_does_not_take_over(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with joined(url, "a", "b") as (a, b):
        assert a.generation
        tried = threading.Event()

        def newer(_connection: object) -> None:
            tried.set()
            raise StoreError("The database has schema 9999, made by a newer Lark than this one")

        monkeypatch.setattr(migrate, "known_version", newer)
        a.leave()
        assert tried.wait(20)
        until(lambda: "made by a newer Lark" in b.member.standing().sentence)
        assert b.store.instances.all().active is None
        monkeypatch.undo()
        assert b.generation


def test_one_of_a_release_before_the_tables_says_so_and_does_not_try(url: str) -> None:
    a, older = One("a", url), One("b", url, knows=OLDER)
    a.member.join()
    generation = a.generation
    older.member.join()
    words = f"and this one cannot take over: the tables ({Store.newest_schema()}) are of a newer Lark"
    assert f"stands by; a at http://a is active, {words}" in older.member.standing().sentence
    assert not older.member.standing().successor
    a.leave()
    until(lambda: not older.member._look.holder)
    until(lambda: (watch := older.member._watch) is not None and watch.silence.readings > 2)
    assert words in older.member.standing().sentence
    assert older.won.empty()
    assert older.store.instances.all().generation == generation
    with joined(url, "c") as (c,):
        assert c.generation > generation
    older.leave()

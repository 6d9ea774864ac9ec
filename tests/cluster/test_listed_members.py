"""Members as they are listed, on a real PostgreSQL; and the one of an embedded database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from sqlalchemy import text

from lark_common.errors import FencedError, StateError, StoreError
from lark_controller.api.instances import Why
from lark_controller.cluster import silence
from lark_controller.store import Store
from tests.cluster.test_members import One, joined
from tests.fixtures.controllers import until

pytestmark = pytest.mark.postgres


@pytest.fixture
def url(postgres_server: Any) -> Iterator[str]:
    made = postgres_server.new_database()
    yield made
    postgres_server.drop_database(made)


def test_rows_of_instances_do_not_pile_up(url: str) -> None:
    for _ in range(5):
        with joined(url, "a") as (a,):
            assert a.generation
            assert [each.name for each in a.store.instances.all().instances] == ["a"]
    store = Store.open(url)
    (last,) = store.instances.all().instances
    assert last.state == "stopped"
    day = text("UPDATE instances SET at = at - 100000")
    store._database.write(lambda connection: connection.execute(day))
    store.close()
    with joined(url, "b") as (b,):
        assert [each.name for each in b.store.instances.all().instances] == ["b"]


def test_whoever_gives_no_sign_of_life_is_shown_as_lost(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def states(one: One) -> list[tuple[str, str]]:
        return [(each.name, each.state) for each in one.member.all().instances]

    with joined(url, "a", "b", "c") as (a, b, c):
        assert a.generation
        for each in (a, c):
            until(lambda: states(each) == [("a", "starting"), ("b", "standby"), ("c", "standby")])  # noqa: B023
        b.member._thread.stop()
        monkeypatch.setattr(silence, "AWAY_SECONDS", 0.0)
        until(lambda: ("b", "lost") in states(a) and ("b", "lost") in states(c))
        # Nobody is left to hand over to, but c.
        c.member.release(Why.RELEASED)
        c.member.leave()
        with pytest.raises(StateError, match="No other instance stands by"):
            a.member.drain("a", "operator")
        assert states(a) == [("a", "starting"), ("b", "lost"), ("c", "stopped")]
        # Who has just come has read it once, and sees that it has been so for long.
        long_ago = text("UPDATE instances SET at = at - 100 WHERE name = 'b'")
        a.store._database.write(lambda connection: connection.execute(long_ago), unguarded=True)
        with joined(url, "d") as (d,):
            assert ("b", "lost") in states(d)
        # It was paused for so long, and goes on.
        b.member._stand_by()
        until(lambda: ("b", "standby") in states(a))


def test_while_the_database_does_not_answer_the_last_list_is_shown_with_its_age(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> NoReturn:
        raise StoreError("the database is away")

    with joined(url, "a", "b") as (a, b):
        assert a.generation
        listed = a.member.all()
        assert listed.age == 0.0
        # One that nobody has asked has read the list itself.
        for each in (a, b):
            monkeypatch.setattr(each.member._place, "all", away)
        for each in (a, b):
            found = each.member.all()
            assert {one.name for one in found.instances} <= {"a", "b"}
            assert found.age > 0.0
            assert all(one.beat_age >= found.age for one in found.instances)
        # A term is not let go by a list that may be out of date.
        with pytest.raises(StoreError, match="is away"):
            a.member.drain("a", "somebody")


def test_sqlite_takes_the_same_path_with_one_instance(tmp_path: Path) -> None:
    seen = []
    for _ in range(3):
        store = One("a", f"sqlite:///{tmp_path}/lark.db")
        with pytest.raises(FencedError, match="stands by"):
            store.write()
        store.store.claim()
        store.member.join()
        seen.append(store.generation)
        store.write()
        assert store.store.instances.all().active == store.member.me.id
        # Every second one is killed.
        if len(seen) % 2:
            store.leave()
        else:
            store.member._thread.stop()
            store.store.close()
    assert seen == sorted(set(seen))

"""Members on a real PostgreSQL: who takes over, and who stays; nothing here waits for a member's own clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from lark_common.errors import FencedError, NotFoundError, StandbyError, StateError, StoreError
from lark_controller.api.instances import Expected, Identity, Term, Why
from lark_controller.cluster import member as module
from lark_controller.cluster import reach, silence
from lark_controller.cluster.member import Member
from lark_controller.store import Store
from lark_controller.store.instances import _LOCK_CLASS, look
from tests.fixtures.controllers import until
from tests.fixtures.databases import NOW

pytestmark = pytest.mark.postgres


# Any version of the tables before the newest.
OLDER = "0001_older"


class One:
    """A member with a store of its own, and what it was told."""

    def __init__(self, name: str, url: str, reached: Iterable[int] = (), knows: str = "") -> None:
        self.store = Store.open(url)
        self.won: SimpleQueue[Term] = SimpleQueue()
        self.lost: list[str] = []
        self.drained: list[str] = []
        self.moved: list[int] = []
        me = Identity(f"{name}-{id(self):x}", name, f"http://{name}", "1")
        self.member = Member(
            self.store,
            me,
            won=self.won.put,
            lost=self.lost.append,
            drained=lambda: self.drained.append(name),
            moved=lambda: self.moved.append(self.member.standing().generation),
            reached=lambda switches: len({*switches} & {*reached}),
        )
        if knows:
            self.member._knows = knows

    @property
    def generation(self) -> int:
        """The generation of its next term."""
        return self.won.get(timeout=20).generation

    def write(self) -> None:
        self.store.trail.record(NOW, self.member.me.name, "did", "something")

    def leave(self, why: Why = Why.RELEASED) -> None:
        self.member.release(why)
        self.member.leave()
        self.store.close()


@contextmanager
def joined(url: str, *names: str) -> Iterator[list[One]]:
    members = [One(name, url) for name in names]
    try:
        for each in members:
            each.member.join()
        yield members
    finally:
        for each in members:
            each.leave()


@pytest.fixture
def url(postgres_server: Any) -> Iterator[str]:
    made = postgres_server.new_database()
    yield made
    postgres_server.drop_database(made)


# The sessions that show that the holder of a term lives, as many as there are.
LOCKS = f"SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = {_LOCK_CLASS}"


def holds(url: str) -> bool:
    with psycopg.connect(url, autocommit=True) as connection:
        return bool(connection.execute(LOCKS).fetchall())


def end_sessions(url: str, condition: str) -> int:
    """End sessions with the database at the server, and wait until they are gone; returns how many."""
    with psycopg.connect(url, autocommit=True) as connection:
        # Without the wait, what has been ended would be seen, and counted, once more.
        found = connection.execute(
            "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid, 60000)) FROM pg_stat_activity "
            f"WHERE datname = current_database() AND pid <> pg_backend_pid() AND {condition}"
        ).fetchone()
        assert found is not None
        return int(found[0])


def test_of_many_that_start_at_once_on_an_empty_database_one_is_active(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    members = [One(name, url) for name in "abcde"]
    threads = [Thread(target=each.member.join) for each in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        # Each may have left it to another one in its first turn.
        until(lambda: any(not each.won.empty() for each in members))
        (active,) = [each for each in members if not each.won.empty()]
        active.write()
        # None of them was taken for an older release while it made the tables.
        assert "older release" not in caplog.text
        for each in members:
            if each is not active:
                with pytest.raises(FencedError, match="stands by"):
                    each.write()
        # Clean ends hand it on, one after the other, to all.
        seen = [active.generation]
        rest = [each for each in members if each is not active]
        while rest:
            active.leave()
            until(lambda: any(not each.won.empty() for each in rest))
            (active,) = [each for each in rest if not each.won.empty()]
            active.write()
            seen.append(active.generation)
            rest.remove(active)
        assert seen == sorted(set(seen))
        assert len(seen) == len(members)
    finally:
        for each in members:
            each.leave()


def test_an_active_one_whose_session_the_server_ends_stays(url: str) -> None:
    with joined(url, "a", "b") as (a, b):
        generation = a.generation
        lock = f"pid IN ({LOCKS})"
        for _ in range(3):
            assert end_sessions(url, lock) == 1
            until(lambda: holds(url))
        # And every other session with it.
        assert end_sessions(url, "true") >= 1
        until(lambda: holds(url))
        a.write()
        assert a.store.instances.all().generation == generation
        assert b.won.empty()
        assert not a.lost


def test_a_session_that_has_ended_is_replaced_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_SECONDS", 3600.0)
    with joined(url, "a", "b") as (a, b):
        generation = a.generation
        assert end_sessions(url, f"pid IN ({LOCKS})") == 1
        until(lambda: holds(url))
        a.write()
        assert a.store.instances.all().generation == generation
        assert b.won.empty()


# Each commit of a sign of life takes half a second.
SLOW_COMMITS = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER slow AFTER UPDATE ON instances DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION slow()
"""


def test_one_that_dies_while_each_commit_takes_long_is_followed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # No two readings are closer than that.
    monkeypatch.setattr(silence, "GAP_SECONDS", 0.4)
    monkeypatch.setattr(silence, "AWAY_SECONDS", 0.4)

    def states(one: One) -> dict[str, str]:
        return {each.name: each.state for each in one.member.all().instances}

    def beats() -> int:
        return min(each.beat for each in a.store._database.read(look).signs)

    with joined(url, "a", "b") as (a, b):
        before = a.generation
        with psycopg.connect(url) as operator:
            operator.execute(SLOW_COMMITS)
        # Each sign of life is that old when it is seen, and whoever gives them lives.
        last = beats() + 2 * silence.SLOW_READINGS
        while beats() < last:
            assert states(a) == states(b) == {"a": "starting", "b": "standby"}
        # Its session is there, and it gives no sign of life.
        a.member._thread.stop()
        term = b.won.get(timeout=120)
        assert states(b)["a"] == "lost"
        assert (term.why, term.before) == (Why.SILENT, "a")
        assert term.generation > before
        b.write()
        with pytest.raises(FencedError):
            a.write()


def test_one_that_is_told_of_a_takeover_ends_and_says_by_whom(url: str) -> None:
    with joined(url, "a") as (a,):
        generation = a.generation
        store = Store.open(url)
        me = Identity("b1", "b", "http://b", "1")
        store.instances.register(me)
        taken = store.instances.take(me, generation, Why.SILENT)
        assert taken is not None
        assert store.instances.take(me, generation, Why.SILENT) is None
        # Two are never active, though the one that was has not found that yet.
        assert [(each.name, each.state) for each in a.member.all().instances if each.name == "a"] == [("a", "lost")]
        a.member.look_now()
        until(lambda: a.lost)
        assert a.lost == [f"b has taken over with generation {taken}"]
        standing = a.member.standing()
        assert not standing.active
        with pytest.raises(FencedError):
            a.write()
        store.close()
    # What is another's is not let go.
    last = Store.open(url)
    assert last.instances.all().active == "b1"
    last.close()


def test_one_that_has_read_nothing_yet_does_not_say_that_no_controller_is_active(url: str) -> None:
    with joined(url, "a") as (a,):
        assert a.generation
        late = One("late", url)
        assert late.member.standing().sentence == "stands by; it has not read yet whether a controller is active"
        late.member.join()
        until(lambda: late.member.standing().sentence == "stands by; a at http://a is active")
        late.leave()


def test_those_that_stand_by_are_told_that_the_term_is_anothers(url: str) -> None:
    with joined(url, "a", "b", "c") as (a, *others):
        first = a.generation
        for each in others:
            until(lambda: each.member._look.generation == first)  # noqa: B023  # waited for at once
            each.moved.clear()
        a.leave()
        until(lambda: any(not each.won.empty() for each in others))
        for each in others:
            until(lambda: each.moved)  # noqa: B023  # waited for at once


def test_switches_that_lie_of_takeovers_all_the_time_do_not_load_the_database(url: str) -> None:
    def beats(one: One) -> Any:
        query = text("SELECT beat FROM instances")
        return one.store._database.read(lambda connection: connection.execute(query).scalar_one())

    with joined(url, "a") as (a,):
        a.generation  # noqa: B018  # it has the term
        first, began = beats(a), time.monotonic()
        while (last := beats(a)) < first + 5:
            a.member.look_now()
        assert last - first <= (time.monotonic() - began) / module.LEAST_SECONDS + 2
        assert not a.lost


def test_a_term_whose_answer_was_lost_is_found(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with joined(url, "a", "b") as (a, b):
        first = a.generation
        take = b.store.instances.take

        def lost(me: Identity, seen: int, why: Why) -> int | None:
            take(me, seen, why)
            monkeypatch.undo()
            raise StoreError("the connection was lost")

        monkeypatch.setattr(b.store.instances, "take", lost)
        a.leave()
        assert b.generation > first
        b.write()


def test_one_that_has_let_go_writes_nothing_though_nobody_has_taken_over(url: str) -> None:
    with joined(url, "a") as (a,):
        assert a.generation
        a.write()
        a.member.release(Why.RELEASED)
        # To the database the term is still of the generation that this one had.
        with pytest.raises(FencedError, match="stands by"):
            a.write()


def test_drain_is_for_the_active_one_and_needs_another(url: str) -> None:
    with joined(url, "a") as (a,):
        assert a.generation
        with pytest.raises(StateError, match="No other instance stands by"):
            a.member.drain("a", "operator")
        with joined(url, "b") as (b,):
            with pytest.raises(NotFoundError, match="there are: a, b"):
                a.member.drain("c", "operator")
            with pytest.raises(StateError, match="not the active"):
                a.member.drain("b", "operator")
            with pytest.raises(StandbyError) as raised:
                b.member.drain("a", "operator")
            assert raised.value.active == "http://a"
            assert not a.drained
            a.member.drain(a.member.me.id, "operator")
            assert a.drained == ["a"]
            a.leave(Why.DRAINED)
            assert b.won.get(timeout=20).why is Why.DRAINED
            entry = b.store.trail.page("controller", None, 1).entries[0]
            assert (entry.actor, entry.action, entry.detail) == ("operator", "drain", "instance a")


def test_one_whose_switches_are_connected_to_another_hands_over(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "LOST_SECONDS", 0.0)
    a, b = One("a", url), One("b", url, reached=range(20))
    a.member.join()
    assert a.generation
    expected = [Expected(20, 20)]
    a.member.serves(lambda: expected[0])
    b.member.join()
    until(lambda: [each.number for each in a.store.instances.reached()] == [0])
    assert not a.drained
    expected[0] = Expected(20, 4, tuple(range(4, 20)))
    until(lambda: a.drained)
    entry = a.store.trail.page("controller", None, 1).entries[0]
    assert (entry.actor, entry.action) == ("a", "hand over")
    assert entry.detail == "4 of 20 switches are connected here, 16 others to b"
    a.leave(Why.DRAINED)
    assert b.won.get(timeout=20).why is Why.DRAINED
    assert a.drained == ["a"]
    b.leave()


class Asked:
    """Switches of which most are away from the active one, and how often that was looked at."""

    def __init__(self) -> None:
        self.turns = threading.Semaphore(0)

    def __call__(self) -> Expected:
        self.turns.release()
        return Expected(20, 0, tuple(range(20)))

    def pass_by(self, one: One, turns: int) -> None:
        """Wait for so many turns, each with a sign of life before it."""
        for _ in range(turns):
            one.member.look_now()
            assert self.turns.acquire(timeout=60)


class Kept:
    """Twenty switches that one keeps, and how often it has counted them."""

    count = 0

    def __iter__(self) -> Iterator[int]:
        self.count += 1
        return iter(range(20))


def test_switches_that_nobody_reaches_move_no_term(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores that are down, and a pool of idle workers at the other one."""
    monkeypatch.setattr(reach, "LOST_SECONDS", 0.0)
    a, b = One("a", url), One("b", url, reached=range(100, 5000))
    expected = Asked()
    a.member.join()
    assert a.generation
    b.member.join()
    a.member.serves(expected)
    until(lambda: b.member._look.away == tuple(range(20)))
    expected.pass_by(a, reach.READINGS + 5)
    assert not a.drained
    for each in (b, a):
        each.leave()


def test_one_that_got_the_term_by_a_hand_over_keeps_it_for_a_while(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "LOST_SECONDS", 0.0)
    a, b = One("a", url), One("b", url)
    a.member.join()
    assert a.generation
    b.member.join()
    a.leave(Why.DRAINED)
    assert b.won.get(timeout=20).why is Why.DRAINED
    kept, expected = Kept(), Asked()
    c = One("c", url, reached=kept)
    c.member.join()
    b.member.serves(expected)
    for _ in range(reach.READINGS + 10):
        expected.pass_by(b, 1)
        # The other one reads what it is asked for meanwhile, and would answer.
        before = kept.count
        c.member.look_now()
        until(lambda: kept.count > before)  # noqa: B023  # waited for at once
    assert (b.drained, c.member._look.away) == ([], ())
    b.member._settled_at = 0.0
    until(lambda: b.drained)
    for each in (c, b):
        each.leave()

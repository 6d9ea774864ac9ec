"""An instance whose term is over writes nothing, on a real PostgreSQL; and without the guard it would."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Event, Thread
from typing import Any

import pytest
from sqlalchemy import Connection, text

from lark_common.errors import FencedError, StoreError
from lark_controller.api.instances import Identity, Why
from lark_controller.store import Finish, Post, Store, instances, migrate
from lark_controller.store.database import Database
from lark_controller.store.schema import metadata
from tests.fixtures.databases import LEASE, NOW, a_run
from tests.store.test_usage import entry

pytestmark = pytest.mark.postgres

A, B = (Identity(name, name, f"http://{name}", "1") for name in ("a", "b"))
# What signs of life and the term itself change.
OWN = {"instances", "term"}


@pytest.fixture
def url(postgres_server: Any) -> Iterator[str]:
    made = postgres_server.new_database("lark_template")
    yield made
    postgres_server.drop_database(made)


@contextmanager
def stores(url: str, count: int) -> Iterator[list[Store]]:
    with ExitStack() as stack:
        opened = [Store.open(url) for _ in range(count)]
        for each in opened:
            stack.callback(each.close)
        yield opened


def take(store: Store, me: Identity, told: Callable[[str], None] = lambda _sentence: None) -> int:
    """Have an instance take over from whoever is active."""
    store.instances.register(me)
    generation = store.instances.take(me, store.instances.all().generation, Why.SILENT)
    assert generation is not None
    store.guard(generation, told)
    return generation


def rows(store: Store) -> dict[str, Any]:
    def count(connection: Connection) -> dict[str, Any]:
        content = "SELECT count(*), md5(string_agg(t::text, '' ORDER BY t::text)) FROM {} t"
        tables = [name for name in metadata.tables if name not in OWN]
        return {name: connection.execute(text(content.format(name))).one() for name in tables}

    return store._database.read(count)


def a_post(number: int) -> Post:
    return Post(a_run(number), "job ad", "machine ad", "hook", NOW, "")


WRITES: dict[str, Callable[[Store], object]] = {
    "registration": lambda store: store.runs.carry_out([a_post(2)]),
    "end": lambda store: store.runs.carry_out([Finish(a_run(1).id, NOW, "ended", "", "hook")]),
    "lease": lambda store: store.runs.renew(a_run(1).id, LEASE + 100),
    "leases": lambda store: store.runs.begin_leases(LEASE + 500),
    "usage": lambda store: store.usage.write([entry()]),
    "audit": lambda store: store.trail.record(NOW, "a", "did", "something"),
    "policy": lambda store: store.trail.put_policy("version: 1\n", "digest", "a", NOW),
    "policy file": lambda store: store.trail.note_file("a", "digest"),
    "worker's link": lambda store: store.reservations.set_worker_capacity("worker0", 100.0),
}


@pytest.mark.parametrize("kind", WRITES)
def test_an_instance_whose_term_is_over_writes_nothing(url: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with stores(url, 2) as (mine, other):
        told: list[str] = []
        generation = take(mine, A, told.append)
        mine.runs.carry_out([a_post(1)])
        assert take(other, B) > generation
        before = rows(other)
        with pytest.raises(FencedError, match="has taken over"):
            WRITES[kind](mine)
        assert len(told) == 1
        assert rows(other) == before
        # It may still read.
        assert mine.runs.find(a_run(1).id) is not None
        # The guard is what kept it from writing.
        monkeypatch.setattr(Database, "_check_term", lambda *_: None)
        WRITES[kind](mine)
        assert rows(other) != before


def test_an_instance_without_a_term_writes_nothing_but_that_it_lives(url: str) -> None:
    with stores(url, 2) as (mine, other):
        generation = take(mine, A)
        other.guard(0, lambda _sentence: None)
        for write in WRITES.values():
            with pytest.raises(FencedError, match="stands by"):
                write(other)
        other.instances.register(B)
        look = other.instances.meet(B, "standby")
        assert (look.generation, look.holder, look.name, look.held) == (generation, A.id, "a", True)


def test_a_term_that_is_anothers_is_not_let_go(url: str) -> None:
    with stores(url, 2) as (mine, other):
        generation = take(mine, A)
        taken = take(other, B)
        for me, of in ((A, generation), (A, taken), (B, generation)):
            assert not mine.instances.release(me, of, Why.RELEASED)
        assert (other.instances.all().generation, other.instances.all().active) == (taken, B.id)


def test_a_generation_is_the_next_one_where_it_is_ahead_of_the_clock(url: str) -> None:
    """Neither a clock that was set back nor two takeovers within a second give a generation twice."""
    ahead = 1 << 40
    with stores(url, 2) as (mine, other):
        take(mine, A)
        mine._database.write(lambda connection: connection.execute(text(f"UPDATE term SET generation = {ahead}")))
        assert [take(other, B), take(mine, A), take(other, B)] == [ahead + 1, ahead + 2, ahead + 3]


def test_a_takeover_waits_for_what_is_being_written(url: str) -> None:
    with stores(url, 2) as (mine, other):
        take(mine, A)
        writing, go_on = Event(), Event()

        def slow(connection: Connection) -> None:
            writing.set()
            # A session that does nothing for seconds would be ended.
            while not go_on.wait(0.1):
                connection.execute(text("SELECT 1"))
            connection.execute(text("INSERT INTO reserved (channel, kbps) VALUES ('slow', 1)"))

        writer = Thread(target=partial(mine._database.write, slow))
        writer.start()
        assert writing.wait(60)
        taken: list[int] = []
        taker = Thread(target=lambda: taken.append(take(other, B)))
        taker.start()
        waits = text(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'SELECT 1 FROM term%'"
        )
        try:
            until(lambda: mine._database.read(lambda connection: connection.execute(waits).scalar_one()))
            assert not taken
        finally:
            go_on.set()
        writer.join()
        taker.join()
        assert taken
        count = text("SELECT count(*) FROM reserved")
        assert other._database.read(lambda connection: connection.execute(count).scalar_one()) == 1


def test_a_writer_that_is_paused_holds_up_a_takeover_for_seconds_alone(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By the database itself, and not by the one that takes over.
    monkeypatch.setattr(instances, "_STALLED_MS", 3_600_000)
    with stores(url, 2) as (mine, other):
        take(mine, A)
        writing, go_on, errors = Event(), Event(), []

        def paused(connection: Connection) -> None:
            if writing.is_set():
                connection.execute(text("INSERT INTO reserved (channel, kbps) VALUES ('again', 1)"))
                return
            writing.set()
            assert go_on.wait(60)
            connection.execute(text("INSERT INTO reserved (channel, kbps) VALUES ('late', 1)"))

        def write() -> None:
            try:
                mine._database.write(paused)
            except StoreError as error:
                errors.append(error)

        writer = Thread(target=write)
        writer.start()
        assert writing.wait(60)
        take(other, B)
        go_on.set()
        writer.join()
        # Its session was ended; the second try finds the other's term.
        assert isinstance(errors[0], FencedError)
        count = text("SELECT count(*) FROM reserved")
        assert other._database.read(lambda connection: connection.execute(count).scalar_one()) == 0


@contextmanager
def paused_in_copy(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[StoreError]]:
    """A write that stands still in the middle of COPY, and goes on at the end; its errors come then. To the server the
    session is not idle, however long its client says nothing."""
    monkeypatch.setattr(instances, "_STALLED_MS", 0)
    monkeypatch.setattr(instances, "_TAKE_WAIT_MS", 2_000)
    go_on, errors = Event(), list[StoreError]()

    def paused(connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        with driver.cursor() as cursor, cursor.copy("COPY reserved (channel, kbps) FROM STDIN") as copying:
            assert go_on.wait(60)
            copying.write("late\t1\n")

    def write() -> None:
        try:
            store._database.write(paused)
        except StoreError as error:
            errors.append(error)

    writer = Thread(target=write)
    writer.start()
    waits = text("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'COPY%' AND wait_event_type = 'Client'")
    until(lambda: store._database.read(lambda connection: connection.execute(waits).scalar_one()))
    try:
        yield errors
    finally:
        go_on.set()
        writer.join()


def test_a_writer_that_is_paused_while_the_database_waits_for_its_rows_holds_up_no_takeover(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stores(url, 2) as (mine, other):
        take(mine, A)
        with paused_in_copy(mine, monkeypatch) as errors:
            take(other, B)
        # Its session was ended; the second try finds the other's term.
        assert isinstance(errors[0], FencedError)
        assert rows(other)["reserved"][0] == 0


def test_a_writer_that_is_paused_between_statements_sent_in_a_row_holds_up_no_takeover(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked to send what it has, the server counts the time of an idle transaction no more."""
    monkeypatch.setattr(instances, "_STALLED_MS", 500)
    monkeypatch.setattr(instances, "_TAKE_WAIT_MS", 20_000)
    waits, go_on, errors = Event(), Event(), list[StoreError]()

    def paused(connection: Connection) -> None:
        if waits.is_set():
            connection.execute(text("INSERT INTO reserved (channel, kbps) VALUES ('again', 1)"))
            return
        driver: Any = connection.connection.driver_connection
        row = driver.pgconn
        row.exec_(b"SET LOCAL idle_in_transaction_session_timeout = 1000")
        row.enter_pipeline_mode()
        row.pipeline_sync()
        row.flush()
        while row.get_result() is None:
            row.consume_input()
        row.send_flush_request()
        row.flush()
        waits.set()
        assert go_on.wait(60)
        row.exit_pipeline_mode()
        connection.execute(text("INSERT INTO reserved (channel, kbps) VALUES ('late', 1)"))

    def write(store: Store) -> None:
        try:
            store._database.write(paused)
        except StoreError as error:
            errors.append(error)

    with stores(url, 2) as (mine, other):
        take(mine, A)
        writer = Thread(target=write, args=(mine,))
        writer.start()
        try:
            assert waits.wait(60)
            # The server's own limit would have ended it by now.
            time.sleep(1.5)
            take(other, B)
        finally:
            go_on.set()
            writer.join()
        assert isinstance(errors[0], FencedError)
        assert rows(other)["reserved"][0] == 0


def test_a_connection_that_is_lost_while_the_database_waits_for_its_rows_holds_up_no_accounts(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are written by COPY themselves, and looked for once all that write have ended."""
    with stores(url, 1) as (mine,):
        take(mine, A)
        with paused_in_copy(mine, monkeypatch) as errors:
            mine.settle()
        assert not errors


def test_accounts_wait_for_the_writes_that_have_begun_and_for_no_later_ones(url: str) -> None:
    """The row of the term is held all the time, by writes that overlap: whoever waits for the row waits for ever."""
    waits = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type IN ('Lock', 'Timeout')"
        " AND datname = current_database()"
    )
    with stores(url, 1) as (mine,):
        take(mine, A)
        begun, go_on, settled = ([Event() for _ in range(2)] for _ in range(3))

        def slow(connection: Connection, number: int) -> None:
            begun[number].set()
            # A session that does nothing for seconds would be ended.
            while not go_on[number].wait(0.1):
                connection.execute(text("SELECT 1"))

        def settle() -> None:
            mine.settle()
            settled[0].set()

        works: list[Callable[[], object]] = [
            *(partial(mine._database.write, partial(slow, number=each)) for each in range(2)),
            settle,
        ]
        first, second, settling = (Thread(target=work) for work in works)
        try:
            first.start()
            assert begun[0].wait(60)
            settling.start()
            until(lambda: mine._database.read(lambda connection: connection.execute(waits).scalar_one()))
            second.start()
            assert begun[1].wait(60)
            assert not settled[0].is_set()
            go_on[0].set()
            first.join()
            assert settled[0].wait(60), "it waits for the second one, too"
        finally:
            for each in go_on:
                each.set()
            for thread in (first, second, settling):
                if thread.ident is not None:
                    thread.join()


def test_a_write_that_does_not_end_is_said_and_accounts_are_tried_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instances, "_TAKE_WAIT_MS", 100)
    with stores(url, 1) as (mine,):
        take(mine, A)
        with mine._database.engine.begin() as connection:
            connection.execute(text("SELECT 1 FROM term FOR SHARE"))
            with pytest.raises(StoreError, match="1 writes that began before are not over"):
                mine.settle()
        mine.settle()


def test_what_holds_the_term_without_end_is_said_and_no_upgrade_is_advised(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instances, "_TAKE_WAIT_MS", 100)
    with stores(url, 2) as (mine, other):
        take(mine, A)
        with mine._database.engine.begin() as connection:
            connection.execute(text("SELECT 1 FROM term FOR SHARE"))
            with pytest.raises(StoreError, match=r"lock timeout.*Another session") as caught:
                take(other, B)
        assert "upgrade" not in str(caught.value)


def test_an_instance_that_is_lost_in_the_middle_of_a_sign_of_life_keeps_none_from_its_row(url: str) -> None:
    limit = text("SELECT current_setting('idle_in_transaction_session_timeout')")
    with stores(url, 1) as (mine,):
        take(mine, A)
        let_go = partial(instances.release, me=A, generation=0, why=Why.RELEASED)
        for sign in (partial(instances.beat, me=A, state="active"), partial(instances.register, me=A), let_go):

            def lost(connection: Connection, sign: Callable[[Connection], object] = sign) -> object:
                sign(connection)
                return connection.execute(limit).scalar_one()

            assert mine._database.write(lost, unguarded=True) == "5s"
        # It ends with the transaction: what only reads is not cut off.
        assert mine._database.read(lambda connection: connection.execute(limit).scalar_one()) == "0"


def test_an_instance_that_is_lost_in_the_middle_of_its_takeover_keeps_no_other_from_the_term(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[object] = []

    def hold(connection: Connection, _generation: int) -> None:
        limits.append(
            connection.execute(text("SELECT current_setting('idle_in_transaction_session_timeout')")).scalar()
        )

    monkeypatch.setattr(instances, "hold", hold)
    with stores(url, 1) as (mine,):
        take(mine, A)
    # From its first statement on: the next one changes the row by which all write.
    assert limits == ["5s"]


def test_tables_are_not_changed_by_hand_under_a_controller_that_uses_them(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stores(url, 2) as (mine, other):
        generation = take(mine, A)
        # They are those of this version: there is nothing to change.
        other.migrate_by_hand()
        changed: list[bool] = []
        monkeypatch.setattr(migrate, "newest", lambda: "later")
        monkeypatch.setattr(migrate, "upgrade", lambda _connection: changed.append(True))
        with pytest.raises(StoreError, match="a uses the tables"):
            other.migrate_by_hand()
        assert not changed
        # In a slow database its signs of life take longer to be seen; its session is there.
        old = text("UPDATE instances SET at = at - 100")
        other._database.write(lambda connection: connection.execute(old), unguarded=True)
        with pytest.raises(StoreError, match="a uses the tables"):
            other.migrate_by_hand()
        mine.instances.release(A, generation, Why.RELEASED)
        other.migrate_by_hand()
        assert changed


def test_tables_are_changed_by_hand_after_the_end_of_the_one_that_used_them(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stores(url, 2) as (mine, other):
        take(mine, A)
        mine.instances._end_session()
        changed: list[bool] = []
        monkeypatch.setattr(migrate, "newest", lambda: "later")
        monkeypatch.setattr(migrate, "upgrade", lambda _connection: changed.append(True))
        # It may be about to open another one.
        with pytest.raises(StoreError, match="a uses the tables"):
            other.migrate_by_hand()
        old = text("UPDATE instances SET at = at - 100")
        other._database.write(lambda connection: connection.execute(old), unguarded=True)
        other.migrate_by_hand()
        assert changed


@pytest.mark.parametrize("guarded", [True, False])
def test_many_writers_and_takeovers(url: str, guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write that is committed is of the term that was the present one at its commit."""
    writers, takeovers = 4, 12
    if not guarded:
        monkeypatch.setattr(Database, "_check_term", lambda *_: None)
    with stores(url, 3) as (first, second, look):
        look._database.write(
            lambda connection: connection.execute(text("CREATE TABLE seen (own bigint, present bigint)")),
            unguarded=True,
        )
        taken, refused, over = [0], [0], Event()

        def write(store: Store, connection: Connection) -> None:
            own = {"own": store._database._generation}
            connection.execute(text("INSERT INTO seen SELECT :own, generation FROM term"), own)

        def keep_writing(store: Store) -> None:
            while not over.is_set():
                try:
                    store._database.write(partial(write, store))
                except FencedError:
                    refused[0] += 1

        take(first, A)
        threads = [Thread(target=keep_writing, args=(store,)) for store in (first, second) for _ in range(writers)]
        second.guard(1, lambda _sentence: None)
        for thread in threads:
            thread.start()
        count = text("SELECT count(*) FROM seen")
        for number in range(takeovers):
            before = look._database.read(lambda connection: connection.execute(count).scalar_one())
            until(lambda low=before: look._database.read(lambda c: c.execute(count).scalar_one()) > low)  # type: ignore[misc]
            store, me = ((second, B), (first, A))[number % 2]
            store.instances.register(me)
            generation = store.instances.take(me, store.instances.all().generation, Why.SILENT)
            assert generation is not None
            store.guard(generation, lambda _sentence: None)
            taken.append(generation)
        over.set()
        for thread in threads:
            thread.join()
        wrong = text("SELECT count(*) FROM seen WHERE own <> present")
        stale = look._database.read(lambda connection: connection.execute(wrong).scalar_one())
        assert taken == sorted(set(taken))
        assert (stale == 0) is guarded
        assert (refused[0] > 0) is guarded


def until(question: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not question():
        assert time.monotonic() < deadline
        time.sleep(0.01)

"""The accounts are written so that posts get through meanwhile, and once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from lark_common.errors import StoreError
from lark_common.runs import NetworkType
from lark_controller.accounting.entry import Entry
from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.pairs import PairLedger
from lark_controller.accounting.readings import PortReading
from lark_controller.api.instances import Identity, Why
from lark_controller.services.account_writer import KEPT, AccountWriter
from lark_controller.store import Store, usage
from tests.fixtures.controllers import until
from tests.fixtures.databases import NOW, a_run


@contextmanager
def at_commits(store: Store, work: Callable[[], object]) -> Iterator[None]:
    """Call ``work`` at each commit."""

    def committed(_connection: Connection) -> None:
        work()

    event.listen(store.usage.database.engine, "commit", committed)
    try:
        yield
    finally:
        event.remove(store.usage.database.engine, "commit", committed)


def a_pool(store: Store, count: int) -> Ledger:
    """The accounts of so many jobs, which have sent something."""
    ledger = Ledger()
    for number in range(count):
        ledger.begin(replace(a_run(number), number=number), "default")
        ledger.read(number, NOW + 1, PortReading(1, 2, 3, 4), [], 0.0)
    return ledger


def test_thousands_of_accounts_are_written_in_transactions_between_which_others_write(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'lark.db'}")
    store.migrate()
    portion = store.usage.portion
    count = 2 * portion + 1
    ledger = a_pool(store, count)
    written: list[int] = []

    with at_commits(store, lambda: written.append(len(ledger.changed()))):
        AccountWriter(store, ledger, PairLedger(), KEPT).write()
    assert written == [count, count - portion, count - 2 * portion]
    assert len(list(store.usage.unended())) == count
    store.close()


def test_accounts_are_written_over_the_whole_interval_and_those_of_jobs_that_end_meanwhile_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'lark.db'}")
    store.migrate()
    now, ends, count = [0.0], 1, 5 * store.usage.portion
    ledger = a_pool(store, count)
    writer = AccountWriter(store, ledger, PairLedger(), KEPT)
    written: list[float] = []
    ended_at: list[float] = []

    def pause(seconds: float) -> bool:
        if now[0] >= 20.0 and not ended_at:
            # A job ends while the pool is written.
            ledger.close(ends, NOW + 2)
            ended_at.append(now[0])
        now[0] += seconds
        return False

    monkeypatch.setattr(writer._thread, "pause", pause)
    clock = SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    monkeypatch.setattr("lark_controller.services.account_writer.time", clock)
    with at_commits(store, lambda: written.append(now[0])):
        writer.write_evenly()
    (end,) = (at for at in written if ended_at[0] <= at <= ended_at[0] + 2.0)
    assert [at for at in written if at != end] == pytest.approx([0.0, 9.6, 19.2, 28.8, 38.4])
    assert ledger.changed() == []
    assert store.usage.of_jobs([ends])[ends].final
    assert len(list(store.usage.unended())) == count - 1
    store.close()


def test_a_database_that_is_away_again_and_again_leaves_no_account_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'lark.db'}")
    store.migrate()
    ledger = a_pool(store, 5 * store.usage.portion)
    writer = AccountWriter(store, ledger, PairLedger(), KEPT)
    monkeypatch.setattr(writer, "_rest", lambda _until: False)
    portions, tried = list(ledger.portions(store.usage.portion)), list[int]()

    def third_fails(portion: Sequence[int]) -> float:
        # All of them have new use again by the next pass.
        tried.append(portions.index(list(portion)))
        if len(tried) % 3 == 0:
            raise StoreError("the database is away")
        return 0.0

    monkeypatch.setattr(writer, "_write_some", third_fails)
    for _ in range(3):
        with pytest.raises(StoreError):
            writer.write_evenly()
    assert tried == [0, 1, 2, 2, 3, 4, 4, 0, 1]
    store.close()


def test_what_is_not_written_when_the_writer_is_stopped_is_written_at_its_end(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'lark.db'}")
    store.migrate()
    ledger = a_pool(store, 3 * store.usage.portion)
    writer = AccountWriter(store, ledger, PairLedger(), replace(KEPT, write_seconds=2.0))
    writer.start()
    until(lambda: len(ledger.changed()) < 3 * store.usage.portion)
    writer.stop()
    assert ledger.changed() == []
    store.close()


def test_a_controller_that_starts_does_not_call_counted_what_the_one_before_may_not_have_written(
    tmp_path: Path,
) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'lark.db'}")
    store.migrate()
    began = time.time()
    assert AccountWriter(store, Ledger(), PairLedger(), KEPT).counted >= began
    jobs = [replace(a_run(number), number=number, created=NOW) for number in range(3)]
    AccountWriter(store, a_pool(store, 2), PairLedger(), KEPT).write()
    passed = NOW + 1 - 2 * KEPT.write_seconds - KEPT.read_seconds
    # Of the last one nothing was written: had it used anything before that, it would have been.
    after = AccountWriter(store, Ledger(), PairLedger(), KEPT)
    after.load((job, "default") for job in (*jobs[:2], replace(jobs[2], created=NOW - 1000.0)))
    assert after.counted == passed
    for network, least in ((NetworkType.OVS_BRIDGE, NOW), (NetworkType.NONE, began)):
        alone = AccountWriter(store, Ledger(), PairLedger(), KEPT)
        alone.load([(replace(jobs[2], network_type=network), "default")])
        assert least <= alone.counted
        assert (alone.counted == NOW) is (network is not NetworkType.NONE)
    store.close()


def test_what_a_job_used_before_it_came_back_hides_no_commit_whose_answer_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'lark.db'}")
    store.migrate()
    ledger, job = Ledger(), replace(a_run(1), number=1)
    writer = AccountWriter(store, ledger, PairLedger(), KEPT)
    ledger.begin(job, "default")
    ledger.read(1, NOW + 1, PortReading(1, 100, 1, 100), [], 0.0)
    ledger.close(1, NOW + 2)
    writer.write()
    assert ledger.usage(1) is None
    ledger.begin(job, "default")
    ledger.read(1, NOW + 3, PortReading(2, 150, 2, 150), [], 0.0)
    write = store.usage.write

    def lost(entries: Sequence[Entry]) -> None:
        write(entries)
        raise StoreError("its answer is lost")

    with monkeypatch.context() as patch:
        patch.setattr(store.usage, "write", lost)
        with pytest.raises(StoreError):
            writer.write()
    writer.write()
    assert ledger.changed() == []
    assert store.usage.of_jobs([1])[1].usage[:4] == (150, 150, 2, 2)
    store.close()


@pytest.mark.postgres
def test_a_commit_that_comes_after_its_answer_was_lost_counts_once(
    postgres_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is gone for the client, and the server has not noticed."""
    url = postgres_server.new_database("lark_template")
    store, ledger, go_on = Store.open(url), Ledger(), Event()
    database = store.usage.database
    me = Identity("a", "a", "http://a", "1")
    store.instances.register(me)
    generation = store.instances.take(me, store.instances.all().generation, Why.FIRST)
    assert generation is not None
    store.guard(generation, lambda _sentence: None)
    ledger.begin(replace(a_run(1), number=1), "default")
    for second in (1, 2):
        ledger.read(1, NOW + second, PortReading(1, 200 * second, 3, 400 * second), [], 0.0)
    writer = AccountWriter(store, ledger, PairLedger(), KEPT)
    threads: list[Thread] = []

    def late(connection: Connection, entries: Sequence[Entry], wrote: Event) -> None:
        usage.write(connection, usage.new_use(entries))
        wrote.set()
        # A session that does nothing for seconds would be ended.
        while not go_on.wait(0.1):
            connection.execute(text("SELECT 1"))

    def lost(entries: Sequence[Entry]) -> None:
        wrote = Event()
        threads.append(Thread(target=database.write, args=(partial(late, entries=entries, wrote=wrote),)))
        threads[-1].start()
        assert wrote.wait(60)
        raise StoreError("its answer is lost")

    with monkeypatch.context() as patch:
        patch.setattr(store.usage, "write", lost)
        with pytest.raises(StoreError):
            writer.write()
    threads.append(Thread(target=writer.write))
    threads[-1].start()
    waits = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()")
    try:
        until(lambda: database.read(lambda connection: connection.execute(waits).scalar_one()))
    finally:
        go_on.set()
        for thread in threads:
            thread.join(60)
    known = ledger.usage(1)
    assert known is not None
    assert sum(known.usage) > 0
    assert store.usage.of_jobs([1])[1].usage == known.usage
    store.close()
    postgres_server.drop_database(url)


def test_the_first_use_after_a_start_is_written_without_waiting_for_the_next_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'lark.db'}")
    store.migrate()
    ledger, now = Ledger(), [0.0]
    writer = AccountWriter(store, ledger, PairLedger(), KEPT)
    totals: list[tuple[float, int]] = []

    def pause(seconds: float) -> bool:
        now[0] += seconds
        # A job of which nothing has been counted is no use yet.
        if now[0] == 3.0:
            ledger.begin(replace(a_run(1), number=1), "default")
        for used, at in ((100, 20.0), (300, 30.0)):
            if now[0] == at:
                ledger.read(1, NOW + at, PortReading(used, 0, 1, 0), [], 0.0)
        found = store.usage.of_jobs([1])
        total = found[1].usage.packets_out if found else 0
        if total and (not totals or totals[-1][1] != total):
            totals.append((now[0], total))
        return now[0] >= 100.0

    monkeypatch.setattr(writer._thread, "pause", pause)
    clock = SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    monkeypatch.setattr("lark_controller.services.account_writer.time", clock)
    writer._run()
    (first, used), (second, both) = totals
    assert (used, both) == (100, 300)
    assert 20.0 <= first <= 26.0
    # And then once in a minute.
    assert second - first >= KEPT.write_seconds - 2.0
    store.close()

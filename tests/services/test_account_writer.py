"""The accounts are written so that posts get through meanwhile, and once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from lark_common.errors import StoreError
from lark_controller.accounting.entry import Entry
from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.pairs import PairLedger
from lark_controller.accounting.readings import PortReading
from lark_controller.api.instances import Identity, Why
from lark_controller.services.account_writer import KEPT, AccountWriter
from lark_controller.store import BATCH, Store, usage
from tests.fixtures.controllers import until
from tests.fixtures.databases import NOW, a_run


def test_thousands_of_accounts_are_written_in_transactions_between_which_others_write(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'lark.db'}")
    store.migrate()
    ledger, count = Ledger(), 2 * BATCH + 1
    for number in range(count):
        ledger.begin(replace(a_run(number), number=number), "default")
        ledger.read(number, NOW + 1, PortReading(1, 2, 3, 4), [], 0.0)
    written: list[int] = []

    @event.listens_for(store.usage.database.engine, "commit")
    def committed(_connection: Connection) -> None:
        written.append(len(ledger.changed()))

    AccountWriter(store, ledger, PairLedger(), KEPT).write()
    event.remove(store.usage.database.engine, "commit", committed)
    assert written == [count, count - BATCH, count - 2 * BATCH]
    assert len(list(store.usage.unended())) == count
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

"""The accounts are written so that posts get through meanwhile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sqlalchemy import Connection, event

from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.pairs import PairLedger
from lark_controller.accounting.readings import PortReading
from lark_controller.services.account_writer import KEPT, AccountWriter
from lark_controller.store import BATCH, Store
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

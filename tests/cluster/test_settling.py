"""Those that wait for the ends of all writes that have begun, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest
from sqlalchemy import Connection

from lark_controller.store import instances
from tests.cluster.test_fence import A, stores, take

pytestmark = pytest.mark.postgres


@pytest.fixture
def database(postgres_server: Any) -> Iterator[str]:
    made = postgres_server.new_database("lark_template")
    yield made
    postgres_server.drop_database(made)


def test_two_do_not_wait_for_each_other(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a write, too: of posts, reservations and accounts without an answer several may be looked for at once."""
    both, writing = Barrier(2), instances._writing

    def at_once(connection: Connection) -> set[str]:
        with suppress(BrokenBarrierError):
            both.wait(1.0)
        return writing(connection)

    monkeypatch.setattr(instances, "_TAKE_WAIT_MS", 3_000)
    monkeypatch.setattr(instances, "_writing", at_once)
    with stores(database, 1) as (mine,):
        take(mine, A)
        with ThreadPoolExecutor(2) as threads:
            for each in [threads.submit(mine.settle) for _ in range(2)]:
                each.result()

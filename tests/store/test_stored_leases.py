"""Leases of live runs, in a table of their own."""

from __future__ import annotations

from alembic import command
from sqlalchemy import text

from lark_controller.jobs.job import JobState
from lark_controller.store import LEASE_EXPIRED, Post, Store, migrate
from lark_controller.store.database import connect
from tests.fixtures.databases import LEASE, NOW, a_run


def rows(store_url: str, query: str) -> list[tuple[object, ...]]:
    database = connect(store_url)
    found = database.read(lambda connection: [tuple(row) for row in connection.execute(text(query))])
    database.close()
    return found


def put(store: Store, *numbers: int) -> list[int]:
    store.runs.carry_out([Post(a_run(number), "", "", "hook", NOW, "") for number in numbers])
    return [job.number for job in store.runs.live()]


def test_a_renewal_changes_the_lease_alone(store: Store, store_url: str) -> None:
    numbers = put(store, 1, 2, 3)
    before = rows(store_url, "SELECT * FROM runs ORDER BY number")
    assert store.runs.renew_many([(number, LEASE + number) for number in numbers]) == 3
    assert rows(store_url, "SELECT * FROM runs ORDER BY number") == before
    assert [job.lease_until for job in store.runs.live()] == [LEASE + number for number in numbers]
    assert [job.number for job in store.runs.expired(LEASE + numbers[0] + 0.5)] == numbers[:1]


def test_a_lease_goes_with_its_run_and_comes_with_it(store: Store, store_url: str) -> None:
    numbers = put(store, 1, 2, 3, 4)
    store.runs.end(a_run(1).id, NOW, LEASE_EXPIRED, "", "lark")
    store.runs.set_states([(a_run(2).id, JobState.REFUSED, "no room")])
    count = "SELECT number FROM leases ORDER BY number"
    assert rows(store_url, count) == [(number,) for number in numbers[2:]]
    for number in (1, 2):
        store.runs.register(a_run(number, lease_until=LEASE + 7), "", "", "hook", NOW)
    assert rows(store_url, count) == [(number,) for number in numbers]
    assert {job.lease_until for job in store.runs.live()} == {LEASE, LEASE + 7}


def test_every_live_run_has_a_lease_after_a_start(store: Store, store_url: str) -> None:
    numbers = put(store, 1, 2)
    database = connect(store_url)
    database.write(lambda connection: connection.execute(text("DELETE FROM leases")))
    database.close()
    assert store.runs.begin_leases(LEASE + 1) == 2
    assert store.runs.begin_leases(LEASE + 1) == 0
    assert rows(store_url, "SELECT number, lease_until FROM leases") == [(number, LEASE + 1) for number in numbers]


def test_leases_are_moved_up_and_down(store: Store, store_url: str) -> None:
    (number,) = put(store, 1)
    store.runs.renew_many([(number, LEASE + 5)])
    database = connect(store_url)
    database.write(lambda connection: command.downgrade(migrate.configuration(connection), "0006_job_numbers"))
    assert rows(store_url, "SELECT lease_until FROM runs") == [(LEASE + 5,)]
    database.close()
    store.migrate()
    assert rows(store_url, "SELECT number, lease_until FROM leases") == [(number, LEASE + 5)]

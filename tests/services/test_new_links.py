"""The speeds of workers' links, which come with posts: each is kept in the transaction of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lark_common.classads.ads import parse_post
from lark_common.errors import StoreError
from lark_controller.jobs.job import Directory
from lark_controller.policies.decide import needed_attributes
from lark_controller.policies.file import load
from lark_controller.services.feed import Feed
from lark_controller.services.registration import Registration
from lark_controller.services.reservations import Reservations
from lark_controller.store import Store
from tests.fixtures.databases import sqlite_with_tables

POLICY = "version: 1\nnetworks: {jobs: [10.0.0.0/8]}\n"
LINKS = """\
switches: {core1: {datapath: "000000000000c0de", role: core, ports: {lan: 1, wan: 2}}}
topology:
  links:
    internet: {between: [core1, wan], capacity: 100}
  hosts:
    default: {switch: core1}
"""


@pytest.fixture
def registration(tmp_path: Path) -> Iterator[Registration]:
    store = Store.open(sqlite_with_tables(tmp_path / "lark.db"))
    feed = Feed(Directory(), lambda _job: None, lambda _number: None)
    made = Registration(store, 900, feed, Reservations(store, feed))
    _use(made, POLICY)
    yield made
    store.close()


def _use(registration: Registration, text: str) -> None:
    policy = load(text)
    registration.use(policy, needed_attributes(policy))


def _post(registration: Registration, number: int, speed: int, host: str = "Worker1") -> None:
    text = (
        f'Owner = "alice"\nGlobalJobId = "s#{number}.0#1"\n------\nMachine = "{host}"\nName = "slot{number}@{host}"\n'
        f'LarkAddressType = "controller"\nLarkExternalInterface = "p{number}"\nAvailBandwidth = {speed}\n'
    )
    registration.register(*parse_post(text.encode(), "text/plain"), "hook")


def _post_in_vain(registration: Registration, monkeypatch: pytest.MonkeyPatch) -> None:
    """Post a job, with its worker's link of 1000 Mb/s, while the database is away."""

    def away(_requests: object) -> None:
        raise StoreError("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(registration._store.runs, "carry_out", away)
        with pytest.raises(StoreError):
            _post(registration, 1, 1000)


def _kept(registration: Registration) -> dict[str, float]:
    return dict(registration._store.reservations.worker_capacities())


def test_the_first_post_of_a_worker_is_one_transaction(
    registration: Registration, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = registration._store.runs.database
    write, writes = database.write, list[object]()

    def counted(work: Callable[[Any], Any], *arguments: Any) -> Any:
        writes.append(work)
        return write(work, *arguments)

    monkeypatch.setattr(database, "write", counted)
    _post(registration, 1, 1000)
    assert (len(writes), _kept(registration)) == (1, {"worker1": 1000.0})
    # A known one is not written again, a new one is.
    _post(registration, 2, 1000)
    assert registration._reservations.new_links == {}
    _post(registration, 3, 10_000)
    assert (len(writes), _kept(registration)) == (3, {"worker1": 10_000.0})


def test_a_link_whose_post_was_not_written_comes_with_the_next(
    registration: Registration, monkeypatch: pytest.MonkeyPatch
) -> None:
    _post_in_vain(registration, monkeypatch)
    assert _kept(registration) == {}
    _post(registration, 2, 1000)
    assert _kept(registration) == {"worker1": 1000.0}


def test_a_policy_that_brings_a_topology_has_the_links_of_posts_before(
    registration: Registration, monkeypatch: pytest.MonkeyPatch
) -> None:
    _post_in_vain(registration, monkeypatch)
    _use(registration, POLICY + LINKS)
    registration._reservations.use(load(POLICY + LINKS))
    assert registration._reservations.access_rate("worker1") == 1000.0
    _post(registration, 2, 2000)
    assert registration._reservations.access_rate("worker1") == 2000.0
    assert _kept(registration) == {"worker1": 2000.0}


def test_a_link_that_a_topology_needs_at_once_is_written_once(
    registration: Registration, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(registration, POLICY + LINKS)
    registration._reservations.use(load(POLICY + LINKS))
    carry_out, links = registration._store.runs.carry_out, list[float | None]()

    def seen(requests: Any) -> Any:
        links.extend(each.link for each in requests)
        return carry_out(requests)

    monkeypatch.setattr(registration._store.runs, "carry_out", seen)
    _post(registration, 1, 1000)
    assert (links, _kept(registration)) == ([None], {"worker1": 1000.0})

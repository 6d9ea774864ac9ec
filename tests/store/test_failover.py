"""PostgreSQL's own failover: two servers with streaming replication, of which one is promoted."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.postgres import PostgresServer
from lark_common.errors import StoreError
from lark_controller.api.instances import ACTIVE, Identity, Why
from lark_controller.store import Store
from lark_controller.store.trial import try_out

pytestmark = pytest.mark.postgres

WORDS = "replicated asynchronously"


@dataclass(frozen=True)
class Pair:
    """A primary and its standby, which one URL names."""

    primary: PostgresServer
    standby: PostgresServer

    def url(self, *, reverse: bool = False) -> str:
        hosts = [f"host={each.directory}" for each in (self.primary, self.standby)]
        return (
            f"postgresql://lark@/lark?{'&'.join(reversed(hosts) if reverse else hosts)}&target_session_attrs=read-write"
        )


def eventually(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def pair() -> Iterator[Pair]:
    directories = [Path(tempfile.mkdtemp(prefix=f"lark-{name}-", dir="/tmp")) for name in ("primary", "standby")]
    pair = Pair(*map(PostgresServer, directories))
    try:
        pair.primary.create()
        pair.primary.start()
        pair.primary.new_database(name="lark")
        pair.standby.copy(pair.primary)
        pair.standby.start()
        yield pair
    finally:
        for server in (pair.standby, pair.primary):
            server.stop()
            shutil.rmtree(server.directory, ignore_errors=True)


def synchronous(pair: Pair) -> None:
    pair.primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
    pair.primary.execute("SELECT pg_reload_conf()")


def actions(store: Store) -> list[str]:
    return [entry.action for entry in store.trail.page(None, None, 100).entries]


@pytest.mark.parametrize("reverse", [False, True])
def test_the_server_that_takes_writes_is_found_before_and_after_a_promotion(pair: Pair, reverse: bool) -> None:
    url = pair.url(reverse=reverse)
    assert "PostgreSQL" in try_out(url)
    store = Store.open(url)
    store.migrate()
    eventually(lambda: WORDS in store.replication_risk())
    synchronous(pair)
    eventually(lambda: store.replication_risk() == "")
    for number in range(20):
        store.trail.record(time.time(), "test", f"before {number}", "controller")
    pair.primary.kill()
    with pytest.raises(StoreError):
        store.check_writes()
    pair.standby.promote()
    eventually(lambda: writes(store))
    store.trail.record(time.time(), "test", "after", "controller")
    assert set(actions(store)) == {"after", *(f"before {number}" for number in range(20))}
    # Named by the URL, and without a standby of its own: it may have one again.
    assert WORDS in store.replication_risk()
    store.close()


def test_a_former_server_that_lives_on_and_takes_no_writes_is_left(pair: Pair) -> None:
    """Its connections stand, and answer: nothing but the failure of writes shows that another has its place."""
    store = Store.open(pair.url())
    store.migrate()
    me = Identity("1", "one", "http://one", "1.0.0")
    store.instances.prepare()
    store.instances.register(me)
    generation = store.instances.take(me, 0, Why.FIRST)
    assert generation is not None
    store.trail.record(time.time(), "test", "before", "controller")
    synchronous(pair)
    pair.primary.execute("ALTER SYSTEM SET default_transaction_read_only = on")
    pair.primary.execute("SELECT pg_reload_conf()")
    eventually(lambda: not writes(store))
    for _ in range(10):
        store.instances.hold(generation)
        with pytest.raises(StoreError):
            store.instances.meet(me, ACTIVE)
        # Nobody takes writes: what is there can be read.
        assert actions(store) == ["before"]
    pair.standby.promote()
    pair.standby.execute("ALTER SYSTEM RESET synchronous_standby_names")
    pair.standby.execute("SELECT pg_reload_conf()")
    assert not writes(store)
    with pytest.raises(StoreError):
        store.instances.meet(me, ACTIVE)
    store.instances.hold(generation)
    look = store.instances.meet(me, ACTIVE)
    assert (look.generation, look.held) == (generation, True)
    store.trail.record(time.time(), "test", "after", "controller")
    assert actions(store) == ["after", "before"]
    store.close()


def writes(store: Store) -> bool:
    try:
        store.check_writes()
    except StoreError:
        return False
    return True


def test_where_no_server_takes_writes_the_store_says_so(pair: Pair) -> None:
    pair.primary.kill()
    with pytest.raises(StoreError) as caught:
        Store.open(pair.url()).migrate()
    assert "PostgreSQL database lark at" in str(caught.value)


def test_one_server_without_a_standby_risks_nothing(store: Store) -> None:
    assert store.replication_risk() == ""


def test_commits_that_wait_for_nobody_are_a_risk(pair: Pair) -> None:
    synchronous(pair)
    store = Store.open(pair.url())
    eventually(lambda: store.replication_risk() == "")
    pair.primary.execute("ALTER SYSTEM SET synchronous_commit = 'local'")
    pair.primary.execute("SELECT pg_reload_conf()")
    eventually(lambda: WORDS in store.replication_risk())
    store.close()

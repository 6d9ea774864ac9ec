"""Readiness is no lie: what makes posts fail, or the switches wait, is said by ``ready`` within seconds."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import event

from lab.postgres import PostgresServer
from lark_common.errors import StoreError
from lark_controller.controller import Controller
from lark_controller.services import health
from lark_controller.store import Store
from tests.fixtures.controllers import post, running, until
from tests.fixtures.databases import a_run
from tests.store.test_runs import put


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(health, "WRITE_EVERY", 0.1)
    monkeypatch.setattr(health, "LOOP_SECONDS", 0.5)
    monkeypatch.setattr(health, "FAILURE_SECONDS", 0.5)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MiB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "none", str(directory)], check=True)
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(directory: Path) -> Path:
    """A file that takes all room that is left."""
    rest = directory / "rest"
    with rest.open("wb", buffering=0) as file:
        size = 1 << 16
        while size:
            try:
                file.write(b"x" * size)
            except OSError:
                size //= 2
    return rest


def says(controller: Controller, words: str) -> bool:
    found = controller.health.ready()
    assert found.ready is not bool(found.reasons)
    return any(words in reason for reason in found.reasons)


def test_a_full_disk_is_not_ready_until_there_is_room(small_disk: Path) -> None:
    with running(small_disk) as controller:
        assert controller.health.ready().ready
        post(controller, 1)
        rest = fill(small_disk)
        assert says(controller, "Make room on the disk")
        rest.unlink()
        until(lambda: controller.health.ready().ready)
        post(controller, 2)


def test_a_full_disk_shows_in_the_write_that_is_tried_where_the_file_system_does_not_tell(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A quota, or a server's disk.
    monkeypatch.setattr(Store, "check_room", lambda _: None)
    with running(small_disk) as controller:
        post(controller, 1)
        rest = fill(small_disk)
        until(lambda: says(controller, "disk is full"))
        rest.unlink()
        until(lambda: controller.health.ready().ready)


def test_a_post_that_the_database_refused_is_remembered_and_one_that_it_could_not_take_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "WRITE_EVERY", 3600.0)
    monkeypatch.setattr(health, "FAILURE_SECONDS", 3600.0)
    with running(tmp_path) as controller:
        store = controller._store
        with pytest.raises(StoreError):
            put(store, a_run(1, owner="\ud800"))
        assert controller.health.ready().ready
        refuse(store)
        with pytest.raises(StoreError, match="readonly"):
            put(store, a_run(2))
        assert says(controller, "readonly database")


def refuse(store: Store) -> None:
    """From now on the database is read, not written."""
    event.listen(
        store._database.engine, "checkout", lambda connection, *_: connection.execute("PRAGMA query_only=1").close()
    )


def test_a_read_only_sqlite_is_not_ready(tmp_path: Path) -> None:
    with running(tmp_path) as controller:
        refuse(controller._store)
        until(lambda: says(controller, "readonly database"))
        # A new start would find the same database, and take the running jobs' switches through another comparison.
        assert controller.health.alive()


@pytest.mark.postgres
def test_a_read_only_postgresql_takes_no_writes(postgres_server: PostgresServer) -> None:
    url = postgres_server.new_database("lark_template")
    store = Store.open(url + "&options=-c%20default_transaction_read_only%3Don")
    writable = Store.open(url)
    try:
        store.ping()
        with pytest.raises(StoreError, match="takes no writes"):
            store.check_writes()
        assert "takes no writes" in store.failed_write(60)
        writable.check_writes()
        assert writable.failed_write(60) == ""
    finally:
        store.close()
        writable.close()
        postgres_server.drop_database(url)


def test_a_loop_that_stands_still_is_not_ready(tmp_path: Path) -> None:
    with running(tmp_path) as controller:
        go_on = threading.Event()
        controller._openflow.loop.call_soon_threadsafe(go_on.wait)
        until(lambda: says(controller, "has not turned for"))
        assert not controller.health.alive()
        go_on.set()
        until(lambda: controller.health.ready().ready)
        assert controller.health.alive()


def test_a_database_that_does_not_answer_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "STORE_SECONDS", 0.3)
    with running(tmp_path) as controller, controller._store._database._writer:
        until(lambda: says(controller, "has not answered a write"))


@pytest.mark.parametrize("name", ["ovsdb", "lark-usage", "lark-leases", "lark-states", "openflow", "lark-readiness"])
def test_a_thread_that_has_ended_is_not_ready(tmp_path: Path, name: str) -> None:
    with running(tmp_path) as controller:
        assert controller.health.ready().ready
        match name:
            case "ovsdb":
                controller._ovsdb._post(None)
            case "lark-usage":
                controller._account_writer.threads[0].stop()
            case "lark-leases":
                controller._upkeep.stop_watching()
            case "lark-states":
                controller._upkeep.stop()
            case "openflow":
                controller._openflow.loop.call_soon_threadsafe(controller._openflow.loop.stop)
            case "lark-readiness":
                controller.health.stop()
        until(lambda: says(controller, f"the thread {name} has ended"))
        assert not controller.health.alive()
        if name == "openflow":
            # The loop is gone, and the controller's stop would wait for it for ever.
            controller._openflow.stop()

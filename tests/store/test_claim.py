"""One controller for one database: a second one notices, whatever became of the first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import psycopg
import pytest

from lark_common.errors import StoreError
from lark_controller.cli.run import Service
from lark_controller.settings import Settings, load
from lark_controller.store import Store, claim
from lark_controller.store.database import connect
from tests.fixtures.controllers import OPEN

HOLD = """
import sys
from lark_controller.store import Store, claim
store = Store.open(sys.argv[1])
store.claim()
print("claimed", flush=True)
sys.stdin.read()
"""


@contextmanager
def holding(url: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that has claimed a database."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "claimed\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def settings(folder: Path, **environ: str) -> Settings:
    (folder / "policy.yaml").write_text(OPEN)
    return load(
        {
            "LARK_STATE_DIR": str(folder),
            "LARK_POLICY_FILE": str(folder / "policy.yaml"),
            "LARK_TOKENS_FILE": str(folder / "tokens.yaml"),
            "LARK_OPENFLOW_LISTEN": "127.0.0.1:0",
            "LARK_REST_LISTEN": "127.0.0.1:0",
            **environ,
        }
    )


def test_on_sqlite_a_second_controller_does_not_start_and_names_the_first(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/lark.db"
    with holding(url) as other:
        with pytest.raises(StoreError, match=rf"another controller uses it \(process {other.pid}\). Stop that one"):
            Service(settings(tmp_path))
        # Whoever only looks needs no claim.
        Store.open(url).close()
        other.send_signal(signal.SIGKILL)
        other.wait()
        service = Service(settings(tmp_path))
    service.start()
    with pytest.raises(StoreError, match=f"process {os.getpid()}"):
        Service(settings(tmp_path))
    service.stop()
    Service(settings(tmp_path)).store.close()


def test_programs_that_the_controller_starts_do_not_keep_its_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between fork and exec a child has all files of its parent."""
    monkeypatch.setattr(claim, "_PATIENCE", -1.0)
    over = Event()

    def start_programs() -> None:
        while not over.is_set():
            subprocess.run(["true"], check=True)

    starting = [Thread(target=start_programs) for _ in range(3)]
    for thread in starting:
        thread.start()
    try:
        for _ in range(300):
            claim.claim_file(tmp_path / "lark.db").release()
    finally:
        over.set()
        for thread in starting:
            thread.join()


@pytest.mark.postgres
def test_a_server_that_vanishes_is_not_waited_for_by_the_kernel(postgres_url: str) -> None:
    def told(url: str) -> dict[str, str]:
        database = connect(url)
        try:
            driver = database.engine.raw_connection().driver_connection
            assert isinstance(driver, psycopg.Connection)
            return driver.info.get_parameters()
        finally:
            database.close()

    assert told(postgres_url)["tcp_user_timeout"] == "20000"
    join = "&" if "?" in postgres_url else "?"
    assert told(f"{postgres_url}{join}tcp_user_timeout=5000")["tcp_user_timeout"] == "5000"

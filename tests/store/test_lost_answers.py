"""Answers of PostgreSQL that never come, though the connection stands: as where a proxy has lost the server's side."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, text

from lab.postgres import PostgresServer
from lark_common.errors import StoreError, UnansweredError
from lark_controller.store import lost_answers
from lark_controller.store.database import Database, connect

pytestmark = pytest.mark.postgres


class Relay:
    """Passes connections on to a server's socket, until it loses the server's side of each and keeps the client's."""

    def __init__(self, server: Path) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._behind: list[socket.socket] = []
        self._clients: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def lose(self) -> None:
        """Lose the server's side of all connections that there are."""
        behind, self._behind = self._behind, []
        for each in behind:
            each.shutdown(socket.SHUT_RDWR)
        # Whoever does not notice it waits no longer than this.
        end = threading.Timer(20, self.close)
        end.daemon = True
        end.start()

    def close(self) -> None:
        """End all."""
        self._listener.close()
        for each in (*self._behind, *self._clients):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                behind = socket.socket(socket.AF_UNIX)
                behind.connect(str(self._server))
                self._clients.append(client)
                self._behind.append(behind)
                for ways in ((client, behind), (behind, client)):
                    threading.Thread(target=self._pass, args=ways, daemon=True).start()

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                with suppress(BrokenPipeError):
                    target.sendall(data)


@pytest.fixture
def relay(postgres_server: PostgresServer) -> Iterator[Relay]:
    made = Relay(postgres_server.directory / ".s.PGSQL.5432")
    yield made
    made.close()


@pytest.fixture
def database(postgres_server: PostgresServer, relay: Relay, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setattr(lost_answers, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(lost_answers, "AGAIN_SECONDS", 0.1)
    name = postgres_server.new_database().split("?", maxsplit=1)[0].rsplit("/", 1)[1]
    made = connect(f"postgresql://lark@127.0.0.1:{relay.port}/{name}")
    made.write(lambda connection: connection.execute(text("CREATE TABLE numbers (n int)")))
    yield made
    made.close()


def count(database: Database) -> int:
    found = database.read(lambda connection: connection.execute(text("SELECT count(*) FROM numbers")).scalar_one())
    return int(found)


def add(connection: Connection) -> None:
    connection.execute(text("INSERT INTO numbers VALUES (1)"))


def test_a_connection_that_stands_to_nobody_is_replaced(database: Database, relay: Relay) -> None:
    relay.lose()
    assert count(database) == 0
    relay.lose()
    database.write(add)
    assert count(database) == 1


def test_a_commit_whose_answer_is_lost_may_have_been_carried_out(database: Database, relay: Relay) -> None:
    def lost(connection: Connection) -> None:
        add(connection)
        relay.lose()

    with pytest.raises(UnansweredError):
        database.write(lost)
    # The server has ended it without the commit, which did not come.
    assert count(database) == 0


def test_a_statement_in_the_midst_of_a_write_is_lost_and_all_is_done_again(database: Database, relay: Relay) -> None:
    turns = []

    def once(connection: Connection) -> None:
        add(connection)
        turns.append(1)
        if len(turns) == 1:
            relay.lose()
            add(connection)

    database.write(once)
    assert (len(turns), count(database)) == (2, 1)


def test_the_session_of_an_instance_is_lost(database: Database, relay: Relay) -> None:
    session = database.session()
    relay.lose()
    with pytest.raises(StoreError, match="the answer is lost"), database.translated(), session.begin():
        session.execute(text("SELECT 1"))
    session.close()


def test_what_takes_long_is_waited_for(database: Database) -> None:
    """Many looks at the server meanwhile lose nothing of it, whatever it is."""

    def work(connection: Connection) -> int:
        connection.execute(text("SELECT pg_sleep(1)"))
        connection.execute(
            text("INSERT INTO numbers SELECT :n FROM pg_sleep(0.1)"), [{"n": number} for number in range(6)]
        )
        driver = connection.connection.cursor()
        with driver.copy("COPY numbers FROM STDIN") as copy:
            for number in range(20_000):
                copy.write_row((number,))
        driver.close()
        found = connection.execute(text("SELECT n, pg_sleep(CASE WHEN n = 7 THEN 1 ELSE 0 END) FROM numbers"))
        return len(found.all())

    assert database.write(work) == count(database) == 20_006


def test_a_server_that_is_away_is_waited_for_until_the_kernel_notices(
    database: Database, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows then whether it does anything for its client."""
    asked = []

    def away(*_: object, **__: object) -> object:
        asked.append(time.monotonic())
        raise psycopg.OperationalError("connection refused")

    monkeypatch.setattr("psycopg.connect", away)
    assert database.read(lambda connection: connection.execute(text("SELECT 7 FROM pg_sleep(1)")).scalar_one()) == 7
    assert asked

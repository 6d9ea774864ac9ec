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

    def __init__(self, server: Path, port: int = 0) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self._behind: list[socket.socket] = []
        self._clients: list[socket.socket] = []
        # Of the answers: how much is passed on at a time, and the seconds between two such pieces.
        self.piece, self.pause = 65536, 0.0
        # Answers from the server that hold these bytes are swallowed, and all that is on the connection afterwards.
        self.swallowed = b""
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
        # Without it the thread that waits for connections would go on to take one.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
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

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        answers = source.family == socket.AF_UNIX
        with suppress(OSError):
            while data := source.recv(self.piece if answers else 65536):
                if answers and self.swallowed and self.swallowed in data:
                    return
                if answers:
                    time.sleep(self.pause)
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

    monkeypatch.setattr(lost_answers.WatchedConnection, "connect", away)
    assert database.read(lambda connection: connection.execute(text("SELECT 7 FROM pg_sleep(1)")).scalar_one()) == 7
    assert asked


def test_an_answer_that_comes_slowly_is_waited_for(database: Database, relay: Relay) -> None:
    """The server is done with it, and waits for its client, long before all has come."""
    assert count(database) == 0
    relay.piece, relay.pause = 10_000, 0.05
    found = database.read(lambda connection: connection.execute(text("SELECT repeat('x', 150000)")).scalar_one())
    assert len(found) == 150_000


def test_what_the_server_says_of_an_answer_may_be_lost_itself(database: Database, relay: Relay) -> None:
    def work(connection: Connection) -> int:
        # The answer to the look at the server's processes has this in it.
        relay.swallowed = b"count\x00"
        return int(connection.execute(text("SELECT 7 FROM pg_sleep(1.5)")).scalar_one())

    assert database.read(work) == 7


def test_a_session_whose_state_is_hidden_is_waited_for(postgres_server: PostgresServer, database: Database) -> None:
    """As where the connections' role is another than the one that they are opened as."""
    name = database.engine.url.database
    postgres_server.execute("DROP ROLE IF EXISTS lark_login")
    postgres_server.execute("DROP ROLE IF EXISTS lark_owner")
    postgres_server.execute("CREATE ROLE lark_owner")
    postgres_server.execute("CREATE ROLE lark_login LOGIN IN ROLE lark_owner")
    other = connect(f"postgresql://lark_login@/{name}?host={postgres_server.directory}&options=-crole%3Dlark_owner")
    assert other.read(lambda connection: connection.execute(text("SELECT 7 FROM pg_sleep(1)")).scalar_one()) == 7
    other.close()


def test_the_server_is_asked_at_the_address_of_the_connection(
    postgres_server: PostgresServer, relay: Relay, database: Database
) -> None:
    """A name may stand for several servers, or for none that is known."""
    name = database.engine.url.database
    other = connect(f"postgresql://lark@db.invalid:{relay.port}/{name}?hostaddr=127.0.0.1")
    session = other.session()
    relay.lose()
    with pytest.raises(StoreError, match="the answer is lost"), other.translated(), session.begin():
        session.execute(text("SELECT 1"))
    session.close()
    other.close()

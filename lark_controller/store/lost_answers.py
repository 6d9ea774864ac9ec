"""Connections to PostgreSQL that notice an answer which never comes.

The kernel notices a server that is gone. It does not notice a proxy between both, or a firewall that answers in the
server's place, that has lost the server's side and keeps the other: whatever is asked there waits for ever.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.conninfo import make_conninfo
from psycopg.errors import _WaitTimeout

T = TypeVar("T")

# Seconds of waiting after which the server is asked what its side of the connection does, and between two such looks.
# An answer may be on its way at the first.
LOOK_SECONDS: Final = 10.0
AGAIN_SECONDS: Final = 2.0
_INTERVAL: Final = 0.1

# The state is hidden where the connections' role is not the one that they were opened as (``options=-crole=…``).
_WORKS: Final = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND coalesce(state, '') <> ALL(%s::text[])"
# The states in which the server waits for its client.
_IDLE: Final = ["idle", "idle in transaction", "idle in transaction (aborted)"]


class WatchedConnection(psycopg.Connection[Any]):
    """A connection that ends where the server does nothing any more for what it waits for."""

    # The number of the server's process; a proxy may have given another to the client.
    _process = 0
    # True once something of what is waited for has come or gone since the server was asked last.
    _moved = False

    def note_process(self) -> None:
        """Note which process of the server this is. To be called before the connection is used."""
        with self.cursor() as cursor:
            found = cursor.execute("SELECT pg_backend_pid()").fetchone()
        self.rollback()
        self._process = 0 if found is None else found[0]

    def wait(self, gen: PQGen[T], interval: float = _INTERVAL, timeout: float | None = None) -> T:
        """As psycopg's; OperationalError where the answer is lost."""
        if timeout is not None:
            return super().wait(gen, interval, timeout)
        idle = False
        while True:
            try:
                if not idle:
                    return super().wait(gen, interval, LOOK_SECONDS)
                self._moved = False
                return super().wait(self._noting_moves(gen), interval, AGAIN_SECONDS)
            except _WaitTimeout:
                # The server is done with a long answer, or not yet at a long question, while that is on its way.
                before, idle = idle and not self._moved, self._is_idle()
                if before and idle:
                    self.close()
                    raise psycopg.OperationalError("the server has answered, and the answer is lost") from None

    def _noting_moves(self, gen: PQGen[T]) -> PQGen[T]:
        ready: Any = None
        while True:
            try:
                awaited = gen.send(ready)
            except StopIteration as end:
                found: T = end.value
                return found
            ready = yield awaited
            self._moved = self._moved or bool(ready)

    def _is_idle(self) -> bool:
        """True where the server waits for this client, or has no such process; False also where it does not say."""
        if not self._process:
            # It was asked for no more than its number.
            return True
        with suppress(psycopg.Error):
            # The very server, of several.
            given: dict[str, Any] = {**self.info.get_parameters(), "password": self.info.password or None}
            given |= {"host": self.info.host, "port": self.info.port, "hostaddr": self.info.hostaddr or None}
            given |= {"target_session_attrs": "any", "connect_timeout": 5}
            # Of this class: its own answer may be lost, too.
            with WatchedConnection.connect(make_conninfo(**given)) as asked:
                found = asked.execute(_WORKS, (self._process, _IDLE)).fetchone()
                return found is not None and not found[0]
        return False


def connected(_dialect: object, _record: object, arguments: list[Any], options: dict[str, Any]) -> WatchedConnection:
    """A connection for SQLAlchemy (``do_connect``)."""
    made = WatchedConnection.connect(*arguments, **options)
    try:
        made.note_process()
    except BaseException:
        made.close()
        raise
    return made

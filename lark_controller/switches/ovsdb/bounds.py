"""The bounds of what a database may have the controller keep: :class:`ReplicaBounds`.

The ``ovs`` library keeps every row that a server sends, and every answer to a server's question that it does not take.
"""

from __future__ import annotations

import warnings
from typing import Any, Final

with warnings.catch_warnings():
    # The library looks whether eventlet is there, which os-ken brings along and which warns of itself.
    warnings.simplefilter("ignore")
    from ovs.db.idl import Idl

# Rows of a replica, and the characters in them: a worker has tens of thousands of queues, of some hundred characters
# each. The characters are counted anew each time that so many have come.
MOST_ROWS: Final = 1 << 17
MOST_CHARACTERS: Final = 64 << 20
LOOK_AGAIN: Final = 16 << 20
# Bytes that are read in a turn, beyond which no further message is taken.
AT_ONCE: Final = 1 << 20
# Bytes of answers (echo) that a server may leave untaken.
MOST_OWED: Final = 1 << 20
TOO_LARGE: Final = "its database has more rows, or longer ones, than one of queues can have"
TAKES_NOTHING: Final = "its database takes no answers"


class ReplicaBounds:
    """Exchanges messages with the server of a replica, within bounds."""

    def __init__(self, idl: Idl) -> None:
        self._idl = idl
        # The library has no public word for it.
        self._session = idl._session
        self._owed = 0
        self._looked_at = 0
        self._before = 0
        # The library takes fifty messages in a row, each of which may be of megabytes.
        self._receive = self._session.recv
        self._session.recv = self._next

    def exchange(self) -> str:
        """Send and read what can be without waiting; the reason why this replica is to be given up, ``""`` for none."""
        before = self._session.get_backlog()
        self._before = self._received()
        self._idl.run()
        unsent = self._session.get_backlog()
        self._owed = self._owed + max(0, unsent - before) if unsent else 0
        if self._owed > MOST_OWED:
            return TAKES_NOTHING
        return TOO_LARGE if self._is_too_large() else ""

    def _next(self) -> Any:
        """The next message; None where there is none, or enough has come in this turn."""
        enough = self._received() - self._before >= AT_ONCE
        return None if enough else self._receive()

    def _received(self) -> int:
        rpc = self._session.rpc
        return 0 if rpc is None else int(rpc.get_received_bytes())

    def _is_too_large(self) -> bool:
        if sum(len(table.rows) for table in self._idl.tables.values()) > MOST_ROWS:
            return True
        received = self._received()
        # A new connection counts from 0.
        if 0 <= received - self._looked_at < LOOK_AGAIN:
            return False
        self._looked_at = received
        return _has_too_many_characters(self._idl)


def _has_too_many_characters(idl: Idl) -> bool:
    total = 0
    for table in idl.tables.values():
        for row in table.rows.values():
            total += sum(_characters(getattr(row, column)) for column in table.columns)
            if total > MOST_CHARACTERS:
                return True
    return False


def _characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(_characters(key) + _characters(each) for key, each in value.items())
    return sum(map(_characters, value)) if isinstance(value, list) else 0

"""The bounds of what databases may have the controller keep: :class:`ReplicaBounds` of one, :class:`RowRoom` of all.

The ``ovs`` library keeps every row that a server sends, and every answer to a server's question that it does not take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from lark_controller.qos.queues import PortQueues
from lark_controller.switches.ovsdb.json_stream import Parser
from lark_controller.switches.ovsdb.library import Datum, Idl, Message

# Rows of a replica, and the characters in them: a worker has tens of thousands of queues, of a thousand characters
# each. An entry of a map or a set counts as so many characters more: a number or a reference takes memory as well. The
# characters are counted anew each time that as many have come, and at least so many.
ENTRY: Final = 64
MOST_ROWS: Final = 1 << 17
MOST_CHARACTERS: Final = 64 << 20
LOOK_AGAIN: Final = 1 << 14
# Of all replicas together so many characters are kept beyond those that are expected, which are some of each, and some
# for each queue that the controller wants there. A row counts as so many more.
MOST_TOGETHER: Final = 128 << 20
EXPECTED: Final = 1 << 15
EXPECTED_OF_QUEUE: Final = 1 << 12
ROW: Final = 512
# Bytes that are read in a turn, beyond which no further message is taken.
AT_ONCE: Final = 1 << 20
# Bytes of answers (echo) that a server may leave untaken.
MOST_OWED: Final = 1 << 20
# Characters of the name of a database's state, which is a UUID.
MOST_STATE: Final = 64
TOO_LARGE: Final = "its database has more rows, or longer ones, than one of queues can have"
TOO_MUCH_TOGETHER: Final = "all switches' databases together have more than is kept, and its own more than its part"
TAKES_NOTHING: Final = "its database takes no answers"

# The columns that the library looks at in the database about the server itself. It asks for the schema of that, and
# would keep every column that is in it.
_TEXT: Final = {"type": "string"}
_SERVER_COLUMNS: Final = {
    "name": _TEXT,
    "model": _TEXT,
    "connected": {"type": "boolean"},
    "leader": {"type": "boolean"},
    "index": {"type": {"key": "integer", "min": 0, "max": 1}},
}
_SERVER: Final = {
    "name": "_Server",
    "version": "1.0.0",
    "tables": {"Database": {"columns": _SERVER_COLUMNS}},
}


class RowRoom:
    """Limits what replicas hold beyond what is expected, over all of them: many that are each within their own bounds
    do not add up. For one thread."""

    def __init__(self) -> None:
        self._held: dict[ReplicaBounds, int] = {}
        self._total = 0

    def may_hold(self, replica: ReplicaBounds, excess: int) -> bool:
        """Note how much a replica holds beyond what is expected; False where that is more than its part of too much."""
        self.forget(replica)
        if excess <= 0:
            return True
        self._held[replica] = excess
        self._total += excess
        return self._total <= MOST_TOGETHER or excess * len(self._held) <= MOST_TOGETHER

    def forget(self, replica: ReplicaBounds) -> None:
        """Forget a replica."""
        self._total -= self._held.pop(replica, 0)


class ReplicaBounds:
    """Exchanges messages with the server of a replica, within bounds."""

    def __init__(self, idl: Idl, room: RowRoom) -> None:
        self._room = room
        self._expected = EXPECTED
        # In the rows when they were counted last.
        self._characters = 0
        self._idl = idl
        # The library has no public word for it.
        self._session = idl._session
        self._owed = 0
        self._looked_at = 0
        self._before = 0
        # The library takes fifty messages in a row, each of which may be of megabytes.
        self._receive = self._session.recv
        self._session.recv = self._next

    def expect(self, ports: Mapping[str, PortQueues]) -> None:
        """Expect rows of the queues that the controller wants there."""
        self._expected = EXPECTED + EXPECTED_OF_QUEUE * sum(len(port.queues) for port in ports.values())

    def exchange(self) -> str:
        """Send and read what can be without waiting; the reason why this replica is to be given up, ``""`` for none."""
        before = self._session.get_backlog()
        self._before = self._received()
        self._idl.run()
        if not _is_state(self._idl.last_id):
            return TOO_LARGE
        unsent = self._session.get_backlog()
        self._owed = self._owed + max(0, unsent - before) if unsent else 0
        if self._owed > MOST_OWED:
            return TAKES_NOTHING
        return self._beyond()

    def close(self) -> None:
        """Disconnect, and keep nothing."""
        self._room.forget(self)
        self._idl.close()

    def _next(self) -> Any:
        """The next message; None where there is none, or enough has come in this turn."""
        if self._received() - self._before >= AT_ONCE:
            return None
        message = self._receive()
        asked = self._idl._server_schema_request_id
        if message is not None and message.type == Message.T_REPLY and asked is not None and message.id == asked:
            message.result = _SERVER
        return message

    def _received(self) -> int:
        rpc = self._session.rpc
        return 0 if rpc is None else int(rpc.get_received_bytes())

    def _waiting(self) -> int:
        """The characters of a message whose end has not come."""
        rpc = self._session.rpc
        return rpc.parser.waiting if rpc is not None and isinstance(rpc.parser, Parser) else 0

    def _beyond(self) -> str:
        """The reason why what the replica holds is too much, ``""`` where it is not."""
        rows = sum(len(table.rows) for table in _tables(self._idl))
        if rows > MOST_ROWS:
            return TOO_LARGE
        received = self._received()
        # A new connection counts from 0.
        if not 0 <= received - self._looked_at < max(LOOK_AGAIN, self._characters):
            self._looked_at = received
            self._characters = _characters_in(self._idl)
            if self._characters > MOST_CHARACTERS:
                return TOO_LARGE
        size = self._characters + received - self._looked_at + ROW * rows + self._waiting()
        return "" if self._room.may_hold(self, size - self._expected) else TOO_MUCH_TOGETHER


def _is_state(value: Any) -> bool:
    """True for what may be the name of a database's state: the library keeps whatever the server sends."""
    return isinstance(value, str | UUID) and len(str(value)) <= MOST_STATE


def _tables(idl: Idl) -> list[Any]:
    """The tables of a replica, with that about the server itself, which the library keeps beside them."""
    return [*idl.tables.values(), *(idl.server_tables or {}).values()]


def _characters_in(idl: Idl) -> int:
    """The characters in the rows of a replica, or more than may be."""
    total = 0
    for table in _tables(idl):
        for row in table.rows.values():
            total += sum(map(_characters, row._data.values()))
            if total > MOST_CHARACTERS:
                return total
    return total


def _characters(datum: Datum) -> int:
    """The characters of a column as it was sent: the library shows no reference to a row that is not there."""
    texts = (atom.value for pair in datum.values.items() for atom in pair if atom is not None)
    return ENTRY * len(datum.values) + sum(len(text) for text in texts if isinstance(text, str))

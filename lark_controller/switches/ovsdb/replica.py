"""The replica of the few rows of a switch's database that concern queues, over the ``ovs`` library's session.

The session connects, asks a silent server whether it is there, and connects again. The library's own replica (IDL) has
an object for each value of each row, 13 KiB for a job with a rate of its own; this one has a text for each row.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from socket import socket
from ssl import SSLSocket
from typing import Any, Final
from uuid import uuid4

from lark_common.sending import AtOnce
from lark_controller.switches.ovsdb.columns import requests
from lark_controller.switches.ovsdb.held_rows import Bridge, HeldRows, Root
from lark_controller.switches.ovsdb.json_stream import Parser
from lark_controller.switches.ovsdb.library import Message, Session, json
from lark_controller.switches.ovsdb.rows import Operation, Rows
from lark_controller.switches.ovsdb.transactions import LOST, Outcome, outcome, requested

# The library takes a parser from its module for each message, and has no other place to name one.
json.Parser = Parser

_DATABASE: Final = "Open_vSwitch"
# Messages that are taken in a turn; the bytes that have come and the seconds of processor after which none is taken any
# more: each may be of megabytes, or change a row that is.
_MESSAGES: Final = 50
AT_ONCE: Final = 1 << 20
_SECONDS: Final = 0.05
# The characters of a row: the QoS of an uplink names tens of thousands of queues.
MOST_ROW: Final = 4 << 20


class Replica:
    """The replica of the database at an address. A server that is silent for ``probe`` milliseconds is asked whether it
    is there. For one thread."""

    def __init__(self, address: str, probe: int) -> None:
        self._session = Session.open(address, probe)
        self._connection: int | None = None
        # By this name the server tells of changes.
        self._monitor = str(uuid4())
        self._asked: int | None = None
        self._held = HeldRows()
        self._transaction: int | None = None
        self._outcome: Outcome | None = None
        self.is_read = False
        # Grows with each change of the rows.
        self.changes = 0

    def exchange(self) -> None:
        """Send and read what can be without waiting. Raises ValueError for what no server of this database says."""
        self._session.run()
        began, before = time.thread_time(), self.received
        for _ in range(_MESSAGES):
            if not self.is_connected:
                return
            if self._session.get_seqno() != self._connection:
                self._begin()
                return
            if self.received - before >= AT_ONCE or time.thread_time() - began > _SECONDS or self.is_beyond:
                return
            message = self._session.recv()
            if message is None:
                return
            self._take(message)

    def wait(self, poller: Any) -> None:
        """Have a poller of the library's kind wake when there is something to do."""
        self._session.wait(poller)
        # A part of what has come may be here already.
        self._session.recv_wait(poller)

    def close(self) -> None:
        """Disconnect."""
        self._session.close()

    @property
    def connection(self) -> int:
        """The number of the connection; another one is another socket."""
        return int(self._session.get_seqno())

    @property
    def is_connected(self) -> bool:
        """True while there is a connection."""
        return bool(self._session.is_connected())

    @property
    def backlog(self) -> int:
        """The bytes that the server has not taken yet."""
        return int(self._session.get_backlog())

    @property
    def received(self) -> int:
        """The bytes that have come by this connection."""
        rpc = self._session.rpc
        return 0 if rpc is None else int(rpc.get_received_bytes())

    @property
    def characters(self) -> int:
        """The characters of all rows, and of a message whose end has not come."""
        return self._held.characters + self.waiting

    @property
    def waiting(self) -> int:
        """The characters of a message whose end has not come."""
        rpc = self._session.rpc
        return rpc.parser.waiting if rpc is not None and isinstance(rpc.parser, Parser) else 0

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self._held)

    @property
    def is_beyond(self) -> bool:
        """True where a row is longer than one of queues can be."""
        return self._held.longest > MOST_ROW

    def root(self) -> Root:
        """The row of Open_vSwitch. Raises ValueError where there is none."""
        if (root := self._held.root()) is None:
            raise ValueError("no row of Open_vSwitch")
        return root

    def bridge(self, datapath: str) -> Bridge | None:
        """The bridge with a datapath id of 16 hexadecimal digits."""
        return self._held.bridge(datapath)

    def ports(self) -> dict[str, str]:
        """The QoS of every port that has one, by the port's name."""
        return self._held.ports()

    def rows(self) -> Rows:
        """The rows that concern queues."""
        return self._held.rows()

    def transact(self, operations: Iterable[Operation], *, into_force: bool) -> None:
        """Begin a transaction. ``into_force``: with the request that the switch puts it into force."""
        asked = requested(operations, self.root().uuid) if into_force else list(operations)
        message = Message.create_request("transact", [_DATABASE, *asked])
        self._transaction, self._outcome = message.id, None
        if self._session.send(message):
            self._transaction, self._outcome = None, LOST

    def outcome(self) -> Outcome | None:
        """The end of the transaction that was begun last; None while it goes on."""
        return self._outcome

    def _begin(self) -> None:
        """Ask for all rows: the connection is a new one."""
        self._connection = self._session.get_seqno()
        stream = self._session.rpc.stream
        if isinstance(stream.socket, socket) and not isinstance(stream.socket, SSLSocket):
            # Beside a thread that calculates each call that lets the lock go takes a millisecond, and one of thousands
            # of servers asks every millisecond.
            stream.socket = AtOnce(stream.socket)
        self.is_read = False
        if self._transaction is not None:
            self._transaction, self._outcome = None, LOST
        message = Message.create_request("monitor_cond", [_DATABASE, self._monitor, requests()])
        self._asked = message.id
        self._session.send(message)

    def _take(self, message: Any) -> None:
        answers = message.type in (Message.T_REPLY, Message.T_ERROR)
        if answers and self._asked is not None and message.id == self._asked:
            self._asked = None
            if message.type == Message.T_ERROR:
                raise ValueError(f"its database cannot be followed: {message.error}")
            # Rows of the connection before stay until those of this one are there.
            self._held = HeldRows()
            self._held.take(message.result)
            self.is_read = True
            self.changes += 1
        elif answers and self._transaction is not None and message.id == self._transaction:
            self._transaction, self._outcome = None, outcome(message.result, message.error)
        elif message.type == Message.T_NOTIFY and message.method == "update2":
            match message.params:
                case [self._monitor, updates] if self.is_read:
                    self._held.take(updates)
                    self.changes += 1
        elif message.type == Message.T_NOTIFY and message.method == "monitor_canceled":
            # The schema is another one from now on.
            self._session.force_reconnect()

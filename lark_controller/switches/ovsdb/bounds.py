"""The bounds of what databases may have the controller keep: :class:`ReplicaBounds` of one, :class:`RowRoom` of all.

The replica keeps every row that a server sends, and the ``ovs`` library every answer to a server's question that it
does not take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lark_controller.qos.queues import PortQueues
from lark_controller.switches.ovsdb.replica import Replica

# Rows of a replica, and the characters in them: a worker has tens of thousands of queues, of some hundred characters
# each.
MOST_ROWS: Final = 1 << 17
MOST_CHARACTERS: Final = 64 << 20
# Of all replicas together so many characters are kept beyond those that are expected, which are some of each, and some
# for each queue that the controller wants there. A row counts as so many more.
MOST_TOGETHER: Final = 128 << 20
EXPECTED: Final = 1 << 15
EXPECTED_OF_QUEUE: Final = 1 << 12
ROW: Final = 512
# Bytes of answers (echo) that a server may leave untaken.
MOST_OWED: Final = 1 << 20
TOO_LARGE: Final = "its database has more rows, or longer ones, than one of queues can have"
TOO_MUCH_TOGETHER: Final = "all switches' databases together have more than is kept, and its own more than its part"
TAKES_NOTHING: Final = "its database takes no answers"


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

    def __init__(self, replica: Replica, room: RowRoom) -> None:
        self._room = room
        self._expected = EXPECTED
        self._replica = replica
        self._owed = 0

    def expect(self, ports: Mapping[str, PortQueues]) -> None:
        """Expect rows of the queues that the controller wants there."""
        self._expected = EXPECTED + EXPECTED_OF_QUEUE * sum(len(port.queues) for port in ports.values())

    def exchange(self) -> str:
        """Send and read what can be without waiting; the reason why this replica is to be given up, ``""`` for none.
        Raises ValueError for what no server says."""
        before = self._replica.backlog
        self._replica.exchange()
        unsent = self._replica.backlog
        self._owed = self._owed + max(0, unsent - before) if unsent else 0
        if self._owed > MOST_OWED:
            return TAKES_NOTHING
        return self._beyond()

    def close(self) -> None:
        """Disconnect, and keep nothing."""
        self._room.forget(self)
        self._replica.close()

    def _beyond(self) -> str:
        """The reason why what the replica holds is too much, ``""`` where it is not."""
        rows, characters = self._replica.count, self._replica.characters
        if rows > MOST_ROWS or characters > MOST_CHARACTERS or self._replica.is_beyond:
            return TOO_LARGE
        return "" if self._room.may_hold(self, characters + ROW * rows - self._expected) else TOO_MUCH_TOGETHER

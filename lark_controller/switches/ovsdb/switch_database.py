"""One switch's database: from the rows that are there to the queues that are desired, one step at a time.

A database has a replica of the few rows that concern queues. What differs from the desired is sent as one transaction,
and in force once ovs-vswitchd says so (``cur_cfg``). Failures are reported.
"""

from __future__ import annotations

import math
import selectors
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lark_common.limits import Bucket
from lark_common.log import WARNING, event, failure
from lark_controller.qos.queues import PortQueues
from lark_controller.switches.fence import FENCED, Fence, is_later
from lark_controller.switches.ovsdb.bounds import ReplicaBounds, RowRoom
from lark_controller.switches.ovsdb.replica import Replica
from lark_controller.switches.ovsdb.reports import Report
from lark_controller.switches.ovsdb.rows import (
    Difference,
    Operation,
    Rows,
    difference,
    dropped,
    standing,
    waited,
)
from lark_controller.switches.ovsdb.term import generation_in, guard
from lark_controller.switches.ovsdb.transactions import MOST_WORDS
from lark_controller.switches.ovsdb.waits import Waits

# Milliseconds of silence after which a server is asked whether it is there: thousands are, and the switch itself is
# asked by OpenFlow.
PROBE: Final = 15_000
# Seconds that ovs-vswitchd may take to put a change into force before that is reported.
SLOW: Final = 5.0
# Seconds after which a refused transaction is tried again.
RETRY: Final = 1.0
# Of the interpreter's time one database may take so much, and so many seconds of it at once: the tables of a thousand
# jobs take 0.1 s. One beyond that is not read for a while.
TIME_SHARE: Final = 0.1
TIME_AT_ONCE: Final = 1.0
# Lines of the log that say of one database whether queues can be managed: at once, and a second afterwards.
LINES_AT_ONCE: Final = 16
LINES: Final = 1 / 60
# Seconds without the replica of a database that goes beyond its bounds.
SHUT: Final = 60.0
# Seconds before a server that does not answer is called away.
PATIENCE: Final = 1.0
# Seconds without a byte from a server that owes an answer, after which it is said not to answer, and those for which
# one of these may be without a connection: the library closes it, and pauses before the next.
SILENT: Final = PROBE / 1000
BETWEEN: Final = 10.0
# In the place of a number of changes: nothing was read yet, a transaction was written since, rows are not kept.
UNREAD, WRITTEN, FORGOTTEN = -1, -2, -3
NOTHING_WATCHED: Final[tuple[int, dict[int, int]]] = (-1, {})
CONNECTING: Final = "its database has not answered yet"
READING: Final = "its database is being read"
USERSPACE: Final = "its bridge has the userspace datapath (datapath_type=netdev), in which queues have no effect"


class SwitchDatabase:
    """One switch's database; for the driver's thread."""

    def __init__(
        self,
        datapath: int,
        address: str,
        selector: selectors.BaseSelector,
        generation: int,
        fence: Fence,
        room: RowRoom,
    ) -> None:
        self.address = address
        self.name = f"{datapath:016x}"
        self.deadline = 0.0
        self._datapath = datapath
        self._selector = selector
        self._generation = generation
        self._fence = fence
        # The generation that was shown to the fence, and the bridge's row when last seen.
        self._shown = ""
        self._bridge = ""
        self._bridge_ids: Mapping[str, str] = {}
        self._time = Bucket(TIME_SHARE, TIME_AT_ONCE, time.monotonic())
        self._lines = Bucket(LINES, LINES_AT_ONCE, time.monotonic())
        self._room = room
        self._shut_until = 0.0
        self._rests = False
        # The connection, and the events by descriptor that are waited for.
        self._watched = NOTHING_WATCHED
        self._revision = 0
        self._desired: Mapping[str, PortQueues] = {}
        self._begin_replica()
        self._given_up: dict[str, PortQueues] = {}
        # A transaction is under way.
        self._asked = False
        self._awaited: int | None = None
        self._since = self._answered = time.monotonic()
        self._retry_at = 0.0
        # Since when the server owes an answer without having said anything, and the connection with its bytes by then.
        self._owes_since: float | None = None
        self._heard = (-1, 0)
        self._seen = UNREAD
        # The replica for which the last report was the last word; None as long as there is something to do.
        self._settled: int | None = None
        # The rows that were read last, as long as they are compared with; of settled ones the counts stay.
        self._rows = Rows()
        self._waited: Mapping[tuple[str, int], float] = MappingProxyType({})
        self._dropped: Mapping[tuple[str, int], int] = MappingProxyType({})
        # The queues of the transaction under way, None where it has none.
        self._tried: Mapping[str, PortQueues] | None = None
        self._error = ""
        self._ineffective = ""
        self._last: Report | None = None

    def paid(self, seconds: float) -> float:
        """Take time off the database's budget; one that has none left is looked at when it has. Returns the seconds
        until then."""
        now = time.monotonic()
        if pause := self._time.take(seconds, now):
            self._unwatch()
            self.deadline = now + pause
        return pause

    def rest(self) -> None:
        """Look at nothing until the next step."""
        self._unwatch()
        self._rests = True
        self.deadline = math.inf

    @property
    def is_read(self) -> bool:
        """True while it is connected and its rows are known."""
        return self._replica.is_connected and self._replica.is_read

    @property
    def is_busy(self) -> bool:
        """True while it is connected to and brought up to date without trouble."""
        if self._last is None or self._last.reason in (CONNECTING, READING):
            return True
        return not self._last.reason and self._settled is None

    def set_queues(self, revision: int, ports: Mapping[str, PortQueues]) -> None:
        """Take a new desired value."""
        self._revision, self._desired = revision, ports
        self._settled = None
        self._given_up.clear()
        self._bounds.expect(ports)

    def _begin_replica(self) -> None:
        self._replica = Replica(self.address, PROBE)
        self._bounds = ReplicaBounds(self._replica, self._room)
        self._bounds.expect(self._desired)

    def close(self) -> None:
        """Disconnect."""
        self._unwatch()
        self._bounds.close()

    def broken(self, reason: str) -> Report:
        """Begin anew after a failure."""
        self.close()
        self._begin_replica()
        self._asked, self._awaited, self._seen, self._settled = False, None, UNREAD, None
        self._owes_since = None
        self.deadline = time.monotonic() + RETRY
        self._last = Report(self._datapath, self._revision, reason=reason)
        return self._last

    def failed(self, error: Exception) -> Report:
        """Begin anew after an unexpected error, such as one by what a server should not send."""
        if self._lines.take_whole(time.monotonic()):
            failure("a switch's database could not be handled", error, datapath=self.name)
        return self.broken(f"internal error: {error}"[:MOST_WORDS])

    def step(self) -> Report | None:
        """Do what can be done now without waiting; a report if anything has changed."""
        if time.monotonic() < self._shut_until:
            self.deadline = self._shut_until
            return None
        if self._rests:
            # A server is not away because nobody has asked it.
            self._rests, self._answered = False, time.monotonic()
            if not self._is_silent(self._answered):
                self._owes_since = None
        try:
            if beyond := self._bounds.exchange():
                return self._shut(beyond)
            report = self._work()
        finally:
            if time.monotonic() >= self._shut_until:
                self._watch()
        if report == self._last:
            return None
        if self._last is None or report.reason != self._last.reason:
            self._log_reason(report.reason)
        self._last = report
        return report

    def _shut(self, beyond: str) -> Report:
        """Do without a database for a while."""
        self._log_reason(beyond)
        report = self.broken(beyond)
        self.deadline = self._shut_until = time.monotonic() + SHUT
        return report

    def _log_reason(self, reason: str) -> None:
        if reason in (CONNECTING, READING) or not self._lines.take_whole(time.monotonic()):
            return
        if reason:
            event("queues cannot be managed", level=WARNING, datapath=self.name, ovsdb=self.address, reason=reason)
        else:
            event("queues are managed", datapath=self.name, ovsdb=self.address)

    def _work(self) -> Report:
        now = time.monotonic()
        silent = f"its database at {self.address} does not answer" if self._is_silent(now) else ""
        if not self._replica.is_connected:
            # A transaction that was under way has ended, one way or the other; the new replica will show which.
            self._asked, self._seen, self._settled = False, UNREAD, None
            if now - self._answered <= (BETWEEN if silent else PATIENCE):
                return self._report(silent or CONNECTING)
            self._owes_since = None
            return self._report(f"its database at {self.address} cannot be reached")
        self._answered = now
        if not self._listen(now):
            silent = ""
        if self._last is not None and self._settled == self._replica.changes:
            return self._last
        self._settled = None
        if not self._replica.is_read:
            return self._report(silent or READING)
        if self._asked and not self._finished():
            return self._report(silent)
        if self._seen != self._replica.changes:
            if self._seen in (UNREAD, WRITTEN):
                self._awaited = self._replica.root().next_cfg
                self._since = time.monotonic()
            self._seen = self._replica.changes
            self._read()
        if reason := self._unusable() or self._overtaken():
            return self._report(reason)
        return self._compare()

    def _listen(self, now: float) -> bool:
        """Note whether the server has said something; True while it owes an answer and says nothing. One that hangs
        takes connections and requests all the same, and closes none."""
        heard = self._replica.connection, self._replica.received
        spoke = bool(heard[1]) and heard != self._heard
        self._heard = heard
        if spoke or not (self._asked or not self._replica.is_read):
            self._owes_since = None
        elif self._owes_since is None:
            self._owes_since = now
        return self._owes_since is not None

    def _is_silent(self, now: float) -> bool:
        return self._owes_since is not None and now - self._owes_since >= SILENT

    def _read(self) -> None:
        """Take the rows out of the replica, as long as they are compared with."""
        self._rows = self._replica.rows()
        self._waited = MappingProxyType(waited(self.name, self._rows))
        self._dropped = MappingProxyType(dropped(self.name, self._rows))

    def _compare(self) -> Report:
        found = difference(self.name, self._wanted(), self._rows)
        now = time.monotonic()
        stands = generation_in(self._bridge_ids)
        if found.operations or (self._generation and self._generation != stands):
            if now < self._retry_at:
                return self._report(self._error, found)
            self._begin(found)
            return self._report("", found)
        if self._awaited is not None and self._replica.root().cur_cfg < self._awaited:
            slow = now - self._since > SLOW
            return self._report("ovs-vswitchd does not put changes into force" if slow else "", found)
        self._awaited, self._error = None, ""
        self._settled = self._replica.changes
        report = self._report("", found, settled=True)
        # The replica has them in a fraction of the memory.
        self._rows, self._seen = Rows(), FORGOTTEN
        return report

    def _wanted(self) -> dict[str, PortQueues]:
        """The desired queues, but for ports that have none."""
        return {port: wanted for port, wanted in self._desired.items() if self._given_up.get(port) != wanted}

    def _begin(self, found: Difference) -> None:
        first: tuple[Operation, ...] = ()
        if self._generation:
            first = guard(self._bridge, self._bridge_ids, self._generation)
        self._tried = self._wanted() if found.operations else None
        self._replica.transact((*first, *found.operations), into_force=bool(found.operations))
        self._asked = True
        if self._owes_since is None:
            self._owes_since = time.monotonic()

    def _finished(self) -> bool:
        """True if the transaction is over; takes note of how it ended."""
        ended = self._replica.outcome()
        if ended is None:
            return False
        if ended.again or ended.error:
            self._retry_at = time.monotonic() + RETRY
            if ended.error:
                self._error = f"its database refuses the queues: {ended.error}"
        elif self._tried is not None:
            ports = self._replica.ports()
            for port, wanted in self._tried.items():
                if port not in ports:
                    self._given_up[port] = wanted
        self._asked, self._seen = False, WRITTEN
        return True

    def _report(self, reason: str, found: Difference | None = None, *, settled: bool = False) -> Report:
        problems = dict(found.problems) if found is not None else {}
        ports: Mapping[str, PortQueues] | None
        if settled:
            ports = MappingProxyType(standing(self.name, self._wanted(), self._rows))
        else:
            # Queues that were in force before a change count as in force until the database shows otherwise.
            ports = None if self._last is None else self._last.ports
        for port in self._given_up:
            problems.setdefault(port, f"the switch's database has no port {port} that is free to have queues")
        if not settled and found is None and self._last is not None:
            problems = dict(self._last.problems)
        return Report(
            self._datapath,
            self._revision if settled or self._last is None else self._last.revision,
            ports,
            reason,
            MappingProxyType(problems),
            self._ineffective,
            self._waited,
            self._dropped,
        )

    def _unusable(self) -> str:
        """The reason why this database cannot be used; ``""`` where it is the switch's."""
        bridge = self._replica.bridge(self.name)
        if bridge is None:
            return f"the database at {self.address} has no bridge with this datapath id"
        self._ineffective = USERSPACE if bridge.datapath_type == "netdev" else ""
        self._bridge, self._bridge_ids = bridge.uuid, bridge.ids
        return ""

    def _overtaken(self) -> str:
        """The reason why this instance may not write to the database; ``""`` where it may."""
        stands = generation_in(self._bridge_ids)
        shown = ""
        if self._generation and is_later(stands, self._generation):
            shown = f"the database of switch {self.name} has generation {stands}, and this instance has "
            shown += f"{self._generation}"
            if shown != self._shown:
                self._fence.show(shown)
        self._shown = shown
        return FENCED if self._fence.is_shut else shown

    def _watch(self) -> None:
        waits = Waits()
        self._replica.wait(waits)
        # Each call to the kernel has to wait for threads that calculate, and mostly all is as before.
        wanted = (self._replica.connection, waits.events)
        if wanted != self._watched:
            self._unwatch()
            for number, events in waits.events.items():
                self._selector.register(number, events, self._datapath)
            self._watched = wanted
        pause = PROBE / 1000 if waits.milliseconds is None else waits.milliseconds / 1000
        now = time.monotonic()
        if self._owes_since is not None and (left := self._owes_since + SILENT - now) > 0:
            pause = min(pause, left)
        if self._retry_at > now:
            pause = min(pause, self._retry_at - now)
        self.deadline = now + pause

    def _unwatch(self) -> None:
        for number in self._watched[1]:
            self._selector.unregister(number)
        self._watched = NOTHING_WATCHED

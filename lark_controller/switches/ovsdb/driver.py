"""Drives the databases of Open vSwitch (RFC 7047): one thread for all switches, none of which can hold up another.

The driver takes each switch's desired queues (:meth:`Ovsdb.set_queues`) and reports those in force (:class:`Report`).
It keeps a replica of the few rows that concern queues, sends what differs as one transaction, and waits until
ovs-vswitchd has put it into force (``cur_cfg``). It reports failures.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import selectors
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from types import MappingProxyType
from typing import Final

from lark_common.limits import Bucket
from lark_common.log import WARNING, event, failure
from lark_controller.qos.queues import PortQueues
from lark_controller.switches.fence import FENCED, Fence, is_later
from lark_controller.switches.ovsdb.bounds import ReplicaBounds, RowRoom
from lark_controller.switches.ovsdb.library import Stream
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

# Milliseconds of silence after which a server is asked whether it is there.
PROBE: Final = 5000
# Seconds that ovs-vswitchd may take to put a change into force before that is reported.
SLOW: Final = 5.0
# Seconds after which a refused transaction is tried again.
RETRY: Final = 1.0
# Of the interpreter's time one database may take so much, and so many seconds of it at once: the tables of a thousand
# jobs take 0.1 s. One beyond that is not read for a while.
TIME_SHARE: Final = 0.1
TIME_AT_ONCE: Final = 1.0
# Seconds for which a database counts as one of those that go beyond their time.
BUSY: Final = 60.0
# Lines of the log that say of one database whether queues can be managed: at once, and a second afterwards.
LINES_AT_ONCE: Final = 16
LINES: Final = 1 / 60
# Seconds without the replica of a database that goes beyond its bounds.
SHUT: Final = 60.0
# Seconds before a server that does not answer is called away.
PATIENCE: Final = 1.0
# In the place of a number of changes: nothing was read yet, a transaction was written since, rows are not kept.
UNREAD, WRITTEN, FORGOTTEN = -1, -2, -3
CONNECTING: Final = "its database has not answered yet"
READING: Final = "its database is being read"
USERSPACE: Final = "its bridge has the userspace datapath (datapath_type=netdev), in which queues have no effect"


@dataclass(frozen=True, slots=True)
class OvsdbOptions:
    """``address`` of a switch's OVSDB server, with ``{host}`` for the host from which the switch has connected
    (``tcp:{host}:6640``, ``ssl:{host}:6640``, ``unix:/path``); ``""`` is none. ``key``, ``cert`` and ``ca`` are PEM
    files for ssl. ``generation`` is the term of this instance among several; 0 is none, and databases are sent none."""

    address: str = ""
    key: Path | None = None
    cert: Path | None = None
    ca: Path | None = None
    generation: int = 0

    def of(self, host: str, declared: str | None = None) -> str:
        """The address for a switch that connected from ``host``; ``declared`` wins."""
        return declared or self.address.replace("{host}", f"[{host}]" if ":" in host else host)


@dataclass(frozen=True, slots=True)
class _Order:
    datapath: int
    revision: int
    address: str
    ports: Mapping[str, PortQueues]


class Ovsdb:
    """The databases of all switches. ``on_report`` is called on the driver's thread with every new :class:`Report`.
    Nothing is written to them once the ``fence`` is shut."""

    def __init__(self, options: OvsdbOptions, on_report: Callable[[Report], None], fence: Fence | None = None) -> None:
        self._on_report = on_report
        self._generation = options.generation
        self._fence = fence or Fence()
        self._mail: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._switches: dict[int, _Switch] = {}
        self._room = RowRoom()
        # Those that have gone beyond their time of late, and until when they count as such.
        self._busy: dict[int, float] = {}
        # When switches are to be looked at, with those that have another time by now.
        self._due: list[tuple[float, int]] = []
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)
        self.thread = threading.Thread(target=self._run, name="ovsdb", daemon=True)
        for path, use in (
            (options.key, Stream.ssl_set_private_key_file),
            (options.cert, Stream.ssl_set_certificate_file),
            (options.ca, Stream.ssl_set_ca_cert_file),
        ):
            if path is not None:
                use(str(path))

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self) -> None:
        """Close every connection and end the thread; what stands stays."""
        self._post(None)
        if self.thread.ident is not None:
            self.thread.join()

    def set_queues(self, datapath: int, revision: int, address: str, ports: Mapping[str, PortQueues]) -> None:
        """Sets the queues that a switch should have from now on; may be called from any thread and does not wait."""
        self._post(_Order(datapath, revision, address, MappingProxyType(dict(ports))))

    def _post(self, item: _Order | None) -> None:
        if self.thread.ident is not None and not self.thread.is_alive():
            return  # its descriptors are closed, and their numbers may be in use again by now
        self._mail.put(item)
        try:
            os.write(self._woken, b"\0")
        except BlockingIOError:
            return  # The pipe is full, so the thread will wake.

    def _run(self) -> None:
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        try:
            while self._turn():
                pass
        finally:
            for switch in self._switches.values():
                switch.close()
            self._selector.close()
            os.close(self._wake)
            os.close(self._woken)

    def _turn(self) -> bool:
        due = self._next_due()
        pause = None if due is None else max(0.0, due - time.monotonic())
        ready = {key.data for key, _ in self._selector.select(pause)}
        if None in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
        while True:
            try:
                item = self._mail.get_nowait()
            except queue.Empty:
                break
            if item is None:
                return False
            ready.add(self._deliver(item))
        now = time.monotonic()
        while (due := self._next_due()) is not None and due <= now:
            ready.add(heappop(self._due)[1])
        for datapath in ready:
            if datapath in self._switches:
                self._step(datapath, self._switches[datapath])
        return True

    def _next_due(self) -> float | None:
        """The time at which the next switch is due, apart from its own events. A turn costs the same with many
        switches."""
        while self._due:
            due, datapath = self._due[0]
            switch = self._switches.get(datapath)
            if switch is not None and switch.deadline == due:
                return due
            heappop(self._due)
        return None

    def _deliver(self, item: _Order) -> int:
        datapath = item.datapath
        switch = self._switches.get(datapath)
        if switch is not None and item.address != switch.address:
            self._switches.pop(datapath).close()
            switch = None
        if switch is None:
            switch = _Switch(datapath, item.address, self._selector, self._generation, self._fence, self._room)
            self._switches[datapath] = switch
        switch.set_queues(item.revision, item.ports)
        return datapath

    def _step(self, datapath: int, switch: _Switch) -> None:
        began = time.thread_time()
        try:
            report = switch.step()
        except Exception as error:
            report = switch.failed(error)
        self._charge(datapath, switch, time.thread_time() - began)
        heappush(self._due, (switch.deadline, datapath))
        if report is not None:
            self._on_report(report)

    def _charge(self, datapath: int, switch: _Switch, seconds: float) -> None:
        """Take time off a database's budget. Those that go beyond it have no more time together than one has."""
        now = time.monotonic()
        if self._busy.get(datapath, math.inf) <= now:
            self._forget_quiet(now)
        if pause := switch.paid(seconds * (len(self._busy) if datapath in self._busy else 1)):
            self._busy[datapath] = now + pause + BUSY
            self._forget_quiet(now)

    def _forget_quiet(self, now: float) -> None:
        self._busy = {each: until for each, until in self._busy.items() if until > now}


class _Switch:
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
        self._fds: list[int] = []
        self._revision = 0
        self._desired: Mapping[str, PortQueues] = {}
        self._begin_replica()
        self._given_up: dict[str, PortQueues] = {}
        # A transaction is under way.
        self._asked = False
        self._awaited: int | None = None
        self._since = self._answered = time.monotonic()
        self._retry_at = 0.0
        self._seen = UNREAD
        # The replica for which the last report was the last word; None as long as there is something to do.
        self._settled: int | None = None
        # What was read last, as long as it is compared with; of settled rows the counts stay.
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
        if not self._replica.is_connected:
            # A transaction that was under way has ended, one way or the other; the new replica will show which.
            self._asked, self._seen, self._settled = False, UNREAD, None
            away = time.monotonic() - self._answered > PATIENCE
            return self._report(f"its database at {self.address} cannot be reached" if away else CONNECTING)
        self._answered = time.monotonic()
        if self._last is not None and self._settled == self._replica.changes:
            return self._last
        self._settled = None
        if not self._replica.is_read:
            return self._report(READING)
        if self._asked and not self._finished():
            return self._report("")
        if self._seen != self._replica.changes:
            if self._seen in (UNREAD, WRITTEN):
                self._awaited = self._replica.root().next_cfg
                self._since = time.monotonic()
            self._seen = self._replica.changes
            self._read()
        if reason := self._unusable() or self._overtaken():
            return self._report(reason)
        return self._compare()

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
            ports = self._replica.rows().ports
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
        self._unwatch()
        waits = Waits()
        self._replica.wait(waits)
        for number, events in waits.events.items():
            self._selector.register(number, events, self._datapath)
            self._fds.append(number)
        pause = PROBE / 1000 if waits.milliseconds is None else waits.milliseconds / 1000
        now = time.monotonic()
        if self._retry_at > now:
            pause = min(pause, self._retry_at - now)
        self.deadline = now + pause

    def _unwatch(self) -> None:
        for number in self._fds:
            self._selector.unregister(number)
        self._fds.clear()

"""Reports to science networks whose the flows of transfers and jobs are (SciTags), on a thread of its own.

Nothing waits for it: looks at connections hand it what they have found, and a message that is lost is lost.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Final

from lark_common import log
from lark_common.limits import Bucket
from lark_common.runs import Address
from lark_common.scitags import PORT, Collector, Marks, Scitag
from lark_common.threads import StoppableThread, processor_time
from lark_worker.controller_link import ControllerLink
from lark_worker.errors import AwayError, NetworkError, RefusedError
from lark_worker.records.known_jobs import Key, key_of
from lark_worker.records.records import Record
from lark_worker.transfers.book import Flow, Turns
from lark_worker.transfers.firefly import Times, datagram
from lark_worker.transfers.flow_lives import FlowLives, Message
from lark_worker.transfers.inet_diag import Connection
from lark_worker.transfers.labels import MOST as MOST_LABELS
from lark_worker.transfers.labels import Ends, FlowLabels
from lark_worker.transfers.own_flows import OwnFlows
from lark_worker.transfers.own_labels import Label, OwnLabels

# Messages a second, and at once; each goes to some collectors and to one destination.
RATE: Final = 200.0
BURST: Final = 2000.0
# Seconds between two looks for messages that are due, and until a controller that was away is asked again.
SECONDS: Final = 0.5
AWAY_SECONDS: Final = 5.0
# The thread has at most this part of the time of one processor.
SHARE: Final = 0.1
# The same for flows of jobs themselves, so that these leave transfers their room.
OWN_RATE: Final = 100.0
OWN_BURST: Final = 1000.0
# Seconds between two readings of the bytes of flows that go on, and between two looks at those of jobs themselves.
COUNT_SECONDS: Final = 2.0
# Seconds until flow labels are tried again after the kernel did not take them.
LABEL_SECONDS: Final = 60.0
# Jobs that are asked about at once.
AT_ONCE: Final = 500
# Seconds for which a collector's address counts, and until a name without one is looked up again.
NAME_SECONDS: Final = 300.0


def _nothing() -> None:
    """Do nothing."""


class Fireflies:
    """Sends fireflies for a worker's transfers, and its jobs' own flows, from :meth:`start` to :meth:`stop`;
    thread-safe.

    ``records`` returns the worker's jobs; ``prefix`` begins the names of all that the worker makes; ``marker`` is that
    of :class:`OwnLabels`. Until
    :meth:`revise` has a revision, nothing is sent, and nobody is asked.
    """

    def __init__(
        self, link: ControllerLink, records: Callable[[], tuple[Record, ...]], prefix: str, marker: Path
    ) -> None:
        self._link = link
        self._records = records
        # Guards the flows and the revision; held for as long as a list of flows takes.
        self._lock = threading.Lock()
        self._lives = FlowLives()
        # None: not known yet, flows wait; empty: nothing is reported.
        self._revision: str | None = None
        self._given: Marks | None = None
        self._known: dict[Key, Scitag | None] = {}
        self._not_before = self._counted = 0.0
        self._flows: Callable[[], list[Flow]] = list
        self._announce: Callable[[], None] = _nothing
        self._bucket = Bucket(RATE, BURST, time.monotonic())
        self._names = _Names()
        self._labels = FlowLabels(prefix)
        self._label_again = 0.0
        # Of jobs themselves; used by the thread alone.
        self._own = OwnFlows()
        self._own_lives = FlowLives()
        self._own_bucket = Bucket(OWN_RATE, OWN_BURST, time.monotonic())
        self._own_labels = OwnLabels(prefix, marker)
        self._looked = 0.0
        self._sockets: dict[int, socket.socket] = {}
        self.sent = self.failed = 0
        self._wake = threading.Event()
        self._thread = StoppableThread("fireflies", self._run, self._wake.set)

    def start(self, flows: Callable[[], list[Flow]], announce: Callable[[], None] = _nothing) -> None:
        """Start to send; ``flows`` are those that are followed now, ``announce`` has them noted once more."""
        self._flows = flows
        self._announce = announce
        self._thread.start()

    def stop(self) -> None:
        """Send nothing more."""
        self._thread.stop(patience=1.0)
        if len(self._labels):
            # The numbers of ports are used again, by others' connections.
            with contextlib.suppress(NetworkError):
                self._labels.put({})
        self._own.close()
        for each in self._sockets.values():
            each.close()
        self._sockets.clear()

    @property
    def informed(self) -> bool:
        """True if the controller has answered whether flows are reported."""
        return self._revision is not None

    @property
    def told(self) -> bool:
        """True if flows are reported, or packets are marked."""
        return bool(self._revision)

    @property
    def lost(self) -> int:
        """The flows without a report, for want of room or of an answer about their job."""
        with self._lock:
            return self._lives.lost + self._own_lives.lost + self._own.beyond

    def revise(self, revision: str) -> None:
        """Take the revision that marks have now; empty: flows are reported to nobody."""
        if revision == self._revision:
            return
        with self._lock:
            self._revision = revision
            if not revision:
                self._lives.clear()
                self._given = None
        if revision:
            # Flows that had no mark were let go, and may have one now.
            self._announce()
        self._wake.set()

    def note(self, turns: Turns, at: float) -> None:
        """Take flows that have been found and that have ended at the time ``at`` (of the monotonic clock)."""
        if self._revision == "" or not (turns.found or turns.over):
            return
        with self._lock:
            for flow in turns.found:
                self._lives.begin(flow)
            for flow in turns.over:
                self._lives.end(flow, at)

    def _run(self) -> None:
        pause = SECONDS
        try:
            # A table that a service before this one has left may name connections of others by now.
            self._label()
        except Exception as error:  # an unexpected error must not keep this thread from its work
            log.failure("flow labels of an earlier service are not taken away", error)
        while not self._thread.stopping:
            # While nothing is reported there is nothing to look for.
            self._wake.wait(pause if self._revision else None)
            self._wake.clear()
            try:
                spent = self._round(self._revision)
            except Exception as error:  # an unexpected error must not stop this thread
                log.failure("fireflies are not sent", error)
                self._thread.pause(AWAY_SECONDS)
                spent = 0.0
            pause = max(SECONDS, spent * (1 - SHARE) / SHARE)

    def _round(self, revision: str | None) -> float:
        """Do what is due; returns the processor time that it has taken.

        Waits for the controller, and for the processor, are not in it: with them the thread would rest so long that a
        job is over before its mark is requested.
        """
        own = time.thread_time()
        if revision:
            self._ask(revision)
            self._look()
            self._send()
        spent = time.thread_time() - own
        # Programs are run for that.
        return spent + processor_time(self._label) + processor_time(self._label_own)

    def _ask(self, revision: str) -> None:
        """Learn the marks of jobs that are new, or of all by another revision."""
        given = self._given
        if given is None or given.revision != revision:
            live = {key_of(record) for record in self._records() if not record.over}
            # A job that is over is not answered any more.
            self._known = {key: mark for key, mark in self._known.items() if key not in live}
        records = {key_of(record): record for record in self._records()}
        with self._lock:
            waiting = self._lives.keys()
        self._known = {key: mark for key, mark in self._known.items() if key in records or key in waiting}
        new = [
            record
            for key, record in records.items()
            if key not in self._known and record.machine and "register" not in record.pending and not record.over
        ]
        if not new or time.monotonic() < self._not_before:
            return
        rest = iter(new)
        while part := list(islice(rest, AT_ONCE)):
            try:
                self._given = given = self._link.marks(part[0].machine, [record.id for record in part])
            except (AwayError, RefusedError) as error:
                log.event("marks cannot be asked for; trying again", reason=error, seconds=AWAY_SECONDS)
                self._not_before = time.monotonic() + AWAY_SECONDS
                return
            # A job that the controller does not know yet is asked about again.
            self._known |= {key_of(record): given.jobs[record.id] for record in part if record.id in given.jobs}
            if len(given.jobs) < len(part):
                self._not_before = time.monotonic() + AWAY_SECONDS
        if given is not None and given.revision != revision:
            self.revise(given.revision)

    def _send(self) -> None:
        given, now = self._given, time.monotonic()
        if given is None:
            return
        if given.ongoing and now - self._counted >= COUNT_SECONDS:
            self._counted, flows = now, self._flows()
            with self._lock:
                for flow in flows:
                    self._lives.count(flow)
        mark = self._mark
        collectors = [place for each in given.collectors if (place := self._names.address(each, now)) is not None]

        known = self._known.__contains__
        messages = []
        with self._lock:
            for message in self._lives.due(now, given.ongoing, known, mark):
                if not self._bucket.take_whole(now):
                    break
                messages.append(message)
        for message in self._own_lives.due(now, given.ongoing, known, mark):
            if not self._own_bucket.take_whole(now):
                break
            messages.append(message)
        for message in messages:
            destination = [(message.connection.remote, PORT)] if given.destinations else []
            self._tell(message, [*collectors, *destination], now)

    def _look(self) -> None:
        """Look at the flows of marked jobs themselves, where the policy has that."""
        given, now = self._given, time.monotonic()
        if given is None or now - self._looked < COUNT_SECONDS:
            return
        self._looked = now
        namespaces = {}
        if given.own and (given.collectors or given.destinations):
            # The addresses that a job behind NAT has are no one's on the way.
            marked = (record for record in self._attached() if record.network_type != "nat")
            namespaces = {key: each.namespace for each in marked if self._known.get(key := key_of(each)) is not None}
        turns = self._own.look(namespaces, now, self._is_told)
        for flow in turns.found:
            self._own_lives.begin(flow)
        for flow in self._own.flows():
            self._own_lives.count(flow)
        for flow in turns.over:
            self._own_lives.end(flow, now)

    def _attached(self) -> list[Record]:
        """The jobs with a network that leads somewhere."""
        return [each for each in self._records() if each.made and not each.over and each.network_type != "none"]

    def _is_told(self, connection: Connection, key: Key) -> bool:
        remote = connection.remote
        return not (remote.is_loopback or remote.is_link_local) and self._mark(connection, key) is not None

    def _mark(self, connection: Connection, key: Key) -> Scitag | None:
        """The mark of a job's flow; None also where nobody is to know of it."""
        remote, silent = connection.remote, () if self._given is None else self._given.silent
        if any(remote.version == each.version and remote in each for each in silent):
            return None
        return self._known.get(key)

    def _label(self) -> None:
        """Mark packets, as far as the policy has it; without it, clear away what an earlier service has left."""
        marked: dict[Ends, Scitag] = {}
        if self._revision and self._given is not None and self._given.labels:
            with self._lock:
                for each, mark in self._lives.marked(self._mark):
                    if each.remote.version == each.local.version == 6 and len(marked) < MOST_LABELS:
                        marked[each.local, each.ports[0], each.remote, each.ports[1]] = mark
        now = time.monotonic()
        if now < self._label_again:
            return
        try:
            self._labels.put(marked)
        except NetworkError as error:
            if not marked:
                # A kernel or machine without a packet filter has no table that an earlier service could have left.
                return
            log.failure("flow labels are not set; it is tried again", error)
            self._label_again = now + LABEL_SECONDS

    def _label_own(self) -> None:
        """Mark what jobs send themselves, as far as the policy has it."""
        given, wanted = self._given, {}
        if self._revision is None:
            return
        attached = self._attached()
        if self._revision and given is not None and given.labels and given.own:
            for each in attached:
                if (mark := self._known.get(key_of(each))) is not None:
                    wanted[each.namespace] = Label(mark, given.silent)
        self._own_labels.put(wanted, {each.namespace for each in attached})

    def _tell(self, message: Message, places: Iterable[tuple[Address, int]], now: float) -> None:
        offset = time.time() - now
        end = None if message.ended is None else message.ended + offset
        times = Times(message.since + offset, time.time(), end)
        data = datagram(message.state, message.mark, message.connection, times)
        for address, port in places:
            try:
                self._socket(address.version).sendto(data, socket.MSG_DONTWAIT, (str(address), port))
                self.sent += 1
            except OSError:
                self.failed += 1

    def _socket(self, version: int) -> socket.socket:
        if version not in self._sockets:
            family = socket.AF_INET if version == 4 else socket.AF_INET6
            self._sockets[version] = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        return self._sockets[version]


class _Names:
    """The addresses of collectors, looked up now and then."""

    def __init__(self) -> None:
        self._found: dict[Collector, tuple[float, Address | None]] = {}

    def address(self, collector: Collector, now: float) -> tuple[Address, int] | None:
        """The address and port of a collector; None while its name has no address."""
        at, found = self._found.get(collector, (-NAME_SECONDS, None))
        if now - at >= NAME_SECONDS:
            with contextlib.suppress(OSError, ValueError, UnicodeError):
                (*_, place), *_ = socket.getaddrinfo(collector.host, collector.port, type=socket.SOCK_DGRAM)
                found = ipaddress.ip_address(place[0])
            self._found[collector] = now, found
        return None if found is None else (found, collector.port)

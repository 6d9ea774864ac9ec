"""Drives the databases of Open vSwitch (RFC 7047): one thread for all switches, none of which can hold up another.

The driver takes each switch's desired queues (:meth:`Ovsdb.set_queues`) and reports those in force (:class:`Report`).
What is done with one database is in :mod:`lark_controller.switches.ovsdb.switch_database`.
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

from lark_controller.qos.queues import PortQueues
from lark_controller.switches.fence import Fence
from lark_controller.switches.ovsdb.beginnings import Beginnings
from lark_controller.switches.ovsdb.bounds import RowRoom
from lark_controller.switches.ovsdb.library import Stream
from lark_controller.switches.ovsdb.reports import Report
from lark_controller.switches.ovsdb.switch_database import SwitchDatabase

# Seconds for which a database counts as one of those that go beyond their time.
BUSY: Final = 60.0
# Seconds of a turn for new orders. Those of a policy are for all databases at once, whose servers have to be answered
# meanwhile.
PORTION: Final = 0.2


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
        self._switches: dict[int, SwitchDatabase] = {}
        self._room = RowRoom()
        self._beginnings = Beginnings()
        # Those with an order that was not worked on yet, in the order in which they came.
        self._ordered: dict[int, None] = {}
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
        """Sets the queues that a switch should have from now on; without an address what stands stays, and is looked
        after no more. May be called from any thread and does not wait."""
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
        pause = None if (due := self._next_due()) is None else max(0.0, due - time.monotonic())
        ready = {key.data for key, _ in self._selector.select(0.0 if self._ordered else pause)}
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
            self._deliver(item)
        now = time.monotonic()
        while (due := self._due_switch()) is not None and due <= now:
            ready.add(heappop(self._due)[1])
        for datapath in (*ready, *self._beginnings.take(now)):
            self._step(datapath)
        while self._ordered and time.monotonic() - now < PORTION:
            datapath = next(iter(self._ordered))
            del self._ordered[datapath]
            self._step(datapath)
        return True

    def _next_due(self) -> float | None:
        """The time at which there is something to do, apart from the switches' own events."""
        times = [due for due in (self._due_switch(), self._beginnings.due()) if due is not None]
        return min(times, default=None)

    def _due_switch(self) -> float | None:
        """The time at which the next switch is due, apart from its own events. A turn costs the same with many
        switches."""
        while self._due:
            due, datapath = self._due[0]
            switch = self._switches.get(datapath)
            if switch is not None and switch.deadline == due:
                return due
            heappop(self._due)
        return None

    def _deliver(self, item: _Order) -> None:
        datapath = item.datapath
        switch = self._switches.get(datapath)
        if switch is not None and item.address != switch.address:
            self._switches.pop(datapath).close()
            self._beginnings.forget(datapath)
            switch = None
        if not item.address:
            return
        if switch is None:
            switch = SwitchDatabase(datapath, item.address, self._selector, self._generation, self._fence, self._room)
            self._switches[datapath] = switch
        else:
            self._beginnings.hurry(datapath)
        switch.set_queues(item.revision, item.ports)
        self._ordered.setdefault(datapath)

    def _step(self, datapath: int) -> None:
        switch = self._switches.get(datapath)
        if switch is None:
            return
        if not switch.is_read and not self._beginnings.begins(datapath, time.monotonic()):
            switch.rest()
            return
        began = time.thread_time()
        try:
            report = switch.step()
        except Exception as error:
            report = switch.failed(error)
        self._charge(datapath, switch, time.thread_time() - began)
        if not switch.is_busy:
            self._beginnings.over(datapath)
        heappush(self._due, (switch.deadline, datapath))
        if report is not None:
            self._on_report(report)

    def _charge(self, datapath: int, switch: SwitchDatabase, seconds: float) -> None:
        """Take time off a database's budget. Those that go beyond it have no more time together than one has."""
        now = time.monotonic()
        if self._busy.get(datapath, math.inf) <= now:
            self._forget_quiet(now)
        if pause := switch.paid(seconds * (len(self._busy) if datapath in self._busy else 1)):
            self._busy[datapath] = now + pause + BUSY
            self._forget_quiet(now)

    def _forget_quiet(self, now: float) -> None:
        self._busy = {each: until for each, until in self._busy.items() if until > now}

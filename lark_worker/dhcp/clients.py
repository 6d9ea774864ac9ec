"""The DHCP clients of a worker's jobs: one thread requests, renews and expires the leases of all."""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from random import SystemRandom
from typing import Final, Protocol

from lark_common import log
from lark_common.limits import Buckets
from lark_common.threads import StoppableThread
from lark_worker.dhcp.channel import Channel
from lark_worker.dhcp.lease import Cache, Lease
from lark_worker.dhcp.protocol import Bound, Client, Ignored, Lost, Outcome, Send
from lark_worker.errors import NetworkError

_LONGEST_WAIT: Final = 60.0
_AFTER_FAILURE: Final = 1.0
_REOPEN: Final = 5.0
# Seconds between two log lines about answers to a job's client that grant nothing: a server may send them without end.
_IGNORED_EVERY: Final = 600.0

# Called with a job's id.
Changed = Callable[[str], None]


class OpenChannel(Protocol):
    """Opens the sockets of a client: :class:`Channel`."""

    def __call__(self, namespace: str, interface: str) -> Channel:
        """Raises NetworkError."""


def steady_clock() -> Callable[[], float]:
    """A clock in seconds since 1970 by the machine's own at this moment, which then goes on and never jumps with it.

    A machine's clock that is set, by hand or at its start, must neither end leases nor keep them from being renewed.
    Time in which the machine sleeps counts (clock_gettime(2), CLOCK_BOOTTIME).
    """
    began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return lambda: began + time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(slots=True)
class _Running:
    job: str
    mac: str
    namespace: str
    client: Client
    first: Future[Lease] = field(default_factory=Future)
    reported: Lease | None = None
    channel: Channel | None = None


class Clients:
    """Clients by MAC address; thread-safe. ``clock`` is in seconds since 1970 (None: :func:`steady_clock`).

    ``changed`` is called on a thread of its own when a job's lease is new, differs or is lost; :meth:`lease` has the
    lease by then.
    """

    def __init__(
        self,
        cache: Cache,
        interface: str,
        changed: Changed,
        *,
        opens: OpenChannel = Channel,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._cache = cache
        self._interface = interface
        self._changed = changed
        self._opens = opens
        self._clock = clock or steady_clock()
        self._lock = threading.Lock()
        self._running: dict[str, _Running] = {}
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._ignored = Buckets(1 / _IGNORED_EVERY, 1)
        self._closed = False
        self._swept = self._clock()
        self._thread = StoppableThread("dhcp", self._run, wake=self._poke)

    def start(self) -> None:
        """Start the thread; expired leases are forgotten."""
        self._cache.sweep(self._clock())
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; leases stay."""
        self._thread.stop()
        with self._lock:
            for running in self._running.values():
                self._close(running)
            self._running.clear()
            self._closed = True
            self._selector.close()
            os.close(self._wake)

    def begin(self, job: str, mac: str, namespace: str, *, held: bool = False) -> Future[Lease]:
        """Request a job's address, the cached one first; the future has the first lease.

        An earlier client with this MAC address (that of the slot's last job) ends. ``held``: the job's interface has
        the cached lease already, since it ran before the service was started.
        """
        now = self._clock()
        cached = self._cache.read(mac, now)
        client = Client(
            bytes.fromhex(mac.replace(":", "")), SystemRandom(), cached, held=held and cached is not None
        )  # fmt: skip
        running = _Running(job, mac, namespace, client, reported=client.lease)
        with self._lock:
            if self._closed:
                return running.first
            old = self._running.get(mac)
            if old is not None and old.job == job:
                return old.first
            if old is not None:
                self._close(old)
            self._running[mac] = running
            self._do(running, client.start(now))
        self._poke()
        return running.first

    def take_cached(self, job: str) -> bool:
        """Give the job the rest of the cached lease, as no server answers; False where there is none."""
        with self._lock:
            running = self._of(job)
            if running is None:
                return False
            self._do(running, running.client.take_cached(self._clock()))
            taken = running.client.lease is not None
        self._poke()
        return taken

    def end(self, job: str) -> None:
        """End a job's client. Its lease stays, in the cache and at the server."""
        with self._lock:
            running = self._of(job)
            if running is not None:
                del self._running[running.mac]
                self._close(running)
        self._poke()

    def lease(self, job: str) -> Lease | None:
        """The lease that a job has now."""
        with self._lock:
            running = self._of(job)
            return None if running is None else running.client.lease

    def _of(self, job: str) -> _Running | None:
        return next((each for each in self._running.values() if each.job == job), None)

    def _run(self) -> None:
        while not self._thread.stopping:
            try:
                self._turn()
            except Exception as error:  # an unexpected error about one job must not cost the others their leases
                log.failure("DHCP: a turn failed", error)
                self._thread.pause(_AFTER_FAILURE)

    def _turn(self) -> None:
        with self._lock:
            wakes = [running.client.wakes for running in self._running.values()]
        pause = min([_LONGEST_WAIT, *(wake - self._clock() for wake in wakes)])
        ready = self._selector.select(max(0.0, pause))
        now = self._clock()
        with self._lock:
            for key, _ in ready:
                if key.fd == self._wake:
                    os.eventfd_read(self._wake)
                elif key.data.channel is not None:
                    self._receive(key.data, now)
            for running in list(self._running.values()):
                self._do(running, running.client.tick(now))
        if now - self._swept > _LONGEST_WAIT or now < self._swept:
            self._swept = now
            self._cache.sweep(now)

    def _receive(self, running: _Running, now: float) -> None:
        assert running.channel is not None
        for message in running.channel.receive():
            self._do(running, running.client.receive(message, now))

    def _do(self, running: _Running, outcomes: list[Outcome]) -> None:
        """Carry out a client's outcomes. The caller holds the lock."""
        for outcome in outcomes:
            match outcome:
                case Send():
                    self._send(running, outcome)
                case Bound(lease):
                    self._bound(running, lease)
                case Lost(reason):
                    self._cache.remove(running.mac)
                    log.event("lease lost", level=log.WARNING, job=running.job, mac=running.mac, reason=reason)
                    running.reported = None
                    self._call_changed(running)
                case Ignored(reason):
                    self._log_ignored(running, reason)
        if not running.client.waits_for_answers:
            self._close(running)

    def _send(self, running: _Running, send: Send) -> None:
        try:
            if running.channel is None:
                running.channel = self._opens(running.namespace, self._interface)
                self._selector.register(running.channel, selectors.EVENT_READ, running)
        except NetworkError as error:
            # Mostly a job that is just ending; for any other it is tried again later.
            log.failure("DHCP cannot be asked", error, job=running.job)
            running.client.wakes = self._clock() + _REOPEN
            return
        running.channel.send(send.message, send.source, send.target)

    def _bound(self, running: _Running, lease: Lease) -> None:
        try:
            self._cache.write(running.mac, lease)
        except OSError as error:
            log.failure("a lease cannot be kept on disk", error, job=running.job)
        log.event(
            "lease", job=running.job, mac=running.mac, address=lease.address, server=lease.server,
            seconds=round(lease.expires - self._clock()) if lease.expires < float("inf") else None,
        )  # fmt: skip
        if running.reported is None or not lease.same_network(running.reported):
            running.reported = lease
            self._call_changed(running)
        if not running.first.done():
            running.first.set_result(lease)

    def _log_ignored(self, running: _Running, reason: str) -> None:
        if not self._ignored.take(running.job):
            words = "a DHCP server's answer grants no lease"
            log.event(words, level=log.WARNING, job=running.job, mac=running.mac, reason=reason)

    def _close(self, running: _Running) -> None:
        if running.channel is not None:
            self._selector.unregister(running.channel)
            running.channel.close()
            running.channel = None

    def _call_changed(self, running: _Running) -> None:
        """Call ``changed`` on a thread of its own, since it waits for the job's lock."""
        threading.Thread(target=self._changed, args=(running.job,), name=f"lease {running.job}", daemon=True).start()

    def _poke(self) -> None:
        with self._lock:
            # Jobs end while the service stops, and after it.
            if not self._closed:
                os.eventfd_write(self._wake, 1)

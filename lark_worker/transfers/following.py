"""Follows the transfers of this worker's jobs, on a thread of its own, and keeps their accounts across restarts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from lark_common import log
from lark_common.runs import Network
from lark_common.systemd import boot_id
from lark_common.threads import StoppableThread, processor_time
from lark_common.transfers import UNTREATED, Treatment, treatment_of
from lark_worker.identity.processes import Programs
from lark_worker.records.atomic_file import write_atomically
from lark_worker.records.known_jobs import Key
from lark_worker.settings import Settings
from lark_worker.transfers.book import NOTHING, Book, Flow, Missed, Sums, Turns
from lark_worker.transfers.enforcement import Enforcement
from lark_worker.transfers.inet_diag import Connection
from lark_worker.transfers.sockets import Sockets
from lark_worker.transfers.starters import Starters

# Seconds between two looks: at starters alone, and at connections while a starter moves files.
IDLE_SECONDS: Final = 0.25
BUSY_SECONDS: Final = 0.05
# Looks take at most this part of the time of one processor. One that a job's end or a new treatment asks for comes
# after so many seconds all the same.
SHARE: Final = 0.1
SOON_SECONDS: Final = 0.5
# Looks after the last process that moved files has gone: it may have ended with connections of which the first look
# still has no notice.
LAST_LOOKS: Final = 2
# Seconds between two writes of the accounts, and until the kernel is asked again after it had no answer.
WRITE_SECONDS: Final = 2.0
AGAIN_SECONDS: Final = 30.0
# Seconds that a job's end waits for a look.
PATIENCE: Final = 1.0


def _ignore(turns: Turns, at: float) -> None:
    """Take no notice."""


class Transfers:
    """The transfers of one worker from :meth:`start` to :meth:`stop`; thread-safe.

    ``live`` returns the starters of the jobs that are not over: their accounts are kept when the starter has ended.
    ``note`` takes the flows that have been found and that have ended, at once, with the time of the look (seconds of
    the monotonic clock).
    """

    def __init__(
        self, settings: Settings, live: Callable[[], Collection[Key]], note: Callable[[Turns, float], None] = _ignore
    ) -> None:
        self._live = live
        self._note = note
        self._path: Path = settings.state_dir / "transfers"
        self._boot = boot_id()
        self._starters = Starters(Programs(frozenset(settings.starters), frozenset(settings.startds)))
        self._sockets: Sockets | None = None
        # Guards the book; held for each look, which is some milliseconds.
        self._lock = threading.Condition()
        self._book = Book()
        self._begun = self._done = 0
        self._looks_left = 0
        self._changed = False
        self._wake = threading.Event()
        # The treatment of each starter's transfers, by the controller's last answer.
        self._treatments: dict[Key, Treatment] = {}
        self._enforcement = Enforcement(f"{settings.prefix}_transfers", self._wake.set)
        self._thread = StoppableThread("transfers", self._run, self._wake.set)

    def start(self) -> None:
        """Go on from the accounts of the service before this one, and follow transfers."""
        with self._lock:
            self._load()
        self._enforcement.start()
        self._thread.start()

    def stop(self) -> None:
        """Write the accounts, and follow nothing more."""
        self._thread.stop()
        self._enforcement.stop()
        with self._lock:
            self._write()
            if self._sockets is not None:
                self._sockets.close()
                self._sockets = None
            self._starters.close()

    @property
    def missed(self) -> Missed:
        """The traffic that is in no job's account."""
        with self._lock:
            return self._book.missed

    @property
    def followed(self) -> int:
        """The number of connections that are followed now."""
        with self._lock:
            return len(self._book)

    @property
    def lost(self) -> int:
        """The times at which ends of connections came faster than they were read."""
        with self._lock:
            return 0 if self._sockets is None else self._sockets.lost

    @property
    def knows_local(self) -> bool:
        """True if it is known which networks are not the WAN."""
        with self._lock:
            return self._book.knows_local

    def local(self, networks: tuple[Network, ...]) -> None:
        """Count as the WAN what is not in these networks, from connections on that begin now."""
        with self._lock:
            self._changed |= self._book.use(networks)

    def flows(self) -> list[Flow]:
        """The flows that are followed now, with their counts."""
        with self._lock:
            return self._book.flows()

    def announce(self) -> None:
        """Hand the flows that are followed now to ``note`` once more, with the next look."""
        with self._lock:
            self._book.announce()
        self._wake.set()

    def sums(self, key: Key) -> Sums:
        """The counts of a starter's transfers so far."""
        with self._lock:
            return self._book.sums(key)

    def written(self, keys: set[Key]) -> dict[Key, Sums]:
        """The sums of some starters, once they are on disk: what is reported is never more than what a service that is
        killed begins with."""
        with self._lock:
            found = {key: sums for key in keys if (sums := self._book.sums(key)) != NOTHING}
            self._write()
            return found

    def last(self, key: Key) -> Sums:
        """The sums of a starter whose job is over, with what its connections had counted when they ended."""
        with self._lock:
            if self._thread.is_alive():
                wanted = self._begun + 1
                self._wake.set()
                self._lock.wait_for(lambda: self._done >= wanted, PATIENCE)
            self._changed = True
            return self._book.close(key)

    def treat(self, treatments: Mapping[Key, Treatment | None]) -> None:
        """Treat the transfers of these starters so from now on (None: no rule is about them); others as before."""
        with self._lock:
            before = dict(self._treatments)
            for key, treatment in treatments.items():
                if treatment is None:
                    self._treatments.pop(key, None)
                else:
                    self._treatments[key] = treatment
            if self._treatments == before:
                return
            self._changed = True
        self._wake.set()

    def in_place(self, key: Key) -> tuple[Treatment | None, str]:
        """The treatment that a starter's transfers have in the kernel, and the reason why none can be."""
        return self._enforcement.in_place(key), self._enforcement.trouble

    def _run(self) -> None:
        written = time.monotonic()
        pause = rest = 0.0
        while not self._thread.stopping:
            # Jobs may end faster than looks are to come.
            soon = min(rest, SOON_SECONDS)
            if self._thread.pause(soon):
                return
            self._wake.wait(pause - soon)
            self._wake.clear()
            began, own = time.monotonic(), time.thread_time()
            try:
                busy = self._look()
                # The time for which others had the processor is none of this thread's: on a worker that is busy, looks
                # would be so far apart that whole transfers pass in between.
                spent = time.thread_time() - own
                # Programs are run for that.
                spent += processor_time(self._enforce)
                if began - written >= WRITE_SECONDS:
                    written = began
                    with self._lock:
                        self._write()
            except OSError as error:
                log.failure("transfers cannot be followed; it is tried again", error)
                pause = rest = AGAIN_SECONDS
                continue
            except Exception as error:  # an unexpected error must not stop this thread
                log.failure("transfers are not followed", error)
                pause = rest = AGAIN_SECONDS
                continue
            rest = spent * (1 - SHARE) / SHARE
            pause = max(BUSY_SECONDS if busy else IDLE_SECONDS, rest)

    def _look(self) -> bool:
        """Look once; True while files are moved, and for :data:`LAST_LOOKS` more."""
        with self._lock:
            self._begun += 1
            if self._sockets is None:
                self._sockets = Sockets()
            at = time.monotonic()
            starters, movers = self._starters.look(at)
            # Before the list, so that what ends meanwhile is in the list or in the next look's ends.
            ended = self._sockets.ended()
            if movers or len(self._book) > 0:
                self._looks_left = 1 + LAST_LOOKS
            busy = self._looks_left > 0
            if busy:
                self._looks_left -= 1
                there = self._sockets.open()
                before = len(self._book)
                near = {each.inode for each in there if each.remote.is_loopback or each.remote == each.local}
                owners = partial(self._starters.owners, movers, near=near)
                self._book.look(at, there, [*ended, *self._sockets.ended()], owners)
                self._changed |= bool(before or len(self._book))
                self._note(self._book.turns(), at)
            else:
                self._book.rest()
            kept = starters.union(self._live())
            self._book.keep(kept)
            self._treatments = {key: each for key, each in self._treatments.items() if key in kept}
            self._done = self._begun
            self._lock.notify_all()
            return busy

    def _enforce(self) -> None:
        """Bring the treatments into the kernel. Without the lock: a program is run for it."""
        with self._lock:
            treatments = dict(self._treatments)
            connections = self._book.connections({key for key, each in treatments.items() if each != UNTREATED})
        self._enforcement.apply(treatments, connections, self._destroy)

    def _destroy(self, connection: Connection) -> None:
        with self._lock:
            if self._sockets is not None:
                self._sockets.destroy(connection)

    def _load(self) -> None:
        try:
            stored = json.loads(self._path.read_text("utf-8"))
            same = stored["boot"] == self._boot
            self._book.restore(stored, same)
            for pid, started, treatment in stored.get("treatments", ()) if same else ():
                self._treatments[int(pid), int(started)] = treatment_of(treatment)
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            log.event("the transfers' accounts cannot be read", level=log.WARNING, path=self._path, reason=error)

    def _write(self) -> None:
        """Write the accounts, where they have changed. The caller holds the lock."""
        if not self._changed:
            return
        try:
            treatments = [[*key, each.to_json()] for key, each in self._treatments.items()]
            stored = {"boot": self._boot, **self._book.stored(), "treatments": treatments}
            write_atomically(self._path, json.dumps(stored))
            self._changed = False
        except OSError as error:
            log.failure("the transfers' accounts cannot be kept on disk", error, path=self._path)

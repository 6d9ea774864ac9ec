"""The jobs of this worker by starter and by id: in memory, and on disk before anything else happens."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from lark_common import log
from lark_common.systemd import boot_id
from lark_worker.identity.processes import is_alive
from lark_worker.records.records import Record, Records

# A starter: its process id, and its start in clock ticks since boot.
Key = tuple[int, int]


def key_of(record: Record) -> Key:
    """The starter of a job."""
    return record.starter, record.started


class KnownJobs:
    """The records of the jobs of one worker; thread-safe.

    A lock for each starter (:meth:`locked`) keeps the requests of one job in order; jobs do not wait for each other.
    """

    def __init__(self, directory: Path) -> None:
        self.boot = boot_id()
        self._records = Records(directory)
        self._lock = threading.Lock()
        self._locks: dict[Key, threading.RLock] = {}
        self._jobs: dict[Key, Record] = {}
        self._by_id: dict[str, Record] = {}
        self._number = 0

    def load(self) -> list[Record]:
        """Load the records from disk and return them in the order of their admission."""
        known = self._records.load()
        self._number = max((record.number for record in known), default=0)
        for record in known:
            self._keep(record)
        return known

    def all(self) -> tuple[Record, ...]:
        """All jobs, in the order of their admission."""
        with self._lock:
            return tuple(sorted(self._by_id.values(), key=lambda record: record.number))

    def of(self, key: Key) -> Record | None:
        """The job of a starter."""
        return self._jobs.get(key)

    def by_id(self, job_id: str) -> Record | None:
        """The job of that id."""
        return self._by_id.get(job_id)

    def locked(self, key: Key) -> threading.RLock:
        """The lock of one job."""
        with self._lock:
            return self._locks.setdefault(key, threading.RLock())

    def number(self) -> int:
        """The next number in the order of jobs."""
        with self._lock:
            self._number += 1
            return self._number

    def write(self, record: Record) -> Record:
        """Keep a record. Raises OSError where the disk does not take it."""
        with self._lock:
            return self._store(record)

    def change(self, key: Key, *, then: str = "", **changes: Any) -> Record:
        """Change fields of a job's record, and append ``then`` to its pending operations.

        The change counts in memory even where the disk does not take it: a job whose end could not be recorded would
        keep its network for good. A service that restarts meanwhile repeats what its older record lacks.
        """
        with self._lock:
            record = replace(self._jobs[key], **changes)
            return self._update(replace(record, pending=(*record.pending, then)) if then else record)

    def delivered(self, key: Key, operation: str) -> None:
        """Remove the first pending operation, which has reached the controller."""
        with self._lock:
            record = self._jobs.get(key)
            if record is not None:
                self._update(record.delivered(operation))

    def lives(self, record: Record) -> bool:
        """True if the job's starter still runs."""
        return record.boot == self.boot and is_alive(record.starter, record.started)

    def forget(self, record: Record) -> None:
        """Remove a job whose end has reached the controller. Its starter may still ask for a while, and is answered."""
        with self._lock:
            self._records.remove(record.id)
            current = self._by_id.get(record.id)
            if current is not None and current.starter == record.starter:
                del self._by_id[record.id]
            if not self.lives(record):
                self._drop(record)

    def forget_starter(self, record: Record) -> None:
        """Drop a job whose starter has ended, unless something is pending."""
        with self._lock:
            current = self._jobs.get(key_of(record))
            if current is not None and not current.pending and not self.lives(record):
                self._drop(record)

    def _store(self, record: Record) -> Record:
        """On disk, then in memory. The caller holds the lock."""
        self._records.write(record)
        return self._keep(record)

    def _update(self, record: Record) -> Record:
        """In memory, and on disk if that takes it. The caller holds the lock."""
        try:
            return self._store(record)
        except OSError as error:
            log.failure("a job's record cannot be kept on disk", error, job=record.id)
            return self._keep(record)

    def _keep(self, record: Record) -> Record:
        self._jobs[key_of(record)] = record
        self._by_id[record.id] = record
        return record

    def _drop(self, record: Record) -> None:
        key = key_of(record)
        self._jobs.pop(key, None)
        self._locks.pop(key, None)

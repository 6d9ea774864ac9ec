"""The jobs that this worker knows, by starter and by id: in memory, and on disk before anything else happens."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from lark_common import log
from lark_worker.identity.processes import boot_id, is_alive
from lark_worker.records.records import Record, Records

# A starter: its process id, and its start in clock ticks since boot.
Key = tuple[int, int]


def key_of(record: Record) -> Key:
    """The starter of a job."""
    return record.starter, record.started


class KnownJobs:
    """The records of the jobs of one worker; thread-safe.

    One lock a starter (:meth:`locked`) keeps what is asked for one job in order; jobs do not wait for each other.
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
        """What was on disk, in the order in which the jobs came; it is known from now on."""
        known = self._records.load()
        self._number = max((record.number for record in known), default=0)
        for record in known:
            self._keep(record)
        return known

    def all(self) -> tuple[Record, ...]:
        """Every job that is known, in the order in which they came."""
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
        """Change fields of a job's record, and let ``then`` be told after what is pending already.

        What the disk does not take is known in memory all the same: a job whose end could not be noted would keep its
        network for good. A service that starts again meanwhile does again what its older record lacks.
        """
        with self._lock:
            record = replace(self._jobs[key], **changes)
            return self._update(replace(record, pending=(*record.pending, then)) if then else record)

    def delivered(self, key: Key, operation: str) -> None:
        """Note that the controller knows the first of what is pending."""
        with self._lock:
            record = self._jobs.get(key)
            if record is not None:
                self._update(record.delivered(operation))

    def lives(self, record: Record) -> bool:
        """Whether the job's starter still runs."""
        return record.boot == self.boot and is_alive(record.starter, record.started)

    def forget(self, record: Record) -> None:
        """The controller knows that the job is over. Its starter may still ask for a while, and is told so."""
        with self._lock:
            self._records.remove(record.id)
            current = self._by_id.get(record.id)
            if current is not None and current.starter == record.starter:
                del self._by_id[record.id]
            if not self.lives(record):
                self._drop(record)

    def forget_starter(self, record: Record) -> None:
        """The starter has ended; once nothing is pending of its job, nobody can ask for it."""
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

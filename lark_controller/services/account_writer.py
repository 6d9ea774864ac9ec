"""The accounts between memory and store: written every minute, and read back at a start."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import ge
from typing import Final

from lark_common.runs import NetworkType
from lark_common.threads import StoppableThread
from lark_controller.accounting.buckets import DAY, HOUR, MINUTE
from lark_controller.accounting.entry import Entry
from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.pairs import PairLedger
from lark_controller.accounting.usage import JobUsage
from lark_controller.jobs.job import Job
from lark_controller.services.attempts import Attempts
from lark_controller.store import BATCH, Store

# Seconds between looks for jobs that have ended, which are written without waiting for the next minute.
_SOON: Final = 1.0
# Seconds between two looks for the first use after a start, which is written without waiting for the next minute: on a
# fresh install nothing would be shown until then.
_FIRST: Final = 5.0
# Seconds between two portions of accounts that are late, at most.
_REST: Final = 0.5
# The part of the time between two writes of everything over which one is spread.
_SPREAD: Final = 0.8
_PRUNE_EVERY: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class Keeping:
    """The seconds between readings of counters (0: none) and between writes, and the days of keeping (0: for ever)."""

    read_seconds: float = 10.0
    write_seconds: float = 60.0
    minute_days: float = 2.0
    hour_days: float = 92.0
    day_days: float = 1_830.0
    job_days: float = 35.0


# The default.
KEPT: Final = Keeping()


class AccountWriter:
    """Writes the ledgers' accounts on a thread of its own, from :meth:`start` to :meth:`stop`."""

    def __init__(self, store: Store, ledger: Ledger, pairs: PairLedger, keeping: Keeping) -> None:
        self._store = store
        self._ledger = ledger
        self._pairs = pairs
        self._keeping = keeping
        self._thread = StoppableThread("lark-usage", self._run)
        self._attempts = Attempts("use is not written", "use is written again")
        self.written = self.counted = time.time()
        self._doubtful: list[Entry] = []
        # Where a pass over all portions that broke off is gone on with.
        self._reached = 0
        # Whether any use has been written since this start.
        self._used = False
        # When jobs that have ended were looked for last.
        self._looked = 0.0

    def load(self, jobs: Iterable[tuple[Job, str]]) -> None:
        """Open the accounts of the live jobs, each with its group of the policy, where they were left. Raises
        StoreError."""
        live = {job.number: (job, treatment) for job, treatment in jobs}
        self._load_pairs(live)
        over = []
        for number, readings, sums in self._store.usage.unended():
            # Taken out one by one, so that accounts get the memory of what is done with.
            if (known := live.pop(number, None)) is None:
                over.append(number)
            else:
                self._ledger.resume(*known, readings, sums)
        self._store.usage.finish(over)
        for known in live.values():
            self._ledger.resume(*known)
        self.counted = self._counted_before([job for job, _ in live.values()])

    def _counted_before(self, unwritten: Iterable[Job]) -> float:
        """Until then all use is in the store, as an earlier controller left it; of ``unwritten`` jobs nothing is."""
        if latest := self._ledger.latest():
            # The pass that it had begun may not have come to all accounts; the one before began so long ago at most.
            return min(self.counted, latest - 2 * self._keeping.write_seconds - self._keeping.read_seconds)
        return min([self.counted, *(job.created for job in unwritten if job.network_type is not NetworkType.NONE)])

    def _load_pairs(self, live: Mapping[int, tuple[Job, str]]) -> None:
        over, paired = set(), set()
        for each in self._store.usage.unended_pairs():
            if each.number in live:
                paired.add(each.number)
                self._pairs.restore(each.number, each.id, each.key, each.use, each.readings)
            else:
                over.add(each.number)
        self._store.usage.finish_pairs(over)
        now = time.time()
        for number, (job, _) in live.items():
            if job.reserved or number in paired:
                # They may be as old as the job, with much that was never written.
                self._pairs.follow(job, now, {flow.number for flow in job.reserved})

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write the rest, and end the thread."""
        self._thread.stop(patience=30.0)

    @property
    def threads(self) -> tuple[StoppableThread, ...]:
        """The threads that live from start to stop."""
        return (self._thread,)

    def write(self, only_ended: bool = False) -> None:
        """Write new readings, of every job or of those that have ended, as fast as others let it. Raises StoreError."""
        self._settle()
        self._looked = time.monotonic()
        size = self._store.usage.portion
        if only_ended:
            numbers = self._ledger.ended()
            portions = iter([numbers[start : start + size] for start in range(0, len(numbers), size)])
        else:
            portions = self._ledger.portions(size)
        for portion in portions:
            took = self._write_some(portion)
            if len(portion) == size:
                # As long as that took, so that posts do not wait for a portion each.
                self._thread.pause(min(took, _REST))
        self._write_pairs(only_ended)

    def write_evenly(self) -> None:
        """Write new readings of every job, spread over the time until the next write; those of jobs that end meanwhile
        soon. Raises StoreError."""
        self._settle()
        portions = list(self._ledger.portions(self._store.usage.portion))
        # With a database that is away every half a minute the last ones would never have their turn.
        start = self._reached if self._reached < len(portions) else 0
        begun = time.monotonic()
        for count, portion in enumerate(portions[start:] + portions[:start], 1):
            self._reached = (start + count - 1) % len(portions)
            took = self._write_some(portion)
            due = begun + _SPREAD * self._keeping.write_seconds * count / len(portions)
            if count < len(portions) and self._rest(max(due, time.monotonic() + min(took, _REST))):
                return
        self._reached = 0
        self._write_pairs(only_ended=False)

    def _rest(self, until: float) -> bool:
        """Write until then what ends, and nothing else; True where the thread is stopped meanwhile. Raises
        StoreError."""
        while (left := until - time.monotonic()) > 0:
            if self._thread.pause(min(left, _SOON)):
                return True
            if time.monotonic() - self._looked >= _SOON:
                self.write(only_ended=True)
        return False

    def _settle(self) -> None:
        """Find out about entries of which it is not known that they were written. Raises StoreError."""
        if self._doubtful:
            self._ledger.wrote(self._really_written(self._doubtful))
            self._doubtful = []

    def _write_some(self, numbers: Sequence[int]) -> float:
        """Write some accounts in one transaction; returns the seconds that it took. Raises StoreError."""
        began = time.monotonic()
        entries = self._doubtful = self._ledger.entries(numbers)
        self._store.usage.write(entries)
        self._doubtful = []
        self._ledger.wrote(entries)
        self._used = self._used or any(any(entry.new) for entry in entries)
        return time.monotonic() - began

    def _write_pairs(self, only_ended: bool) -> None:
        keys = iter(self._pairs.changed(only_ended))
        while some := list(islice(keys, BATCH)):
            # Written as they are and not added, so that a commit whose answer is lost may come twice.
            pairs = self._pairs.entries(some)
            self._store.usage.write_pairs(pairs)
            self._pairs.wrote(pairs)

    def _really_written(self, entries: Sequence[Entry]) -> list[Entry]:
        """The entries of these that are in the store: a commit whose answer is lost has happened, or has not."""
        # Or it is still to happen, on a server that has not noticed that its client is gone.
        self._store.settle()
        there = self._store.usage.of_jobs([entry.number for entry in entries])
        return [
            entry
            for entry in entries
            if (known := there.get(entry.number)) is not None
            and (known.final, known.at) == (entry.final, entry.at)
            # Of a job that came back the store has more than the account: what was used before, too.
            and all(map(ge, known.usage, entry.usage))
        ]

    def of_jobs(self, jobs: Sequence[Job]) -> Mapping[int, JobUsage]:
        """The use of jobs, by number. Raises StoreError."""
        found = {job.number: usage for job in jobs if (usage := self._ledger.usage(job.number)) is not None}
        missing = [job.number for job in jobs if job.number not in found and not job.live]
        return {**self._store.usage.of_jobs(missing), **found} if missing else found

    def _run(self) -> None:
        written = pruned = time.monotonic()
        while not self._thread.pause(min(_SOON, self._keeping.write_seconds)):
            now = time.monotonic()
            interval = self._keeping.write_seconds if self._used else min(_FIRST, self._keeping.write_seconds)
            everything = now - written >= interval
            begun = time.time()
            work = self.write_evenly if everything else partial(self.write, only_ended=True)
            if self._attempts.succeed(work) and everything and not self._thread.stopping:
                written, self.written = now, time.time()
                # Each counter was read at most one round before.
                self.counted = max(self.counted, begun - self._keeping.read_seconds)
            if now - pruned >= _PRUNE_EVERY and self._attempts.succeed(self._prune):
                pruned = now
        self._attempts.succeed(self.write)

    def _prune(self) -> None:
        now, keep = time.time(), self._keeping
        widths = {MINUTE: keep.minute_days, HOUR: keep.hour_days, DAY: keep.day_days}
        before = {seconds: now - days * DAY for seconds, days in widths.items() if days}
        self._store.usage.prune(before, now - keep.job_days * DAY if keep.job_days else 0.0)

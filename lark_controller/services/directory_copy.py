"""The directory of an instance that stands by: a copy that follows the database, for the moment in which it takes over.

The copy needs to be right for the most part only. Once this instance has the term nobody else can write any more, and
one comparison of all rows with the database brings what is missing.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from lark_common.errors import StoreError
from lark_common.log import WARNING, event, failure
from lark_common.threads import StoppableThread
from lark_controller.api.metrics import Metrics
from lark_controller.api.policy import PolicyVersion
from lark_controller.flows.desired import Desired
from lark_controller.jobs.job import Directory, Job
from lark_controller.policies.decide import Decider
from lark_controller.policies.model import Decision
from lark_controller.reconcile.prepared import PreparedDirectory
from lark_controller.services.holdings import Holdings
from lark_controller.services.stored_policy import load_stored
from lark_controller.store import Store
from lark_controller.store.copies import Copied, Difference

# Seconds between two comparisons with the database: so many times as long as one takes, but for these bounds. What a
# comparison takes on a machine that is busy for a moment says nothing of the next minute.
SECONDS: Final = 2.0
REST: Final = 20.0
LONGEST: Final = 30.0
# A copy is made in portions of so many seconds, each followed by a pause that is so many times as long: requests that
# this instance hands on wait for no more.
PORTION: Final = 0.01
PAUSES: Final = 3.0
_PAGE: Final = 1_000
# Seconds in which the thread ends what it is at.
_PATIENCE: Final = 30.0


class _StoppedError(Exception):
    """The thread is to end."""


@dataclass(frozen=True, slots=True)
class TakenDirectory:
    """Live jobs as they are in the database at the beginning of a term, and what they hold."""

    prepared: PreparedDirectory
    holdings: Holdings


@dataclass(slots=True)
class _Copy:
    """The live jobs by one policy; ``versions`` are those of their rows, by number."""

    policy: str
    server: str
    prepared: PreparedDirectory
    holdings: Holdings
    at: float
    versions: dict[int, int] = field(default_factory=dict)

    def follow(self, found: Difference) -> None:
        """Take in the changes. An address that one job gives up is free before another job has it."""
        self.at = found.at
        directory, desired = self.prepared.directory, self.prepared.desired
        for version, number, standing in found.moved:
            directory.set_standing(number, *standing)
            self.versions[number] = version
        numbers = [*found.gone, *(each.job.number for each in found.changed)]
        before = [placed.job for number in numbers if (placed := desired.placed.get(number)) is not None]
        for job in before:
            self.holdings.release(job)
        for number in found.gone:
            if (placed := desired.placed.get(number)) is not None:
                directory.remove(placed.job.id)
                directory.forget(number)
                desired.remove(number)
            self.versions.pop(number, None)
        for each in found.changed:
            job = self._take_in(each)
            desired.put(job, self.prepared.decider.of(job))

    def held(self, number: int) -> Job | None:
        """The job of a number; None where it has none."""
        placed = self.prepared.desired.placed.get(number)
        return None if placed is None else placed.job

    def fill(self, copied: Iterable[Copied]) -> Iterator[tuple[Job, Decision]]:
        """Take in the jobs of an empty copy; the jobs with their decisions."""
        for each in copied:
            job = self._take_in(each)
            yield job, self.prepared.decider.of(job)

    def _take_in(self, each: Copied) -> Job:
        facts = self.prepared.decider.shared(each.job.facts)
        job = each.job if facts is each.job.facts else replace(each.job, facts=facts)
        self.prepared.directory.set_standing(job.number, *each.standing)
        self.prepared.directory.put(job)
        self.holdings.hold(job)
        self.versions[job.number] = each.version
        return job


def until_the_next(took: float) -> float:
    """The pause after a comparison that took so many seconds. What changes in a pause is left to a takeover."""
    return min(LONGEST, max(SECONDS, REST * took))


class DirectoryCopy:
    """Follows the database on a thread, from :meth:`start` to :meth:`take` or :meth:`stop`."""

    def __init__(self, store: Store, metrics: Metrics, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._copy: _Copy | None = None
        self._trouble = ""
        self._thread = StoppableThread("lark-copy", self._run)

    @property
    def at(self) -> float | None:
        """The time at which the copy was as the database had it, by the database's clock; None where there is none.
        From any thread."""
        copy = self._copy
        return None if copy is None else copy.at

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """Stop to follow."""
        self._thread.stop(_PATIENCE)

    def take(self, policy: PolicyVersion) -> TakenDirectory | None:
        """The directory as the database has it, for an instance that has the term; None where all is to be loaded:
        there is no copy by this policy yet, or the database is not the one that was followed. Raises StoreError."""
        self.stop()
        copy, self._copy = self._copy, None
        self._show(None)
        if copy is None or copy.policy != policy.digest or self._thread.is_alive():
            return None
        found = self._store.runs.difference(copy.versions, copy.held)
        if (found.policy, found.server) != (copy.policy, copy.server):
            return None
        copy.follow(found)
        event("directory taken over", jobs=len(copy.versions), changed=found.others, gone=len(found.gone))
        return TakenDirectory(copy.prepared, copy.holdings)

    # -- on the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = 0.0
        while not self._thread.pause(pause):
            began = time.monotonic()
            try:
                self.follow()
                self._trouble = ""
            except _StoppedError:
                return
            except StoreError as error:
                if self._trouble != str(error):
                    event("the copy of the directory does not follow", level=WARNING, error=error)
                self._trouble = str(error)
            except Exception as error:
                # A takeover loads all without it.
                self._copy = None
                self._show(None)
                failure("the copy of the directory is given up, and made anew", error)
            pause = until_the_next(0.0 if self._copy is None else time.monotonic() - began)

    def follow(self) -> None:
        """Make the copy, or bring it to what the database has now. Raises StoreError."""
        copy = self._copy
        if copy is None:
            self._copy = copy = self._made()
            if copy is not None:
                event("directory copied", jobs=len(copy.versions))
        else:
            found = self._store.runs.difference(copy.versions, copy.held)
            if (found.policy, found.server) != (copy.policy, copy.server):
                self._copy = copy = None
            else:
                copy.follow(found)
        self._show(copy)

    def _made(self) -> _Copy | None:
        """A copy by the newest policy; None where there is none yet, or the tables are of another release."""
        if self._store.schema_version() != self._store.newest_schema():
            return None
        latest = self._store.trail.latest_policy()
        if latest is None:
            return None
        copied: dict[int, Copied] = {}
        last = 0
        while page := self._store.runs.copied(last, _PAGE):
            copied |= {each.job.number: each for each in page}
            last = page[-1].job.number
            # It lives as long as this instance stands by: the garbage collector, which stops all threads, need not look
            # at it again and again.
            gc.freeze()
            self._rest(PORTION)
        # Pages are of different moments: an address may be with two jobs in them.
        found = self._store.runs.difference(
            {number: each.version for number, each in copied.items()},
            lambda number: None if (each := copied.get(number)) is None else each.job,
        )
        if found.policy != latest.digest:
            return None
        for number in found.gone:
            del copied[number]
        copied |= {each.job.number: each for each in found.changed}
        for version, number, standing in found.moved:
            copied[number] = Copied(version, copied[number].job, standing)
        policy = load_stored(latest)
        prepared = PreparedDirectory(Directory(), Decider(policy), Desired(policy))
        copy = _Copy(latest.digest, found.server, prepared, Holdings(policy), found.at)
        prepared.desired.load(self._by_portions(copy.fill(copied[number] for number in sorted(copied))))
        gc.freeze()
        return copy

    def _by_portions(self, jobs: Iterable[tuple[Job, Decision]]) -> Iterator[tuple[Job, Decision]]:
        until = time.thread_time() + PORTION
        for count, each in enumerate(jobs):
            yield each
            if count % _PAGE == 0:
                gc.freeze()
            if time.thread_time() >= until:
                self._rest(PORTION)
                until = time.thread_time() + PORTION

    def _rest(self, used: float) -> None:
        if self._thread.pause(PAUSES * used):
            raise _StoppedError

    def _show(self, copy: _Copy | None) -> None:
        self._metrics.copy_at.set(0.0 if copy is None else self._clock())
        self._metrics.copy_jobs.set(0 if copy is None else len(copy.versions))

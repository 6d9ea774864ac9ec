"""The one way into the reconcile loop: live jobs as rows, handed over in the order in which they change.

Whoever changes the store and a live job together holds :attr:`Feed.lock` for both, so that store, directory and loop
see one order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from ipaddress import ip_address

from lark_controller.jobs.job import Directory, Job, JobState, Standing, in_state
from lark_controller.services.lease_clock import LeaseClock


class Feed:
    """Changes of ``directory``, each handed to ``put`` or (the job's number) ``gone``, which do not wait. Leases, and
    what live jobs have until a time, end by ``clock``."""

    def __init__(
        self,
        directory: Directory,
        put: Callable[[Job], object],
        gone: Callable[[int], object],
        clock: LeaseClock | None = None,
    ) -> None:
        self.directory = directory
        self.clock = clock or LeaseClock()
        self.lock = threading.RLock()
        self._put = put
        self._gone = gone
        self._open = True
        self._complete: Callable[[Job], Job] = _as_it_is
        self._follow: Callable[[Job | None, Job | None], object] = _unfollowed

    def completed_by(self, complete: Callable[[Job], Job]) -> None:
        """Let ``complete`` add to each job that is put what others than its ads say of it."""
        self._complete = complete

    def followed_by(self, follow: Callable[[Job | None, Job | None], object]) -> None:
        """Let ``follow`` hear of each change what a live job was and is (None: not live)."""
        self._follow = follow

    def tell(self, job_id: str) -> None:
        """Put a job again, if it lives, because what completes it has changed. The caller holds the lock."""
        job = self.directory.by_id.get(job_id)
        if job is not None and self._complete(job) != job:
            self.put(job)

    def load(self, jobs: Iterable[tuple[Job, Standing]]) -> None:
        """Take live jobs in, with how far each is, where there are none yet; from now on nothing is handed over until
        :meth:`open`. The caller holds the lock."""
        self._open = False
        self.directory.load((in_state(self._complete(job), JobState.REGISTERING, ""), at) for job, at in jobs)
        for job in self.directory.by_id.values():
            self._follow(None, job)

    def loaded(self) -> None:
        """Take the directory's live jobs as those of the beginning; nothing is handed over until :meth:`open`."""
        self._open = False

    def open(self) -> list[Job]:
        """The live jobs as they are now; what changes from now on is handed over."""
        self._open = True
        return self.live()

    def put(self, job: Job) -> None:
        """Put a live job that is new or changed. The caller holds the lock."""
        # The loop alone sets a live job's state.
        job = in_state(self._complete(job), JobState.REGISTERING, "")
        before = self.directory.put(job)
        # The loop has it before anybody who follows can answer to it.
        if self._open:
            self._put(job)
        self._follow(before, job)

    def change(self, job_id: str, changed: Callable[[Job], Job]) -> None:
        """Change a job, if it lives. The caller holds the lock."""
        job = self.directory.by_id.get(job_id)
        if job is not None and (now := changed(job)) != job:
            self.put(now)

    def remove(self, job_id: str) -> Job | None:
        """Remove a job; returns it if it lived. The caller holds the lock."""
        job = self.directory.remove(job_id)
        if job is not None:
            self._follow(job, None)
            self._gone(job.number)
        return job

    def live(self) -> list[Job]:
        """The live jobs, a copy."""
        return list(self.directory.by_id.values())

    def find(self, text: str) -> Job | None:
        """The live job of an id or an address."""
        try:
            return self.directory.by_address.get(ip_address(text))
        except ValueError:
            return self.directory.by_id.get(text)


def _as_it_is(job: Job) -> Job:
    return job


def _unfollowed(before: Job | None, after: Job | None) -> None:
    """Follow nothing."""

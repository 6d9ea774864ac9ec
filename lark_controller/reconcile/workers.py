"""Workers that enforce policy for their own jobs: who is told of which change, and what they have confirmed.

Used by the reconcile loop, on its thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from lark_common.worker_rules import RULED
from lark_controller.flows.desired import Pool
from lark_controller.jobs.job import Directory, Job
from lark_controller.reconcile.awaited import Confirmations
from lark_controller.reconcile.worker_revisions import HostStates

NOT_YET: Final = "has not put the job's rules in place yet"


class Owner(Protocol):
    """The reconcile loop, as far as workers concern it."""

    @property
    def directory(self) -> Directory:
        """The live jobs."""

    @property
    def confirmations(self) -> Confirmations:
        """What jobs wait for."""

    @property
    def pool(self) -> Pool:
        """The pool of the policy in force."""

    def settle(self, number: int) -> None:
        """A job may wait for something else than before."""

    def refuse(self, job: Job, reason: str) -> None:
        """Refuse a job: nothing of it stays anywhere."""


class Workers:
    """All workers. ``states`` are the revisions of their rules."""

    def __init__(self, owner: Owner) -> None:
        self.states = HostStates()
        self._owner = owner

    def tell(self) -> None:
        """Workers whose rules changed have a new revision to put in place, and jobs with new rules wait for it."""
        for host, numbers in self._owner.pool.ruled.take().items():
            self.states.changed(host, numbers)
            for number in numbers:
                self._owner.confirmations.blocked(number, self.states.number(host), NOT_YET)

    def policy_changed(self) -> None:
        """Another pool is in force. As on switches, jobs that are there stay as they are while their rules change."""
        ruled = self._owner.pool.ruled
        ruled.take()
        for host in ruled.hosts():
            self.states.changed(host, ())

    def confirmed(self, host: str, revision: str, refused: Mapping[str, str], late: Iterable[str] = ()) -> None:
        """A worker has a revision of its rules in place, but for the jobs that it refuses, each with the reason, and
        those that are ``late``: their networks are not made yet."""
        for job_id, reason in refused.items():
            job = self._owner.directory.by_id.get(job_id)
            if job is not None and job.host == host and job.network_type in RULED:
                self._owner.refuse(job, f"worker {host}: {reason}")
        directory = self._owner.directory.by_id
        waiting = {directory[job_id].number for job_id in late if job_id in directory}
        for number in self.states.confirmed(host, revision, waiting):
            self._owner.confirmations.confirmed(number, self.states.number(host))
            self._owner.settle(number)

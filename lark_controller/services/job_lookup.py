"""What is known of jobs, live and ended: the store's word, in the state that the loop knows. Called by REST threads."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address

from lark_common.errors import NotFoundError
from lark_common.runs import Address
from lark_controller.api.jobs import Confirmation, JobDetail, JobFilter, JobPage, Waiting
from lark_controller.jobs.job import Job
from lark_controller.policies.decide import decide, quarantined
from lark_controller.reconcile.calls import LoopCalls, Waiter
from lark_controller.reconcile.job_states import as_now
from lark_controller.reconcile.queues import QUEUES
from lark_controller.reconcile.reconciler import Reconciler
from lark_controller.reconcile.switch import dpid_text
from lark_controller.reconcile.worker_revisions import FIRST
from lark_controller.services.policy import PolicyInForce
from lark_controller.services.usage import Accountant
from lark_controller.store import Store


class JobLookup:
    """Finds jobs. ``unwritten`` holds the states, by job id, that the store does not have yet. Thread-safe."""

    def __init__(
        self,
        store: Store,
        loop: LoopCalls,
        reconciler: Reconciler,
        unwritten: Mapping[str, Job],
        accounts: Accountant,
        policy: PolicyInForce,
    ) -> None:
        self._store = store
        self._loop = loop
        self._reconciler = reconciler
        self._unwritten = unwritten
        self._accounts = accounts
        self._policy = policy

    def live(self, job_id: str) -> Job | None:
        """The live job of that id, as the loop knows it."""
        return self._reconciler.directory.by_id.get(job_id)

    def found(self, job_id: str) -> Job:
        """A live or ended job. Raises NotFoundError."""
        now = self._now(job_id)
        job = self._store.find(job_id)
        if job is None:
            raise NotFoundError(f"no job has the id {job_id}")
        return as_now(job, now)

    def number_of(self, job_id: str) -> int:
        """The number of a live or ended job, whose account is open by then. Raises NotFoundError."""
        number = self.found(job_id).number
        # A worker may be quicker than the loop, which opens a job's account.
        self._loop.call(lambda: None)
        return number

    def confirm(self, job_id: str, timeout: float) -> Confirmation:
        """Wait up to ``timeout`` seconds until the switches concerned hold the job's flows. Raises NotFoundError."""
        if timeout > 0:
            seen = self._reconciler.confirmations

            def wait(waiter: Waiter) -> None:
                job = self.live(job_id)
                if job is None:
                    waiter()
                else:
                    seen.when_settled(job.number, waiter)

            def give_up(waiter: Waiter) -> None:
                job = self.live(job_id)
                if job is not None:
                    seen.stop_waiting(job.number, waiter)

            self._loop.hold(timeout, wait, give_up)
        live = self._loop.call(lambda: None if (job := self.live(job_id)) is None else self._confirmation(job))
        return live or Confirmation(self.found(job_id))

    def detail(self, job_id: str) -> JobDetail:
        """Everything that is known of a live or ended job. Raises NotFoundError."""
        job = self.found(job_id)
        job_ad, machine_ad = self._store.ads(job_id) or ("", "")
        ending = self._store.ending(job_id)
        confirmation = self._loop.call(lambda: self._confirmation(job))
        decision = quarantined(decide(job.facts, self._policy.policy), job)
        usage = self._accounts.of_jobs([confirmation.job]).get(job.number)
        at = None if ending is None else ending.at
        return JobDetail(confirmation.job, decision, confirmation, job_ad, machine_ad, at, usage)

    def at(self, address: str) -> JobDetail:
        """The live job behind an address. Raises NotFoundError."""
        job = self._reconciler.directory.by_address.get(_address(address))
        if job is None:
            raise NotFoundError(f"no live job has the address {address}")
        return self.detail(job.id)

    def page(self, chosen: JobFilter, cursor: str | None, limit: int) -> JobPage:
        """A page of jobs. Raises NotFoundError for a cursor that is none."""
        page = self._store.page(chosen, cursor, limit)
        return JobPage(tuple(as_now(job, self._now(job.id)) for job in page.jobs), page.next_cursor)

    def _now(self, job_id: str) -> Job | None:
        """A job in the state that it has this moment, where the store may not have it yet. To be asked first."""
        return self.live(job_id) or self._unwritten.get(job_id)

    def _confirmation(self, job: Job) -> Confirmation:
        job = as_now(job, self._now(job.id))
        seen = self._reconciler.confirmations
        waiting = tuple(
            Waiting(dpid_text(datapath & ~QUEUES) if 0 < datapath < FIRST else "", reason)
            for datapath, reason in sorted(seen.waiting(job.number).items())
        )
        return Confirmation(job, tuple(dpid_text(dp) for dp in seen.done(job.number) if 0 < dp < QUEUES), waiting)


def _address(text: str) -> Address:
    try:
        return ip_address(text)
    except ValueError:
        raise NotFoundError(f"{text} is not an address") from None

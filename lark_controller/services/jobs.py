"""Jobs, live and ended: from the store, with the state that the loop has confirmed. Called by REST threads."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from ipaddress import ip_address
from itertools import islice
from typing import Final

from lark_common.classads.ads import JobAd, MachineAd
from lark_common.errors import AdError, ExternalAddressError, NotFoundError, PolicyError
from lark_common.log import WARNING, event
from lark_common.runs import Address, EndedBy
from lark_common.turns import by_portions
from lark_controller.api.jobs import (
    BLOCKED,
    Confirmation,
    JobCounts,
    JobDetail,
    JobFilter,
    JobPage,
    Registered,
    Renewed,
    Unsettled,
    Waiting,
)
from lark_controller.jobs.job import Job, JobState, Standing
from lark_controller.policies.bandwidth import NO_RULE
from lark_controller.policies.decide import decide, quarantined
from lark_controller.policies.file import load
from lark_controller.policies.model import Decision, Policy
from lark_controller.reconcile.calls import LoopCalls
from lark_controller.reconcile.confirmations import FlowsAt, QueuesAt, Waiter
from lark_controller.reconcile.progress import as_now, why_nothing_passes
from lark_controller.reconcile.reconciler import Reconciler
from lark_controller.reconcile.switch import dpid_text
from lark_controller.services.account_writer import AccountWriter
from lark_controller.services.external import ExternalAddresses
from lark_controller.services.job_names import JobNames, full_names_of, names_of
from lark_controller.services.policy import PolicyInForce
from lark_controller.services.registration import Registration
from lark_controller.services.treatments import Treatments
from lark_controller.store import Store
from lark_controller.store.cursors import cursor_for, number_in
from lark_controller.switches.openflow.loop_thread import OpenFlow

# The numbers of blocked jobs that one statement names.
_MOST_AMONG: Final = 1_000
# The numbers of jobs that are read from the store at once, to find the blocked ones among them.
_FIRST_NUMBERS: Final = 100
_MOST_NUMBERS: Final = 20_000
# Versions of the policy that are kept as they were read, for the jobs that ended under them.
_PAST: Final = 4


class Jobs:
    """Operations on jobs. ``unwritten`` holds the states, by job id, that the store does not have yet. Thread-safe."""

    def __init__(
        self,
        store: Store,
        registration: Registration,
        openflow: OpenFlow,
        reconciler: Reconciler,
        unwritten: Mapping[str, Job],
        account_writer: AccountWriter,
        policy: PolicyInForce,
        external: ExternalAddresses,
    ) -> None:
        self._store = store
        self._registration = registration
        self._external = external
        self._openflow = openflow
        self._loop = LoopCalls(openflow)
        self._reconciler = reconciler
        self._unwritten = unwritten
        self._account_writer = account_writer
        self._policy = policy
        self._past = lru_cache(_PAST)(self._read_past)
        self._names = JobNames(store.runs, self._now, lambda number: number in reconciler.desired.isolated)
        # The words of workers on their jobs' transfers.
        self.treatments = Treatments(lambda number: number in reconciler.desired.placed)

    def register(self, job_ad: JobAd, machine_ad: MachineAd, actor: str, running: bool = False) -> Registered:
        """Register a run, or update it by a second post, with the external address that its ad asks for.

        Raises as :meth:`Registration.register` does, and ExternalAddressError where the run cannot have that address
        and is not to run without; it has ended then. A job that is ``running`` is not to lose its network: it is too
        late to hold it, so it runs without, and the audit trail has the reason.
        """
        registered = self._registration.register(job_ad, machine_ad, actor)
        job = registered.job
        if not job_ad.external or not job.live:
            return registered
        try:
            self._external.asked_in_ad(job, job_ad, actor)
        except (AdError, ExternalAddressError) as error:
            if running:
                self._external.refused(job.id, actor, str(error))
                return registered
            self._registration.end(job.id, "lark", str(error))
            raise
        return registered

    def named(self, word: str, owner: str | None = None, any_node: bool = False) -> str:
        """The id of the job (of this owner) that a word names, live or ended; with ``any_node`` the first node of a
        parallel job. Raises NotFoundError, AmbiguousError."""
        return self._names.id_of(word, owner, any_node)

    def host_called(self, word: str) -> str:
        """The host of jobs that a word names, with or without its domain; the word where it names none or several."""
        found = self._store.runs.hosts_meant(word)
        return found[0] if len(found) == 1 else word

    def full_names(self, ids: Collection[str]) -> Mapping[str, str]:
        """CLUSTER.PROC of the jobs among these ids, each with its access point as far as that is known."""
        return full_names_of(self._store.runs.called(ids)) if ids else {}

    def names(self, ids: Collection[str]) -> Mapping[str, str]:
        """The names of the jobs among these ids, live or ended, as a table shows them."""
        return names_of(self._store.runs.called(ids)) if ids else {}

    def renew(self, job_id: str) -> Job:
        """Renew a live job's lease. Raises NotFoundError where no such job lives."""
        return self._reconciler.directory.now(self._registration.renew(job_id))

    def renew_all(self, host: str, job_ids: Sequence[str]) -> Renewed:
        """Renew the leases of a host's live jobs."""
        renewed = self._registration.renew_all(host, job_ids)
        live = map(self.live, {*job_ids}.difference(renewed.missing))
        others = (job for job in live if job is not None and job.state is not JobState.ENFORCED)
        return replace(renewed, unsettled=tuple(Unsettled(job.id, job.state, job.reason) for job in others))

    def end(self, job_id: str, actor: str, exit_ad: str = "", by: EndedBy = EndedBy.HOOK) -> Job:
        """End a job. Idempotent. Raises NotFoundError for an id never seen."""
        return self._registration.end(job_id, actor, by.reason, exit_ad)

    def forged(self, job_id: str, actor: str, detail: str) -> None:
        """Write into the audit trail that a worker refused a forged ad for this job."""
        self._store.trail.record(time.time(), actor, "forged ad", job_id, detail)

    def limited(self, job_id: str, actor: str, detail: str) -> None:
        """Write into the audit trail, and into the problems of its switch, that a job has met a limit of its worker.

        Raises NotFoundError where no such job lives.
        """
        job = self.found(job_id)
        if not job.live:
            raise NotFoundError(f"no live job has the id {job_id}")
        event("a job has met a limit", level=WARNING, job=job_id, owner=job.owner, host=job.host, detail=detail)
        self._store.trail.record(time.time(), actor, "limit met", job_id, detail)
        self._openflow.hand_over(partial(self._reconciler.note_problem, text=detail), job)

    def lift(self, job_id: str, actor: str) -> Job:
        """End a job's quarantine on an operator's word, while the job lives. Raises NotFoundError, StateError."""
        if self._registration.lift(job_id, "lifted by an operator", actor, vouched=True) is None:
            raise NotFoundError(f"no live job has the id {job_id}")
        return self.found(job_id)

    def host_of(self, job_id: str) -> str:
        """The host of a live or ended job. Raises NotFoundError."""
        job = self._reconciler.directory.by_id.get(job_id) or self._store.runs.find(job_id)
        if job is None:
            raise NotFoundError(f"no job has the id {job_id}")
        return job.host

    def reserved(self, job_id: str) -> Standing | None:
        """Tell how far the reserved flows that a live job sends are enforced; None where no such job lives."""
        return self._reconciler.directory.reserved(job_id)

    def live(self, job_id: str) -> Job | None:
        """The live job of that id, in the state of the loop."""
        return self._reconciler.directory.live(job_id)

    def found(self, job_id: str) -> Job:
        """A live or ended job. Raises NotFoundError."""
        now = self._now(job_id)
        job = self._store.runs.find(job_id)
        if job is None:
            raise NotFoundError(f"no job has the id {job_id}")
        return as_now(job, now)

    def confirm(self, job_id: str, timeout: float, *, of_flows: bool = False) -> Confirmation:
        """Wait up to ``timeout`` seconds until the switches concerned hold the job's flows; ``of_flows`` until what it
        has reserved is enforced, whatever else it waits for. Raises NotFoundError."""

        def confirmation() -> Confirmation | None:
            # The job's state is to follow its last confirmation, without another turn of a loop that may be busy.
            self._reconciler.act()
            return None if (job := self.live(job_id)) is None else self._confirmation_of(job)

        if timeout <= 0:
            return self._loop.call(confirmation) or Confirmation(self.found(job_id))
        seen, live = self._reconciler.confirmations, self._reconciler.directory.by_id

        def wait(waiter: Waiter) -> None:
            job = live.get(job_id)
            if of_flows and job is not None:
                # For some time after a start its standing is the one that is stored.
                self._reconciler.dirty.job(job.number)
            self._reconciler.act()
            job = live.get(job_id)
            standing = self._reconciler.directory.reserved(job_id) if of_flows else None
            if job is None or (standing is not None and standing.state is JobState.ENFORCED):
                waiter()
            else:
                seen.when_settled(job.number, waiter, of_flows=of_flows)

        def give_up(waiter: Waiter) -> None:
            job = live.get(job_id)
            if job is not None:
                seen.stop_waiting(job.number, waiter)

        return self._loop.hold(timeout, wait, give_up, confirmation) or Confirmation(self.found(job_id))

    def detail(self, job_id: str) -> JobDetail:
        """The details of a live or ended job. Raises NotFoundError."""
        job = self.found(job_id)
        job_ad, machine_ad = self._store.runs.ads(job_id) or ("", "")
        ending = self._store.runs.ending(job_id)
        confirmation = self._loop.call(lambda: self._confirmation(job))
        at = None if ending is None else ending.at
        version, policy = self._policy_of(job, at)
        decision = quarantined(decide(job.facts, policy), job)
        usage = self._account_writer.of_jobs([confirmation.job]).get(job.number)
        moving = self.treatments.state(job, decision.transfers, self._policy.policy) if job.live else None
        return JobDetail(confirmation.job, decision, confirmation, version, job_ad, machine_ad, at, usage, moving)

    def _policy_of(self, job: Job, ended: float | None) -> tuple[int, Policy]:
        """The policy by which a job is decided, or was when it ended (a refused one: when it came), with its
        version. One that cannot be read any more is the one in force."""
        now, policy = self._policy.version.version, self._policy.policy
        if not job.live:
            then = self._store.trail.policy_at(job.created if ended is None else ended)
            if then is not None and then != now and (past := self._past(then)) is not None:
                return then, past
        return now, policy

    def _read_past(self, version: int) -> Policy | None:
        found = self._store.trail.policy(version)
        try:
            return None if found is None else load(found.text, stored=True)
        except PolicyError:
            # An earlier release took it.
            return None

    def decision(self, job: Job) -> Decision:
        """The decision for a job by the policy in force, whatever it was."""
        return quarantined(decide(job.facts, self._policy.policy), job)

    def at(self, address: str, owner: str | None = None) -> JobDetail:
        """The live job (of this owner) behind an address. Raises NotFoundError."""
        directory = self._reconciler.directory
        known = _address(address)
        job = directory.by_address.get(known) or directory.by_external.get(known)
        # A job that a switch has refused is in the directory until that is in the store.
        if job is None or not directory.now(job).live or owner not in (None, job.owner):
            raise NotFoundError(f"no live job has the address {address}")
        return self.detail(job.id)

    def page(self, chosen: JobFilter, cursor: str | None, limit: int) -> JobPage:
        """A page of jobs. Raises NotFoundError for a cursor that is none."""
        if chosen.state == BLOCKED:
            return self._page_of_blocked(chosen, cursor, limit)
        page = self._store.runs.page(chosen, cursor, limit)
        return JobPage(tuple(as_now(job, self._now(job.id)) for job in by_portions(page.jobs)), page.next_cursor)

    def _page_of_blocked(self, chosen: JobFilter, cursor: str | None, limit: int) -> JobPage:
        """The blocked ones, as the loop knows them, that the store chooses by the rest."""
        rest, found = replace(chosen, state="live"), list[Job]()
        after = None if cursor is None else number_in(cursor)
        numbers = self._blocked(rest, after)
        # A few at first, as all may be chosen, and more at a time where few are.
        size = limit + 1
        while len(found) <= limit and (among := list(islice(numbers, size))):
            page = self._store.runs.page(rest, None, limit + 1 - len(found), among)
            found += [as_now(job, self._now(job.id)) for job in by_portions(page.jobs)]
            size = min(2 * size, _MOST_AMONG)
        return JobPage(tuple(found[:limit]), cursor_for(found[limit - 1].number) if len(found) > limit else None)

    def _blocked(self, rest: JobFilter, after: int | None) -> Iterator[int]:
        """The numbers of the blocked jobs in order, by the rule of :meth:`counts`; among them those that are chosen."""
        isolated, directory = self._reconciler.desired.isolated, self._reconciler.directory
        if len(isolated) <= _MOST_AMONG or rest == JobFilter(newest=rest.newest):
            ordered = isolated.after(after, down=rest.newest)
        else:
            # Most of so many may be another user's.
            ordered = (number for number in self._numbers(rest, after) if number in isolated)
        return (number for number in ordered if directory.standing(number).state is JobState.ENFORCED)

    def _numbers(self, chosen: JobFilter, after: int | None) -> Iterator[int]:
        """The numbers of the jobs that the store chooses, more at a time the further it goes."""
        size = _FIRST_NUMBERS
        while found := self._store.runs.numbers(chosen, after, size):
            yield from by_portions(found)
            if len(found) < size:
                return
            after, size = found[-1], min(2 * size, _MOST_NUMBERS)

    def counts(self) -> JobCounts:
        """The number of live jobs in each state."""
        directory, desired = self._reconciler.directory, self._reconciler.desired
        states = directory.states.copy()
        # Such a job is enforced as soon as it is settled.
        no_network = min(desired.unattached, states[JobState.ENFORCED])
        return JobCounts(
            registering=states[JobState.REGISTERING],
            pending=states[JobState.PENDING],
            enforced=states[JobState.ENFORCED] - no_network,
            no_network=no_network,
            quarantined=states[JobState.QUARANTINED],
            # Of those that wait nobody knows yet that they are blocked.
            blocked=sum(directory.standing(number).state is JobState.ENFORCED for number in desired.isolated),
            isolated=len(desired.isolated),
        )

    def isolated(self, jobs: Sequence[Job]) -> Collection[int]:
        """The numbers of those of these jobs of which nothing passes."""
        isolated = self._reconciler.desired.isolated
        return [job.number for job in jobs if job.number in isolated]

    def why_nothing_passes(self, job: Job) -> str:
        """The sentence on a live job of which nothing passes; "" where something does."""
        placed = self._reconciler.desired.placed.get(job.number)
        return "" if placed is None else why_nothing_passes(placed.decision)

    def why_rate_unenforced(self, job: Job) -> str:
        """The sentence on a live job whose RequestBandwidth no rule of the policy enforces; "" where one does, and
        while nothing is decided about the job."""
        placed = self._reconciler.desired.placed.get(job.number)
        return NO_RULE if placed is not None and placed.decision.bandwidth is None else ""

    def read_counters(self, job_id: str, timeout: float) -> None:
        """Read a live job's counters at its switch now; nothing where it is at no switch that answers within
        ``timeout`` seconds. Raises SwitchError."""

        async def read() -> None:
            job = self._reconciler.directory.by_id.get(job_id)
            placed = None if job is None else self._reconciler.desired.placed.get(job.number)
            if placed is not None:
                await self._reconciler.counters.read(placed, timeout)

        self._loop.run(read(), timeout + 1.0)

    def _now(self, job_id: str) -> Job | None:
        """A job in the state that it has this moment, where the store may not have it yet. To be called first."""
        return self.live(job_id) or self._unwritten.get(job_id)

    def _confirmation(self, job: Job) -> Confirmation:
        """Of a job as it is stored."""
        return self._confirmation_of(as_now(job, self._now(job.id)))

    def _confirmation_of(self, job: Job) -> Confirmation:
        """Of a job in the state that it has."""
        seen = self._reconciler.confirmations
        waiting = tuple(
            Waiting(dpid_text(what.datapath) if isinstance(what, FlowsAt | QueuesAt) else None, reason)
            for what, reason in seen.waiting(job.number).items()
        )
        done = tuple(dpid_text(what.datapath) for what in seen.done(job.number) if isinstance(what, FlowsAt))
        return Confirmation(job, done, waiting)


def _address(text: str) -> Address:
    try:
        return ip_address(text)
    except ValueError:
        raise NotFoundError(f"{text} is not an address") from None

"""The controller put together: store, registration, reconcile loop and OpenFlow, behind :class:`status.Controls`.

REST threads call it; what concerns switches is handed to the event-loop thread, and only ``confirm``, ``flows`` and
``explain`` wait for that, with a time limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from types import MappingProxyType

from lark_common.classads.ads import JobAd, MachineAd
from lark_common.errors import (
    Mistake,
    NotFoundError,
    StoreError,
    SwitchError,
)
from lark_common.log import event
from lark_common.runs import EndedBy
from lark_controller.accounting.ledger import Ledger
from lark_controller.api.controls import Readiness
from lark_controller.api.groups import GroupStatus
from lark_controller.api.jobs import Confirmation, JobDetail, JobFilter, JobPage, Registered
from lark_controller.api.metrics import Metrics
from lark_controller.api.policy import AuditPage, Plan, PolicyVersion
from lark_controller.api.switches import Explanation, FlowFilter, FlowPage, SwitchStatus
from lark_controller.api.workers import HostStatus
from lark_controller.htcondor.watch import PoolOptions, PoolWatch
from lark_controller.jobs.job import Job, JobState, ReservedFlow
from lark_controller.policies.decide import needed_attributes
from lark_controller.policies.file import load
from lark_controller.reconcile.calls import LOOP_TIMEOUT, LoopCalls
from lark_controller.reconcile.core_drops import SharedDrops
from lark_controller.reconcile.drift import check
from lark_controller.reconcile.guarantees import Guarantees
from lark_controller.reconcile.reconciler import Reconciler
from lark_controller.services import views
from lark_controller.services.background import Upkeep
from lark_controller.services.job_facts import refresh_facts
from lark_controller.services.job_lookup import JobLookup
from lark_controller.services.policy import PolicyInForce, mistakes
from lark_controller.services.registration import Registration
from lark_controller.services.reservations import Reservations
from lark_controller.services.switches import Inspection
from lark_controller.services.usage import KEPT, Accountant, Keeping
from lark_controller.store import Store
from lark_controller.switches.openflow.connection import OpenFlowOptions
from lark_controller.switches.openflow.loop_thread import OpenFlow
from lark_controller.switches.ovsdb.driver import Ovsdb, OvsdbOptions, Report


class Controller:
    """One controller. ``start`` before anything else, ``stop`` at the end."""

    def __init__(
        self,
        store: Store,
        policy: PolicyVersion,
        options: OpenFlowOptions,
        metrics: Metrics,
        *,
        lease_seconds: float = 900.0,
        check_seconds: float = 60.0,
        retention_days: float = 90.0,
        pool: PoolOptions | None = None,
        ovsdb: OvsdbOptions | None = None,
        keeping: Keeping = KEPT,
    ) -> None:
        self._store = store
        self._lease, self._read_seconds = lease_seconds, keeping.read_seconds
        in_force = load(policy.text)
        ovsdb = ovsdb or OvsdbOptions()
        self._ovsdb = Ovsdb(ovsdb, self._queues_told)
        ledger = Ledger()
        self._reconciler = Reconciler(in_force, self._state_changed, metrics, self._ovsdb, ovsdb, ledger)
        self.accounts = Accountant(store, ledger, keeping, self._number_of)
        self._guarantees = Guarantees(self._reconciler, metrics)
        self._shared_drops = SharedDrops(self._reconciler)
        self._openflow = OpenFlow(options, self._reconciler.events)
        self._loop = LoopCalls(self._openflow)
        self._reservations = Reservations(store, self._live_at, self._flows_changed, self._resized)
        self._registration = Registration(
            store, lease_seconds, self._put, self._gone, self._reservations, self._why_kept
        )
        self._pool = None if pool is None else PoolWatch(pool, self._registration, metrics)
        self._policy = PolicyInForce(
            policy, in_force, store, self._openflow, self._reconciler, self._registration, metrics
        )
        self._upkeep: Upkeep = Upkeep(
            store,
            self._registration,
            self._reservations,
            metrics,
            lease_seconds=lease_seconds,
            check_seconds=check_seconds,
            retention=retention_days * 86400,
            datapaths=lambda: list(self._reconciler.switches),
            check=self._check,
        )
        self._jobs = JobLookup(store, self._loop, self._reconciler, self._upkeep.unwritten, self.accounts, self._policy)
        self._inspection = Inspection(self._openflow, self._reconciler)

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Load the live jobs, then listen for switches. Raises StoreError, SettingError."""
        names = needed_attributes(self._policy.policy)
        refresh_facts(self._store, names)
        self._store.extend_leases(time.time() + self._lease)
        decider = self._reconciler.decider
        jobs = [replace(job, facts=decider.shared(job.facts)) for job in self._store.live_jobs()]
        self._registration.use(self._policy.policy, names, jobs)
        self._reconciler.load([self._reservations.with_flows(job) for job in jobs])
        decided = ((job, decider.decide(job.facts)) for job in jobs)
        self.accounts.load((job, decision.group) for job, decision in decided if decision.accounted)
        event("directory loaded", jobs=len(jobs))
        self._ovsdb.start()
        self._openflow.start()
        self._upkeep.start()
        if self._pool is not None:
            self._pool.start()
        self.accounts.start()
        self._openflow.call(self._reconciler.polling.start(self._read_seconds)).result()

    def release(self) -> None:
        """Workers that wait for changes have their answer now: before the REST server stops."""
        with suppress(SwitchError):
            self._loop.call(self._reconciler.workers.states.release)

    def stop(self) -> None:
        """Stop listening; switches keep what they hold, the store what is known."""
        self._ovsdb.stop()
        if self._pool is not None:
            self._pool.stop()
        self._upkeep.stop_watching()
        self._openflow.stop()
        self._upkeep.stop()
        self.accounts.stop()

    @property
    def openflow_addresses(self) -> tuple[tuple[str, int], ...]:
        """Where switches connect over TCP."""
        return self._openflow.addresses

    @property
    def openflow_tls_addresses(self) -> tuple[tuple[str, int], ...]:
        """Where switches connect over TLS."""
        return self._openflow.tls_addresses

    # -- jobs --------------------------------------------------------------------------------------------------------

    def register(self, job_ad: JobAd, machine_ad: MachineAd, actor: str) -> Registered:
        """Take a run in. Raises AdError, AddressError, StoreError."""
        return self._registration.register(job_ad, machine_ad, actor)

    def confirm(self, job_id: str, timeout: float) -> Confirmation:
        """Wait up to ``timeout`` seconds until the switches concerned hold the job's flows. Raises NotFoundError."""
        return self._jobs.confirm(job_id, timeout)

    def renew(self, job_id: str, actor: str) -> Job:
        """Renew a live job's lease. Raises NotFoundError where no such job lives."""
        return self._registration.renew(job_id)

    def end(self, job_id: str, actor: str, exit_ad: str = "", by: EndedBy = EndedBy.HOOK) -> Job:
        """End a job; of an ended job the same again. Raises NotFoundError for an id never seen."""
        return self._registration.end(job_id, actor, by.reason, exit_ad)

    def forged(self, job_id: str, actor: str, detail: str) -> None:
        """Write into the audit trail that a worker refused a forged ad for this job."""
        self._store.audit(time.time(), actor, "forged ad", job_id, detail)

    def lift(self, job_id: str, actor: str) -> Job:
        """End a job's quarantine on an operator's word, while the job lives. Raises NotFoundError, StateError."""
        job = self._registration.lift(job_id, "lifted by an operator", actor, vouched=True)
        if job is None:
            raise NotFoundError(f"no live job has the id {job_id}")
        return self._jobs.found(job_id)

    def job(self, job_id: str) -> JobDetail:
        """A live or ended job. Raises NotFoundError."""
        return self._jobs.detail(job_id)

    def read_counters(self, job_id: str, timeout: float) -> None:
        """Read a live job's counters at its switch now; nothing where it is at no switch that answers. Raises
        SwitchError."""
        self._inspection.read_counters(job_id, timeout)

    def jobs(self, chosen: JobFilter, cursor: str | None, limit: int) -> JobPage:
        """A page of jobs. Raises NotFoundError for a cursor that is none."""
        return self._jobs.page(chosen, cursor, limit)

    def job_counts(self) -> Mapping[JobState, int]:
        """How many live jobs there are in each state."""
        return MappingProxyType(dict(self._reconciler.directory.states))

    def job_at(self, address: str) -> JobDetail:
        """The live job behind an address. Raises NotFoundError."""
        return self._jobs.at(address)

    def _number_of(self, job_id: str) -> int:
        return self._jobs.number_of(job_id)

    # -- switches ----------------------------------------------------------------------------------------------------

    def switches(self) -> tuple[SwitchStatus, ...]:
        """All switches that are declared or have been connected."""
        return self._inspection.switches()

    def switch(self, datapath: str) -> SwitchStatus:
        """One switch, by datapath id (hexadecimal) or name. Raises NotFoundError."""
        return self._inspection.switch(datapath)

    def flows(self, datapath: str, chosen: FlowFilter, cursor: str | None, limit: int, timeout: float) -> FlowPage:
        """A page of a switch's flows, desired and installed. Raises NotFoundError, SwitchError."""
        return self._inspection.flows(datapath, chosen, cursor, limit, timeout)

    def explain(self, src: str, dst: str, timeout: float) -> Explanation:
        """Why a packet from ``src`` reaches ``dst`` or not; each an address or a job id.

        Raises NotFoundError, AdError.
        """
        return self._inspection.explain(src, dst, timeout)

    # -- policy --------------------------------------------------------------------------------------------------------

    def policy(self) -> PolicyVersion:
        """The policy in force."""
        return self._policy.version

    def check_policy(self, text: str) -> tuple[Mistake, ...]:
        """Every mistake in a policy text; empty where it is valid."""
        return mistakes(text)

    def plan_policy(self, text: str) -> Plan:
        """What a policy text would change. Raises PolicyError."""
        return self._policy.plan(text)

    def put_policy(self, text: str, actor: str, instead_of: str | None = None) -> PolicyVersion:
        """Put a policy in force; with ``instead_of`` only in place of the one with that digest.

        Raises PolicyError, RuleLimitError, UnsupportedError, ChangedError; then nothing has changed.
        """
        return self._policy.put(text, actor, instead_of)

    def groups(self) -> tuple[GroupStatus, ...]:
        """The accounting groups of the policy in force."""
        return self.accounts.with_use(
            self._loop.call(lambda: views.groups(self._reconciler, self._shared_drops.by_group()))
        )

    # -- workers -----------------------------------------------------------------------------------------------------

    def host_rules(self, host: str, after: str, timeout: float) -> HostStatus:
        """A worker's rules, once their revision is another than ``after``; after ``timeout`` seconds in any case."""
        if timeout > 0:
            self._loop.hold(
                timeout,
                lambda waiter: self._reconciler.workers.states.when_changed(host, after, waiter),
                lambda waiter: self._reconciler.workers.states.stop_waiting(host, waiter),
            )
        return self._loop.call(lambda: views.host(self._reconciler, host, after))

    def host_confirmed(
        self, host: str, revision: str, refused: Mapping[str, str], late: Sequence[str] = ()
    ) -> HostStatus:
        """A worker has a revision in place, but for the jobs that it refuses (id, reason) and those not made yet."""

        def note() -> HostStatus:
            self._reconciler.workers.confirmed(host, revision, refused, late)
            return views.host(self._reconciler, host, revision)

        return self._loop.call(note)

    # -- reservations --------------------------------------------------------------------------------------------------

    @property
    def reservations(self) -> Reservations:
        """What is reserved, and for whom."""
        return self._reservations

    def _live_at(self, text: str) -> Job | None:
        """The live job of an id or an address."""
        try:
            return self._reconciler.directory.by_address.get(ip_address(text))
        except ValueError:
            return self._registration.find(text)

    def _flows_changed(self, job_id: str, flows: tuple[ReservedFlow, ...]) -> None:
        """The reserved flows from and to a job have changed."""
        self._openflow.loop.call_soon_threadsafe(self._change, job_id, lambda job: replace(job, reserved=flows))

    def _resized(self, job_id: str, bandwidth: float | None) -> None:
        """What is reserved for a job's RequestBandwidth has changed."""
        self._registration.resized(job_id, bandwidth)
        self._openflow.loop.call_soon_threadsafe(self._change, job_id, lambda job: replace(job, bandwidth=bandwidth))

    def _change(self, job_id: str, changed: Callable[[Job], Job]) -> None:
        job = self._jobs.live(job_id)
        if job is not None and (now := changed(job)) != job:
            self._reconciler.put(now)

    # -- the rest ------------------------------------------------------------------------------------------------------

    def audit(self, subject: str | None, cursor: str | None, limit: int) -> AuditPage:
        """The audit trail, newest first."""
        return self._store.audit_page(subject, cursor, limit)

    def ready(self) -> Readiness:
        """Whether store, policy and OpenFlow listener are up."""
        reasons = []
        try:
            self._store.ping()
        except StoreError as error:
            reasons.append(str(error))
        if not self._openflow.running:
            reasons.append("the OpenFlow listener is not running")
        return Readiness(not reasons, tuple(reasons))

    # -- between threads -----------------------------------------------------------------------------------------------

    def _why_kept(self, job: Job) -> str:
        return "" if self._pool is None else self._pool.why_kept(job)

    def _state_changed(self, job: Job) -> None:
        self._upkeep.state_changed(job)

    def _put(self, job: Job) -> None:
        self._openflow.loop.call_soon_threadsafe(self._reconciler.put, job)

    def _gone(self, job_id: str) -> None:
        self._openflow.loop.call_soon_threadsafe(self._reconciler.end, job_id)

    def _queues_told(self, report: Report) -> None:
        # The loop may have ended already when a controller stops.
        with suppress(RuntimeError):
            self._openflow.loop.call_soon_threadsafe(self._reconciler.queues_told, report)

    def _check(self, datapath: int) -> None:
        # Cancelled: the controller stops in its midst.
        with suppress(SwitchError, FutureTimeoutError, StoreError, CancelledError):
            self._openflow.call(check(self._reconciler, datapath)).result(LOOP_TIMEOUT)
            for missed in self._openflow.call(self._guarantees.look(datapath)).result(LOOP_TIMEOUT):
                self._store.audit(time.time(), "controller", "guarantee missed", missed.subject, missed.text)
            self._openflow.call(self._shared_drops.look(datapath)).result(LOOP_TIMEOUT)

"""Network use of jobs and groups: the ledger's accounts, and their history. Called by REST threads."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from lark_common.runs import NetworkType
from lark_common.turns import by_portions
from lark_common.worker_rules import RULED
from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.rates import Flowing
from lark_controller.accounting.readings import WorkerCounts
from lark_controller.accounting.reporting import Reporting
from lark_controller.accounting.usage import IDLE, NOTHING, JobUsage, Rate
from lark_controller.api.reservations import FlowDelivery, Seen
from lark_controller.api.usage import (
    AccessPointStatus,
    GroupStatus,
    PairsAdvice,
    PairsSummary,
    TransferReport,
    TransfersNoted,
    UsageFilter,
    UsagePage,
    UsageRow,
)
from lark_controller.flows import core
from lark_controller.flows.wan import local_networks
from lark_controller.jobs.job import Job
from lark_controller.policies.model import SwitchRole, WanAction
from lark_controller.qos.advice import Advice, Request, advice
from lark_controller.qos.groups import GroupRemark, has_queue
from lark_controller.qos.reservation import Reservation
from lark_controller.reconcile.calls import LoopCalls
from lark_controller.reconcile.core_drops import CoreDrops
from lark_controller.reconcile.reconciler import Reconciler
from lark_controller.reconcile.switch import dpid_text
from lark_controller.services.account_writer import AccountWriter
from lark_controller.services.flow_deliveries import DeliveryWatch
from lark_controller.services.jobs import Jobs
from lark_controller.services.pairs import Pairs
from lark_controller.services.reservations import Reservations
from lark_controller.services.scitags import Scitags
from lark_controller.services.treatments import Said, treatment
from lark_controller.store import Store

# Jobs of which those of a host are chosen: all that send or receive something.
_ALL: Final = 1_000_000


def _bounded(row: UsageRow) -> UsageRow:
    """A row in which no part is more than its whole. Flows are counted some hundred milliseconds after ports: at the
    end of a transfer the WAN's part of its last packets is in a later minute than these."""
    return row if row.usage.is_bounded() else replace(row, usage=row.usage.bounded())


class Accounts:
    """Operations on usage. Thread-safe."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        account_writer: AccountWriter,
        jobs: Jobs,
        loop: LoopCalls,
        reconciler: Reconciler,
        core_drops: CoreDrops,
        reservations: Reservations,
        *,
        scitags: Scitags,
        deliveries: DeliveryWatch,
        pairs: Pairs,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._reporting = Reporting(ledger)
        self._account_writer = account_writer
        self._jobs = jobs
        self._loop = loop
        self._reconciler = reconciler
        self._core_drops = core_drops
        self._reservations = reservations
        self._scitags = scitags
        self._deliveries = deliveries
        self._pairs = pairs
        self._began = 0.0

    @property
    def written(self) -> float:
        """The time of the last complete write."""
        return self._account_writer.written

    def of_jobs(self, jobs: Sequence[Job]) -> Mapping[int, JobUsage]:
        """The use of jobs, by number. Raises StoreError."""
        return self._account_writer.of_jobs(jobs)

    def of_host(self, host: str, job_ids: Sequence[str]) -> Mapping[str, JobUsage]:
        """The use of live jobs of a host, by id, by the last readings of their counters."""
        name = host.lower()
        live = [job for each in job_ids if (job := self._jobs.live(each)) is not None and job.host.lower() == name]
        used = self._account_writer.of_jobs(live)
        return {job.id: used[job.number] for job in live if job.number in used}

    def counted(self, job_id: str, report: WorkerCounts, final: bool) -> bool:
        """Take in a worker's counters of a live job; False where the job is not accounted, or is over.

        Raises NotFoundError for an id never seen, StoreError.
        """
        job = self._jobs.found(job_id)
        # A worker may be quicker than the loop, which opens a job's account.
        placed = self._loop.call(lambda: self._reconciler.desired.placed.get(job.number))
        if placed is not None and not placed.decision.accounted:
            # One that was counted under the policy before: what it has used until then stays as it was.
            return False
        if job.network_type in RULED and not final:
            self._reporting.reported(job.number, time.monotonic(), report.interval, report.new_within)
        if report.queues is not None:
            self._ledger.queues(job.number, report.queues)
        return self._ledger.report(job.number, time.time(), report, final)

    def expect_reports(self) -> None:
        """Note the live jobs whose workers count them, at a start."""
        ruled = [each.job.number for each in self._reconciler.desired.placed.values() if each.job.network_type in RULED]
        self._reporting.expected(ruled, time.monotonic())

    def end_overdue(self) -> None:
        """End the rates of jobs whose worker has been silent about them for too long."""
        self._reporting.look(time.monotonic(), lambda numbers: self._loop.call(lambda: self._unheard(numbers)))

    def _unheard(self, numbers: Iterable[int]) -> set[int]:
        """Those of these jobs whose worker has not confirmed its rules since this start. On the loop."""
        placed, states = self._reconciler.desired.placed, self._reconciler.workers.states
        return {each for each in numbers if each in placed and states.behind(placed[each].job.host)}

    def transferred(self, host: str, moved: Mapping[str, TransferReport]) -> TransfersNoted:
        """Take what HTCondor has moved for a worker's jobs. Raises SwitchError where the loop does not answer."""
        # A worker may be quicker than the loop, which opens a job's account.
        desired = self._loop.call(lambda: self._reconciler.desired)
        policy = desired.policy
        at, name = time.time(), host.lower()
        own = {id_: job for id_ in moved if (job := self._jobs.live(id_)) is not None and job.host.lower() == name}
        for job_id, job in own.items():
            each = moved[job_id]
            self._reporting.reported(job.number, time.monotonic(), each.interval, each.within, transfers=True)
        counted = {
            job_id
            for job_id, job in own.items()
            if self._ledger.transferred(job.number, at, moved[job_id].counts, moved[job_id].within)
        }
        treatments = None
        if policy.transfers:
            # Decided when the job was placed: a post costs no evaluation of predicates.
            placed = ((job_id, desired.placed.get(job.number)) for job_id, job in own.items())
            terms = {job_id: each.decision.transfers for job_id, each in placed if each is not None}
            treatments = {
                job_id: treatment(each, policy, own[job_id].run.access_point)
                for job_id, each in terms.items()
                if each is not None
            }
        said = {job.number: Said(moved[id_].treatment, moved[id_].trouble) for id_, job in own.items()}
        self._jobs.treatments.note(said, {own[id_].number: each for id_, each in (treatments or {}).items()})
        missing = frozenset(moved.keys() - counted)
        return TransfersNoted(missing, local_networks(policy), treatments, self._scitags.revision)

    def recent(self, job_id: str) -> Sequence[tuple[float, Rate]]:
        """A live job's rates at its last readings. Raises NotFoundError for an id never seen, StoreError."""
        return self._ledger.recent(self._number_of(job_id))

    def advice(self, job_id: str) -> Advice:
        """Advice on a job's RequestBandwidth, under the policy in force. Raises NotFoundError for an id never seen,
        StoreError."""
        # The worker of a live job asks for it again and again: that needs no database.
        job = self._jobs.live(job_id) or self._jobs.found(job_id)
        rule = self._jobs.decision(job).bandwidth
        request = Request(job.bandwidth, rule, self._reservations.access_rate(job.host))
        used = self.of_jobs([job]).get(job.number)
        return advice(request, used, job.created, attached=job.network_type is not NetworkType.NONE)

    def pairs(self, job_id: str, application: bool) -> PairsAdvice:
        """Advice for each pair of a job, or of its whole application. Raises NotFoundError, StoreError."""
        return self._pairs.advice(job_id, application)

    def pairs_summary(self, job_id: str) -> PairsSummary | None:
        """The same in short, for the job's ad. Raises NotFoundError, StoreError."""
        return self._pairs.summary(self._jobs.live(job_id) or self._jobs.found(job_id))

    def delivered(self, flows: Sequence[Reservation], after: str = "", wait: float = 0.0) -> Seen[FlowDelivery]:
        """The deliveries of these reserved flows, once they are more than at the version ``after``; after ``wait``
        seconds in any case. Raises SwitchError."""
        return self._deliveries.seen(flows, after, wait)

    def page(self, chosen: UsageFilter, cursor: str | None, limit: int) -> UsagePage:
        """A page of the history. Raises NotFoundError for a cursor that is none, StoreError."""
        counted = self._account_writer.counted
        found = self._store.usage.page(chosen, cursor, limit)
        rows = tuple(map(_bounded, found.rows))
        return replace(found, rows=rows, counted=counted, known_since=self._known_since())

    def _known_since(self) -> float:
        """The time of the first policy, without which no controller counts."""
        if not self._began:
            self._began = self._store.trail.began()
        return self._began

    def flowing(self, by: str, limit: int) -> tuple[Flowing, ...]:
        """The present rates of live jobs by group, user, host or job, the most first."""
        return self._ledger.flowing(by, limit)

    def at_switches(self, hosts: Collection[str]) -> Mapping[str, Rate]:
        """The rates of the live jobs of these hosts (in lower case) by the datapath id of their switch; by the host
        those of jobs at none."""
        busy = self._ledger.flowing("job", _ALL, hosts)
        here = {each.name: (each.host.lower(), each.rate) for each in busy if each.host}
        live, desired = self._reconciler.directory.by_id, self._reconciler.desired
        rates: dict[str, Rate] = {}
        # The hosts of a pool may all be among these: single look-ups, which need not hold up the loop.
        for job_id, (host, rate) in by_portions(here.items()):
            job = live.get(job_id)
            datapath = None if job is None else desired.datapath_of(job)
            place = host if datapath is None else dpid_text(datapath)
            rates[place] = rates.get(place, IDLE).plus(rate)
        return rates

    def groups(self) -> tuple[GroupStatus, ...]:
        """The groups of the policy in force: their live jobs, what these send and receive now and have since this
        start, and what cores dropped of them."""
        policy, jobs, unkept = self._loop.call(
            lambda: (
                self._reconciler.desired.policy,
                self._reconciler.desired.groups.copy(),
                list(self._unkept()),
            )
        )
        rates, sums, dropped = self._ledger.rates(), self._ledger.sums(), self._core_drops.by_group()
        return tuple(
            GroupStatus(
                group.name,
                jobs[group.name],
                group.dscp,
                group.queue,
                group.guarantee,
                group.ceiling,
                group.port,
                rates.get(group.name, IDLE),
                sums.get(group.name, NOTHING),
                dropped.get(group.name, 0),
                policy.transfer_capacity.groups.get(group.name),
                tuple(at + remark.text for at, remark in unkept if remark.group in ("", group.name)),
            )
            for group in policy.groups
        )

    def _unkept(self) -> Iterator[tuple[str, GroupRemark]]:
        """The rates of groups that are not kept, each with the switch. On the loop."""
        desired, queues = self._reconciler.desired, self._reconciler.queues
        limited = [group for group in desired.policy.groups if has_queue(group)]
        ruled = {rule.position for rule in desired.policy.wans if rule.action is not WanAction.ALLOW}
        unsteered = desired.groups.copy()
        for (name, position), jobs in desired.wan_ruled.items():
            unsteered[name] -= jobs if position in ruled else 0
        for datapath, spec in desired.policy.switches.items():
            switch = desired.switches.get(datapath)
            if switch is None and spec.role is not SwitchRole.EDGE:
                text = "has not connected since this controller's start, so it is not known what it keeps"
                yield from ((f"{spec.name} ", GroupRemark(group.name, text)) for group in limited)
            elif switch is not None and not switch.is_edge:
                yield from ((f"{switch.name}: ", remark) for remark in core.unkept(switch, desired.policy))
                steered = core.steered_past(switch, desired.policy, desired.wan_ruled)
                yield from ((f"{switch.name}: ", remark) for remark in steered)
                carried = core.carried_past(switch, desired.policy, unsteered)
                yield from ((f"{switch.name}: ", remark) for remark in carried)
                lacking = queues.group_obstacles(datapath)
                for group in limited:
                    if why := lacking.get(group.dscp):
                        yield f"{switch.name}: ", GroupRemark(group.name, why)
        if not desired.policy.cores:
            text = "the policy declares no core switch, so nothing keeps it for what jobs send and receive"
            yield from (("", GroupRemark(group.name, text)) for group in limited)

    def access_points(self) -> tuple[AccessPointStatus, ...]:
        """The access points for whose transfers the policy in force has a capacity, and what these move now."""
        capacities = self._loop.call(lambda: self._reconciler.desired.policy).transfer_capacity.access_points
        if not capacities:
            return ()
        rates = self._ledger.access_points()
        return tuple(AccessPointStatus(name, capacity, rates.get(name, IDLE)) for name, capacity in capacities.items())

    def _number_of(self, job_id: str) -> int:
        """The number of a live or ended job, whose account is open by then. Raises NotFoundError."""
        number = self._jobs.found(job_id).number
        # A worker may be quicker than the loop, which opens a job's account.
        self._loop.call(lambda: None)
        return number

"""The reconcile loop: the only part that sends switches flows and meters.

It runs on the OpenFlow event-loop thread, together with the switches' connections, so nothing here needs a lock and
nothing here may block. REST and PacketIns hand it work; it derives what each switch should hold
(:mod:`lark_controller.flows.desired`), sends what differs (:mod:`.sending`), and records who has confirmed
(:mod:`.progress`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from lark_common.errors import RuleLimitError, UnsupportedError
from lark_common.log import WARNING, event
from lark_common.runs import Address
from lark_common.worker_rules import RULED
from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.pairs import PairLedger
from lark_controller.api.audit import Happening
from lark_controller.api.metrics import Metrics
from lark_controller.api.switches import SwitchProblem
from lark_controller.flows.model import Changes
from lark_controller.flows.placement import Placed, same_for_switches
from lark_controller.jobs.job import Job, JobState
from lark_controller.policies.model import Policy
from lark_controller.qos.reservation import Reservation
from lark_controller.qos.worker_queues import Claim
from lark_controller.reconcile.core_ports import CorePorts
from lark_controller.reconcile.counters import CounterReader
from lark_controller.reconcile.desired_pair import PairChanges
from lark_controller.reconcile.drop_shares import DropShares
from lark_controller.reconcile.gateways import Gateways
from lark_controller.reconcile.markers import Markers
from lark_controller.reconcile.packet_ins import Reactions
from lark_controller.reconcile.pair_counters import PairCounters
from lark_controller.reconcile.policy_change import PolicyChange
from lark_controller.reconcile.prepared import PreparedDirectory, bring_to
from lark_controller.reconcile.progress import Progress
from lark_controller.reconcile.queues import Driver, Queues
from lark_controller.reconcile.sending import Sending
from lark_controller.reconcile.state import LoopState
from lark_controller.reconcile.switch_events import SwitchEvents
from lark_controller.reconcile.workers import Workers
from lark_controller.switches.ovsdb.driver import OvsdbOptions
from lark_controller.switches.ovsdb.reports import Report

# Seconds after a start in which switches return; what the store has of their jobs is shown until then.
RETURN_SECONDS: Final = 20.0


class Reconciler(LoopState):
    """Brings all switches from installed to desired. Every method is for the event-loop thread.

    ``on_state`` is called with every job whose state changed; ``driver`` makes queues; ``ledger`` holds the accounts of
    what jobs use, and ``pairs`` those of their reserved flows; ``note`` takes what the audit trail is to have.
    ``compares``: every switch is compared in full again and again, so that markers may stand for the first comparison.
    Connections tell ``events`` of switches; ``policy_change`` changes the policy.
    """

    def __init__(
        self,
        policy: Policy,
        on_state: Callable[[Job], None],
        metrics: Metrics,
        driver: Driver,
        ovsdb: OvsdbOptions,
        ledger: Ledger,
        pairs: PairLedger,
        note: Callable[[Happening], None],
        *,
        compares: bool = True,
        prepared: PreparedDirectory | None = None,
    ) -> None:
        super().__init__(policy, self.act, note, prepared)
        self._on_state = on_state
        self._reactions = Reactions(self)
        self.workers = Workers(self)
        self._sending = Sending(self, self.workers, self._reactions, metrics)
        self.queues = Queues(self, self._sending, driver, ovsdb)
        self.drop_shares = DropShares(self)
        self.core_ports = CorePorts(
            self.switches,
            lambda datapath: self.desired_of(datapath).switches.get(datapath),
            spec_of=lambda datapath: self.desired_of(datapath).policy.switches.get(datapath),
        )
        self.pair_counters = PairCounters(pairs, self, self.queues)
        self.counters = CounterReader(
            ledger,
            self.switches,
            lambda datapath: self.desired_of(datapath).jobs_at(datapath),
            self.drop_shares,
            self.core_ports,
            self.pair_counters,
            count=lambda result: metrics.counters_read.labels(result).inc(),
        )
        self.gateways = Gateways(self)
        self._progress = Progress(self, self.queues, self.gateways, on_state)
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self.markers = Markers(self, self.queues, self._reactions, trusted=compares)
        self.events = SwitchEvents(
            self, self._progress, self._sending, self.queues, self.counters, self._reactions, self.markers
        )
        self.policy_change = PolicyChange(
            self, self._sending, self.queues, self.workers, self.counters, self._reactions, self._progress
        )

    async def start(self, read_seconds: float) -> None:
        """Begin what goes on by itself until the loop ends: readings of counters each ``read_seconds``, markers."""
        await self.counters.start(read_seconds)
        await self.markers.start()
        begin = asyncio.get_running_loop().create_task
        self._tasks = begin(self._progress.settle_waiting(RETURN_SECONDS)), begin(self.standstill.run())

    def queues_reported(self, report: Report) -> None:
        """Take in a report of the queues that stand on a switch, and of their counters."""
        self.queues.reported(report)
        self.counters.queues_seen(self.queues.of_jobs(report.datapath))

    def put(self, job: Job) -> None:
        """Take in a live job that is new or changed; its state follows."""
        placed = self.desired.placed.get(job.number)
        old = None if placed is None else placed.job
        before = self._held(job.number)
        try:
            changes = self.pair.admit(job, old)
        except (RuleLimitError, UnsupportedError) as refusal:
            if self.pair.expect_refusal(job, str(refusal)):
                # The job runs, or may: it is not to end for want of its address.
                self.put(job)
                return
            self.refuse(job, str(refusal))
            return
        if old is None:
            self.directory.set_standing(job.number, JobState.REGISTERING)
        elif (
            same_for_switches(old, job)
            and not any(changes.values())
            and placed is not None
            and placed.decision == self.desired.placed[job.number].decision
        ):
            return
        self.counters.begin(self.desired.placed[job.number])
        self.pair_counters.follow(self.desired.placed[job.number], old)
        self.send(changes, job.number)
        if old is None or (old.addresses, old.quarantine) != (job.addresses, job.quarantine):
            self._forget_addresses((*job.addresses, *(() if old is None else old.addresses)), job.number)
        self._sending.forget_connections(before)
        self._progress.expect(job)
        self.dirty.job(job.number)
        if old is not None and old.external and old.external != job.external:
            self._try_refused(before)

    def load(self, jobs: Iterable[Job]) -> None:
        """Take in the store's live jobs, before anything is sent to any switch."""
        jobs = list(jobs)
        if self.desired.placed:
            bring_to(self.desired, self.decider, jobs)
        else:
            self.desired.load((job, self.decider.of(job)) for job in jobs)
        if closed := self.desired.closed.remark:
            event("slices close more than the addresses of live jobs", level=WARNING, reason=closed)
        self._progress.expect_all(jobs)
        for datapath in self.dirty.switches():
            self.queues.refresh(datapath)
        for number in self.dirty.jobs():
            self.queues.judge(self.desired.placed[number])
        self.workers.revise()
        self.markers.load()

    def note_problem(self, job: Job, text: str) -> None:
        """Put a sentence about a job among the problems of its switch, where it is at one that is known."""
        state = self.switches.get(-1 if (datapath := self.desired.datapath_of(job)) is None else datapath)
        if state is not None:
            state.problems.append(SwitchProblem(time.time(), text, "", job.id))

    def jobs(self) -> list[Job]:
        """The live jobs that the loop has taken in."""
        return [placed.job for placed in self.desired.placed.values()]

    def holds(self, reservation: Reservation) -> bool:
        """True while the queue of a reserved flow may still stand at its sender's worker."""
        job = None if reservation.job is None else self.directory.by_id.get(reservation.job)
        placed = None if job is None else self.desired.placed.get(job.number)
        if placed is None:
            return False
        if placed.job.network_type in RULED:
            return self.workers.states.behind(placed.job.host)
        return placed.datapath is not None and self.queues.holds(placed.datapath, Claim.of_flow(reservation.number))

    def end(self, number: int) -> None:
        """Remove a job that is over: its flows, and every decision about its addresses."""
        self._remove(number)
        self.directory.forget(number)

    def refuse(self, job: Job, reason: str) -> None:
        """Refuse a job and remove all of it from switches."""
        job = replace(job, state=JobState.REFUSED, reason=reason)
        self._remove(job.number)
        self.directory.set_standing(job.number, job.state, reason)
        event("job refused", level=WARNING, job=job.id, reason=reason)
        self._on_state(job)

    def act(self) -> None:
        """Follow up what was marked: refusals, then the queues of switches, then what each job waits for."""
        while self.dirty:
            for number in self.pair.external_moved():
                self.dirty.job(number)
            for datapath, number, reason in self.dirty.closed():
                self._close_external(datapath, number, reason)
            for number, reason in self.dirty.refused():
                if (placed := self.desired.placed.get(number)) is not None:
                    self.refuse(placed.job, reason)
            for datapath in self.dirty.switches():
                self.queues.refresh(datapath)
            for number in self.dirty.jobs():
                if (placed := self.desired.placed.get(number)) is not None:
                    self.queues.judge(self._held(number) or placed)
                    self._progress.settle(number)

    def send(self, changes: PairChanges, number: int | None) -> None:
        """Send each switch the changes of the state that it holds, and tell workers; the job ``number`` waits."""
        self._sending.send(changes, number)
        for moved in self.pair.external_moved():
            self.dirty.job(moved)

    def send_to(self, datapath: int, change: Changes, number: int | None) -> None:
        """Send one switch a change, if it takes changes now; ``number`` is the job that waits for it."""
        self._sending.send_to(datapath, change, number)

    def _close_external(self, datapath: int, number: int, reason: str) -> None:
        """Take a job's external address off a switch that refuses it; the job itself stays."""
        before = self._held(number)
        # Nothing is missing of the job while the rest of its address goes.
        self.send(self.pair.refuse_external(datapath, number, reason), None)
        self._sending.forget_connections(before)

    def _try_refused(self, gone: Placed | None) -> None:
        """Try the oldest external address that a switch refused, where another has gone from it, or a job."""
        if gone is None:
            return
        for datapath, number in self.desired.refused_external().items():
            if (datapath == gone.datapath or gone.job.external) and number != gone.job.number:
                self.send(self.pair.try_external(datapath, number), number)

    def _remove(self, number: int) -> None:
        """Take a job off all switches, with every decision and connection of its addresses: a later job with one of
        them inherits nothing."""
        placed, before = self.desired.placed.get(number), self._held(number)
        if placed is None:
            return
        self.counters.end(number, placed)
        self.pair_counters.end(number, placed)
        self.send(self.pair.remove(number), None)
        self._forget_addresses(placed.job.addresses, None)
        self._sending.forget_connections(before)
        self.confirmations.forget(number)
        self.workers.states.forget(placed.job.host, number)
        self.gateways.forget(number)
        self._progress.forget(number)
        if placed.datapath is not None:
            self.dirty.switch(placed.datapath)
        self._try_refused(placed)

    def _forget_addresses(self, addresses: Iterable[Address], number: int | None) -> None:
        for datapath, keys in self._reactions.forget(addresses).items():
            self.send_to(datapath, Changes(flows_gone=tuple(keys)), number)

    def _held(self, number: int) -> Placed | None:
        """A job as it is placed at its switch, perhaps under the policy that comes."""
        placed = self.desired.placed.get(number)
        if placed is None or placed.datapath is None:
            return placed
        return self.desired_of(placed.datapath).placed.get(number)

"""The reconcile loop: the only part that tells switches what to do.

It runs on the OpenFlow event-loop thread, together with the switches' connections, so nothing here needs a lock and
nothing here may block. REST and PacketIns hand it work; it derives what each switch should hold
(:mod:`lark_controller.flows.pool`), sends what differs, and records who has confirmed.

A switch is told nothing before its complete dump is there; from then on what changes is sent in order behind the first
difference, and the switch is in sync once that difference is confirmed by barrier.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from lark_controller.accounting.ledger import Ledger
from lark_controller.confirmations import Confirmations
from lark_controller.errors import RuleLimitError, UnsupportedError
from lark_controller.flows import core
from lark_controller.flows.diff import diff
from lark_controller.flows.model import Changes
from lark_controller.flows.placement import Placed, Switch
from lark_controller.flows.pool import Pool
from lark_controller.flows.tables import CT_ZONE, CT_ZONE_OTHERS
from lark_controller.host_states import FIRST
from lark_controller.job_states import state_of
from lark_controller.jobs import Address, Directory, Facts, Job, JobState, NetworkType
from lark_controller.log import WARNING, event
from lark_controller.metrics import Metrics
from lark_controller.openflow.applies import FlowError, Outcome
from lark_controller.openflow.link import Dump, SwitchLink
from lark_controller.openflow.replies import FlowRemoved, PacketIn
from lark_controller.policies.decide import Decider
from lark_controller.policies.model import Policy, SwitchRole
from lark_controller.polling import Polling
from lark_controller.pools import PoolChanges, Pools
from lark_controller.qos.ovsdb import OvsdbOptions
from lark_controller.queues import BEING_MADE, QUEUES, Driver, Queues
from lark_controller.reactive import Reactions
from lark_controller.status import SwitchProblem
from lark_controller.switch_state import SwitchState, blamed, dpid_text, placed_switch
from lark_controller.workers import Workers


class Reconciler:
    """Desired against installed, for all switches. Every method is for the event-loop thread.

    ``on_state`` is told of every job whose state changed; ``driver`` makes queues; ``ledger`` holds the accounts of
    what jobs use.
    """

    def __init__(
        self,
        policy: Policy,
        on_state: Callable[[Job], None],
        metrics: Metrics,
        driver: Driver,
        ovsdb: OvsdbOptions,
        ledger: Ledger,
    ) -> None:
        self.directory = Directory()
        self.pools = Pools(policy)
        self.switches: dict[int, SwitchState] = {}
        self.confirmations = Confirmations()
        self.workers = Workers(self)
        self._metrics = metrics
        self._on_state = on_state
        self._reactions = Reactions(self)
        self.queues = Queues(self, driver, ovsdb)
        self._hosts_seen: dict[int, tuple[str, ...]] = {}
        self.polling = Polling(ledger, self.switches, lambda datapath: self.pool_of(datapath).jobs_at(datapath))

    # -- jobs --------------------------------------------------------------------------------------------------------

    def put(self, job: Job) -> Job:
        """Take a live job in, or what changed of it; answers it with the state it has now."""
        old = self.directory.by_id.get(job.id)
        try:
            changes = self.pools.admit(job, old)
        except (RuleLimitError, UnsupportedError) as refusal:
            return self.refuse(job, str(refusal))
        self.directory.put(job)
        self.polling.begin(self.pool.placed[job.number])
        self.send(changes, job.number)
        if old is None or (old.addresses, old.quarantine) != (job.addresses, job.quarantine):
            self._forget_addresses((*job.addresses, *(() if old is None else old.addresses)), job.number)
        self._expect(job)
        return self._settle(job.number)

    def load(self, jobs: Iterable[Job]) -> None:
        """Take the store's live jobs in, before any switch is told anything."""
        for job in jobs:
            decision = self.decider.of(job)
            self.directory.put(job)
            self.pool.put(job, decision)
            self._expect(job)
        self.workers.tell()

    def end(self, job_id: str) -> Job | None:
        """A job is over: its flows and every decision that touched its addresses go."""
        job = self.directory.remove(job_id)
        if job is None:
            return None
        placed = self.pool.placed.get(job.number)
        self.polling.end(job.number, placed)
        self.send(self.pools.remove(job.number), None)
        self._forget_addresses(job.addresses, None)
        if placed is not None and placed.decision.one_way and placed.datapath is not None:
            self._forget_connections(placed)
        self.confirmations.forget(job.number)
        self._refresh_queues(placed)
        return job

    @property
    def pool(self) -> Pool:
        """The pool of the policy in force."""
        return self.pools.pool

    @property
    def decider(self) -> Decider:
        """The decider of the policy in force."""
        return self.pools.decider

    def pool_of(self, datapath: int) -> Pool:
        """The pool whose program a switch holds."""
        return self.pools.of(datapath)

    def refuse(self, job: Job, reason: str) -> Job:
        """Refuse a job: nothing of it stays on any switch."""
        job = replace(job, state=JobState.REFUSED, reason=reason)
        placed = self.pool.placed.get(job.number)
        self.directory.remove(job.id)
        self.polling.end(job.number, self.pool.placed.get(job.number))
        self.send(self.pools.remove(job.number), None)
        self.confirmations.forget(job.number)
        self._refresh_queues(placed)
        event("job refused", level=WARNING, job=job.id, reason=reason)
        self._on_state(job)
        return job

    def _refresh_queues(self, placed: Placed | None) -> None:
        if placed is not None and placed.datapath is not None:
            self.queues.refresh(placed.datapath)

    def _expect(self, job: Job) -> None:
        """Say what keeps a job from the switches that it needs: its own edge, and cores where a WAN rule applies."""
        placed = self.pool.placed[job.number]
        if self.pool.is_classed(placed):
            for datapath, spec in self.pool.policy.switches.items():
                if spec.role is SwitchRole.CORE and not self._connected(datapath):
                    self.confirmations.blocked(job.number, datapath, self._why_away(datapath))
        if job.network_type is not NetworkType.OVS_BRIDGE:
            return
        if placed.datapath is None:
            self.confirmations.blocked(job.number, 0, f"no switch is known for host {job.host}")
            return
        self.confirmations.confirmed(job.number, 0)
        if not self._connected(placed.datapath):
            self.confirmations.blocked(job.number, placed.datapath, self._why_away(placed.datapath))
        elif placed.port is None:
            why = self.pool.switches[placed.datapath].why_no_job_port(job.port)
            self.confirmations.blocked(job.number, placed.datapath, why)
        self.queues.expect(placed)

    def _why_away(self, datapath: int) -> str:
        state = self.switches.get(datapath)
        return "has not connected yet" if state is None else state.reason

    def _settle(self, number: int) -> Job:
        """Set a job's state by what is confirmed; answers the job."""
        job = self.directory.by_number[number]
        waiting = self.confirmations.waiting(number)
        moving = all(self._moves(dp, why) for dp, why in waiting.items()) and not self._blocked(number)
        state, reason = state_of(job, waiting, moving=moving, label=self._label)
        if (state, reason) != (job.state, job.reason):
            job = replace(job, state=state, reason=reason)
            self._refresh(job)
            self._on_state(job)
        return job

    def _refresh(self, job: Job) -> None:
        """Hold one object for a job, in the directory and in every pool; nothing that flows are made of has changed."""
        self.directory.put(job)
        self.pools.refresh(job)

    def _connected(self, datapath: int) -> bool:
        state = self.switches.get(datapath)
        return state is not None and state.told

    def _moves(self, waited: int, why: str) -> bool:
        """Whether what a job waits for is under way: a barrier reply of a switch, or queues."""
        return why == BEING_MADE if waited & QUEUES else self._connected(waited)

    def _blocked(self, number: int) -> bool:
        placed = self.pool.placed.get(number)
        return placed is None or (placed.job.network_type is NetworkType.OVS_BRIDGE and placed.port is None)

    def _label(self, waited: int) -> str:
        if waited >= FIRST:
            return f"worker {self.workers.states.name(waited)}"
        datapath = waited & ~QUEUES
        state = self.switches.get(datapath)
        return f"switch {dpid_text(datapath) if state is None else state.label(self.pool_of(datapath))}"

    # -- sending -----------------------------------------------------------------------------------------------------

    def send(self, changes: PoolChanges, number: int | None) -> None:
        """Send each switch the changes of the pool that it holds, and tell workers; ``number`` is who waits."""
        self.workers.tell()
        for place, by_switch in changes.items():
            for datapath, change in by_switch.items():
                if (place == 1) == (datapath in self.pools.moved):
                    stale = self._reactions.forget_tags(datapath, self.pool_of(datapath).slices_at(datapath))
                    self.send_to(datapath, replace(change, flows_gone=(*change.flows_gone, *stale)), number)

    def send_to(self, datapath: int, change: Changes, number: int | None) -> None:
        """Send one switch a change, if it may be told anything; ``number`` is the job that waits for it."""
        state = self.switches.get(datapath)
        if state is None or state.link is None or not state.told:
            if number is not None and state is not None:
                self.confirmations.blocked(number, datapath, state.reason)
            return
        link = state.link
        if number is not None:
            self.confirmations.sent(number, datapath)
        link.apply(change).add_done_callback(
            lambda done: self._applied(state, link, number, done.result()) if not done.cancelled() else None
        )

    def _applied(self, state: SwitchState, link: SwitchLink, number: int | None, outcome: Outcome) -> None:
        if state.link is not link:
            return
        if nobodys := self._flow_errors(state, outcome.errors):
            state.in_sync, state.reason = False, nobodys
        if not outcome.confirmed:
            state.in_sync = False
            state.reason = outcome.reason or "did not confirm in time"
            if number is not None and number in self.directory.by_number:
                self.confirmations.blocked(number, state.datapath, state.reason)
                self._settle(number)
            link.close(f"a change was not confirmed: {state.reason}")
            return
        pool = self.pool_of(state.datapath)
        state.installed = pool.rules.get(state.datapath, state.installed)
        if number is not None and (
            self.confirmations.confirmed(number, state.datapath) or self.confirmations.stuck(number)
        ):
            self.settle(number)

    def settle(self, number: int) -> None:
        """A job may wait for something else than before."""
        if number in self.directory.by_number:
            self._settle(number)

    def _flow_errors(self, state: SwitchState, errors: Sequence[FlowError]) -> str:
        """A switch refused flows or meters: say which, why, whose; a job that it concerns is refused whole.

        Answers a sentence if there are any that belong to no job, else ``""``.
        """
        if not errors:
            return ""
        self._metrics.flow_errors.inc(len(errors))
        pool = self.pool_of(state.datapath)
        flows = pool.build(state.datapath).flows
        refused: dict[Job, str] = {}
        nobodys = []
        for error in errors:
            flow, job = blamed(self.directory, flows, error)
            job_id = None if job is None else job.id
            state.problems.append(SwitchProblem(time.time(), error.text, flow, job_id))
            where = dpid_text(state.datapath)
            event("switch refused", level=WARNING, datapath=where, job=job_id, error=error.text, flow=flow)
            if job is None:
                nobodys.append(error.text)
            else:
                refused.setdefault(job, f"switch {state.label(pool)} refused {flow}: {error.text}")
        for job, reason in refused.items():
            self.refuse(job, reason)
        return f"refused {len(nobodys)} flows or meters of the policy: {nobodys[0]}" if nobodys else ""

    # -- switches (called by the connections) ------------------------------------------------------------------------

    def switch_connected(self, link: SwitchLink, dump: Dump) -> None:
        """A switch is here, with everything that it holds: compare, send what differs."""
        state = self.switches.setdefault(link.datapath, SwitchState(link.datapath))
        state.link, state.told, state.in_sync = link, False, False
        state.since = time.time()
        state.reason = "is being compared"
        state.address = link.features.address
        state.description = link.features.description
        hosts = (link.features.description,) if link.features.description else ()
        self._hosts_seen[link.datapath] = hosts
        homeless = {p.job.number for p in self.pool.placed.values() if p.datapath is None} if hosts else set()
        for pool, _ in self.pools.all():
            pool.set_switch(placed_switch(pool.policy, link), hosts)
        state.installed = len(dump.program.flows)
        self._reactions.switch_gone(link.datapath)
        self.polling.compared(link.datapath, dump)
        self.queues.switch_connected(link, dump)
        for number in homeless:
            self._expect(self.directory.by_number[number])
        self._compare(state, link, dump)
        self.queues.refresh(link.datapath)

    def _compare(self, state: SwitchState, link: SwitchLink, dump: Dump) -> None:
        pool = self.pool_of(link.datapath)
        switch = pool.switches[link.datapath]
        desired = pool.build(link.datapath)
        if switch.max_rules and len(desired.flows) > switch.max_rules:
            state.reason = (
                f"needs {len(desired.flows)} rules and takes {switch.max_rules}; nothing was sent, what it holds stays"
            )
            state.problems.append(SwitchProblem(time.time(), state.reason))
            self._blocked_by(state)
            return
        self._say_shortcomings(state, pool)
        if state.to_forget:
            link.forget_connections(CT_ZONE, CT_ZONE_OTHERS, tuple(state.to_forget))
            state.to_forget = set()
        state.told = True
        state.reason = "is being brought up to date"
        changes = diff(desired, dump.program)
        event(
            "switch compared",
            datapath=dpid_text(link.datapath),
            installed=len(dump.program.flows),
            desired=len(desired.flows),
            changes=len(changes),
        )
        link.apply(changes).add_done_callback(
            lambda done: self._synced(state, link, done.result()) if not done.cancelled() else None
        )

    def _synced(self, state: SwitchState, link: SwitchLink, outcome: Outcome) -> None:
        if state.link is not link:
            return
        nobodys = self._flow_errors(state, outcome.errors)
        if not outcome.confirmed:
            state.reason = outcome.reason or "did not confirm in time"
            link.close(f"the first comparison was not confirmed: {state.reason}")
            return
        state.in_sync, state.reason = not nobodys, nobodys
        pool = self.pool_of(state.datapath)
        state.installed = pool.rules.get(state.datapath, 0)
        event(
            "switch in sync" if state.in_sync else "switch not in sync",
            datapath=dpid_text(state.datapath),
            reason=state.reason or None,
        )
        portless = {placed.job.number for placed in pool.jobs_at(state.datapath) if placed.port is None}
        for number in portless:
            self._expect(pool.placed[number].job)
        for number in self.confirmations.synced(state.datapath, portless):
            self.settle(number)
        for placed in pool.jobs_at(state.datapath):
            self.settle(placed.job.number)

    def switch_gone(self, link: SwitchLink, reason: str) -> None:
        """A switch's connection ended; its flows stay on it, and it is compared anew when it returns."""
        state = self.switches.get(link.datapath)
        if state is None or state.link is not link:
            return
        state.link, state.told, state.in_sync = None, False, False
        state.since = time.time()
        state.reason = f"is not connected ({reason})"
        self._reactions.switch_gone(link.datapath)
        self.polling.gone(link.datapath)
        self._blocked_by(state)

    def _blocked_by(self, state: SwitchState) -> None:
        for placed in self.pool.jobs_at(state.datapath):
            self.confirmations.blocked(placed.job.number, state.datapath, state.reason)
        for number in self.confirmations.lost(state.datapath, state.reason):
            self.settle(number)

    def ports_changed(self, link: SwitchLink) -> None:
        """Ports came, went or were renumbered."""
        state = self.switches.get(link.datapath)
        if state is None or state.link is not link:
            return
        self._reactions.ports_changed(link)
        waiting = [p.job.number for p in self.pool.jobs_at(link.datapath) if p.port is None]
        held = {p.job.number: p.port for p in self.pool.jobs_at(link.datapath) if p.port is not None}
        holds = self.pool_of(link.datapath)
        for pool, _ in self.pools.all():
            changes = pool.set_switch(placed_switch(pool.policy, link), self._hosts_seen.get(link.datapath, ()))
            if pool is holds and state.told and changes:
                arrived = [n for n in waiting if (p := pool.placed.get(n)) is not None and p.port is not None]
                for number in arrived:
                    self.polling.begin(pool.placed[number])
                    self.confirmations.sent(number, link.datapath)
                link.apply(changes).add_done_callback(partial(self._arrived, state, link, arrived))
        for number in (*waiting, *held):
            placed = self.pool.placed.get(number)
            if placed is not None and placed.port is None:
                self._expect(placed.job)
                self._settle(number)
        self.queues.refresh(link.datapath)
        for number in waiting:
            if (placed := self.pool.placed.get(number)) is not None:
                self.queues.expect(placed)

    def _arrived(self, state: SwitchState, link: SwitchLink, numbers: list[int], done: asyncio.Future[Outcome]) -> None:
        if not done.cancelled():
            for number in numbers or (None,):
                self._applied(state, link, number, done.result())

    def packet_in(self, link: SwitchLink, packet: PacketIn) -> None:
        """A switch asks."""
        state = self.switches.get(link.datapath)
        if state is not None and state.link is link:
            state.packet_ins += 1
            self._reactions.packet_in(link, packet)

    def flow_removed(self, link: SwitchLink, removed: FlowRemoved) -> None:
        """A reactive or learned flow aged out."""
        self.polling.flow_removed(removed)
        self._reactions.flow_removed(link, removed)

    def switch_error(self, link: SwitchLink, error: FlowError) -> None:
        """An error that belongs to no change (a PacketOut, a probe)."""
        state = self.switches.get(link.datapath)
        if state is not None and state.link is link:
            self._flow_errors(state, (error,))

    def _forget_addresses(self, addresses: Iterable[Address], number: int | None) -> None:
        for datapath, keys in self._reactions.forget(addresses).items():
            self.send_to(datapath, Changes(flows_gone=tuple(keys)), number)

    def _forget_connections(self, placed: Placed) -> None:
        assert placed.datapath is not None
        state = self.switches.get(placed.datapath)
        if state is not None and state.link is not None:
            state.link.forget_connections(CT_ZONE, CT_ZONE_OTHERS, placed.job.addresses)
        elif state is not None:
            state.to_forget.update(placed.job.addresses)

    # -- policy ------------------------------------------------------------------------------------------------------

    async def prepare(self, policy: Policy) -> None:
        """Build the pool of a new policy beside the one in force. Raises RuleLimitError, UnsupportedError."""
        await self.pools.prepare(policy, self.directory, lambda: self._connected_switches(policy))

    def _connected_switches(self, policy: Policy) -> list[tuple[Switch, tuple[str, ...]]]:
        return [
            (placed_switch(policy, state.link), self._hosts_seen.get(state.datapath, ()))
            for state in self.switches.values()
            if state.link is not None
        ]

    def placed_switches(self, policy: Policy) -> list[tuple[Switch, Switch]]:
        """The connected switches as they are placed now, and as another policy would place them."""
        return [
            (self.pool.switches[state.datapath], placed_switch(policy, state.link))
            for state in self.switches.values()
            if state.link is not None
        ]

    def set_facts(self, found: Mapping[str, Facts]) -> None:
        """Jobs' facts were taken anew, for more attributes; what is decided now stays the same."""
        for job_id, facts in found.items():
            job = self.directory.by_id.get(job_id)
            if job is not None:
                self._refresh(replace(job, facts=facts))

    async def adopt(self) -> int:
        """Bring the switches over to the prepared policy, one by one; answers how many flows were sent."""
        pool, sent = self.pools.coming, 0
        # A switch that connects meanwhile holds the old program, so it is asked for again until there is none left.
        while (datapath := next((dp for dp in self.switches if dp not in self.pools.moved), None)) is not None:
            state = self.switches[datapath]
            self.pools.moved.add(datapath)
            if state.told and (changes := diff(pool.build(datapath), self.pool.build(datapath))):
                sent += len(changes)
                self.send_to(datapath, changes, None)
            if state.link is not None:
                self._say_shortcomings(state, pool)
            self.queues.policy_changed(datapath)
            await asyncio.sleep(0)
        self.pools.finish()
        self.workers.policy_changed()
        await self.polling.regroup(self.pool.placed)
        for datapath, keys in self._reactions.forget_all().items():
            self.send_to(datapath, Changes(flows_gone=tuple(keys)), None)
        return sent

    def _say_shortcomings(self, state: SwitchState, pool: Pool) -> None:
        for sentence in core.remarks(pool.switches[state.datapath], pool.policy):
            if all(problem.problem != sentence for problem in state.problems):
                state.problems.append(SwitchProblem(time.time(), sentence))

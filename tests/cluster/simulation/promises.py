"""The promises that every schedule must keep: looked at with each write that takes effect, and once all is at rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from lark_controller.flows.desired import Desired
from lark_controller.jobs.job import Job, JobState
from lark_controller.policies.decide import Decider
from lark_controller.policies.model import Policy
from lark_controller.qos.reservation import ReservationKind
from lark_controller.qos.topology import Topology, channels
from lark_controller.store import LEASE_EXPIRED
from lark_controller.switches.fence import is_later
from lark_controller.switches.openflow.mastership import PROOF_SECONDS
from tests.cluster.simulation.instance import HOSTS, Instance
from tests.cluster.simulation.server import Server, Transaction
from tests.cluster.simulation.switches import PlayedSwitch, Sent, placed
from tests.cluster.simulation.tables import Tables
from tests.cluster.simulation.workers import Known
from tests.cluster.simulation.world import World


class Promises:
    """The promises of one schedule; ``broken`` are sentences about those that did not hold."""

    def __init__(self, world: World, server: Server, known: Known, policy: Policy) -> None:
        self._world, self._server, self._known, self._policy = world, server, known, policy
        self.broken: list[str] = []
        self.writes = self.flow_mods = 0
        self.refused_by_switches = 0
        # A number that another order of the writes would change.
        self.trace = 0
        assert policy.topology is not None
        hosts = {name: 1000.0 for names in HOSTS.values() for name in names}
        topology = Topology(policy.topology, hosts)
        self._capacity = {each.key: each.capacity for link in topology.declared(hosts) for each in channels(link)}

    @property
    def counts(self) -> Any:
        return self._server.counts

    def _broken(self, sentence: str) -> None:
        if len(self.broken) < 20:
            self.broken.append(f"{self._world.now:.2f} s: {sentence}")

    # -- with each write -----------------------------------------------------------------------------------------------

    def written(self, transaction: Transaction, before: Tables) -> None:
        """Look at a write to the database as it takes effect."""
        self.writes += 1
        self.trace = (self.trace * 31 + round(self._world.now * 1e6) * 7 + len(transaction.keys)) % (1 << 61)
        now = self._server.tables
        if transaction.generation != self._server.generation:
            self._broken(f"generation {transaction.generation} has written in that of {self._server.generation}")
        if now.runs is not before.runs:
            live = now.live()
            self._each_once("address", (str(each) for job in live for each in job.addresses))
            self._each_once("port", (f"{job.port} of {job.host}" for job in live))
            for number, job in now.runs.items():
                was = before.runs.get(number)
                if job is not was and not job.live and (was is None or was.live):
                    self._ended(job)
        if now.external is not before.external:
            self._each_once("external address", (str(each.address) for each in now.held()))
            self._each_once("job's external address", (each.job for each in now.held() if each.released is None))
        if now.reserved != before.reserved or now.reservations is not before.reservations:
            sums = Counter[str]()
            for each in now.reservations.values():
                sums.update(each.holds)
            if {key: kbps for key, kbps in sums.items() if kbps} != now.reserved:
                self._broken(f"the sums of what is reserved are {now.reserved}, and {dict(sums)} is")
            for key, kbps in sums.items():
                if kbps > self._capacity.get(key, 0):
                    self._broken(f"{kbps} kb/s of {self._capacity.get(key)} are promised of {key}")

    def _each_once(self, what: str, found: Iterable[str]) -> None:
        for each, times in Counter(found).items():
            if times > 1:
                self._broken(f"{what} {each} is promised {times} times")

    def _ended(self, job: Job) -> None:
        """A run may end because its worker said so, a later one has its slot, or nobody renews it."""
        run = self._known.runs.get(job.id)
        if run is None or run.end_asked or not run.acknowledged:
            return
        if job.reason == LEASE_EXPIRED:
            if run.tended:
                ago = self._world.now - run.renewed_at
                self._broken(f"the lease of {job.called} is over, whose worker renews it, last {ago:.1f} s ago")
        elif not run.followed:
            self._broken(f"run {job.called} has ended ({job.reason}), and nobody asked for it")

    def done(self, switch: PlayedSwitch, sent: Sent) -> None:
        """Look at a write to a switch as it takes effect."""
        self.flow_mods += sent.kind == "flows"
        if not is_later(switch.obeyed, sent.generation):
            return
        if sent.kind == "flows":
            self._broken(f"flows of generation {sent.generation} after {switch.obeyed} at switch {switch.datapath}")
        elif sent.at > switch.obeyed_at + PROOF_SECONDS:
            self._broken(f"an order of generation {sent.generation} after {switch.obeyed} at switch {switch.datapath}")

    # -- at rest -------------------------------------------------------------------------------------------------------

    def at_rest(self, instances: Sequence[Instance], switches: Sequence[PlayedSwitch]) -> None:
        """Look at all once nothing has gone wrong for a while."""
        tables = self._server.tables
        self.refused_by_switches = sum(each.refused for each in switches)
        self._runs(tables)
        active = [each for each in instances if each.alive and each.me.id == self._server.holder]
        if len(active) != 1 or active[0].services is None:
            self._broken("nobody is active")
            return
        self._memory(active[0], tables)
        self._flows(active[0], tables, switches)

    def _runs(self, tables: Tables) -> None:
        by_id = {each.id: each for each in tables.runs.values()}
        lines = Counter(tables.lines)
        for run in self._known.runs.values():
            job = by_id.get(run.id)
            if job is None:
                if run.acknowledged:
                    self._broken(f"the acknowledged run {run.id} is gone")
                continue
            if run.end_acknowledged and job.live:
                self._broken(f"run {job.called} lives, and its end was acknowledged")
            ends, agains = lines["end", run.id], lines["again", run.id]
            if ends - agains != (job.state is JobState.ENDED):
                self._broken(f"run {job.called} is {job.state}, with {ends} ends and {agains} returns")
        live = {each.id for each in by_id.values() if each.live}
        kept = {each.id: each.job for each in tables.reservations.values()}
        for reservation, job_id in kept.items():
            if job_id not in live:
                self._broken(f"reservation {reservation} is of a run that is over")
        for reservation, job_id in self._known.reserved.items():
            if job_id in live and reservation not in kept and reservation not in self._known.released:
                self._broken(f"the acknowledged reservation {reservation} is gone")
        has = {each.id: each.job for each in tables.external.values() if each.released is None}
        for association, job_id in has.items():
            if job_id not in live:
                self._broken(f"external address {association} is of a run that is over")
        for association, job_id in self._known.external.items():
            if job_id in live and association not in has and association not in self._known.released:
                self._broken(f"the acknowledged external address {association} is gone")

    def _memory(self, active: Instance, tables: Tables) -> None:
        """The active one has in memory what the database has."""
        services = active.services
        assert services is not None
        there = {each.id: each for each in tables.live()}
        here = services.feed.directory.by_id
        for job_id in sorted(there.keys() ^ here.keys()):
            self._broken(f"run {job_id} lives in {'the database' if job_id in there else 'memory'} alone")
        flows = [each for each in tables.reservations.values() if each.kind is ReservationKind.FLOW]
        for job_id in sorted(there.keys() & here.keys()):
            mine, its = here[job_id], there[job_id]
            if (mine.addresses, mine.port, mine.number) != (its.addresses, its.port, its.number):
                self._broken(
                    f"run {mine.called} has {mine.addresses}, {mine.port} in memory, and {its.addresses}, {its.port}"
                )
            for address in its.addresses:
                if not services.registration._held.blocks.holds(address):
                    self._broken(f"{address} of {its.called} is free in memory")
            if its.port is not None and services.registration._held.at(its.datapath or its.host, its.port) != job_id:
                self._broken(f"port {its.port} of {its.called} is not its own in memory")
            reserved = sorted((each.number, each.kbps) for each in flows if each.job == job_id)
            if reserved != [(each.number, each.kbps) for each in mine.reserved]:
                self._broken(f"run {mine.called} has {mine.reserved} reserved in memory, and {reserved}")
            given = [each.external for each in tables.held(job_id) if each.released is None]
            if given != list(mine.external):
                self._broken(f"run {mine.called} has {mine.external} in memory, and {given}")

    def _flows(self, active: Instance, tables: Tables, switches: Sequence[PlayedSwitch]) -> None:
        """Each switch has exactly the flows of the live jobs, as they are calculated anew from the database."""
        decider, desired = Decider(self._policy), Desired(self._policy)
        assert active.services is not None
        here = active.services.feed.directory.by_id
        # All that a job has reserved and been given was compared just now.
        jobs = [here.get(each.id, each) for each in tables.live()]
        desired.load((job, decider.of(job)) for job in sorted(jobs, key=lambda each: each.number))
        for switch in switches:
            desired.place_switch(placed(self._policy, switch.datapath), HOSTS.get(switch.datapath, ()))
            wanted = desired.build(switch.datapath).flows
            if wanted != switch.flows:
                lacks, more = wanted.keys() - switch.flows.keys(), switch.flows.keys() - wanted.keys()
                self._broken(f"switch {switch.datapath} lacks {len(lacks)} flows, and has {len(more)} too many")

"""From ads to jobs: what a post registers, which addresses it gets, how it ends.

One lock keeps the store, the address blocks and the reconcile loop in the same order; nothing under it waits for a
switch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from sys import intern

from lark_common.classads.ads import JobAd, MachineAd
from lark_common.errors import (
    AddressError,
    AdError,
    CapacityError,
    NotFoundError,
)
from lark_common.log import INFO, WARNING, event
from lark_common.runs import Address, AddressType, NetworkType, RunKey
from lark_controller.api.jobs import Registered
from lark_controller.jobs.addresses import BlockAllocator
from lark_controller.jobs.job import Facts, Job, JobState
from lark_controller.policies.facts import facts
from lark_controller.policies.model import Policy
from lark_controller.services.feed import Feed
from lark_controller.services.lease_clock import LeaseClock
from lark_controller.services.reservations import Reservations
from lark_controller.store import LEASE_EXPIRED, Store

# How long a job lives on that is kept beyond its lease, in seconds, until it is asked about again.
KEPT_SECONDS = 60.0

Names = tuple[frozenset[str], frozenset[str]]
# A switch by datapath id, or by the host's name where that is not said.
_Place = int | str


def names_digest(names: Names) -> str:
    """A mark beside stored facts, by which to tell whether they were taken for these attribute names."""
    text = "\n".join((",".join(sorted(names[0])), ",".join(sorted(names[1]))))
    return sha256(text.encode()).hexdigest()[:16]


class Registration:
    """Registers, renews and ends jobs; thread-safe.

    ``feed`` has the live jobs, and hands what changes to the reconcile loop. ``why_kept`` says why a job lives on
    though its lease is over (``""``: it does not). Leases end by ``clock``.
    """

    def __init__(
        self,
        store: Store,
        lease_seconds: float,
        feed: Feed,
        reservations: Reservations,
        why_kept: Callable[[Job], str] = lambda _: "",
        clock: LeaseClock | None = None,
    ) -> None:
        self._store = store
        self._reservations = reservations
        self._lease = lease_seconds
        self._feed = feed
        self._live = feed.directory.by_id
        self._why_kept = why_kept
        self.clock = clock or LeaseClock()
        self._lock = feed.lock
        self._leases: dict[str, float] = {}
        # The job at each switch port: two jobs at one port could not be told apart by the switch.
        self._ports: dict[_Place, dict[str, Job]] = {}
        self._policy: Policy | None = None
        self._names: Names = (frozenset(), frozenset())
        self._blocks = BlockAllocator((), (26, 122))

    def use(self, policy: Policy, names: Names, jobs: Iterable[Job] | None = None) -> None:
        """Go over to a policy: its job networks and the attributes that its predicates need.

        ``jobs`` are live ones that are not known here yet: at start those of the store.
        """
        with self._lock:
            if jobs is not None:
                self._feed.load(jobs)
            live = self._feed.live()
            reserved = [address for network in policy.hosts for address in network]
            blocks = BlockAllocator(policy.job_networks, policy.block_prefixes, reserved)
            self._ports = {}
            for job in live:
                self._hold(blocks, policy, job)
            self._policy, self._names, self._blocks = policy, names, blocks
            self._reservations.use(policy, live)

    def need(self, names: Names) -> None:
        """Add attributes that the facts of new jobs hold from now on."""
        with self._lock:
            self._names = (self._names[0] | names[0], self._names[1] | names[1])

    def set_facts(self, found: Mapping[str, Facts]) -> None:
        """Replace live jobs' facts, by id, with those taken anew for the attributes of :meth:`need`."""
        with self._lock:
            for job_id, taken in found.items():
                self._feed.change(job_id, partial(_with_facts, taken))

    def register(self, job_ad: JobAd, machine_ad: MachineAd, actor: str) -> Registered:
        """Register a run, or update it by a second post.

        Raises AdError, AddressError, StoreError; CapacityError or PathError where the network has no room for its
        RequestBandwidth.
        """
        with self._lock:
            policy = self._policy
            if policy is None:
                raise AddressError("", "the controller has no policy yet")
            now = time.time()
            job = described(job_ad, machine_ad, self._names, now, self.clock() + self._lease)
            _check_networks(policy, job)
            _check_switch(policy, job)
            self._check_port(job)
            booking = self._reservations.booking(job, machine_ad.available_bandwidth)
            known = self._live.get(job.id)
            assigned: tuple[Address, ...] = ()
            if job.address_type is AddressType.CONTROLLER and job.has_pool_address:
                job, assigned = self._addressed(policy, job, known)
            try:
                registration = self._store.runs.register(
                    job, job_ad.text, machine_ad.text, actor, now, names_digest(self._names), booking
                )
            except BaseException as error:
                for address in assigned:
                    self._blocks.release(address)
                if isinstance(error, CapacityError):
                    event("job refused", job=job.id, owner=job.owner, host=job.host, reason=str(error))
                    raise self._reservations.judged(error) from None
                raise
            for old in registration.superseded:
                self._release(old)
                self._feed.remove(old.id)
                self._reservations.ended(old.id)
            job = registration.job
            if machine_ad.lease_over and job.live and job.ipv4 is not None:
                job = self._store.runs.set_address(job.id, None, job.ipv6, (None, job.ipv6_block), actor, now).job
            if job.live:
                if known is not None:
                    self._release(known)
                job = self._reservations.with_flows(job)
                self._hold(self._blocks, policy, job)
                self._feed.put(job)
            else:
                for address in assigned:
                    self._blocks.release(address)
            event(
                "job registered" if registration.created else "job posted again",
                job=job.id,
                global_job_id=job.run.global_job_id,
                owner=job.owner,
                host=job.host,
                addresses=",".join(map(str, job.addresses)) or None,
                state=job.state.value,
            )
            return Registered(job, registration.created)

    def renew(self, job_id: str) -> Job:
        """Renew a live job's lease; it is written to the store with others. Raises NotFoundError."""
        with self._lock:
            job = self._live.get(job_id)
            if job is None:
                raise NotFoundError(f"no live job has the id {job_id}; post its ads again")
            # Under the lock: what is renewed by a clock of before is written before leases begin anew.
            self._leases[job_id] = until = self.clock() + self._lease
        return replace(job, lease_until=until)

    def end(self, job_id: str, actor: str, why: str, exit_ad: str = "") -> Job:
        """End a job. Idempotent. Raises NotFoundError for an id never seen."""
        with self._lock:
            return self._end(job_id, actor, why, exit_ad)

    def _end(self, job_id: str, actor: str, why: str, exit_ad: str = "") -> Job:
        job = self._store.runs.end(job_id, time.time(), why, exit_ad, actor)
        if job is None:
            raise NotFoundError(f"no job has the id {job_id}")
        live = self._feed.remove(job_id)
        if live is not None:
            self._release(live)
            self._reservations.ended(job_id)
            event("job ended", job=job_id, why=why)
        self._leases.pop(job_id, None)
        return job

    def refused(self, job: Job) -> bool:
        """Refuse a job that a switch or a limit refused: its addresses are free again.

        False where it was posted anew since then, so that the refusal is of a post that is history.
        """
        with self._lock:
            held = self._live.get(job.id)
            if held is None:
                # It has ended meanwhile, and another job may have its addresses.
                return True
            if held.lease_until != job.lease_until:
                return False
            self._release(held)
            self._feed.remove(job.id)
            self._reservations.ended(job.id)
            return True

    def write_leases(self) -> None:
        """Write the leases that were renewed since the last call to the store."""
        with self._lock:
            leases, self._leases = self._leases, {}
        try:
            if leases:
                self._store.runs.renew_many(list(leases.items()))
        except BaseException:
            with self._lock:
                self._leases = {**leases, **self._leases}
            raise

    def expire(self, now: float) -> int:
        """End the jobs whose lease is over, but for those that are kept; returns how many ended.

        None ends once the clock was set: leases that were renewed by a clock that was behind only look over.
        """
        self.write_leases()
        count = 0
        for job in self._store.runs.expired(now):
            if self._why_kept(job):
                # Until it is known to have ended, its address is not to be taken either.
                self._store.runs.renew(job.id, now + min(self._lease, KEPT_SECONDS))
                continue
            with self._lock:
                if self.clock.was_set:
                    return count
                # A renewal, or the same run's ads once more, may have come since the store was asked.
                held = self._store.runs.find(job.id)
                if job.id not in self._leases and held is not None and held.live and held.lease_until < now:
                    self._end(job.id, "lark", LEASE_EXPIRED)
                    count += 1
        return count

    def live(self) -> list[Job]:
        """The live jobs, a copy."""
        return self._feed.live()

    def quarantine(self, job_id: str, reason: str, actor: str) -> Job | None:
        """Quarantine a live job: nothing of it passes. None where it does not live any more. Raises StoreError."""
        with self._lock:
            job = self._store.runs.quarantine(job_id, reason, actor, time.time())
            return self._changed(job, "job quarantined", WARNING, reason, actor)

    def lift(self, job_id: str, reason: str, actor: str, *, vouched: bool = False) -> Job | None:
        """End a live job's quarantine; None where it does not live any more. Raises StoreError.

        ``vouched``: by an operator; readings of the pool count no more against this run. Raises StateError then
        where the job is in no quarantine.
        """
        with self._lock:
            job = self._store.runs.lift(job_id, reason, actor, time.time(), vouched=vouched)
            return self._changed(job, "job released from quarantine", INFO, reason, actor)

    def _changed(self, stored: Job | None, what: str, level: int, reason: str, actor: str) -> Job | None:
        known = None if stored is None else self._live.get(stored.id)
        if stored is None or known is None:
            return None
        changed = (stored.quarantine, stored.vouched) != (known.quarantine, known.vouched)
        job = replace(known, quarantine=stored.quarantine, vouched=stored.vouched)
        if changed:
            self._feed.put(job)
            event(what, level=level, job=job.id, reason=reason, actor=actor)
        return job

    def _addressed(self, policy: Policy, job: Job, known: Job | None) -> tuple[Job, tuple[Address, ...]]:
        """A job with the addresses that it has already, or new ones from its group's and user's blocks."""
        had = self._given_up(job.id) if known is None else known
        if had is not None and had.addresses:
            job = replace(job, ipv4=had.ipv4, ipv6=had.ipv6, ipv4_block=had.ipv4_block, ipv6_block=had.ipv6_block)
            if known is None:
                self._check_free(policy, job)
            return job, ()
        versions = sorted({network.version for network in policy.job_networks})
        if not versions:
            raise AddressError(
                "LarkAddressType", "controller: the policy declares no job networks (networks: jobs) to assign from"
            )
        assigned: list[Address] = []
        try:
            for version in versions:
                address, block = self._blocks.assign(version, job.group, job.owner)
                assigned.append(address)
                if isinstance(address, IPv4Address) and isinstance(block, IPv4Network):
                    job = replace(job, ipv4=address, ipv4_block=block)
                elif isinstance(address, IPv6Address) and isinstance(block, IPv6Network):
                    job = replace(job, ipv6=address, ipv6_block=block)
        except AddressError:
            for address in assigned:
                self._blocks.release(address)
            raise
        return job, tuple(assigned)

    def _given_up(self, job_id: str) -> Job | None:
        """The run where its lease has ended it: if it still runs, then with the addresses that it was given."""
        stored = self._store.runs.find(job_id)
        if stored is None or stored.state is not JobState.ENDED or stored.reason != LEASE_EXPIRED:
            return None
        return stored

    def _check_free(self, policy: Policy, job: Job) -> None:
        _check_networks(policy, job)
        for address in job.addresses:
            if self._blocks.holds(address):
                raise AddressError(
                    f"LarkInnerAddressIPv{address.version}",
                    f"{address} was given to another job after this run's lease had expired",
                )

    def _check_port(self, job: Job) -> None:
        holder = None if job.port is None else self._ports.get(_place(job), {}).get(job.port)
        if holder is not None and holder.id != job.id and holder.run.slot != job.run.slot:
            raise AddressError(
                "LarkExternalInterface",
                f"port {job.port} of {job.host} belongs to live job {holder.id} on {holder.run.slot}",
                holder.id,
            )

    def _hold(self, blocks: BlockAllocator, policy: Policy, job: Job) -> None:
        if job.port is not None:
            self._ports.setdefault(_place(job), {})[job.port] = job
        if not job.has_pool_address:
            return
        for address, block in job.blocks:
            # An address that was assigned a moment ago is held already.
            if any(address in network for network in policy.job_networks) and not blocks.holds(address):
                blocks.hold(address, block, job.group, job.owner)

    def _release(self, job: Job) -> None:
        if job.port is not None and (ports := self._ports.get(_place(job))) is not None:
            if (held := ports.get(job.port)) is not None and held.id == job.id:
                del ports[job.port]
            if not ports:
                del self._ports[_place(job)]
        if job.has_pool_address:
            for address in job.addresses:
                self._blocks.release(address)


def _with_facts(taken: Facts, job: Job) -> Job:
    return replace(job, facts=taken)


def described(job_ad: JobAd, machine_ad: MachineAd, names: Names, now: float, lease_until: float) -> Job:
    """The run that ads describe, with the attributes ``names``; its number is the store's to say."""
    run = RunKey(job_ad.global_job_id, job_ad.started, machine_ad.slot)
    taken: Facts = facts(job_ad, machine_ad, names)
    return Job(
        number=0,
        run=run,
        id=run.id,
        # Many jobs have these in common.
        owner=intern(job_ad.owner),
        user=intern(job_ad.user),
        group=intern(job_ad.group),
        cluster=job_ad.cluster,
        proc=job_ad.proc,
        host=intern(machine_ad.machine),
        network_type=NetworkType(machine_ad.network_type),
        address_type=AddressType(machine_ad.address_type),
        ipv4=machine_ad.ipv4,
        ipv6=machine_ad.ipv6,
        datapath=machine_ad.datapath,
        port=None if machine_ad.port is None else intern(machine_ad.port),
        mac=machine_ad.mac,
        vlan=machine_ad.vlan,
        bandwidth=job_ad.bandwidth,
        inbound=job_ad.inbound,
        outbound=job_ad.outbound,
        lease_until=lease_until,
        created=now,
        facts=taken,
    )


def _place(job: Job) -> _Place:
    """The switch of a job's port, where the ad names it (the host in a post is not trusted); else the host."""
    return job.host.lower() if job.datapath is None else job.datapath


def _check_switch(policy: Policy, job: Job) -> None:
    spec = None if job.datapath is None else policy.switches.get(job.datapath)
    if spec is not None and spec.host is not None and spec.host.lower() != job.host.lower():
        raise AdError("LarkDatapathId", f"switch {spec.name} is that of {spec.host}, and the job's host is {job.host}")


def _check_networks(policy: Policy, job: Job) -> None:
    if not policy.job_networks or not job.has_pool_address:
        return
    for address in job.addresses:
        if not any(address in network for network in policy.job_networks):
            raise AdError(
                f"LarkInnerAddressIPv{address.version}",
                f"{address} is outside the declared job networks: {', '.join(map(str, policy.job_networks))}",
            )
        if any(address in network for network in policy.hosts):
            raise AdError(
                f"LarkInnerAddressIPv{address.version}",
                f"{address} is kept for a host that is no job (networks.hosts of the policy)",
            )

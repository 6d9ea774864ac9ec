"""The job directory: one frozen :class:`Job` a live run, found by its id or its address.

A job here is one run of an HTCondor job on one slot: GlobalJobId, the start of this run, and the slot. The directory
lives in memory and holds what policy and switches need; the ads' text is in the store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, make_dataclass, replace
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from operator import attrgetter
from typing import Any, Final, NamedTuple

from lark_common.runs import Address, AddressType, Network, NetworkType, RunKey
from lark_controller.jobs.external import External


class JobState(StrEnum):
    """The state of a job in its life.

    ``registering``: its flows are on their way. ``enforced``: every switch concerned has confirmed by barrier.
    ``pending``: a switch concerned is away or lacks what the job needs, or the address is not known yet; ``reason``
    names it. ``quarantined``: the pool contradicts it, with the ``reason``, and nothing passes. ``refused``: bad
    address, no capacity, a rule limit; ``reason`` names it. ``ended``: over; its address is free.
    """

    REGISTERING = "registering"
    ENFORCED = "enforced"
    PENDING = "pending"
    QUARANTINED = "quarantined"
    REFUSED = "refused"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Facts:
    """The attributes of both ads that the running policy refers to: (name in lower case, expression), sorted.

    Jobs of one cluster mostly have equal facts, so equal facts are one object and are decided once.
    """

    job: tuple[tuple[str, str], ...] = ()
    machine: tuple[tuple[str, str], ...] = ()

    @property
    def size(self) -> int:
        """The characters of all values."""
        return sum(len(value) for _, value in (*self.job, *self.machine))


# Facts of more characters are not kept for jobs to come: a user may write thousands into each of many jobs.
SHARED_SIZE: Final = 1024


def shared_facts(facts: Facts) -> Facts:
    """The one object that stands for all facts equal to these, as long as it is among the latest and they are short."""
    return _latest_facts(facts) if facts.size <= SHARED_SIZE else facts


@lru_cache(maxsize=65_536)
def _latest_facts(facts: Facts) -> Facts:
    return facts


@dataclass(frozen=True, slots=True)
class ReservedFlow:
    """Bandwidth reserved for what a job sends to some addresses (empty: to the WAN), in kb/s of L2 bytes; or, where
    ``incoming``, for what is sent to the job.

    ``number`` is the reservation's in the store. ``steady``: the job sends no more than that there; else it may use
    what is free as well. ``peer`` is the id of the job at the other end, None where that is no job, and ``node`` the
    other end in the topology.
    """

    number: int
    kbps: int
    target: tuple[Network, ...] = ()
    incoming: bool = False
    steady: bool = False
    peer: str | None = None
    node: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a job on one slot, as far as policy and switches need it.

    ``number`` is the store's number (it stands in the cookies of the job's flows). ``ipv4_block`` and ``ipv6_block``
    are the aligned blocks that an assigned address came from, reserved for this job's group and user. ``datapath`` is
    the OpenFlow datapath id of the worker's bridge and ``port`` the name of the job's port on it (the machine ad's
    ExternalInterface); ``mac`` is the address inside the job. ``bandwidth`` is RequestBandwidth in Mb/s. ``inbound``
    and ``outbound`` are what the job ad asks (Table I), None where it does not ask. ``lease_until`` and ``created``
    are seconds since 1970. ``quarantine`` is the pool's contradiction of the job (``""``: nothing), and ``vouched``
    means that an operator has let it pass in spite of that. ``reserved`` are the flows from it and to it that have
    bandwidth reserved; ``external`` are its addresses outside of the site.
    """

    number: int
    run: RunKey
    id: str
    owner: str
    user: str
    group: str
    cluster: int
    proc: int
    host: str
    network_type: NetworkType = NetworkType.OVS_BRIDGE
    address_type: AddressType = AddressType.STATIC
    ipv4: IPv4Address | None = None
    ipv6: IPv6Address | None = None
    ipv4_block: IPv4Network | None = None
    ipv6_block: IPv6Network | None = None
    datapath: int | None = None
    port: str | None = None
    mac: str | None = None
    vlan: int | None = None
    bandwidth: float | None = None
    inbound: bool | None = None
    outbound: bool | None = None
    state: JobState = JobState.REGISTERING
    reason: str = ""
    lease_until: float = 0.0
    created: float = 0.0
    facts: Facts = Facts()
    quarantine: str = ""
    vouched: bool = False
    reserved: tuple[ReservedFlow, ...] = ()
    external: tuple[External, ...] = ()

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The job's addresses, IPv4 first."""
        if self.ipv6 is None:
            return () if self.ipv4 is None else (self.ipv4,)
        return (self.ipv6,) if self.ipv4 is None else (self.ipv4, self.ipv6)

    @property
    def blocks(self) -> tuple[tuple[Address, Network | None], ...]:
        """Each address with the block reserved for the job's group and user, None where it stands alone."""
        pairs: list[tuple[Address, Network | None]] = []
        if self.ipv4 is not None:
            pairs.append((self.ipv4, self.ipv4_block))
        if self.ipv6 is not None:
            pairs.append((self.ipv6, self.ipv6_block))
        return tuple(pairs)

    @property
    def opened(self) -> External | None:
        """The job's own IPv6 address with what is open there to the WAN; None where that was not asked for."""
        return next((each for each in self.external if each.address.version == 6), None) if self.external else None

    @property
    def external_addresses(self) -> tuple[Address, ...]:
        """Its addresses outside of the site."""
        return tuple(each.address for each in self.external) if self.external else ()

    @property
    def external_open(self) -> tuple[str, ...]:
        """The words of what is open at these, each once."""
        return tuple(dict.fromkeys(str(one) for each in self.external for one in each.openings))

    @property
    def external_name(self) -> str:
        """The name of one of these in the DNS; ``""``: there is none."""
        return next((each.name for each in self.external if each.name), "")

    @property
    def has_pool_address(self) -> bool:
        """True where the job's addresses are its own in the whole pool (behind NAT they are its host's business)."""
        return self.network_type in (NetworkType.OVS_BRIDGE, NetworkType.BRIDGE)

    @property
    def called(self) -> str:
        """CLUSTER.PROC, the job's name for HTCondor's users."""
        return f"{self.cluster}.{self.proc}"

    @property
    def live(self) -> bool:
        """True until the job has ended or was refused."""
        return self.state not in (JobState.ENDED, JobState.REFUSED)


def shown_state(job: Job, isolated: bool) -> str:
    """The word that a job is shown with: of one that has its rules ``blocked`` where these let nothing pass
    (``isolated``), and ``no network`` where there is nothing that they are for; else its state."""
    if job.state is JobState.ENFORCED and job.network_type is NetworkType.NONE:
        return "no network"
    return "blocked" if isolated and job.state is JobState.ENFORCED else str(job.state)


_NAMES: Final = tuple(each.name for each in fields(Job))
_VALUES: Final = attrgetter(*_NAMES)
_PLACES: Final = {name: place for place, name in enumerate(_NAMES)}
# The values of a job before it is one.
_Values: Final = make_dataclass("_Values", _NAMES, slots=True)


def job_of(*values: Any) -> Job:
    """The job with these values, all of them, in order. A start makes 200,000: a frozen value sets each of its own by a
    call, which takes seven times as long."""
    job = _Values(*values)
    job.__class__ = Job
    assert isinstance(job, Job)
    return job


class Standing(NamedTuple):
    """A live job's state and the reason for it."""

    state: JobState
    reason: str = ""

    def unenforced_for(self, why: str) -> Standing:
        """The standing of a reservation by that of its job, or of all flows of its sender, and what in the policy keeps
        it from being enforced ("": nothing). That comes first: a queue may come by itself, a rule waits for its
        policy."""
        if not why or self.state is JobState.QUARANTINED:
            return self
        also = f"; also {self.reason}" if self.state is JobState.PENDING and self.reason else ""
        return Standing(JobState.PENDING, f"{why}{also}")


_NEW: Final = Standing(JobState.REGISTERING)
# Standings that many jobs share; so many different ones are remembered for that.
_SHARED: Final = 4_096


QUARANTINED: Final = "the job is in quarantine, and nothing of it passes"


class Directory:
    """The live jobs, each once, and how far each is.

    Jobs are changed under the feed's lock, standings and closed addresses by the reconcile loop. Readers on any thread
    see single dictionary look-ups, which Python makes atomic.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, Job] = {}
        self.by_address: dict[Address, Job] = {}
        self.by_external: dict[Address, Job] = {}
        self.standings: dict[int, Standing] = {}
        # By job, its external addresses that a switch lacks, each with the reason.
        self.closed: dict[int, dict[Address, str]] = {}
        # By pending job without a queue that it was promised, why it has none.
        self.queueless: dict[int, str] = {}
        # By job, how far the reserved flows that it sends are enforced, where that is another than its own standing.
        self.reserving: dict[int, Standing] = {}
        # Grows with each change of jobs' external addresses, and of whether they are closed.
        self.external_changes = 0
        self.states: Counter[JobState] = Counter()
        # The end of the leases of jobs that were loaded without theirs: 0 in them.
        self.leases_until = 0.0
        # Live jobs by host, in lower case.
        self.hosts: Counter[str] = Counter()
        self._shared: dict[Standing, Standing] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def put(self, job: Job) -> Job | None:
        """Add or replace a live job; returns what it replaces."""
        old = self.by_id.get(job.id)
        self.external_changes += job.external != (() if old is None else old.external)
        if old is not None:
            if _addressed(old) != _addressed(job) or old.external != job.external:
                self._drop(old)
            self._leave(old.host)
        self.by_id[job.id] = job
        self.hosts[job.host.lower()] += 1
        for address in _addressed(job):
            self.by_address[address] = job
        for address in job.external_addresses:
            self.by_external[address] = job
        return old

    def load(self, found: Iterable[tuple[Job, Standing]]) -> None:
        """:meth:`begin` and :meth:`put` of all jobs where there are none yet, at half the cost."""
        assert not self.by_id, "jobs are loaded first"
        by_id, by_address, standings = self.by_id, self.by_address, self.standings
        hosts, states = list[str](), list[JobState]()
        for job, standing in found:
            if job.external or job.id in by_id or standing.state is JobState.QUARANTINED:
                self.begin(job.number, standing)
                self.put(job)
                continue
            by_id[job.id] = job
            standings[job.number] = standing
            hosts.append(job.host)
            states.append(standing.state)
            for address in _addressed(job):
                by_address[address] = job
        # Each host once: there are few, and each has many jobs.
        for host, count in Counter(hosts).items():
            self.hosts[host.lower()] += count
        self.states.update(states)

    def remove(self, job_id: str) -> Job | None:
        """Take a job out; returns it, or None if it was not there."""
        job = self.by_id.pop(job_id, None)
        if job is not None:
            self._leave(job.host)
            self._drop(job)
        return job

    def close(self, number: int, closed: Mapping[Address, str]) -> None:
        """Set which external addresses of a job a switch lacks, with the reasons."""
        if closed:
            self.closed[number] = dict(closed)
        else:
            self.closed.pop(number, None)
        self.external_changes += 1

    def set_queueless(self, number: int, why: str) -> None:
        """Set why a pending job has no queue that it was promised; ``""``: it waits for nothing like that."""
        if why:
            self.queueless[number] = why
        else:
            self.queueless.pop(number, None)

    def _leave(self, host: str) -> None:
        name = host.lower()
        self.hosts[name] -= 1
        if not self.hosts[name]:
            del self.hosts[name]

    def _drop(self, job: Job) -> None:
        for found, addresses in ((self.by_address, _addressed(job)), (self.by_external, job.external_addresses)):
            for address in addresses:
                if (held := found.get(address)) is not None and held.id == job.id:
                    del found[address]

    def standing(self, number: int) -> Standing:
        """The standing of a job."""
        return self.standings.get(number, _NEW)

    def set_standing(self, number: int, state: JobState, reason: str = "") -> None:
        """Set a job's standing."""
        before, _ = self.standing(number)
        self.external_changes += before is not state and JobState.QUARANTINED in (before, state)
        self._forget_standing(number)
        if len(self._shared) >= _SHARED:
            self._shared.clear()
        standing = Standing(state, reason)
        self.standings[number] = self._shared.setdefault(standing, standing)
        self.states[state] += 1

    def set_reserving(self, number: int, standing: Standing | None) -> bool:
        """Set how far the reserved flows that a job sends are enforced (None: as far as the job); returns whether that
        is another than before."""
        before = self.reserving.get(number)
        # A reader in between is not to see the job's own standing in its place.
        if standing is not None:
            self.reserving[number] = standing
        else:
            self.reserving.pop(number, None)
        return standing != before

    def reserved(self, job_id: str) -> Standing | None:
        """Tell how far the reserved flows that a live job sends are enforced; None where no such job lives."""
        job = self.by_id.get(job_id)
        if job is None:
            return None
        state, reason = self.reserving.get(job.number) or self.standing(job.number)
        # Why a job is in quarantine may name other jobs, and programs of this one are told.
        return Standing(state, QUARANTINED if state is JobState.QUARANTINED else reason)

    def unenforced(self, job_id: str, why_apart: str = "") -> str:
        """The reason why a reserved flow of a live job is not enforced; "" where it is, and while that is under way.
        ``why_apart``: the rule by which nothing of it passes."""
        found = self.reserved(job_id)
        found = None if found is None else found.unenforced_for(why_apart)
        return "" if found is None or found.state not in (JobState.PENDING, JobState.QUARANTINED) else found.reason

    def begin(self, number: int, standing: Standing) -> None:
        """Take the standing of a job that is loaded."""
        if number in self.standings or standing.state is JobState.QUARANTINED:
            self.set_standing(number, *standing)
            return
        self.standings[number] = standing
        self.states[standing.state] += 1

    def forget(self, number: int) -> None:
        """Removes the standing of a job that is over."""
        self.closed.pop(number, None)
        self.queueless.pop(number, None)
        self.reserving.pop(number, None)
        self._forget_standing(number)

    def _forget_standing(self, number: int) -> None:
        old = self.standings.pop(number, None)
        if old is not None:
            self.states[old.state] -= 1

    def now(self, job: Job) -> Job:
        """A live job in the state that it has, without external addresses that are closed."""
        state, reason = self.standing(job.number)
        if not job.lease_until:
            job = replace(job, lease_until=self.leases_until)
        if closed := self.closed.get(job.number):
            job = replace(job, external=tuple(each for each in job.external if each.address not in closed))
        return in_state(job, state, reason)

    def live(self, job_id: str) -> Job | None:
        """The live job of that id in the state that it has."""
        job = self.by_id.get(job_id)
        return None if job is None else self.now(job)


def in_state(job: Job, state: JobState, reason: str) -> Job:
    """A job in a state; the same one where it is in it."""
    return job if job.state is state and job.reason == reason else _changed(job, {"state": state, "reason": reason})


def numbered(job: Job, number: int, created: float) -> Job:
    """A job as the store has taken it in."""
    return _changed(job, {"number": number, "created": created})


def with_address(job: Job, address: Address, block: Network) -> Job:
    """A job with an address out of a block."""
    of = f"ipv{address.version}"
    return _changed(job, {of: address, f"{of}_block": block})


def _changed(job: Job, values: Mapping[str, object]) -> Job:
    """A copy with other values. Each post makes several, and ``replace`` takes three times as long for that many."""
    made = list(_VALUES(job))
    for name, value in values.items():
        made[_PLACES[name]] = value
    return job_of(*made)


def _addressed(job: Job) -> tuple[Address, ...]:
    """The addresses by which the directory finds a job."""
    return job.addresses if job.has_pool_address else ()

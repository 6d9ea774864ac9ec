"""The rules of a worker's jobs that have no port on a switch: which jobs those are, and the same Decision as rules.

Pure. :func:`permits` defines the meaning of rules; workers render them for the kernel, and a property test holds
rendering, edge flows and :func:`permits` against each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lark_common.runs import Address, AddressType, Network, NetworkType
from lark_common.worker_rules import RULED, UNSLICED, JobRules, Share, WaysOut, WorkerRules
from lark_controller.flows.placement import Placed
from lark_controller.flows.prefixes import FULL, Prefix, PrefixSet, minimal_cover
from lark_controller.flows.tags import assign_tags
from lark_controller.flows.wan import local_networks
from lark_controller.flows.worker_shares import reserved_shares, worker_shares
from lark_controller.jobs.job import Job
from lark_controller.policies.model import NO_SLICE, Decision, Policy, RuleKind, SliceKey, WanAction

_UNKNOWN_MAC: Final = "00:00:00:00:00:00"


@dataclass(slots=True)
class Ruled:
    """The jobs whose policy their worker enforces, by host; which hosts' rules changed since they were asked for.

    ``changed`` has for each such host the numbers of the jobs there that are new or have other rules of their own.
    """

    changed: dict[str, set[int]] = field(default_factory=dict)
    _hosts: dict[str, set[int]] = field(default_factory=dict)
    _slices: dict[SliceKey, dict[str, int]] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)

    def copy(self) -> Ruled:
        """The same jobs, to be changed apart; ``changed`` begins empty."""
        return Ruled(
            {},
            {host: set(numbers) for host, numbers in self._hosts.items()},
            {key: dict(hosts) for key, hosts in self._slices.items()},
            dict(self._names),
        )

    def hosts(self) -> list[str]:
        """The hosts that have such jobs."""
        return list(self._hosts)

    def host_called(self, name: str) -> str:
        """The host of this name in any case, as its jobs have it; the name itself where it has no such jobs."""
        return self._names.get(name.lower(), name)

    def counts(self) -> dict[str, int]:
        """The number of jobs of each such host."""
        return {host: len(numbers) for host, numbers in self._hosts.items()}

    def numbers(self, host: str) -> frozenset[int]:
        """The numbers of the jobs of a host."""
        return frozenset(self._hosts.get(host, ()))

    def move(self, old: Placed | None, new: Placed | None) -> None:
        """Notes that a job came, changed or went."""
        if new is not None and new.job.network_type in RULED:
            if old is not None and _enforced_alike(old, new):
                return
            self.changed.setdefault(new.job.host, set()).add(new.job.number)
            self._hosts.setdefault(new.job.host, set()).add(new.job.number)
            self._names[new.job.host.lower()] = new.job.host
            self._count(new, 1)
        if old is not None and old.job.network_type in RULED:
            host, number = old.job.host, old.job.number
            changed = self.changed.setdefault(host, set())
            self._count(old, -1)
            if new is None or new.job.host != host or new.job.network_type not in RULED:
                changed.discard(number)
                self._hosts[host].discard(number)
                if not self._hosts[host]:
                    del self._hosts[host]
                    if self._names.get(host.lower()) == host:
                        del self._names[host.lower()]

    def slice_changed(self, key: SliceKey) -> None:
        """Notes that the prefixes of a slice changed."""
        for host in self._slices.get(key, ()):
            self.changed.setdefault(host, set())

    def take(self) -> dict[str, set[int]]:
        """The changes since the last call."""
        changed, self.changed = self.changed, {}
        return changed

    def _count(self, placed: Placed, step: int) -> None:
        key = placed.decision.slice or (NO_SLICE if placed.job.network_type is NetworkType.NAT else None)
        if key is None:
            return
        hosts = self._slices.setdefault(key, {})
        host = placed.job.host
        hosts[host] = hosts.get(host, 0) + step
        if not hosts[host]:
            del hosts[host]
            if not hosts:
                del self._slices[key]


def _enforced_alike(old: Placed, new: Placed) -> bool:
    """True if two states of a job have the same rules, whatever else changed (lease, state)."""
    return _of(old.job, old.decision) == _of(new.job, new.decision)


def _of(job: Job, decision: Decision) -> tuple[object, ...]:
    return (
        job.host, job.network_type, job.address_type, job.addresses, job.mac, job.vlan, decision, job.bandwidth,
        job.reserved,
    )  # fmt: skip


def worker_rules(
    policy: Policy,
    host: str,
    jobs: Iterable[Placed],
    covers: Mapping[SliceKey, PrefixSet],
    dscps: Mapping[str, int],
    out: WaysOut | None = None,
) -> WorkerRules:
    """The rules of a host: its jobs, and a copy of the cover of each of their slices; ``dscps`` are the groups',
    and ``out`` are the interfaces that lead away from the worker, None where it has reported none.

    Jobs behind NAT have addresses of their worker's own, which are job addresses there and nowhere else, and no part
    of the WAN; jobs of one slice on one worker reach each other by them.
    """
    jobs = [placed for placed in jobs if placed.job.network_type in RULED]
    keys = slices_of(policy, jobs)
    tags = assign_tags(keys - {NO_SLICE}) | {NO_SLICE: UNSLICED}
    dropping = {rule.position: rule.exceptions for rule in policy.wans if rule.action is WanAction.DROP}
    behind: dict[SliceKey, list[Address]] = {}
    for placed in jobs:
        if placed.job.network_type is NetworkType.NAT and (key := _slice_of(policy, placed)) is not None:
            behind.setdefault(key, []).extend(placed.job.addresses)
    shares = worker_shares(policy, host, jobs, out)
    own = minimal_cover(a for p in jobs if p.job.network_type is NetworkType.NAT for a in p.job.addresses)
    return WorkerRules(
        job_networks=(*policy.job_networks, *own),
        hosts=policy.hosts,
        local_networks=(*local_networks(policy), *own),
        exceptions={
            position: dropping[position] for position in sorted({p.decision.wan for p in jobs} & dropping.keys())
        },
        slices={tags[key]: _networks(covers.get(key, PrefixSet()), behind.get(key, ())) for key in sorted(keys)},
        jobs=tuple(_job(placed, policy, tags, dropping.keys(), dscps, shares.inward) for placed in jobs),
        uplinks=shares.uplinks,
    )


def slices_of(policy: Policy, jobs: Iterable[Placed]) -> set[SliceKey]:
    """The slices whose prefixes the rules of a worker with these jobs have, NO_SLICE among them."""
    return {key for placed in jobs if (key := _slice_of(policy, placed)) is not None}


def _slice_of(policy: Policy, placed: Placed) -> SliceKey | None:
    if placed.decision.isolated:
        return None
    # Elsewhere a job behind NAT has its worker's address, and hosts reach jobs of slices: its own worker keeps it off.
    if placed.decision.slice is None and placed.job.network_type is NetworkType.NAT:
        return NO_SLICE if policy.slices and policy.job_networks else None
    return placed.decision.slice


def _networks(cover: PrefixSet, more: Iterable[Address]) -> tuple[Network, ...]:
    for address in more:
        cover.add(Prefix(address.version, int(address), FULL[address.version]))
    return cover.networks()


def _job(
    placed: Placed,
    policy: Policy,
    tags: Mapping[SliceKey, int],
    dropping: Iterable[int],
    dscps: Mapping[str, int],
    inward: Mapping[str, Share],
) -> JobRules:
    job, decision = placed.job, placed.decision
    key = _slice_of(policy, placed)
    return JobRules(
        id=job.id,
        network_type=job.network_type,
        mac=job.mac or _UNKNOWN_MAC,
        addresses=job.addresses,
        vlan=job.vlan,
        dhcp=job.address_type is AddressType.DHCP,
        isolated=decision.isolated,
        slice=0 if key is None else tags[key],
        wan=decision.wan if decision.wan in set(dropping) else 0,
        inbound=decision.inbound,
        outbound=decision.outbound,
        dscp=dscps.get(decision.group, 0) if policy.marks_packets else None,
        inward=inward.get(job.id),
        reserved=() if decision.isolated else reserved_shares(job),
    )


def unsupported(policy: Policy, job: Job, decision: Decision) -> str:
    """The reason why a worker cannot enforce a decision, as a sentence; ``""`` where it can."""
    if job.network_type not in RULED or decision.isolated:
        return ""
    if decision.slice is not None and not policy.job_networks:
        return (
            f"slice rule {decision.slice.rule} needs networks.jobs in the policy for jobs of NetworkType "
            f"{job.network_type}: their worker cannot ask whose an address is"
        )
    steering = {rule.position: rule.port for rule in policy.wans if rule.action is WanAction.STEER}
    if job.network_type is NetworkType.NAT and decision.wan in steering:
        return (
            f"wan rule {decision.wan} steers to {steering[decision.wan]}, which no core can do by the address of a job "
            "behind NAT; jobs of NetworkType ovs_bridge and bridge can be steered"
        )
    return ""


class Refused(NamedTuple):
    """The reason why a worker drops a packet, and the kind of rule; ``BLOCK`` where nothing of the job passes."""

    kind: RuleKind
    reason: str


def permits(rules: WorkerRules, job: JobRules, other: Address, *, sends: bool) -> str:
    """The reason why packets between a job and an address are dropped, ``""`` where they pass.

    ``sends``: from the job to the address, as a new connection; else the other way round.
    """
    found = refused(rules, job, other, sends=sends)
    return "" if found is None else found.reason


def refused(rules: WorkerRules, job: JobRules, other: Address, *, sends: bool) -> Refused | None:
    """The same with the kind of the rule; None where the packets pass."""
    if job.isolated:
        return Refused(RuleKind.BLOCK, "nothing passes: the job is blocked, or may neither call nor be called")
    if (
        job.slice
        and _within(other, rules.job_networks)
        and not _within(other, rules.hosts)
        and not _within(other, rules.slices.get(job.slice, ()))
    ):
        if job.slice == UNSLICED:
            why = f"{other} is in the job networks and of no job without a slice, and the job has none"
        else:
            why = f"{other} is in the job networks and not of the job's slice"
        return Refused(RuleKind.SLICE, why)
    if job.wan and not _within(other, rules.local_networks) and not _within(other, rules.exceptions.get(job.wan, ())):
        why = f"wan rule {job.wan} drops what is outside of the local networks, and {other} is no exception"
        return Refused(RuleKind.WAN, why)
    if not (job.outbound if sends else job.inbound):
        return Refused(RuleKind.CONNECTIVITY, f"the job may not {'call' if sends else 'be called'}")
    return None


def _within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)

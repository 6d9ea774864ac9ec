"""The addresses of live jobs that a policy's job networks leave out: they stay under the jobs' slices. Pure.

A job keeps its address when the policy changes. Slices close the job networks to other jobs, and nothing else: so where
another policy has other job networks, or hosts among them, the addresses that live jobs have elsewhere are job networks
as well, for as long as that policy is in force or until the controller starts without these jobs. Where it has no job
networks, edges ask about local addresses alone whose they are: so these are local then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from lark_common.errors import RuleLimitError
from lark_common.runs import Network
from lark_controller.flows.prefixes import (
    FULL,
    PrefixSet,
    bounds,
    minimal_cover,
    pack,
    packed,
    prefix_of,
    within,
)
from lark_controller.jobs.job import Job
from lark_controller.policies.model import Policy

# Each worker's switch has four flows and more of each, which are looked through by every packet.
MOST_PREFIXES: Final = 1024


class Closed(NamedTuple):
    """The networks, with other addresses than live jobs', and the entries of a policy's hosts that a start has closed
    to slices, since the addresses of live jobs were too many; ``remark`` is a sentence on that."""

    remark: str = ""
    networks: tuple[Network, ...] = ()
    hosts: tuple[Network, ...] = ()


NOTHING_CLOSED: Final = Closed()


class LiveAddresses(NamedTuple):
    """The addresses of live jobs that a policy leaves out of the networks that its slices close, and those that are its
    hosts'; what is left of its hosts without them, None where these are more parts than switches are to have.
    ``before`` has what the policy in force closes beside them."""

    policy: Policy
    outside: PrefixSet
    hosted: Collection[int]
    hosts: tuple[Network, ...] | None
    before: Closed = NOTHING_CLOSED

    @property
    def _too_many(self) -> bool:
        return self.hosts is None or len(self.outside) > MOST_PREFIXES

    def check(self) -> None:
        """Raises RuleLimitError where these are more prefixes than switches are to have, unless another policy closes
        no more by them than is closed now: it may be about something else."""
        if self._too_many and not self._is_closed():
            raise RuleLimitError(f"{self._told()}: have their networks in the policy until fewer of these jobs live")

    def closed(self) -> Closed:
        """The addresses of others that are closed, too, where these are too many."""
        if not self._too_many:
            return NOTHING_CLOSED
        also = " and in the same hosts" if self.hosts is None else ""
        remark = (
            f"{self._told()}, so others between them{also} are closed, too, until a policy that has these in its"
            " networks, or another policy or a start when fewer of these jobs live"
        )
        return Closed(remark, self._networks(), self._touched() if self.hosts is None else ())

    def enforced(self) -> Policy:
        """The policy with these addresses among the networks that its slices close, and among no hosts. Where they are
        too many, others are closed, too: nothing is open that is not to be."""
        if not self.outside and not self.hosted:
            return self.policy
        more = self._networks()
        if not self.policy.job_networks:
            return replace(self.policy, local_networks=(*self.policy.local_networks, *more))
        hosts = _untouched(self.policy.hosts, self.hosted) if self.hosts is None else self.hosts
        return replace(self.policy, job_networks=(*self.policy.job_networks, *more), hosts=hosts)

    def _networks(self) -> tuple[Network, ...]:
        """The networks that are closed for these addresses, those of before where they are too many again."""
        if len(self.outside) <= MOST_PREFIXES or (held := self._held()) is None:
            return self.outside.at_most(MOST_PREFIXES)
        return held

    def _held(self) -> tuple[Network, ...] | None:
        """The networks closed before that hold these addresses; None where one is in none of them."""
        closed, found = _prefixes(self.before.networks), set[int]()
        for prefix in self.outside:
            if (by := closed.covering(prefix)) is None:
                return None
            found.add(pack(by))
        return PrefixSet.of(found).networks()

    def _touched(self) -> tuple[Network, ...]:
        """The entries of hosts in which live jobs have addresses."""
        left = set(_untouched(self.policy.hosts, self.hosted))
        return tuple(each for each in self.policy.hosts if each not in left)

    def _is_closed(self) -> bool:
        """True where nothing is to be closed that the policy in force leaves open."""
        held = _prefixes(self.before.hosts)
        hosts = self.hosts is not None or all(held.covering(prefix_of(each)) for each in self._touched())
        return hosts and (len(self.outside) <= MOST_PREFIXES or self._held() is not None)

    def _told(self) -> str:
        key = "networks.jobs" if self.policy.job_networks else "networks.local"
        said = f"{len(self.outside)} prefixes that {key} leaves out" if len(self.outside) > MOST_PREFIXES else ""
        among = "more parts of networks.hosts" if self.hosts is None else ""
        return (
            f"the addresses of live jobs are {' and '.join(filter(None, (said, among)))}; at most {MOST_PREFIXES} stay"
            " closed to other slices by themselves"
        )


def live_addresses(
    policy: Policy, jobs: Iterable[Job], known: Policy | None = None, before: Closed = NOTHING_CLOSED
) -> LiveAddresses:
    """The addresses of these jobs that a policy leaves out, as the fewest prefixes.

    ``known``: the policy in force, which has them, and closes others beside them as ``before`` has it. Where the other
    one closes as much, no job is looked at.
    """
    none = LiveAddresses(policy, PrefixSet(), (), policy.hosts, before)
    if not policy.slices or (known is not None and _closes(policy, known)):
        return none
    networks, hosts = bounds(closed_networks(policy)), bounds(policy.hosts)
    outside, hosted = set[int](), set[int]()
    # Of addresses with the same bits in the longest mask all are alike, and there may be hundreds of thousands.
    masks = {of: max((mask for at, _, mask in (*networks, *hosts) if at == of), default=0) for of in FULL}
    alike: dict[tuple[int, int], set[int] | None] = {}
    for job in jobs:
        for address in job.addresses if job.has_pool_address else ():
            version, value = address.version, int(address)
            key = version, value & masks[version]
            try:
                found = alike[key]
            except KeyError:
                out = outside if not within(address, networks) else None
                found = alike[key] = hosted if out is None and within(address, hosts) else out
            if found is not None:
                found.add(packed((version, value)))
    return none._replace(outside=PrefixSet.of(outside), hosted=hosted, hosts=_parts(policy.hosts, hosted))


def with_live_addresses(policy: Policy, jobs: Iterable[Job], known: Policy | None = None) -> Policy:
    """A policy with the addresses of these jobs among the networks that its slices close, and among no hosts; itself
    where they are. ``known`` as in :func:`live_addresses`."""
    return live_addresses(policy, jobs, known).enforced()


def closed_networks(policy: Policy) -> tuple[Network, ...]:
    """The networks in which slices keep jobs apart: those of jobs, and where the policy has none the local ones."""
    return policy.job_networks or policy.local_networks


def left_out(policy: Policy, job: Job) -> str:
    """The reason why a job's addresses cannot be kept apart by its slice; ``""`` where they can."""
    if not policy.slices or not job.has_pool_address:
        return ""
    networks, hosts = bounds(closed_networks(policy)), bounds(policy.hosts)
    out = (each for each in job.addresses if not within(each, networks) or within(each, hosts))
    if (address := next(out, None)) is None:
        return ""
    if not policy.job_networks:
        return f"{address} is not in networks.local of the policy that comes, which has slices and no networks.jobs"
    return f"{address} is in no job network of the policy that comes, or is a host's there"


def _closes(policy: Policy, known: Policy) -> bool:
    """True where a policy with slices closes to them whatever another one does."""
    if not known.slices or (policy.hosts and set(policy.hosts) != set(known.hosts)):
        return False
    networks = closed_networks(policy)
    return all(
        any(
            each.version == net.version and net.prefixlen <= each.prefixlen and each.network_address in net
            for net in networks
        )
        for each in closed_networks(known)
    )


def _parts(hosts: tuple[Network, ...], hosted: Collection[int]) -> tuple[Network, ...] | None:
    """The hosts without these addresses of theirs, each packed; None where these are too many parts."""
    if not hosted:
        return hosts
    left = _prefixes(hosts)
    for taken in PrefixSet.of(hosted):
        left.remove(taken)
        if len(left) - len(hosts) > MOST_PREFIXES:
            return None
    return left.networks()


def _prefixes(networks: Iterable[Network]) -> PrefixSet:
    return PrefixSet.of([pack(prefix_of(network)) for network in minimal_cover(networks)])


def _untouched(hosts: tuple[Network, ...], hosted: Collection[int]) -> tuple[Network, ...]:
    """The entries of hosts that hold none of these addresses."""
    found = {of: sorted(key >> 9 for key in hosted if key & 1 == (of == 6)) for of in FULL}

    def holds(host: Network) -> bool:
        values, first = found[host.version], int(host.network_address)
        at = bisect_left(values, first)
        return at < len(values) and values[at] < first + host.num_addresses

    return tuple(host for host in hosts if not holds(host))

"""The addresses of live jobs that a policy's job networks leave out: they stay under the jobs' slices. Pure.

A job keeps its address when the policy changes. Slices close the job networks to other jobs, and nothing else: so where
another policy has other job networks, or hosts among them, the addresses that live jobs have elsewhere are job networks
as well, for as long as that policy is in force or until the controller starts without these jobs. Where it has no job
networks, edges ask about local addresses alone whose they are: so these are local then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from lark_common.errors import RuleLimitError
from lark_common.runs import Network
from lark_controller.flows.prefixes import FULL, PrefixSet, bounds, packed, within
from lark_controller.jobs.job import Job
from lark_controller.policies.model import Policy

# Each worker's switch has four flows and more of each, which are looked through by every packet.
MOST_PREFIXES: Final = 1024


def with_live_addresses(policy: Policy, jobs: Iterable[Job], known: Policy | None = None) -> Policy:
    """A policy with the addresses of these jobs among the networks that its slices close, and among no hosts; itself
    where they are.

    ``known``: the policy in force, which has them so. Where the other one closes as much, no job is looked at.
    """
    if not policy.slices or (known is not None and _closes(policy, known)):
        return policy
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
    if not outside and not hosted:
        return policy
    more = PrefixSet.of(outside).networks()
    if not policy.job_networks:
        return replace(policy, local_networks=(*policy.local_networks, *more))
    kept = list(policy.hosts)
    for taken in PrefixSet.of(hosted).networks():
        kept = [part for host in kept for part in _without(host, taken)]
    return replace(policy, job_networks=(*policy.job_networks, *more), hosts=tuple(kept))


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


def check_prefixes(policy: Policy, changed: Policy) -> None:
    """Raises RuleLimitError where a policy's networks, ``changed`` by :func:`with_live_addresses`, are too many."""
    more = len(closed_networks(changed)) - len(closed_networks(policy))
    if more > MOST_PREFIXES:
        key = "networks.jobs" if policy.job_networks else "networks.local"
        raise RuleLimitError(
            f"{key} leaves out addresses of live jobs, which are {more} prefixes and stay closed to other"
            f" slices; at most {MOST_PREFIXES} are: keep their networks until fewer of these jobs live"
        )


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


def _without(host: Network, taken: Network) -> Iterator[Network]:
    """The parts of a network that are not in another one."""
    if not host.overlaps(taken):
        yield host
    elif host.prefixlen < taken.prefixlen:
        for half in host.subnets():
            yield from _without(half, taken)

"""The addresses of live jobs that a policy's job networks leave out: they stay under the jobs' slices. Pure.

A job keeps its address when the policy changes. Slices close the job networks to other jobs, and nothing else: so where
another policy has other job networks, or hosts among them, the addresses that live jobs have elsewhere are job networks
as well, for as long as that policy is in force or until the controller starts without these jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from lark_common.errors import RuleLimitError
from lark_common.runs import Address, Network
from lark_controller.flows.prefixes import FULL, Prefix, PrefixSet, pack
from lark_controller.jobs.job import Job
from lark_controller.policies.model import Policy

# Each worker's switch has four flows and more of each, which are looked through by every packet.
MOST_PREFIXES: Final = 1024


def with_live_addresses(policy: Policy, jobs: Iterable[Job]) -> Policy:
    """A policy with the addresses of these jobs among its job networks, and among no hosts; itself where they are."""
    if not policy.slices or not policy.job_networks:
        return policy
    networks, hosts = _bounds(policy.job_networks), _bounds(policy.hosts)
    found = PrefixSet.of(
        {
            pack(Prefix(address.version, int(address), FULL[address.version]))
            for job in jobs
            for address in job.addresses
            if job.has_pool_address and _is_out(address, networks, hosts)
        }
    ).networks()
    if not found:
        return policy
    kept = list(policy.hosts)
    for taken in found:
        kept = [part for host in kept for part in _without(host, taken)]
    outside = [each for each in found if not _within(each.network_address, networks)]
    return replace(policy, job_networks=(*policy.job_networks, *outside), hosts=tuple(kept))


def left_out(policy: Policy, job: Job) -> str:
    """The reason why a job's addresses cannot be kept apart by its slice; ``""`` where they can."""
    if not policy.slices or not policy.job_networks or not job.has_pool_address:
        return ""
    networks, hosts = _bounds(policy.job_networks), _bounds(policy.hosts)
    address = next((each for each in job.addresses if _is_out(each, networks, hosts)), None)
    return "" if address is None else f"{address} is in no job network of the policy that comes, or is a host's there"


def check_prefixes(policy: Policy, changed: Policy) -> None:
    """Raises RuleLimitError where a policy's job networks, ``changed`` by :func:`with_live_addresses`, are too many."""
    more = len(changed.job_networks) - len(policy.job_networks)
    if more > MOST_PREFIXES:
        raise RuleLimitError(
            f"networks.jobs leaves out addresses of live jobs, which are {more} prefixes and stay closed to other"
            f" slices; at most {MOST_PREFIXES} are: keep their networks until fewer of these jobs live"
        )


_Bounds = tuple[tuple[int, int, int], ...]


def _bounds(networks: Iterable[Network]) -> _Bounds:
    """Networks as integers, since there may be many jobs: version, first address, mask."""
    return tuple((each.version, int(each.network_address), int(each.netmask)) for each in networks)


def _within(address: Address, networks: _Bounds) -> bool:
    version, value = address.version, int(address)
    return any(version == of and value & mask == first for of, first, mask in networks)


def _is_out(address: Address, networks: _Bounds, hosts: _Bounds) -> bool:
    return not _within(address, networks) or (bool(hosts) and _within(address, hosts))


def _without(host: Network, taken: Network) -> Iterator[Network]:
    """The parts of a network that are not in another one."""
    if not host.overlaps(taken):
        yield host
    elif host.prefixlen < taken.prefixlen:
        for half in host.subnets():
            yield from _without(half, taken)

"""Live jobs as their users' reach depends on them: their decisions, and the WAN rules that take them for the WAN."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from lark_common.runs import Address, NetworkType
from lark_controller.flows.prefixes import bounds, within
from lark_controller.flows.wan import local_networks, worker_address
from lark_controller.jobs.job import Job
from lark_controller.policies.decide import Decider
from lark_controller.policies.model import Policy, WanAction
from lark_controller.policies.reach import Closed, Deciding, Versions
from lark_controller.services.policy_plan import Pace

# The IP versions of a job's addresses, by whether it has one of each.
_VERSIONS: Final[Mapping[tuple[bool, bool], Versions]] = {
    (False, False): frozenset(),
    (True, False): frozenset({4}),
    (False, True): frozenset({6}),
    (True, True): frozenset({4, 6}),
}
_NONE: Final[Closed] = frozenset()


def decided(decider: Decider, policy: Policy, jobs: Iterable[Job], pace: Pace) -> Iterator[Deciding]:
    """The jobs with what is decided of them; ``policy`` is the decider's, with live jobs' addresses among its job
    networks. Raises BusyError where it takes too long."""
    wan = _Wan(policy)
    worker = wan.closed(worker_address(policy, version) for version in (4, 6))
    for job in jobs:
        pace.step()
        yield Deciding(
            job.owner,
            decider.of(job),
            job.network_type,
            job.host,
            job.vlan,
            _VERSIONS[job.ipv4 is not None, job.ipv6 is not None],
            # Packets that leave by NAT have the worker's address.
            worker if job.network_type is NetworkType.NAT else wan.closed(job.addresses),
        )


class _Wan:
    """The WAN of a policy, as its rules that drop have it."""

    def __init__(self, policy: Policy) -> None:
        # Most addresses are of job networks.
        self._local = bounds((*policy.job_networks, *local_networks(policy)))
        self._exceptions = {
            rule.position: bounds(rule.exceptions) for rule in policy.wans if rule.action is WanAction.DROP
        }

    def closed(self, addresses: Iterable[Address]) -> Closed:
        """The rules that drop what their jobs exchange with one of these addresses."""
        if not self._exceptions:
            return _NONE
        outside = [address for address in addresses if not within(address, self._local)]
        if not outside:
            return _NONE
        return frozenset(
            (position, address.version)
            for address in outside
            for position, exceptions in self._exceptions.items()
            if not within(address, exceptions)
        )

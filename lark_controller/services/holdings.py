"""The switch ports, addresses and blocks that live jobs have, by one policy."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from lark_controller.jobs.addresses import BlockAllocator
from lark_controller.jobs.job import Job
from lark_controller.policies.model import Policy
from lark_controller.services.described_job import Place, place_of


class Holdings:
    """Notes which live job has which port, address and block. ``blocks`` gives addresses.

    Not thread-safe: the caller has the lock of whoever changes jobs.
    """

    def __init__(self, policy: Policy | None = None, jobs: Iterable[Job] = ()) -> None:
        # The id of the live job at each switch port: a switch could not distinguish two jobs at one port.
        self._ports: dict[Place, dict[str, str]] = {}
        self.blocks = BlockAllocator((), (26, 122))
        if policy is not None:
            reserved = [address for network in policy.hosts for address in network]
            self.blocks = BlockAllocator(policy.job_networks, policy.block_prefixes, reserved)
        for job in jobs:
            self.hold(job)

    def at(self, place: Place, port: str) -> str | None:
        """The id of the live job at a port; None where there is none."""
        return self._ports.get(place, {}).get(port)

    def hold(self, job: Job) -> None:
        """Take note of what a live job has."""
        if job.port is not None:
            place = place_of(job)
            if (ports := self._ports.get(place)) is None:
                ports = self._ports[place] = {}
            ports[job.port] = job.id
        if not job.has_pool_address:
            return
        for address, block in job.blocks:
            # An address that was assigned a moment ago is held already.
            self.blocks.keep(address, block, job.group, job.owner)

    def release(self, job: Job) -> None:
        """Forget what a job had."""
        if job.port is not None and (ports := self._ports.get(place_of(job))) is not None:
            if ports.get(job.port) == job.id:
                del ports[job.port]
            if not ports:
                del self._ports[place_of(job)]
        if job.has_pool_address:
            for address in job.addresses:
                self.blocks.release(address)


def addressing(policy: Policy) -> Hashable:
    """All that addresses are given by."""
    return policy.job_networks, policy.block_prefixes, policy.hosts

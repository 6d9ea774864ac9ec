"""The run that two ads describe, and the mistakes in it under a policy. Pure."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import Final

from lark_common.classads.ads import JobAd, MachineAd
from lark_common.errors import AddressError, AdError
from lark_common.runs import AddressType, NetworkType, RunKey
from lark_common.shared_texts import shared
from lark_controller.jobs.job import Facts, Job
from lark_controller.policies.facts import facts
from lark_controller.policies.model import Policy

# Live jobs of one host: several times those of the largest worker. Whoever has a worker's token could fill memory, job
# networks and the database with ever more of them.
MOST_OF_HOST: Final = 4096

Names = tuple[frozenset[str], frozenset[str]]
# A switch by datapath id, or by the host's name where that is not given.
Place = int | str


@lru_cache(maxsize=8)
def names_digest(names: Names) -> str:
    """A mark beside stored facts, by which to tell whether they were taken for these attribute names."""
    text = "\n".join((",".join(sorted(names[0])), ",".join(sorted(names[1]))))
    return sha256(text.encode()).hexdigest()[:16]


def described(job_ad: JobAd, machine_ad: MachineAd, names: Names, now: float, lease_until: float) -> Job:
    """The run that ads describe, with the attributes ``names``; its number is the store's to say."""
    run = RunKey(job_ad.global_job_id, job_ad.started, machine_ad.slot)
    taken: Facts = facts(job_ad, machine_ad, names)
    return Job(
        number=0,
        run=run,
        id=run.id,
        # Many jobs have these in common.
        owner=shared(job_ad.owner),
        user=shared(job_ad.user),
        group=shared(job_ad.group),
        cluster=job_ad.cluster,
        proc=job_ad.proc,
        host=shared(machine_ad.machine),
        network_type=NetworkType(machine_ad.network_type),
        address_type=AddressType(machine_ad.address_type),
        ipv4=machine_ad.ipv4,
        ipv6=machine_ad.ipv6,
        datapath=machine_ad.datapath,
        port=None if machine_ad.port is None else shared(machine_ad.port),
        mac=machine_ad.mac,
        vlan=machine_ad.vlan,
        bandwidth=job_ad.bandwidth,
        inbound=job_ad.inbound,
        outbound=job_ad.outbound,
        lease_until=lease_until,
        created=now,
        facts=taken,
    )


def place_of(job: Job) -> Place:
    """The switch of a job's port, where the ad names it (the host in a post is not trusted); else the host."""
    return job.host.lower() if job.datapath is None else job.datapath


def check_switch(policy: Policy, job: Job) -> None:
    """Raises AdError where the job's switch is that of another host."""
    spec = None if job.datapath is None else policy.switches.get(job.datapath)
    if spec is not None and spec.host is not None and spec.host.lower() != job.host.lower():
        raise AdError("LarkDatapathId", f"switch {spec.name} is that of {spec.host}, and the job's host is {job.host}")


def check_room(here: int, job: Job) -> None:
    """Raises AddressError where a host has as many live jobs already as one worker may have."""
    if here >= MOST_OF_HOST:
        raise AddressError("Machine", f"{job.host} has {here} live jobs; at most {MOST_OF_HOST} of a host are accepted")


def check_networks(policy: Policy, job: Job) -> None:
    """Raises AdError for an address outside the job networks, or one of a host; and where slices have local networks
    alone to hold in, for one that is not local."""
    if not job.has_pool_address:
        return
    for address in job.addresses if policy.slices and not policy.job_networks else ():
        if not any(address in network for network in policy.local_networks):
            raise AdError(
                f"LarkInnerAddressIPv{address.version}",
                f"{address} is not in networks.local of the policy, which has slices and no networks.jobs: switches ask"
                " about local addresses alone whose they are",
            )
    for address in job.addresses if policy.job_networks else ():
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

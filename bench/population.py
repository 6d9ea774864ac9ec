"""A realistic pool: 1,000 workers, 200 users in 20 groups, slices by Owner, WAN rules, a few prefixes a user."""

from __future__ import annotations

import random
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path
from types import MappingProxyType
from typing import Final

from lark_common.runs import AddressType, RunKey
from lark_controller.flows.model import PORT_LOCAL
from lark_controller.flows.placement import Switch, place_switch
from lark_controller.jobs.addresses import BlockAllocator
from lark_controller.jobs.job import Facts, Job
from lark_controller.policies.file import load

WORKERS: Final = 1000
USERS: Final = 200
GROUPS: Final = 20
CORE: Final = 0xC0DE
# Ports of a worker's bridge: the uplink, and one for each job that may run there at the same time.
PORTS: Final = 256
FIRST_PORT: Final = 10
STARTED: Final = 1_700_000_000
# A job's ad as a starter of HTCondor 25 gives it to its hooks, and its slot's ad as the worker service posts it: as
# many attributes, of the same kinds, as these have. Private ones and expressions are among them.
_JOB_AD: Final = Path(__file__).with_name("starter_ads").joinpath("job.ad").read_text("ascii")
_MACHINE_AD: Final = Path(__file__).with_name("starter_ads").joinpath("machine.ad").read_text("ascii")


def policy_text(block: int = 22, *, steered: str = "group_03", extra: str = "") -> str:
    """The pool's policy; ``block`` is the prefix length of the blocks that addresses come from."""
    groups = "\n".join(f"  group_{number:02d}: {{ceiling: {50 + number}Mbit}}" for number in range(GROUPS - 1))
    return f"""\
version: 1
networks:
  jobs: [10.64.0.0/10]
  local: [10.0.0.0/8]
  block_prefix: {{ipv4: {block}}}
edge: {{uplinks: ["eth*"]}}
switches:
  core1: {{datapath: "{CORE:016x}", role: core, ports: {{lan: 1, wan: 2, wan-fast: 3}}, max_rules: 4096}}
policies:
  - block: {{when: 'Owner == "user199"'}}
  - slice: {{by: Owner}}
  - wan: {{when: 'Owner == "user017"', action: drop, except: [192.0.2.1]}}
  - wan: {{when: 'AcctGroup == "{steered}"', port: wan-fast}}
{extra}groups:
{groups}
  default: {{ceiling: 40Mbit}}
"""


def user_of(number: int, workers: int = WORKERS) -> str:
    """The user of a job; users take turns, so that every worker has jobs of many."""
    return f"user{(number * 7 + number // workers * 13) % USERS:03d}"


def group_of(user: str) -> str:
    """The accounting group of a user."""
    return f"group_{int(user[4:]) % GROUPS:02d}"


def worker_of(number: int, workers: int = WORKERS) -> int:
    """The datapath id of the worker that a job runs on."""
    return number % workers + 1


def port_of(number: int, workers: int = WORKERS) -> str:
    """The job's port on its worker."""
    return f"job{number // workers % PORTS}"


def ports() -> dict[str, int]:
    """The ports of every worker's bridge, by name."""
    return {"eth0": 1, "local": PORT_LOCAL, **{f"job{number}": FIRST_PORT + number for number in range(PORTS)}}


def facts_for(owner: str, group: str) -> Facts:
    """The facts that the policy asks for."""
    return Facts((("acctgroup", f'"{group}"'), ("owner", f'"{owner}"')))


def jobs(count: int, block: int | None, first: int = 1, workers: int = WORKERS) -> Iterator[Job]:
    """Jobs by number from ``first`` on: with addresses out of blocks of that prefix length, or (None) scattered."""
    policy = load(policy_text(block or 22))
    blocks = BlockAllocator(policy.job_networks, policy.block_prefixes)
    scattered = iter(() if block else random.Random(1).sample(range(1 << 22), first + count))
    base = int(policy.job_networks[0].network_address)
    shared: dict[str, Facts] = {}
    for number in range(1, first + count):
        owner = user_of(number, workers)
        group = group_of(owner)
        if block is None:
            address, reserved = IPv4Address(base + next(scattered)), None
        else:
            given = blocks.assign(4, group, owner)
            assert isinstance(given.address, IPv4Address)
            address, reserved = given.address, given.block
        if number < first:
            continue
        worker = worker_of(number, workers)
        run = RunKey(f"submit.example#{number}.0#{STARTED}", STARTED, f"slot1_{number // workers}@worker{worker}")
        yield Job(
            number, run, run.id, owner, f"{owner}@example", group, number, 0, f"worker{worker}",
            address_type=AddressType.STATIC if block is None else AddressType.CONTROLLER,
            ipv4=address,
            ipv4_block=reserved,  # type: ignore[arg-type]  # of the address's version
            datapath=worker,
            port=port_of(number, workers),
            mac=f"02:00:00:{number >> 16 & 255:02x}:{number >> 8 & 255:02x}:{number & 255:02x}",
            facts=shared.setdefault(owner, facts_for(owner, group)),
        )  # fmt: skip


def ads(job: Job) -> str:
    """A hook's post for a job: both ads as a starter has them. The address is left to the controller where it gives
    addresses."""
    draw = random.Random(job.number)
    started = job.run.started
    memory = draw.choice((2048, 4096, 8192))
    slot = job.run.slot.partition("@")[0]
    values = {
        "global": job.run.global_job_id, "started": started, "cluster": job.cluster, "owner": job.owner,
        "user": job.user, "group": job.group, "host": job.host, "name": job.run.slot, "slot": slot,
        "number": job.number, "place": job.number % 250 + 1, "queued": started - draw.randrange(86_400),
        "memory": memory, "used": draw.randrange(memory), "disk": draw.randrange(100_000, 9_000_000),
        "key": f"{draw.getrandbits(128):032x}", "seconds": draw.randrange(100_000), "load": draw.randrange(100),
        "address_type": job.address_type, "mac": job.mac, "port": job.port, "datapath": f"{job.datapath:016x}",
    }  # fmt: skip
    address = "" if job.address_type is AddressType.CONTROLLER else f'LarkInnerAddressIPv4 = "{job.ipv4}"\n'
    return f"{_JOB_AD % values}------\n{_MACHINE_AD % values}{address}"


def short_ads(job: Job) -> tuple[str, str]:
    """The least of a job ad and of a machine ad, for a pool's jobs that are in the database beforehand."""
    job_ad = (
        f'GlobalJobId = "{job.run.global_job_id}"\nJobCurrentStartDate = {job.run.started}\n'
        f'ClusterId = {job.cluster}\nProcId = 0\nOwner = "{job.owner}"\nUser = "{job.user}"\n'
        f'AcctGroup = "{job.group}"\nJobPrio = 0\nCmd = "/usr/bin/simulate"\nRequestCpus = 1\nRequestMemory = 2048\n'
    )
    machine_ad = (
        f'Machine = "{job.host}"\nName = "{job.run.slot}"\nLarkNetworkType = "ovs_bridge"\n'
        f'LarkAddressType = "{job.address_type}"\nLarkInnerMacAddress = "{job.mac}"\n'
        f'LarkExternalInterface = "{job.port}"\nLarkDatapathId = "{job.datapath:016x}"\nCpus = 1\nMemory = 4096\n'
    )
    return job_ad, machine_ad


def switches(text: str) -> Iterator[Switch]:
    """Every switch of the pool as it is placed when it has connected."""
    policy = load(text)
    named = MappingProxyType(ports())
    for datapath in range(1, WORKERS + 1):
        yield place_switch(policy, datapath, named, normal=True, tracks=False, max_meter=0)
    yield place_switch(policy, CORE, {"p1": 1, "p2": 2, "p3": 3}, normal=True, tracks=False, max_meter=1024)

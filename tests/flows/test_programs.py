"""Whole programs of switches, flow by flow, and the rules of a worker, as ``tests/flows/programs/`` has them.

Where a change of the tables is meant, ``python -m tests.flows.test_programs`` writes the files anew; the difference is
read flow by flow before it is committed, since these are the packets that pass and that do not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest

from lark_common.runs import AddressType, NetworkType
from lark_common.worker_rules import WaysOut, to_json
from lark_controller.flows.desired import Desired
from lark_controller.flows.drop_sources import drop_sources
from lark_controller.flows.model import Program
from lark_controller.flows.packet_in_answer import answer
from lark_controller.flows.placement import Switch, place_switch
from lark_controller.flows.tables import Edge
from lark_controller.flows.text import flow_text, key_text
from lark_controller.jobs.external import External, listed
from lark_controller.jobs.job import Job, ReservedFlow
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from lark_controller.qos.worker_queues import Claim
from tests.flows.test_desired import a_job

FOLDER: Final = Path(__file__).with_name("programs")
EDGE, CORE = 1, 0xC0
HEAD = """\
version: 1
networks:
  jobs: [10.64.0.0/16, "2001:db8:64::/48"]
  hosts: [10.64.255.1]
  local: [10.0.0.0/8]
"""
RULES = """\
policies:
  - block: {when: 'Owner == "mallory"'}
  - slice: {by: Owner, when: 'Owner != "carol"'}
  - wan: {when: 'Owner == "bob"', action: drop, except: [192.0.2.1, "2001:db9::/32"]}
  - wan: {when: 'Owner == "carol"', port: wan-fast}
  - wan: {action: allow}
  - connectivity: {inbound: requested, outbound: requested}
  - bandwidth: {mode: guarantee, when: 'Owner == "bob"', default: 10}
groups:
  cms: {ceiling: 250Mbit, guarantee: 50, dscp: 18}
  atlas: {queue: 7, ceiling: 20, dscp: 20}
  default: {dscp: 3}
"""
CORES = """\
switches:
  c:
    datapath: "00000000000000c0"
    role: core
    groups_by: %s
    ports:
      lan: 1
      wan: {port: 2, next_hop: "02:00:00:00:ff:02", backup: wan-fast}
      wan-fast: {port: 3, next_hop: "02:00:00:00:ff:03", speed: 100}
"""
OPEN = """\
version: 1
networks: {local: [10.0.0.0/8, "fd00::/8"], hosts: []}
policies:
  - slice: {by: Owner}
  - connectivity: {inbound: deny, when: 'Owner == "bob"'}
"""


def switch(text: str, datapath: int, **more: Any) -> Switch:
    edge = {"uplink": 1, "eth1": 4, "br0": 0xFFFFFFFE, **{f"p{number}": 100 + number for number in range(1, 16)}}
    ports = more.pop("ports", edge) if datapath == EDGE else {"a": 1, "b": 2, "c": 3}
    given = {"normal": True, "tracks": True, "max_meter": 30, "local_mac": 0x020000000101} | more
    return place_switch(load(text), datapath, MappingProxyType(ports), description="worker1", **given)


def desired(text: str, jobs: Iterable[Job], *switches: Switch, queues: dict[Claim, int] | None = None) -> Desired:
    policy = load(text)
    found, decide = Desired(policy), Decider(policy)
    for each in switches:
        found.set_switch(each, ["worker1"] if each.datapath == EDGE else [])
    for claim, number in (queues or {}).items():
        found.queues[claim] = number
    for job in jobs:
        found.put(job, decide.decide(job.facts))
    return found


def of_owner(number: int, owner: str, group: str = "cms", **more: Any) -> Job:
    return a_job(number, owner=owner, group=group, ipv6=None, **more)


def some_jobs() -> list[Job]:
    both = IPv4Network("10.64.0.8/30")
    return [
        of_owner(1, "alice"),
        of_owner(2, "alice", "atlas", vlan=7),
        of_owner(3, "bob", bandwidth=5.0),
        of_owner(4, "carol", "nobody"),
        of_owner(5, "mallory"),
        of_owner(6, "alice", inbound=False),
        of_owner(7, "carol", outbound=False, address_type=AddressType.DHCP, ipv4=None),
        of_owner(8, "dave", ipv4=IPv4Address("10.64.0.8"), ipv4_block=both, inbound=False, outbound=False),
        of_owner(9, "dave", ipv4=IPv4Address("10.64.0.9"), ipv4_block=both,
                 reserved=(ReservedFlow(1, 2000, (IPv4Network("192.0.2.7/32"),)), ReservedFlow(2, 5))),
        of_owner(10, "alice", datapath=9, host="worker9"),
        a_job(12, owner="alice", vlan=7, ipv6=IPv6Address("2001:db8:64::c"), address_type=AddressType.DHCP),
        a_job(13, owner="alice", ipv6=IPv6Address("2001:db8:64::d"), mac=None),
        of_owner(14, "alice", "atlas", port="gone"),
    ]  # fmt: skip


def six_job(number: int, owner: str, **more: Any) -> Job:
    return a_job(number, owner=owner, ipv4=None, ipv6=IPv6Address("2001:db8:64::") + number, **more)


QUEUES = {Claim.of_job(3): 5, Claim.of_flow(1): 0x8001, Claim.of_flow(2): 0x8002}


def written(program: Program) -> str:
    flows = sorted(program.flows.items(), key=lambda item: (item[0].table, -item[0].priority, item[0]))
    lines = [flow_text(key, data) for key, data in flows]
    meters = [f"meter={m.number},rate={m.rate},burst={m.burst}" for _, m in sorted(program.meters.items())]
    return "\n".join([*lines, *meters]) + "\n"


def edge() -> str:
    text = HEAD + CORES % "meters" + RULES
    there = desired(text, [*some_jobs(), six_job(11, "bob")], switch(text, EDGE), queues=QUEUES)
    return written(there.build(EDGE))


def plain_edge() -> str:
    """An edge without connection tracking and NORMAL."""
    text = HEAD + CORES % "meters" + RULES
    return written(desired(text, some_jobs()[:8], switch(text, EDGE, tracks=False, normal=False)).build(EDGE))


def open_edge() -> str:
    """An edge where jobs have no networks of their own."""
    jobs = [of_owner(1, "alice"), of_owner(2, "bob"), six_job(3, "bob")]
    return written(desired(OPEN, jobs, switch(OPEN, EDGE)).build(EDGE))


def edge_with_one_uplink() -> str:
    """An edge with one uplink, which forwards without learning, and a job of either version."""
    ports = {"uplink": 1, "br0": 0xFFFFFFFE, "p1": 101, "p11": 111}
    there = desired(OPEN, [of_owner(1, "alice"), six_job(11, "bob")], switch(OPEN, EDGE, ports=ports))
    return written(there.build(EDGE))


def core(control: str, **more: Any) -> str:
    text = HEAD + CORES % control + RULES
    there = desired(text, [*some_jobs(), six_job(11, "bob")], switch(text, EDGE), switch(text, CORE, **more))
    there.group_queues[CORE] = frozenset({18, 20})
    return written(there.build(CORE))


def worker() -> str:
    kinds: dict[str, Any] = {"network_type": NetworkType.NAT, "datapath": None}
    bridge: dict[str, Any] = {"network_type": NetworkType.BRIDGE, "datapath": None}
    jobs = [
        of_owner(1, "alice", **kinds), of_owner(2, "bob", bandwidth=5.0, **bridge),
        of_owner(3, "mallory", **kinds), of_owner(4, "alice", inbound=False, **kinds), six_job(5, "carol", **kinds),
        of_owner(6, "dave", **kinds, reserved=(
            ReservedFlow(1, 2000, (IPv4Network("192.0.2.7/32"),)), ReservedFlow(2, 5000, incoming=True),
            ReservedFlow(4, 100, incoming=True),
        )),
        of_owner(7, "bob", **bridge, reserved=(
            ReservedFlow(3, 1000), ReservedFlow(4, 100, (IPv4Network("10.64.0.6/32"),)),
        )),
        of_owner(8, "bob", **kinds, bandwidth=85.0),
    ]  # fmt: skip
    text = HEAD + CORES % "meters" + RULES
    return json.dumps(to_json(desired(text, jobs).worker_rules("worker1", WaysOut({"eth0": 100.0}))), indent=1) + "\n"


def open_worker() -> str:
    """A worker of a policy without groups and networks of jobs, whose uplinks are not known."""
    kinds: dict[str, Any] = {"network_type": NetworkType.NAT, "datapath": None}
    jobs = [of_owner(1, "alice", vlan=9, **kinds), of_owner(2, "alice", **kinds), six_job(3, "bob", **kinds)]
    return json.dumps(to_json(desired(OPEN, jobs).worker_rules("worker1")), indent=1) + "\n"


EXTERNAL = """\
external:
  pools:
    near: {networks: [198.51.100.64/28, 198.51.100.96/32], port: wan}
    far: {networks: [203.0.113.0/30], port: wan-slow}
    all: [192.0.2.64/31]
  rules: [{pool: all, open: [any]}, {family: ipv6, open: [any]}]
"""
OUTSIDE = """\
switches:
  c:
    datapath: "00000000000000c0"
    role: core
    ports: {lan: 1, wan: {port: 2, next_hop: "02:00:00:00:ff:02"}, wan-slow: 3}
policies:
  - wan: {when: 'Owner == "bob"', action: drop}
  - wan: {when: 'Owner == "carol"', port: wan-slow}
  - connectivity: {inbound: deny, when: 'Owner == "carol"'}
  - connectivity: {inbound: deny, outbound: deny, when: 'Owner == "mallory"'}
"""


def reached(number: int, owner: str, openings: str, *addresses: str) -> Job:
    """A job with external addresses on which this is open."""
    external = tuple(External(ip_address(address), listed(openings), "", number) for address in addresses)
    return a_job(number, owner=owner, ipv6=IPv6Address("2001:db8:64::") + number, external=external)


def reached_jobs() -> list[Job]:
    own = [f"2001:db8:64::{number:x}" for number in range(9)]
    return [
        reached(1, "alice", "tcp/80 udp/5000-5003", "198.51.100.65", own[1]),
        reached(2, "bob", "icmp", "203.0.113.1", own[2]),
        reached(3, "carol", "any", "192.0.2.64", own[3]),
        reached(4, "alice", "tcp udp/7", "198.51.100.96", "203.0.113.2", own[4]),
        reached(5, "mallory", "any", "192.0.2.65", own[5]),
    ]


def reached_core() -> str:
    """A core with external addresses of jobs that are steered, dropped, and isolated."""
    text = HEAD + OUTSIDE + EXTERNAL
    return written(desired(text, reached_jobs(), switch(text, CORE)).build(CORE))


def reached_edge(accounting: str = "all") -> str:
    """An edge with open IPv6 addresses of jobs."""
    text = f"{HEAD}accounting: {accounting}\n{OUTSIDE}{EXTERNAL}"
    return written(desired(text, reached_jobs(), switch(text, EDGE)).build(EDGE))


def answers() -> str:
    """Answers to PacketIns, of both versions and ways."""
    found = [
        answer(table, 5, version, address, arp, allowed, solicited=solicited)
        for table in (Edge.SLICE_FROM, Edge.SLICE_TO)
        for version, address, arp, solicited in (
            (4, 0x0A000005, False, False), (4, 0x0A000005, True, False), (6, 0xFD << 120 | 5, False, False),
            (6, 0xFD << 120 | 5, False, True),
        )
        for allowed in (True, False)
    ]  # fmt: skip
    # The number in the cookie is a hash, which another Python may make otherwise.
    return "".join(f"{flow_text(key, data._replace(cookie=data.cookie >> 40 << 40))}\n" for key, data in found)


def drops() -> str:
    """The shared flows that drop, each with its kind of rule, the rule's position, and the direction."""
    text = HEAD + CORES % "meters" + RULES
    found = drop_sources(load(text), tracks=switch(text, EDGE).tracks)
    return "".join(f"{key_text(key)}: {kind} {place} {'in' if inward else 'out'}\n"
                   for key, (kind, place, inward) in sorted(found.items()))  # fmt: skip


PROGRAMS: Final[dict[str, Callable[[], str]]] = {
    "edge.txt": edge,
    "edge-without-tracking.txt": plain_edge,
    "edge-without-networks.txt": open_edge,
    "edge-with-one-uplink.txt": edge_with_one_uplink,
    "core-meters.txt": lambda: core("meters"),
    "core-queues.txt": lambda: core("queues"),
    "core-without-normal.txt": lambda: core("preprovisioned", normal=False, max_meter=0),
    "worker.json": worker,
    "worker-without-groups.json": open_worker,
    "drops.txt": drops,
    "edge-with-open-addresses.txt": reached_edge,
    "edge-with-open-addresses-uncounted.txt": lambda: reached_edge("none"),
    "core-with-external-addresses.txt": reached_core,
    "answers.txt": answers,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_whole_program(name: str) -> None:
    assert PROGRAMS[name]().splitlines() == (FOLDER / name).read_text().splitlines()


if __name__ == "__main__":
    for name, program in PROGRAMS.items():
        (FOLDER / name).write_text(program())

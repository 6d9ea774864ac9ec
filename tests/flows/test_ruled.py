"""Hosts whose rules change when a job comes, changes or goes that its worker alone enforces."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, ip_address, ip_network
from typing import Any

import pytest

from lark_common.runs import AddressType, NetworkType
from lark_common.worker_rules import JobRules, WorkerRules, from_json, to_json
from lark_controller.flows.desired import Desired
from lark_controller.flows.worker_rules import permits, unsupported
from lark_controller.jobs.job import Job, JobState, ReservedFlow
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from lark_controller.policies.model import SliceKey
from tests.flows.test_desired import FULL, a_job, facts_of

HOST = "worker1"


def a_bridge_job(number: int, **changes: Any) -> Job:
    return a_job(number, **{"datapath": None, "network_type": NetworkType.BRIDGE, **changes})


class Site:
    """Jobs, and the hosts whose rules changed with each."""

    def __init__(self) -> None:
        self.desired, self._decider = Desired(load(FULL)), Decider(load(FULL))

    def put(self, job: Job) -> dict[str, set[int]]:
        self.desired.put(job, self._decider.decide(job.facts))
        return self.desired.ruled.take()

    def remove(self, number: int) -> dict[str, set[int]]:
        self.desired.remove(number)
        return self.desired.ruled.take()


def test_a_job_that_comes_and_goes_changes_its_host() -> None:
    site = Site()
    assert site.put(a_bridge_job(1)) == {HOST: {1}}
    assert site.desired.ruled.hosts() == [HOST]
    assert site.desired.ruled.numbers(HOST) == {1}
    assert site.remove(1) == {HOST: set()}
    assert site.desired.ruled.hosts() == []
    assert site.remove(1) == {}
    assert site.put(a_job(2)) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"network_type": NetworkType.NAT},
        {"address_type": AddressType.DHCP},
        {"ipv4": IPv4Address("10.64.0.9")},
        {"mac": "02:00:00:00:00:99"},
        {"vlan": 7},
        {"bandwidth": 10.0},
        {"reserved": (ReservedFlow(1, 1000),)},
        {"facts": facts_of("mallory", "cms", True, True)},
        {"facts": facts_of("alice", "atlas", True, True)},
    ],
    ids=str,
)
def test_what_a_worker_enforces_changes_its_rules(changes: dict[str, Any]) -> None:
    site = Site()
    site.put(a_bridge_job(1))
    assert site.put(replace(a_bridge_job(1), **changes)) == {HOST: {1}}
    assert site.put(replace(a_bridge_job(1), **changes)) == {}
    assert site.desired.ruled.numbers(HOST) == {1}


def test_what_no_worker_enforces_changes_none() -> None:
    site = Site()
    job = a_bridge_job(1)
    site.put(job)
    for changes in ({"state": JobState.ENFORCED}, {"reason": "as well"}, {"lease_until": 99.0}, {"vouched": True}):
        assert site.put(replace(job, **changes)) == {}


def test_a_job_at_another_host_changes_both() -> None:
    site = Site()
    site.put(a_bridge_job(1))
    site.put(a_bridge_job(2))
    assert site.put(a_bridge_job(1, host="worker2")) == {HOST: set(), "worker2": {1}}
    assert site.desired.ruled.numbers(HOST) == {2}
    assert site.desired.ruled.numbers("worker2") == {1}
    assert site.put(a_job(2)) == {HOST: set()}
    assert site.desired.ruled.hosts() == ["worker2"]


def test_a_slice_that_grows_elsewhere_changes_the_hosts_of_its_jobs() -> None:
    site = Site()
    site.put(a_bridge_job(1))
    site.put(a_bridge_job(2, host="worker2", owner="bob"))
    block = IPv4Network("10.64.0.8/29")
    assert site.put(a_job(8, datapath=3, ipv4_block=block)) == {HOST: set()}
    assert site.put(a_job(9, datapath=3, ipv4_block=block)) == {}
    assert site.put(a_job(16, datapath=3, owner="bob")) == {"worker2": set()}
    assert site.remove(16) == {"worker2": set()}
    site.remove(1)
    assert site.remove(8) == {}
    assert site.remove(9) == {}


STEERED = """
version: 1
networks: {NETWORKS}
switches: {core1: {datapath: "00000000000000c0", role: core, ports: {lan: 1, wan: 2, wan-fast: 3}}}
policies:
  - wan: {when: 'Owner == "bob"', action: drop}
  - wan: {when: 'Owner == "carol"', port: wan-fast}
  - slice: {by: Owner, when: 'Owner == "dave"'}
  - slice: {by: AcctGroup, when: 'Owner == "erin"'}
  - block: {when: 'AcctGroup == "closed"'}
"""
SLICED = (
    "slice rule %d needs networks.jobs in the policy for jobs of NetworkType %s: their worker cannot ask whose an "
    "address is"
)
STEERS = (
    "wan rule 2 steers to wan-fast, which no core can do by the address of a job behind NAT; jobs of NetworkType "
    "ovs_bridge and bridge can be steered"
)


@pytest.mark.parametrize(
    ("networks", "kind", "owner", "group", "reason"),
    [
        ("jobs: [10.64.0.0/16]", NetworkType.NAT, "dave", "cms", ""),
        ("", NetworkType.NAT, "dave", "cms", SLICED % (1, "nat")),
        ("", NetworkType.BRIDGE, "erin", "cms", SLICED % (2, "bridge")),
        ("", NetworkType.OVS_BRIDGE, "dave", "cms", ""),
        ("", NetworkType.NAT, "dave", "closed", ""),
        ("", NetworkType.NAT, "carol", "cms", STEERS),
        ("", NetworkType.BRIDGE, "carol", "cms", ""),
        ("", NetworkType.OVS_BRIDGE, "carol", "cms", ""),
        ("", NetworkType.NAT, "bob", "cms", ""),
        ("", NetworkType.NAT, "alice", "cms", ""),
    ],
)
def test_what_no_worker_can_enforce(networks: str, kind: NetworkType, owner: str, group: str, reason: str) -> None:
    policy = load(STEERED.replace("NETWORKS", networks))
    job = a_bridge_job(1, owner=owner, group=group, network_type=kind)
    assert unsupported(policy, job, Decider(policy).decide(job.facts)) == reason


RULES = WorkerRules(
    job_networks=(ip_network("10.64.0.0/16"),),
    hosts=(ip_network("10.64.0.53/32"),),
    local_networks=(ip_network("10.0.0.0/8"),),
    exceptions={1: (ip_network("192.0.2.1/32"),)},
    slices={5: (ip_network("10.64.1.0/26"),)},
)
OF_SLICE = "10.64.2.7 is in the job networks and not of the job's slice"
OF_WAN = "wan rule 1 drops what is outside of the local networks, and 192.0.2.9 is no exception"


@pytest.mark.parametrize(
    ("changes", "other", "sends", "reason"),
    [
        ({"isolated": True}, "10.1.1.1", True, "nothing passes: the job is blocked, or may neither call nor be called"),
        ({"slice": 5}, "10.64.2.7", True, OF_SLICE),
        ({"slice": 5}, "10.64.2.7", False, OF_SLICE),
        # A slice of which nothing is known has no address.
        ({"slice": 6}, "10.64.2.7", True, OF_SLICE),
        ({"slice": 5, "outbound": False}, "10.64.1.7", True, "the job may not call"),
        ({"slice": 5, "inbound": False}, "10.64.1.7", False, "the job may not be called"),
        ({"outbound": False}, "10.1.1.1", False, ""),
        ({"wan": 1}, "192.0.2.9", True, OF_WAN),
        ({"wan": 1}, "192.0.2.1", False, ""),
        ({"wan": 2}, "192.0.2.1", True, OF_WAN.replace("rule 1", "rule 2").replace("192.0.2.9", "192.0.2.1")),
    ],
)
def test_the_reason_why_packets_are_dropped(changes: dict[str, Any], other: str, sends: bool, reason: str) -> None:
    job = replace(JobRules("0" * 16, NetworkType.NAT, "02:00:00:00:00:01"), **changes)
    assert permits(RULES, job, ip_address(other), sends=sends) == reason


def test_addresses_behind_nat_are_not_the_wan_of_their_worker() -> None:
    """As the worker's packet filter has it, where no network of the policy holds them."""
    policy = load(STEERED.replace("NETWORKS", "jobs: [10.64.0.0/16]"))
    desired, decider = Desired(policy), Decider(policy)
    nat = [
        a_bridge_job(n, owner="bob", network_type=NetworkType.NAT, ipv4=IPv4Address(f"10.255.64.{n}")) for n in (2, 3)
    ]
    for job in nat:
        desired.put(job, decider.decide(job.facts))
    rules = desired.worker_rules(HOST)
    assert [job.wan for job in rules.jobs] == [1, 1]
    assert permits(rules, rules.jobs[0], ip_address("10.255.64.3"), sends=True) == ""
    assert permits(rules, rules.jobs[1], ip_address("10.255.64.2"), sends=False) == ""
    assert "no exception" in permits(rules, rules.jobs[0], ip_address("10.255.64.4"), sends=True)


@pytest.mark.parametrize("version", [4, 6])
def test_a_nat_job_without_a_slice_is_kept_from_jobs_of_slices_by_its_worker(version: int) -> None:
    """Nobody else can: elsewhere its packets have the worker's address, and hosts reach sliced jobs."""
    policy = load(STEERED.replace("NETWORKS", 'jobs: [10.64.0.0/16, "2001:db8:64::/64"], hosts: [10.64.255.254]'))
    desired, decider = Desired(policy), Decider(policy)
    own, outside = ("10.64.%d.%d", "10.255.64.%d") if version == 4 else ("2001:db8:64::%d:%d", "fd00::%d")

    def put(number: int, owner: str, kind: NetworkType, address: str, host: str) -> None:
        addresses = {"ipv4": None, "ipv6": None} | {f"ipv{version}": ip_address(address)}
        job = a_bridge_job(number, owner=owner, network_type=kind, host=host, **addresses)
        desired.put(job, decider.decide(job.facts))

    put(1, "alice", NetworkType.NAT, outside % 1, HOST)
    put(2, "alice", NetworkType.NAT, outside % 2, HOST)
    put(3, "dave", NetworkType.NAT, outside % 3, HOST)
    put(4, "dave", NetworkType.BRIDGE, own % (1, 4), HOST)
    put(5, "dave", NetworkType.BRIDGE, own % (1, 5), "worker2")
    put(6, "alice", NetworkType.BRIDGE, own % (1, 6), "worker2")

    def reached() -> dict[str, list[str]]:
        rules = desired.worker_rules(HOST)
        first, third = rules.jobs[0], rules.jobs[2]
        addresses = [outside % 2, outside % 3, own % (1, 4), own % (1, 5), own % (1, 6), own % (9, 9)]
        return {
            each: [a for a in addresses if not permits(rules, job, ip_address(a), sends=True)]
            for each, job in (("alice", first), ("dave", third))
        }

    assert reached() == {
        "alice": [outside % 2, own % (1, 6)], "dave": [outside % 3, own % (1, 4), own % (1, 5)]
    }  # fmt: skip
    desired.ruled.take()
    put(7, "alice", NetworkType.BRIDGE, own % (9, 9), "worker2")
    assert HOST in desired.ruled.take()
    assert reached()["alice"] == [outside % 2, own % (1, 6), own % (9, 9)]
    # In a slice by another policy: the address is none of those without one any more.
    put(6, "dave", NetworkType.BRIDGE, own % (1, 6), "worker2")
    assert HOST in desired.ruled.take()
    assert reached()["alice"] == [outside % 2, own % (9, 9)]
    rules = desired.worker_rules(HOST)
    assert permits(rules, rules.jobs[0], ip_address("192.0.2.9"), sends=True) == ""
    if version == 4:
        assert permits(rules, rules.jobs[0], ip_address("10.64.255.254"), sends=True) == ""
    why = permits(rules, rules.jobs[0], ip_address(own % (1, 6)), sends=True)
    assert why == f"{own % (1, 6)} is in the job networks and of no job without a slice, and the job has none"
    assert from_json(to_json(rules)) == rules


def test_where_no_slices_are_a_nat_job_reaches_every_address() -> None:
    policy = load("version: 1\nnetworks: {jobs: [10.64.0.0/16]}\n")
    desired = Desired(policy)
    job = a_bridge_job(1, network_type=NetworkType.NAT, ipv4=IPv4Address("10.255.64.2"))
    desired.put(job, Decider(policy).decide(job.facts))
    rules = desired.worker_rules(HOST)
    assert permits(rules, rules.jobs[0], ip_address("10.64.9.9"), sends=True) == ""


def test_a_copy_has_no_changes_of_its_own_yet_and_changes_apart() -> None:
    site = Site()
    site.desired.put(a_bridge_job(1), Decider(load(FULL)).decide(a_bridge_job(1).facts))
    copied = site.desired.ruled.copy()
    assert (copied.take(), copied.hosts(), set(copied.numbers(HOST))) == ({}, [HOST], {1})
    copied.slice_changed(SliceKey(1, '"alice"'))
    assert copied.take() == {HOST: set()}
    copied.move(site.desired.placed[1], None)
    assert (copied.hosts(), site.desired.ruled.hosts()) == ([], [HOST])
    copied.take()
    copied.slice_changed(SliceKey(1, '"alice"'))
    assert copied.take() == {}


def test_the_rules_of_jobs_of_whom_little_is_asked() -> None:
    """Classes of the WAN are those that are dropped; a job without a group is marked as none where groups are."""
    flow = ReservedFlow(3, 1000, (ip_network("192.0.2.0/24"),))
    for groups, dscps in (("", [None, None, None]), ("groups: {cms: {queue: 1}}", [1, 0, 1])):
        policy = load(STEERED.replace("NETWORKS", "jobs: [10.64.0.0/16]").replace("policies:", f"{groups}\npolicies:"))
        desired, decider = Desired(policy), Decider(policy)
        for job in (
            a_bridge_job(1, owner="carol", mac=None),
            a_bridge_job(2, owner="bob", group="atlas", reserved=(flow, replace(flow, number=4, incoming=True))),
            a_bridge_job(3, owner="bob", inbound=False, outbound=False, reserved=(flow,)),
        ):
            desired.put(job, replace(decider.decide(job.facts), blocked=job.number == 3))
        rules = desired.worker_rules(HOST)
        assert [job.dscp for job in rules.jobs] == dscps
        assert [job.wan for job in rules.jobs] == [0, 1, 1]
        assert [job.slice for job in rules.jobs] == [0, 0, 0]
        assert [job.isolated for job in rules.jobs] == [False, False, True]
        assert [job.mac for job in rules.jobs] == ["00:00:00:00:00:00", "02:00:00:00:00:02", "02:00:00:00:00:03"]
        assert [[each.target for each in job.reserved] for job in rules.jobs] == [[], [flow.target], []]
        assert rules.exceptions == {1: ()}
        assert rules.job_networks == policy.job_networks

"""The incremental result equals the full recompute, in whatever order jobs and switches came."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark_common.runs import AddressType, NetworkType, RunKey
from lark_controller.flows.cookies import of_job
from lark_controller.flows.desired import Desired
from lark_controller.flows.model import Changes, FlowData, FlowKey, Program
from lark_controller.flows.placed_jobs import is_uncounted
from lark_controller.flows.placement import Switch, place_switch
from lark_controller.flows.tags import assign_tags
from lark_controller.jobs.job import Facts, Job, ReservedFlow
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from lark_controller.policies.model import SliceKey
from lark_controller.qos.worker_queues import Claim

CORE = 0xC0
EDGES = (1, 2, 3)
FULL = """
version: 1
networks:
  jobs: [10.64.0.0/16, "2001:db8:64::/48"]
  local: [10.0.0.0/8, "2001:db8::/32"]
switches:
  core1:
    datapath: "00000000000000c0"
    role: core
    ports: {lan: 1, wan: 2, wan-fast: {port: 3, next_hop: "02:00:00:00:ff:03"}}
  edge2: {datapath: "0000000000000002", role: edge, host: worker2, ports: {uplink: 1}}
policies:
  - block: {when: 'Owner == "mallory"'}
  - slice: {by: Owner}
  - wan: {when: 'Owner == "bob"', action: drop, except: [192.0.2.1]}
  - wan: {when: 'AcctGroup == "cms"', port: wan-fast}
  - connectivity: {inbound: requested, outbound: requested}
groups:
  cms: {ceiling: 250Mbit}
  default: {queue: 1}
"""
OPEN = """
version: 1
networks:
  local: [10.0.0.0/8]
policies:
  - slice: {by: AcctGroup, when: 'Owner != "carol"'}
"""
QUEUES = FULL.replace("role: core", "role: core\n    groups_by: queues").replace(
    "groups:", "  - bandwidth: {default: 10Mbit, when: 'Owner != \"carol\"'}\ngroups:"
)
POLICIES = (FULL, OPEN, QUEUES)


def facts_of(owner: str, group: str, inbound: bool, outbound: bool) -> Facts:
    return Facts(
        (
            ("acctgroup", f'"{group}"'),
            ("inboundconnectivity", str(inbound).lower()),
            ("outboundconnectivity", str(outbound).lower()),
            ("owner", f'"{owner}"'),
        )
    )


def a_job(number: int, **changes: Any) -> Job:
    run = RunKey(f"s#{number}.0#1", 1, f"slot{number}")
    owner, group = changes.pop("owner", "alice"), changes.pop("group", "cms")
    inbound, outbound = changes.pop("inbound", True), changes.pop("outbound", True)
    job = Job(
        number,
        run,
        run.id,
        owner,
        owner,
        group,
        number,
        0,
        "worker1",
        ipv4=IPv4Address("10.64.0.0") + number,
        datapath=1,
        port=f"p{number}",
        mac=f"02:00:00:00:00:{number:02x}",
        facts=facts_of(owner, group, inbound, outbound),
    )
    return replace(job, **changes)


def a_switch(policy_text: str, datapath: int, ports: int = 20) -> Switch:
    names = {"uplink": 1, "eth1": 40, **{f"p{n}": 100 + n for n in range(ports)}}
    if datapath == CORE:
        names = {"a": 1, "b": 2, "c": 3}
    return place_switch(
        load(policy_text),
        datapath,
        MappingProxyType(names),
        normal=True,
        tracks=True,
        max_meter=100,
        local_mac=0x020000000100 + datapath,
        description=f"worker{datapath}",
    )


# Numbered within their job.
TO_WAN = ReservedFlow(0, 1000)
TO_HOST = ReservedFlow(1, 2000, (IPv4Network("192.0.2.7/32"), IPv4Network("10.65.0.0/16")))
numbers = st.integers(1, 40)
jobs = st.builds(
    lambda number, owner, group, datapath, block, version, kind, vlan, one_way, reserved: a_job(
        number,
        reserved=tuple(replace(each, number=2 * number + each.number) for each in reserved),
        owner=owner,
        group=group,
        inbound=one_way,
        datapath=datapath,
        host=f"worker{datapath or 2}",
        ipv4=None if version == 6 else IPv4Address("10.64.0.0") + number,
        ipv6=None if version == 4 else IPv6Address("2001:db8:64::") + number,
        ipv4_block=IPv4Network((int(IPv4Address("10.64.0.0") + number) & ~7, 29)) if block and version != 6 else None,
        ipv6_block=IPv6Network((int(IPv6Address("2001:db8:64::") + number) & ~7, 125))
        if block and version != 4
        else None,
        network_type=kind,
        address_type=AddressType.DHCP if version == 0 else AddressType.STATIC,
        vlan=vlan,
    ),
    numbers,
    st.sampled_from(["alice", "bob", "carol", "mallory"]),
    st.sampled_from(["cms", "atlas"]),
    st.sampled_from([1, 2, 3, None]),
    st.booleans(),
    st.sampled_from([4, 6, 46]),
    st.sampled_from([NetworkType.OVS_BRIDGE] * 4 + [NetworkType.BRIDGE, NetworkType.NAT]),
    st.sampled_from([None, None, 7]),
    st.booleans(),
    st.sampled_from([(), (TO_WAN,), (TO_WAN, TO_HOST), (ReservedFlow(1, 5, incoming=True),)]),
)
steps = st.lists(
    st.one_of(
        jobs.map(lambda job: ("put", job)),
        numbers.map(lambda number: ("remove", number)),
        st.tuples(st.sampled_from(EDGES), st.integers(2, 41)).map(lambda pair: ("ports", pair)),
        st.tuples(numbers, st.sampled_from([None, 1, 2])).map(
            lambda pair: ("queue", (Claim.of_job(pair[0]), pair[1], pair[0]))
        ),
        st.tuples(numbers, st.integers(0, 1), st.sampled_from([None, 32768, 32769])).map(
            lambda three: ("queue", (Claim.of_flow(2 * three[0] + three[1]), three[2], three[0]))
        ),
        st.sets(st.integers(1, 2)).map(lambda dscps: ("groups", frozenset(dscps))),
    ),
    max_size=30,
)


def apply(program: Program, changes: Changes) -> Program:
    flows: dict[FlowKey, FlowData] = dict(program.flows)
    for key in changes.flows_gone:
        assert key in flows, "a flow is deleted that is not there"
        del flows[key]
    for flow in changes.flows_set:
        assert flows.get(flow.key) != flow.data, "a flow is sent that is there already"
        flows[flow.key] = flow.data
    meters = {m.number: m for m in (*program.meters.values(), *changes.meters_set)}
    for number in changes.meters_gone:
        del meters[number]
    return Program(flows, meters)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(POLICIES), st.lists(jobs, max_size=20, unique_by=lambda job: job.number), steps, st.integers(0, 30)
)
def test_changes_add_up_to_the_full_recompute(text: str, loaded: list[Job], history: list[Any], late: int) -> None:
    policy = load(text)
    desired, decider = Desired(policy), Decider(policy)
    held: dict[int, Program] = {}
    live: dict[int, Job] = {job.number: job for job in loaded}
    desired.load((job, decider.decide(job.facts)) for job in loaded)
    ports = dict.fromkeys(EDGES, 20)

    def connect() -> None:
        for datapath in (*EDGES, CORE):
            switch = a_switch(text, datapath, ports.get(datapath, 0))
            held[datapath] = apply(held.get(datapath, Program()), desired.set_switch(switch, (f"worker{datapath}",)))

    for place, (action, what) in enumerate(history):
        if place == late:
            connect()
        if action == "put":
            live[what.number] = what
            for datapath, changes in desired.put(what, decider.decide(what.facts)).items():
                held[datapath] = apply(held[datapath], changes)
        elif action == "remove":
            live.pop(what, None)
            for datapath, changes in desired.remove(what).items():
                held[datapath] = apply(held[datapath], changes)
        elif action == "queue":
            for datapath, changes in desired.set_queue(*what).items():
                held[datapath] = apply(held[datapath], changes)
        elif action == "groups":
            changes = desired.set_group_queues(CORE, what)
            assert held or not changes
            if held:
                held[CORE] = apply(held[CORE], changes)
        elif held:
            ports[what[0]] = what[1]
            changes = desired.set_switch(a_switch(text, *what), (f"worker{what[0]}",))
            held[what[0]] = apply(held[what[0]], changes)
    if not held:
        connect()

    # That policy has the addresses of the jobs that were there where it has slices and leaves these out.
    oracle = Desired(desired.policy, desired)
    for datapath in (*EDGES, CORE):
        oracle.set_switch(a_switch(text, datapath, ports.get(datapath, 0)), (f"worker{datapath}",))
    for job in sorted(live.values(), key=lambda job: -job.number):
        oracle.put(job, decider.decide(job.facts))
    for datapath in (*EDGES, CORE):
        assert desired.build(datapath) == oracle.build(datapath)
        assert held[datapath] == oracle.build(datapath)
        assert desired.rules[datapath] == len(held[datapath].flows)
    assert (+desired.groups, desired.isolated) == (+oracle.groups, oracle.isolated)
    assert desired.uncounted == oracle.uncounted == sum(map(is_uncounted, desired.placed.values()))
    at_edges = Counter((each.datapath, each.job.host) for each in desired.placed.values() if each.datapath is not None)
    assert desired.at_edges == oracle.at_edges == at_edges


def test_a_group_has_a_rule_towards_the_site_for_each_block() -> None:
    policy = load(QUEUES)
    desired, decider = Desired(policy), Decider(policy)
    desired.set_switch(a_switch(QUEUES, CORE))
    desired.set_group_queues(CORE, frozenset({1, 2}))
    before = desired.rules[CORE]
    block = IPv4Network("10.64.0.0/29")
    for number in range(1, 7):
        job = a_job(number, ipv4_block=block, owner="dave", group="atlas")
        changes = desired.put(job, decider.decide(job.facts))
        assert (CORE in changes) == (number == 1)
    assert desired.rules[CORE] == before + 1


def test_blocks_keep_the_core_small_and_a_change_flat() -> None:
    policy = load(FULL)
    desired, decider = Desired(policy), Decider(policy)
    desired.set_switch(a_switch(FULL, CORE))
    before = desired.rules[CORE]
    block = IPv4Network("10.64.0.0/29")
    for number in range(1, 7):
        job = a_job(number, ipv4_block=block, owner="dave")
        changes = desired.put(job, decider.decide(job.facts))
        assert (CORE in changes) == (number == 1)
    assert desired.rules[CORE] == before + 1


def test_a_block_shared_with_a_job_of_no_rule_is_not_covered_whole() -> None:
    policy = load(FULL)
    desired, decider = Desired(policy), Decider(policy)
    desired.set_switch(a_switch(FULL, CORE))
    block = IPv4Network("10.64.0.0/29")
    steered, other = a_job(1, ipv4_block=block), a_job(2, ipv4_block=block, group="atlas")
    desired.put(steered, decider.decide(steered.facts))
    assert [str(prefix) for prefix in desired._classes.prefixes(2)] == ["10.64.0.0/29"]
    desired.put(other, decider.decide(other.facts))
    assert [str(prefix) for prefix in desired._classes.prefixes(2)] == ["10.64.0.0/31"]
    desired.remove(2)
    assert [str(prefix) for prefix in desired._classes.prefixes(2)] == ["10.64.0.0/29"]


def test_a_job_without_a_slice_in_a_block_of_one_changes_all_switches_by_one_calculation() -> None:
    policy = load(FULL.replace("slice: {by: Owner}", "slice: {by: Owner, when: 'Owner == \"alice\"'}"))
    desired, decider = Desired(policy), Decider(policy)
    for datapath in EDGES:
        desired.set_switch(a_switch(FULL, datapath), (f"worker{datapath}",))
    block = IPv4Network("10.64.0.0/29")
    for number in (1, 2, 3):
        job = a_job(number, owner="alice", host=f"worker{number}", datapath=number, ipv4_block=block)
        desired.put(job, decider.decide(job.facts))
    other = a_job(4, owner="dave", host="worker9", datapath=9, ipv4_block=block)
    changes = desired.put(other, decider.decide(other.facts))
    assert changes.keys() == set(EDGES)
    assert len({id(each) for each in changes.values()}) == 1
    assert changes[1]


def test_the_flows_of_one_job_are_those_of_its_cookies() -> None:
    policy = load(FULL)
    desired, decider = Desired(policy), Decider(policy)
    for datapath in (1, 2, CORE):
        desired.set_switch(a_switch(FULL, datapath), (f"worker{datapath}",))
    for number in (5, 6):
        job = a_job(number, outbound=False)
        desired.put(job, decider.decide(job.facts))
    chosen = of_job(5)
    own = {
        key: data
        for key, data in desired.build(1).flows.items()
        if any(data.cookie & mask == value for value, mask in chosen)
    }
    assert own
    assert desired.build_job(1, 5) == Program(own)
    for datapath, number in ((2, 5), (3, 5), (CORE, 5), (1, 7)):
        assert desired.build_job(datapath, number) == Program()


def test_frame_alone_holds_no_job() -> None:
    policy = load(FULL)
    desired = Desired(policy)
    desired.set_switch(a_switch(FULL, 1), ("worker1",))
    admitted = [key for key in desired.build(1).flows if key.table == 0]
    assert {term.value for key in admitted for term in key.match if term.name == "in_port"} == {1, 40, 0xFFFFFFFE}


@given(st.sets(st.tuples(st.integers(0, 3), st.text(max_size=4)), max_size=7), st.randoms())
def test_tags_depend_on_the_set_alone(pairs: set[tuple[int, str]], random: Any) -> None:
    keys = [SliceKey(*pair) for pair in pairs]
    tags = assign_tags(keys, bits=3)
    random.shuffle(keys)
    assert assign_tags(keys, bits=3) == tags
    assert len(set(tags.values())) == len(keys)
    assert all(1 <= tag <= 7 for tag in tags.values())


def test_more_slices_than_tags_is_an_error() -> None:
    with pytest.raises(ValueError, match="slices on one switch"):
        assign_tags([SliceKey(0, str(n)) for n in range(8)], bits=3)

"""The flows' meaning, packet by packet: jobs through simulated tables of edges and core; no switch needed."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

import pytest

from lark_common.runs import AddressType, RunKey, link_local
from lark_common.worker_rules import CT_ZONE, CT_ZONE_OTHERS
from lark_controller.flows.cookies import Category, parse
from lark_controller.flows.desired import Desired
from lark_controller.flows.model import FLAG_SEND_FLOW_REM, PORT_LOCAL
from lark_controller.flows.packet_in_answer import answer
from lark_controller.flows.placement import Switch, mac_number, place_switch
from lark_controller.flows.simulation import packet
from lark_controller.flows.simulation.simulate import (
    ConnectionTable,
    PortView,
    Result,
    Tables,
    run,
)
from lark_controller.flows.tables import IDLE_REACTIVE, Core, Edge
from lark_controller.flows.tracked import tracked
from lark_controller.jobs.job import Facts, Job
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from tests.fixtures import frames

CORE, EDGE = 0xC0, 1
UPLINK, HOST_MAC, GATEWAY = 1, "02:00:00:00:01:01", "02:00:00:00:ff:01"
FAST = "02:00:00:00:ff:02"
POLICY = f"""
version: 1
networks:
  jobs: [10.64.0.0/16, "2001:db8:64::/48"]
  local: [10.0.0.0/8, "2001:db8::/32"]
switches:
  core1:
    datapath: "00000000000000c0"
    role: core
    ports: {{lan: 1, wan: {{port: 2, next_hop: "{GATEWAY}"}}, wan-fast: {{port: 3, next_hop: "{FAST}"}}}}
policies:
  - block: {{when: 'Owner == "mallory"'}}
  - slice: {{by: Owner}}
  - wan: {{when: 'Owner == "bob"', action: drop, except: [192.0.2.1, "2001:db9::1"]}}
  - wan: {{when: 'Owner == "carol"', port: wan-fast}}
  - connectivity: {{inbound: requested, outbound: requested}}
groups:
  cms: {{queue: 3, dscp: 10}}
  default: {{ceiling: 100Mbit, dscp: 20}}
"""
OUTSIDE = {4: "198.51.100.7", 6: "2001:db9::7"}
EXCEPTION = {4: "192.0.2.1", 6: "2001:db9::1"}
VERSIONS = pytest.mark.parametrize("version", [4, 6])


def a_job(number: int, owner: str, *, inbound: bool | None = None, outbound: bool | None = None, **more: Any) -> Job:
    run_key = RunKey(f"s#{number}.0#1", 1, f"slot{number}")
    facts = [("owner", f'"{owner}"'), ("acctgroup", f'"{more.pop("group", "cms")}"')]
    facts += [("inboundconnectivity", str(inbound).lower())] * (inbound is not None)
    facts += [("outboundconnectivity", str(outbound).lower())] * (outbound is not None)
    job = Job(
        number, run_key, run_key.id, owner, owner, "cms", number, 0, "worker1",
        ipv4=IPv4Address(f"10.64.0.{number}"), ipv6=IPv6Address(f"2001:db8:64::{number}"), datapath=EDGE,
        port=f"p{number}", mac=f"02:00:00:00:00:{number:02x}", facts=Facts(tuple(sorted(facts))),
    )  # fmt: skip
    return replace(job, **more)


class Site:
    """An edge and a core with some jobs, and packets through them."""

    def __init__(self, *jobs: Job, policy: str = POLICY, tracks: bool = True, normal: bool = True) -> None:
        self.policy, self.tracks, self.normal = load(policy), tracks, normal
        self.desired, self.decider = Desired(self.policy), Decider(self.policy)
        ports = {"uplink": UPLINK, "br": PORT_LOCAL} | {f"p{n}": 10 + n for n in range(1, 9)}
        self.edge = self._switch(EDGE, ports)
        self.core = self._switch(CORE, {"a": 1, "b": 2, "c": 3})
        for job in jobs:
            self.desired.put(job, self.decider.decide(job.facts))
        self.ct = ConnectionTable()
        self.jobs = {job.number: job for job in jobs}

    def _switch(self, datapath: int, ports: dict[str, int]) -> Switch:
        switch = place_switch(
            self.policy,
            datapath,
            ports,
            normal=self.normal,
            tracks=self.tracks,
            max_meter=64,
            local_mac=mac_number(HOST_MAC),
        )
        self.desired.set_switch(switch)
        return switch

    def send(self, switch: Switch, in_port: int, frame: bytes) -> Result:
        tables = Tables(self.desired.build(switch.datapath))
        return run(tables, in_port, frame, PortView.of(switch.ports.values()), self.ct)

    def leaves(self, in_port: int, frame: bytes) -> tuple[int, ...]:
        return self.send(self.edge, in_port, frame).ports

    def udp(self, source: int, target: int, version: int) -> tuple[int, ...]:
        one, other = self.jobs[source], self.jobs[target]
        return self.leaves(10 + source, frames.udp(mac(one), mac(other), at(one, version), at(other, version)))


def mac(job: Job) -> str:
    assert job.mac is not None
    return job.mac


def at(job: Job, version: int) -> str:
    return str(job.ipv4 if version == 4 else job.ipv6)


@VERSIONS
def test_slices_and_blocks_between_local_jobs(version: int) -> None:
    site = Site(a_job(1, "alice"), a_job(2, "alice"), a_job(3, "bob"), a_job(4, "mallory"))
    assert site.udp(1, 2, version) == (12,)
    assert site.udp(2, 1, version) == (11,)
    for source, target in ((1, 3), (3, 1), (1, 4), (4, 1), (4, 3)):
        assert site.udp(source, target, version) == ()


@VERSIONS
def test_slices_hold_for_what_comes_from_other_workers(version: int) -> None:
    here, there, stranger = a_job(1, "alice"), a_job(2, "alice", datapath=2), a_job(3, "bob", datapath=2)
    site = Site(here, there, stranger)
    for job, expected in ((there, (11,)), (stranger, ())):
        assert site.leaves(UPLINK, frames.udp(mac(job), mac(here), at(job, version), at(here, version))) == expected
        frame = frames.udp(mac(here), mac(job), at(here, version), at(job, version))
        assert site.leaves(11, frame) == ((UPLINK,) if expected else ())


def test_of_a_question_to_one_the_destination_counts_and_of_one_to_a_group_the_target() -> None:
    """RFC 4861, section 7.2.2: addresses are asked for by multicast, neighbours are probed by unicast."""
    one, same, other = a_job(1, "alice"), a_job(2, "alice"), a_job(3, "bob")
    site = Site(one, same, other)
    m, group = mac(one), "33:33:ff:00:00:01"
    for target in (same, other):
        probe = frames.nd(m, mac(same), at(one, 6), at(same, 6), at(target, 6), sll=m)
        assert site.leaves(11, probe) == (12,)
        probe = frames.nd(m, mac(other), at(one, 6), at(other, 6), at(target, 6), sll=m)
        assert site.leaves(11, probe) == ()
    assert site.leaves(11, frames.nd(m, group, at(one, 6), "ff02::1:ff00:2", at(same, 6), sll=m)) == (12,)
    assert site.leaves(11, frames.nd(m, group, at(one, 6), "ff02::1:ff00:3", at(other, 6), sll=m)) == ()


AMONG_HOSTS = "version: 1\nnetworks: {local: [10.0.0.0/8, '2001:db8::/32']}\npolicies: [{slice: {by: Owner}}]\n"


@VERSIONS
@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("kind", ["udp", "question"])
@pytest.mark.parametrize("table", [Edge.SLICE_FROM, Edge.SLICE_TO])
def test_where_no_networks_are_the_jobs_own_each_pair_is_asked_about_and_remembered(
    table: Edge, kind: str, allowed: bool, version: int
) -> None:
    job, neighbour = a_job(1, "alice"), a_job(2, "alice")
    site = Site(job, neighbour, policy=AMONG_HOSTS)
    sends = table is Edge.SLICE_FROM
    host = {4: "10.9.9.9", 6: "2001:db8:9::9"}[version]
    addresses, macs = (at(job, version), host), (mac(job), GATEWAY)
    if not sends:
        addresses, macs = addresses[::-1], macs[::-1]
    if kind == "udp":
        frame = frames.udp(*macs, *addresses)
    elif version == 4:
        frame = frames.arp(macs[0], macs[0], addresses[0], "00:00:00:00:00:00", addresses[1])
    else:
        frame = frames.nd(macs[0], "33:33:ff:00:00:01", addresses[0], "ff02::1:ff00:1", addresses[1], sll=macs[0])
    port = 11 if sends else UPLINK
    program = site.desired.build(EDGE)
    view = PortView.of(site.edge.ports.values())
    asked = run(Tables(program), port, frame, view, site.ct)
    assert [(told.table, asked.ports) for told in asked.to_controller] == [(table, ())]

    (tag,) = site.desired.slices_at(EDGE)
    told = packet.parse_fast_addresses(asked.to_controller[0].frame)
    other = told.destination if sends else told.source
    assert other == int(ip_address(host))
    arp, solicited = kind == "question" and version == 4, kind == "question" and version == 6
    flow = answer(table, tag, version, other, arp, allowed, solicited=solicited)
    assert (flow.data.idle_timeout, flow.data.flags) == (IDLE_REACTIVE, FLAG_SEND_FLOW_REM)
    assert parse(flow.data.cookie).category == Category.REACTIVE
    program.flows[flow.key] = flow.data
    answered = run(Tables(program), port, frame, view, site.ct)
    assert not answered.to_controller
    assert bool(answered.ports) == allowed
    assert port not in answered.ports
    # It answers for that address and that slice alone.
    also = answer(table, tag + 1, version, other, arp, not allowed, solicited=solicited)
    elsewhere = answer(table, tag, version, other + 1, arp, not allowed, solicited=solicited)
    for more in (also, elsewhere):
        program.flows[more.key] = more.data
    assert run(Tables(program), port, frame, view, site.ct).ports == answered.ports


@VERSIONS
def test_blocked_jobs_hear_nothing_either(version: int) -> None:
    job = a_job(4, "mallory")
    site = Site(job)
    assert site.leaves(14, frames.udp(mac(job), GATEWAY, at(job, version), OUTSIDE[version])) == ()
    assert site.leaves(UPLINK, frames.udp(GATEWAY, mac(job), OUTSIDE[version], at(job, version))) == ()
    assert site.leaves(PORT_LOCAL, frames.udp(HOST_MAC, mac(job), "10.1.1.1", "10.9.9.9")) == ()
    assert site.leaves(UPLINK, frames.arp(GATEWAY, GATEWAY, "10.0.0.1", "00:00:00:00:00:00", "10.64.0.4")) == ()


@VERSIONS
def test_wan_drop_and_exceptions_both_ways(version: int) -> None:
    job = a_job(3, "bob")
    site = Site(job)
    local = {4: "10.1.1.1", 6: "2001:db8:1::1"}[version]
    for other, passes in ((OUTSIDE[version], False), (EXCEPTION[version], True), (local, True)):
        out = frames.udp(mac(job), GATEWAY, at(job, version), other)
        back = frames.udp(GATEWAY, mac(job), other, at(job, version))
        assert site.leaves(13, out) == ((UPLINK,) if passes else ())
        assert site.leaves(UPLINK, back) == ((13,) if passes else ())
        assert bool(site.send(site.core, 1, out).ports) == passes
        assert bool(site.send(site.core, 2, back).ports) == passes


@VERSIONS
def test_steering_at_the_core_sets_the_next_hop(version: int) -> None:
    carol, alice = a_job(1, "carol"), a_job(2, "alice")
    site = Site(carol, alice)
    for job, port, hop in ((carol, 3, FAST), (alice, 2, GATEWAY)):
        result = site.send(site.core, 1, frames.udp(mac(job), GATEWAY, at(job, version), OUTSIDE[version]))
        assert result.ports == (port,)
        assert result.headers[0]["eth_dst"] == mac_number(hop)
    inside = frames.udp(mac(carol), mac(alice), at(carol, version), at(alice, version))
    assert set(site.send(site.core, 1, inside).ports) == {2, 3}, "local traffic is switched, not steered"
    spoofed = frames.udp(GATEWAY, mac(alice), at(carol, version), at(alice, version))
    assert site.send(site.core, 2, spoofed).ports == ()


@VERSIONS
@pytest.mark.parametrize(
    ("inbound", "outbound", "calls", "called"),
    [(True, True, True, True), (False, True, True, False), (True, False, False, True), (False, False, False, False)],
)
def test_connectivity_as_the_job_asks(version: int, inbound: bool, outbound: bool, calls: bool, called: bool) -> None:
    job = a_job(1, "alice", inbound=inbound, outbound=outbound)
    site = Site(job)
    mine, other = at(job, version), OUTSIDE[version]
    out = frames.tcp(mac(job), GATEWAY, mine, other, 1000, 80)
    answer = frames.tcp(GATEWAY, mac(job), other, mine, 80, 1000, frames.SYN | frames.ACK)
    assert site.leaves(11, out) == ((UPLINK,) if calls else ())
    if calls:
        assert site.leaves(UPLINK, answer) == (11,)
    call = frames.tcp(GATEWAY, mac(job), other, mine, 2000, 22)
    reply = frames.tcp(mac(job), GATEWAY, mine, other, 22, 2000, frames.SYN | frames.ACK)
    assert site.leaves(UPLINK, call) == ((11,) if called else ())
    if called:
        assert site.leaves(11, reply) == (UPLINK,)


@pytest.mark.parametrize("inbound", [True, False])
def test_addresses_and_neighbours_are_asked_for_whichever_way_is_open(inbound: bool) -> None:
    """Questions and answers belong to no connection."""
    job = a_job(1, "alice", inbound=inbound, outbound=not inbound, address_type=AddressType.DHCP)
    site = Site(job)
    m, mine6, local = mac(job), at(job, 6), str(link_local(mac(job)))
    router, everyone = "fe80::1", "ff:ff:ff:ff:ff:ff"
    asked = {
        "DHCP": frames.udp(m, everyone, "0.0.0.0", "255.255.255.255", 68, 67),
        "DHCPv6": frames.udp(m, "33:33:00:01:00:02", local, "ff02::1:2", 546, 547),
        "router": frames.icmp(m, "33:33:00:00:00:02", local, "ff02::2", 133, rest=bytes(4)),
        "router, without an address": frames.icmp(m, "33:33:00:00:00:02", "::", "ff02::2", 133, rest=bytes(4)),
        "neighbour": frames.nd(m, "33:33:ff:00:00:01", mine6, "ff02::1:ff00:1", router, sll=m),
        "own": frames.nd(m, GATEWAY, mine6, router, mine6, tll=m),
    }
    answered = {
        "DHCP": frames.udp(GATEWAY, m, "10.0.0.1", at(job, 4), 67, 68),
        "DHCPv6": frames.udp(GATEWAY, m, router, local, 547, 546),
        "router": frames.icmp(GATEWAY, m, router, local, 134, rest=bytes(12)),
        "neighbour": frames.nd(GATEWAY, m, router, mine6, router, tll=GATEWAY),
        "own": frames.nd(GATEWAY, m, router, mine6, mine6, sll=GATEWAY),
    }
    for what, frame in asked.items():
        assert UPLINK in site.leaves(11, frame), what
    for what, frame in answered.items():
        assert site.leaves(UPLINK, frame) == (11,), what


@VERSIONS
def test_connections_by_ports_are_tracked_apart_from_others(version: int) -> None:
    job = a_job(1, "alice", inbound=False)
    ends = at(job, version), OUTSIDE[version]
    for zone, frame in (
        (CT_ZONE, frames.tcp(mac(job), GATEWAY, *ends, 1000, 80)),
        (CT_ZONE, frames.udp(mac(job), GATEWAY, *ends)),
        (CT_ZONE_OTHERS, frames.icmp(mac(job), GATEWAY, *ends, 8 if version == 4 else 128)),
        (CT_ZONE_OTHERS, frames.ethernet(mac(job), GATEWAY, *frames.ip(*ends, 132, bytes(40)))),
    ):
        site = Site(job)
        assert site.leaves(11, frame) == (UPLINK,)
        assert [where for where, _ in site.ct.replied] == [zone]


def test_jobs_with_one_way_connectivity_are_read_back_from_the_flows() -> None:
    one_way = a_job(1, "alice", inbound=False), a_job(2, "alice", outbound=False, ipv6=None)
    site = Site(*one_way, a_job(3, "alice"), a_job(4, "alice", inbound=False, outbound=False))
    found = {(each.number, each.address) for each in tracked(site.desired.build(EDGE))}
    assert found == {(job.number, address) for job in one_way for address in job.addresses}


@VERSIONS
def test_without_connection_tracking_one_way_jobs_have_no_network_and_others_have(version: int) -> None:
    jobs = a_job(1, "alice", inbound=False), a_job(2, "alice", outbound=False), a_job(3, "alice")
    site = Site(*jobs, tracks=False)
    for job in jobs:
        out = frames.udp(mac(job), GATEWAY, at(job, version), OUTSIDE[version])
        back = frames.udp(GATEWAY, mac(job), OUTSIDE[version], at(job, version))
        passes = job.number == 3
        assert site.leaves(10 + job.number, out) == ((UPLINK,) if passes else ())
        assert site.leaves(UPLINK, back) == ((10 + job.number,) if passes else ())


@VERSIONS
def test_a_core_that_only_steers_leaves_local_traffic_alone(version: int) -> None:
    only = POLICY.replace('action: drop, except: [192.0.2.1, "2001:db9::1"]', "action: allow")
    carol, alice = a_job(1, "carol"), a_job(2, "alice")
    site = Site(carol, alice, policy=only)
    inside = {4: "10.1.1.1", 6: "2001:db8:1::1"}[version]
    local = frames.udp(mac(carol), mac(alice), at(carol, version), inside)
    assert set(site.send(site.core, 1, local).ports) == {2, 3}
    outside = site.send(site.core, 1, frames.udp(mac(carol), GATEWAY, at(carol, version), OUTSIDE[version]))
    assert (outside.ports, outside.headers[0]["eth_dst"]) == ((3,), mac_number(FAST))


@VERSIONS
def test_a_core_without_normal_floods_what_it_has_not_learned(version: int) -> None:
    alice = a_job(2, "alice")
    site = Site(alice, normal=False)
    frame = frames.udp("02:00:00:00:09:09", mac(alice), OUTSIDE[version], at(alice, version))
    result = site.send(site.core, 2, frame)
    assert set(result.ports) == {1, 3}
    assert [told.table for told in result.to_controller] == [Core.LEARN]


def test_a_port_sends_only_as_itself() -> None:
    job, other = a_job(1, "alice"), a_job(2, "alice")
    site = Site(job, other)
    mine, m = str(job.ipv4), mac(job)
    mine6, local = str(job.ipv6), str(link_local(mac(job)))
    theirs, theirs6, om = str(other.ipv4), str(other.ipv6), mac(other)
    nobody = "00:00:00:00:00:00"
    good = {
        "own address": frames.udp(m, GATEWAY, mine, "10.1.1.1"),
        "own ARP": frames.arp(m, m, mine, nobody, "10.0.0.1"),
        "ARP probe": frames.arp(m, m, "0.0.0.0", nobody, mine),
        "own IPv6": frames.udp(m, GATEWAY, mine6, "2001:db8:1::1"),
        "solicitation": frames.nd(m, "33:33:ff:00:00:01", local, "ff02::1:ff00:1", "2001:db8:1::1", sll=m),
        "solicitation without an option": frames.nd(m, GATEWAY, mine6, "2001:db8:1::1", "2001:db8:1::1"),
        "advertisement without an option": frames.icmp(
            m, GATEWAY, mine6, "2001:db8:1::1", 136, rest=bytes(4) + IPv6Address(mine6).packed
        ),
        "advertisement": frames.nd(m, GATEWAY, mine6, "2001:db8:1::1", mine6, tll=m),
        "duplicate address detection": frames.nd(m, "33:33:ff:00:00:01", "::", "ff02::1:ff00:1", mine6),
        "router solicitation": frames.icmp(m, "33:33:00:00:00:02", local, "ff02::2", 133, rest=bytes(4)),
    }
    bad = {
        "another's IPv4": frames.udp(m, GATEWAY, theirs, "10.1.1.1"),
        "another's IPv6": frames.udp(m, GATEWAY, theirs6, "2001:db8:1::1"),
        "another's MAC": frames.udp(om, GATEWAY, mine, "10.1.1.1"),
        "another's ARP sender": frames.arp(m, m, theirs, nobody, "10.0.0.1"),
        "another's hardware address": frames.arp(m, om, mine, nobody, "10.0.0.1"),
        "another's target": frames.nd(m, GATEWAY, mine6, "2001:db8:1::1", theirs6, tll=m),
        "another's option": frames.nd(m, GATEWAY, mine6, "2001:db8:1::1", mine6, tll=om),
        "another's source option": frames.nd(m, GATEWAY, mine6, "2001:db8:1::1", "2001:db8:1::1", sll=om),
        "router advertisement": frames.icmp(m, "33:33:00:00:00:01", local, "ff02::1", 134, rest=bytes(12)),
        "redirect": frames.icmp(m, om, mine6, theirs6, 137, rest=bytes(36)),
        "DHCP server": frames.udp(m, "ff:ff:ff:ff:ff:ff", mine, "255.255.255.255", 67, 68),
        "DHCPv6 server": frames.udp(m, om, mine6, theirs6, 547, 546),
        "DHCP client without being one": frames.udp(m, "ff:ff:ff:ff:ff:ff", "0.0.0.0", "255.255.255.255", 68, 67),
        "VLAN tag": frames.udp(m, GATEWAY, mine, "10.1.1.1", vlan=5),
        "other ethertype": frames.ethernet(m, GATEWAY, 0x88CC, bytes(50)),
        "link-local data": frames.udp(m, GATEWAY, local, "fe80::1"),
    }
    for what, frame in good.items():
        assert site.leaves(11, frame), what
    for what, frame in bad.items():
        assert site.leaves(11, frame) == (), what
        assert site.leaves(18, frame) == (), f"{what} at a port without a job"


def test_only_what_is_for_a_job_reaches_it() -> None:
    job, other = a_job(1, "alice"), a_job(2, "alice")
    site = Site(job, other)
    nobody, everyone = "00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"
    assert site.leaves(UPLINK, frames.arp(GATEWAY, GATEWAY, "10.0.0.1", nobody, "10.64.0.1")) == (11,)
    assert site.leaves(UPLINK, frames.arp(GATEWAY, GATEWAY, "10.0.0.1", nobody, "10.64.0.9")) == (PORT_LOCAL,)
    assert site.leaves(UPLINK, frames.udp(GATEWAY, everyone, "10.0.0.1", "10.255.255.255")) == (PORT_LOCAL,)
    assert site.leaves(UPLINK, frames.udp(GATEWAY, mac(job), "10.0.0.1", "10.1.1.1")) == ()
    assert site.leaves(UPLINK, frames.udp(GATEWAY, "02:77:00:00:00:01", "10.0.0.1", "10.1.1.1")) == (PORT_LOCAL,)
    target = str(other.ipv6)
    solicitation = frames.nd(GATEWAY, "33:33:ff:00:00:02", "fe80::9", "ff02::1:ff00:2", target, sll=GATEWAY)
    assert site.leaves(UPLINK, solicitation) == (12,)
    advertisement = frames.icmp(GATEWAY, "33:33:00:00:00:01", "fe80::9", "ff02::1", 134, rest=bytes(12))
    assert set(site.leaves(UPLINK, advertisement)) == {PORT_LOCAL, 11, 12}
    assert site.leaves(PORT_LOCAL, frames.udp(HOST_MAC, GATEWAY, "10.1.1.1", OUTSIDE[4])) == (UPLINK,)
    assert site.leaves(11, frames.udp(mac(job), HOST_MAC, "10.64.0.1", "10.1.1.1")) == (PORT_LOCAL,)


@VERSIONS
def test_a_gateway_inside_the_job_networks_is_declared_as_a_host(version: int) -> None:
    inside = {4: "10.64.0.254", 6: "2001:db8:64::fe"}[version]
    job = a_job(1, "alice")
    declared = POLICY.replace("  local:", '  hosts: [10.64.0.254, "2001:db8:64::fe"]\n  local:')
    for policy, passes in ((POLICY, False), (declared, True)):
        site = Site(job, policy=policy)
        out = frames.udp(mac(job), GATEWAY, at(job, version), inside)
        back = frames.udp(GATEWAY, mac(job), inside, at(job, version))
        assert site.leaves(11, out) == ((UPLINK,) if passes else ())
        assert site.leaves(UPLINK, back) == ((11,) if passes else ())
        assert bool(site.send(site.core, 2, back).ports) == passes
        if version == 4:
            ask = frames.arp(mac(job), mac(job), at(job, 4), "00:00:00:00:00:00", inside)
            assert bool(site.leaves(11, ask)) == passes


def test_a_vlan_job_is_tagged_on_the_uplink_alone() -> None:
    job, same, untagged = a_job(1, "alice", vlan=7), a_job(2, "alice", vlan=7), a_job(3, "alice")
    site = Site(job, same, untagged)
    out = site.send(site.edge, 11, frames.udp(mac(job), GATEWAY, "10.64.0.1", OUTSIDE[4]))
    assert (out.ports, out.headers[0]["vlan_vid"]) == ((UPLINK,), 0x1007)
    back = site.send(site.edge, UPLINK, frames.udp(GATEWAY, mac(job), OUTSIDE[4], "10.64.0.1", vlan=7))
    assert (back.ports, back.headers[0]["vlan_vid"]) == ((11,), 0)
    assert site.leaves(UPLINK, frames.udp(GATEWAY, mac(job), OUTSIDE[4], "10.64.0.1", vlan=8)) == ()
    assert site.udp(1, 2, 4) == (12,)
    assert site.udp(1, 3, 4) == ()


def test_a_dhcp_job_may_ask_for_its_address_and_nothing_else() -> None:
    job = a_job(1, "alice", address_type=AddressType.DHCP, ipv4=None, ipv6=None)
    site = Site(job)
    ask = frames.udp(mac(job), "ff:ff:ff:ff:ff:ff", "0.0.0.0", "255.255.255.255", 68, 67)
    offer = frames.udp(GATEWAY, "ff:ff:ff:ff:ff:ff", "10.0.0.1", "255.255.255.255", 67, 68)
    assert set(site.leaves(11, ask)) == {PORT_LOCAL, UPLINK}
    assert set(site.leaves(UPLINK, offer)) == {PORT_LOCAL, 11}
    assert site.leaves(UPLINK, frames.udp(GATEWAY, mac(job), "10.0.0.1", "10.64.0.1", 67, 68)) == (11,)
    assert site.leaves(11, frames.udp(mac(job), GATEWAY, "10.64.0.1", "10.1.1.1")) == ()


@VERSIONS
def test_every_packet_of_a_job_carries_its_groups_dscp(version: int) -> None:
    cms, other = a_job(1, "alice"), a_job(2, "alice", group="atlas")
    site = Site(cms, other)
    for job, dscp, queue, meters in ((cms, 10, 3, ()), (other, 20, None, (20,))):
        frame = frames.udp(mac(job), GATEWAY, at(job, version), OUTSIDE[version], dscp=46)
        result = site.send(site.edge, 10 + job.number, frame)
        assert result.headers[0]["ip_dscp"] == dscp
        core = site.send(site.core, 1, result.outputs[0][1])
        assert (core.queues, core.meters) == ((queue,), meters)
        assert site.send(site.core, 2, result.outputs[0][1]).meters == (), "DSCP from outside is not believed"
        inside = {4: "10.1.1.1", 6: "2001:db8:1::1"}[version]
        local = site.send(site.edge, 10 + job.number, frames.udp(mac(job), GATEWAY, at(job, version), inside))
        here = site.send(site.core, 1, local.outputs[0][1])
        assert (set(here.queues), here.meters) == ({None}, ()), "limits are the WAN's"

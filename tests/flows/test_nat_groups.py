"""Packets to jobs behind NAT get their group's queue at the core: by the connection, since no address tells."""

from __future__ import annotations

import re

import pytest

from lab.namespaces import Net
from lab.openvswitch import OpenVSwitch
from lab.run import run as command
from lark_controller.flows import tables
from lark_controller.flows.desired import Desired
from lark_controller.flows.placement import place_switch
from lark_controller.flows.simulation.simulate import ConnectionTable, PortView, Result, Tables, run
from lark_controller.flows.text import flow_text
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from tests.fixtures import frames
from tests.fixtures.service import wait
from tests.flows.test_pipeline import CORE, a_job

LAN, WAN = 1, 2
DSCP = 18
WORKER, ROUTER = "02:00:00:00:0e:01", "02:00:00:00:ff:01"
# A worker's own address, behind which its jobs are, a job with an address of its own, and what is outside.
ENDS = {4: ("10.0.0.11", "198.51.100.7"), 6: ("2001:db8::11", "2001:db9::7")}
POLICY = f"""
version: 1
networks:
  jobs: [10.64.0.0/16, "2001:db8:64::/48"]
  local: [10.0.0.0/8, "2001:db8::/32"]
switches:
  core1:
    datapath: "00000000000000c0"
    role: core
    groups_by: queues
    ports: {{lan: {{port: 1, speed: 1000}}, wan: {{port: 2, next_hop: "{ROUTER}", speed: 1000}}}}
groups:
  cms: {{port: wan, guarantee: 250Mbit, ceiling: 250Mbit, dscp: {DSCP}}}
  default: {{port: wan, guarantee: 100Mbit, ceiling: 100Mbit, dscp: 10}}
"""
VERSIONS = pytest.mark.parametrize("version", [4, 6])


class Core:
    """A core whose groups' queues stand."""

    def __init__(self, *, tracks: bool = True) -> None:
        policy = load(POLICY)
        self.desired = Desired(policy)
        ports = {"a": LAN, "b": WAN}
        self.desired.place_switch(place_switch(policy, CORE, ports, normal=True, tracks=tracks, max_meter=0))
        self.desired.set_group_queues(CORE, frozenset({DSCP, 10}))
        job = a_job(1, "alice", group="cms")
        self.desired.put(job, Decider(policy).of(job))
        self.connections = ConnectionTable()

    def send(self, in_port: int, src: str, dst: str, sport: int, dport: int, dscp: int = 0) -> Result:
        there = (WORKER, ROUTER) if in_port == LAN else (ROUTER, WORKER)
        frame = frames.udp(*there, src, dst, sport, dport, dscp=dscp)
        return run(Tables(self.desired.build(CORE)), in_port, frame, PortView.of((LAN, WAN)), self.connections)


def queue(result: Result) -> int | None:
    assert len(result.queues) == 1
    return result.queues[0]


@VERSIONS
def test_an_answer_has_the_queue_of_the_group_that_asked(version: int) -> None:
    worker, outside = ENDS[version]
    core = Core()
    assert queue(core.send(LAN, worker, outside, 5000, 53, DSCP)) == DSCP
    assert queue(core.send(LAN, worker, outside, 5001, 53, 10)) == 10
    # The DSCP of what comes in is nobody's word.
    assert queue(core.send(WAN, outside, worker, 53, 5000, 10)) == DSCP
    assert queue(core.send(WAN, outside, worker, 53, 5001)) == 10
    # Another connection of the same worker, and one that the outside begins, are in no group.
    assert queue(core.send(WAN, outside, worker, 53, 5002)) is None
    assert queue(core.send(LAN, worker, outside, 5003, 53)) is None
    assert queue(core.send(WAN, outside, worker, 53, 5003)) is None


@VERSIONS
def test_what_a_prefix_tells_is_not_remembered(version: int) -> None:
    core = Core()
    own = "10.64.0.1" if version == 4 else "2001:db8:64::1"
    outside = ENDS[version][1]
    assert queue(core.send(LAN, own, outside, 5000, 53, DSCP)) == DSCP
    assert len(core.connections) == 0
    assert queue(core.send(WAN, outside, own, 53, 5000)) == DSCP
    assert len(core.connections) == 0


@VERSIONS
def test_a_core_without_connection_tracking_goes_by_prefixes_alone(version: int) -> None:
    worker, outside = ENDS[version]
    core = Core(tracks=False)
    assert queue(core.send(LAN, worker, outside, 5000, 53, DSCP)) == DSCP
    assert queue(core.send(WAN, outside, worker, 53, 5000)) is None


def test_rules_grow_with_groups_and_networks_alone() -> None:
    tracking, other = (len(Core(tracks=tracks).desired.build(CORE).flows) for tracks in (True, False))
    # For each of two groups one and one a network; one a network; one for each address family.
    assert tracking - other == 2 * (1 + 2) + 2 + 2


@pytest.mark.ovs
@pytest.mark.parametrize("version", [4, 6])
def test_open_vswitch_takes_the_answer_for_the_groups(ovs: OpenVSwitch, net: Net, version: int) -> None:
    worker, outside = ENDS[version]
    length = 32 if version == 4 else 128
    behind = net.host("w", addresses=[f"{worker}/{length}"], mac=WORKER)
    beyond = net.host("o", addresses=[f"{outside}/{length}"], mac=ROUTER)
    for host, other in ((behind, beyond), (beyond, behind)):
        address, family = str(other.addresses[0].ip), f"-{version}"
        inside = ["ip", family, "-n", host.namespace]
        command([*inside, "route", "add", address, "dev", "eth0"])
        command([*inside, "neigh", "replace", address, "lladdr", other.mac, "dev", "eth0", "nud", "permanent"])
    bridge = net.name("n")
    ovs.add_bridge(bridge, CORE)
    for number, host in ((LAN, behind), (WAN, beyond)):
        assert ovs.add_port(bridge, host.port, number) == number
    program = Core().desired.build(CORE)
    ovs.ofctl(bridge, "del-flows")
    for key, data in program.flows.items():
        ovs.ofctl(bridge, "add-flow", flow_text(key, data))

    def answers(dscp: int) -> int:
        """Packets that took the queue of the group towards the site."""
        shown = ovs.ofctl(bridge, "dump-flows", f"table={int(tables.Core.INBOUND)},ct_mark={dscp:#x}")
        ovs.appctl("revalidator/wait")
        return sum(int(count) for count in re.findall(r"n_packets=([0-9]+)", shown))

    ping = ["ping", f"-{version}", "-n", "-q", "-c3", "-i0.2", "-W1"]
    assert net.exec(behind, [*ping, "-Q", hex(DSCP << 2), outside]).returncode == 0
    wait(lambda: answers(DSCP) == 3)
    assert net.exec(behind, [*ping, outside]).returncode == 0
    assert (answers(DSCP), answers(10)) == (3, 0)

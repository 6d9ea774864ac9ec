"""An access point's switch: what transfers send from there has the group that the worker's packets name."""

from __future__ import annotations

import re

import pytest

from lab.namespaces import Net
from lab.openvswitch import OpenVSwitch
from lab.run import run as command
from lark_controller.flows import core, tables
from lark_controller.flows.access_point import NO_TRACKING
from lark_controller.flows.desired import Desired
from lark_controller.flows.model import PORT_LOCAL
from lark_controller.flows.placement import Switch, place_switch
from lark_controller.flows.simulation.simulate import ConnectionTable, PortView, Result, Tables, run
from lark_controller.flows.text import flow_text
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from lark_controller.policies.model import SwitchRole
from lark_controller.qos.queues import bits
from tests.fixtures import frames
from tests.fixtures.service import wait
from tests.flows.test_pipeline import a_job

ACCESS_POINT, UPLINK = 0xA0, 1
CMS, OTHER = 18, 10
MACS = ("02:00:00:00:0e:01", "02:00:00:00:0a:01")
# The worker's own address, the access point's, and one outside of the site.
ENDS = {4: ("10.0.0.11", "10.0.0.5", "198.51.100.7"), 6: ("2001:db8::11", "2001:db8::5", "2001:db9::7")}
POLICY = """
version: 1
networks:
  jobs: [10.64.0.0/16, "2001:db8:64::/48"]
  local: [10.0.0.0/8, "2001:db8::/32"]
switches:
  submit1:
    datapath: "00000000000000a0"
    role: access-point
    groups_by: queues
    ports: {uplink: {port: eth0, speed: 1Gbit}}
policies:
  - wan: {when: 'Owner == "bob"', action: drop}
  - transfers: {}
groups:
  cms: {guarantee: 250Mbit, ceiling: 300Mbit, dscp: 18}
  default: {ceiling: 100Mbit, dscp: 10}
"""
VERSIONS = pytest.mark.parametrize("version", [4, 6])
# Who opens the connection: the worker's starter, or (by CCB) the access point.
OPENERS = pytest.mark.parametrize("opener", ["worker", "access point"])


def placed(text: str = POLICY, *, tracks: bool = True, meters: int = 0, normal: bool = True) -> Switch:
    ports = {"br0": PORT_LOCAL, "eth0": UPLINK}
    return place_switch(load(text), ACCESS_POINT, ports, normal=normal, tracks=tracks, max_meter=meters)


class Point:
    """An access point's switch whose groups' queues stand."""

    def __init__(self, text: str = POLICY, **more: bool) -> None:
        self.desired = Desired(load(text))
        self.desired.place_switch(placed(text, **more))
        self.desired.set_group_queues(ACCESS_POINT, frozenset({CMS, OTHER}))
        self.connections = ConnectionTable()

    def send(self, in_port: int, src: str, dst: str, sport: int, dport: int, dscp: int = 0) -> Result:
        there = MACS if in_port == UPLINK else MACS[::-1]
        frame = frames.udp(*there, src, dst, sport, dport, dscp=dscp)
        view = PortView.of((UPLINK, PORT_LOCAL))
        return run(Tables(self.desired.build(ACCESS_POINT)), in_port, frame, view, self.connections)


def sent(result: Result) -> tuple[int | None, int]:
    """The queue and the DSCP with which a packet leaves."""
    assert len(result.outputs) == 1
    return result.queues[0], result.headers[0]["ip_dscp"]


@VERSIONS
@OPENERS
def test_what_a_transfer_sends_has_the_group_of_what_it_receives(version: int, opener: str) -> None:
    worker, access, _ = ENDS[version]
    point = Point()
    if opener == "access point":
        assert sent(point.send(PORT_LOCAL, access, worker, 9618, 5000)) == (None, 0)
    # The worker's packets pass as they are: they are in its own queues, and marked already.
    assert sent(point.send(UPLINK, worker, access, 5000, 9618, CMS)) == (None, CMS)
    assert sent(point.send(PORT_LOCAL, access, worker, 9618, 5000)) == (CMS, CMS)
    # Another transfer of the same worker, of a job in another group; and one that is under no rule.
    assert sent(point.send(UPLINK, worker, access, 5001, 9618, OTHER)) == (None, OTHER)
    assert sent(point.send(PORT_LOCAL, access, worker, 9618, 5001)) == (OTHER, OTHER)
    assert sent(point.send(UPLINK, worker, access, 5002, 9618)) == (None, 0)
    assert sent(point.send(PORT_LOCAL, access, worker, 9618, 5002)) == (None, 0)


@VERSIONS
def test_a_connection_gets_its_group_when_the_worker_has_found_it_and_another_when_the_policy_has(version: int) -> None:
    worker, access, _ = ENDS[version]
    point = Point()
    for dscp in (0, CMS, OTHER):
        point.send(UPLINK, worker, access, 5000, 9618, dscp)
        assert sent(point.send(PORT_LOCAL, access, worker, 9618, 5000)) == (dscp or None, dscp)
    # The mark stays where a packet has none: a retransmission may be older than the rule.
    point.send(UPLINK, worker, access, 5000, 9618)
    assert sent(point.send(PORT_LOCAL, access, worker, 9618, 5000)) == (OTHER, OTHER)


@VERSIONS
def test_nobody_outside_of_the_site_chooses_a_group(version: int) -> None:
    _, access, outside = ENDS[version]
    point = Point()
    point.send(UPLINK, outside, access, 5000, 9618, CMS)
    assert sent(point.send(PORT_LOCAL, access, outside, 9618, 5000)) == (None, 0)
    # A group that no policy has is no group.
    point.send(UPLINK, ENDS[version][0], access, 5000, 9618, 7)
    assert sent(point.send(PORT_LOCAL, access, ENDS[version][0], 9618, 5000)) == (None, 0)


def test_all_else_passes_as_through_a_plain_switch() -> None:
    for normal in (True, False):
        point = Point(normal=normal)
        ask = frames.arp(MACS[0], MACS[0], ENDS[4][0], "00:00:00:00:00:00", ENDS[4][1])
        result = run(Tables(point.desired.build(ACCESS_POINT)), UPLINK, ask, PortView.of((UPLINK, PORT_LOCAL)))
        assert [port for port in result.ports if port in (UPLINK, PORT_LOCAL)] == [PORT_LOCAL]


def test_queues_and_meters_are_the_groups_at_the_uplink() -> None:
    plan = core.queue_plan(placed(), load(POLICY))
    assert set(plan.ports) == {"eth0"}
    queues = plan.ports["eth0"].queues
    assert (queues[CMS].least, queues[CMS].most, queues[OTHER].most) == (bits(250), bits(300), bits(100))
    text = POLICY.replace("groups_by: queues", "groups_by: meters")
    point = Desired(load(text))
    point.place_switch(placed(text, meters=63))
    program = point.build(ACCESS_POINT)
    assert {(meter.number, meter.rate) for meter in program.meters.values()} == {(CMS, 300_000), (OTHER, 100_000)}
    assert {data.meter for data in program.flows.values()} == {None, CMS, OTHER}


def test_the_speed_of_workers_links_is_not_the_access_points() -> None:
    text = POLICY.replace(", speed: 1Gbit", "") + "edge: {speed: 10Gbit}\n"
    assert placed(text).speeds == {}


def test_a_switch_that_tracks_no_connections_is_said_and_passes_all() -> None:
    assert core.remarks(placed(tracks=False), load(POLICY)) == (NO_TRACKING,)
    assert core.remarks(placed(), load(POLICY)) == ()
    point = Point(tracks=False)
    worker, access, _ = ENDS[4]
    point.send(UPLINK, worker, access, 5000, 9618, CMS)
    assert sent(point.send(PORT_LOCAL, access, worker, 9618, 5000)) == (None, 0)


def test_jobs_change_nothing_there_and_have_no_port_there() -> None:
    point = Point()
    before, decider = point.desired.build(ACCESS_POINT), Decider(point.desired.policy)
    for number, owner in ((1, "alice"), (2, "bob")):
        job = a_job(number, owner, datapath=ACCESS_POINT, port="eth0")
        assert ACCESS_POINT not in point.desired.put(job, decider.of(job))
    assert point.desired.build(ACCESS_POINT) == before
    assert placed().role is SwitchRole.ACCESS_POINT
    assert "jobs are at edges" in placed().why_no_job_port("eth0")


# Connects, or accepts, with packets of this DSCP; sends so many bytes, and receives all of the other end's.
END = """
import socket, sys
role, family, address, port, dscp, size = sys.argv[1], *sys.argv[2:]
family = socket.AF_INET6 if family == "6" else socket.AF_INET
made = socket.socket(family)
made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
level, option = (socket.IPPROTO_IPV6, socket.IPV6_TCLASS) if family == socket.AF_INET6 else (0, socket.IP_TOS)
made.setsockopt(level, option, int(dscp) << 2)
if role == "accept":
    made.bind((address, int(port)))
    made.listen()
    print("ready", flush=True)
    made = made.accept()[0]
else:
    made.connect((address, int(port)))
made.sendall(bytes(int(size)))
made.shutdown(socket.SHUT_WR)
while made.recv(65536):
    pass
"""


@pytest.mark.ovs
@VERSIONS
@OPENERS
@pytest.mark.parametrize("way", ["input", "output"])
def test_open_vswitch_gives_a_transfers_packets_their_group(
    ovs: OpenVSwitch, net: Net, version: int, opener: str, way: str
) -> None:
    """A job's input has the group's mark by the switch, its output by the worker; the connection's opener is either."""
    hosts = {}
    length = 24 if version == 4 else 64
    for name, address, mac in (("worker", ENDS[version][0], MACS[0]), ("access point", ENDS[version][1], MACS[1])):
        hosts[name] = net.host(name[0], addresses=[f"{address}/{length}"], mac=mac)
    bridge = net.name("a")
    ovs.add_bridge(bridge, ACCESS_POINT)
    for number, name in ((UPLINK, "worker"), (2, "access point")):
        assert ovs.add_port(bridge, hosts[name].port, number) == number
    ovs.ofctl(bridge, "del-flows")
    for key, data in Point().desired.build(ACCESS_POINT).flows.items():
        ovs.ofctl(bridge, "add-flow", flow_text(key, data))
    size = 200_000
    ends = {"worker": (CMS, size if way == "output" else 1), "access point": (0, size if way == "input" else 1)}
    listener = next(name for name in ends if name != opener)
    arguments = {
        name: [str(version), hosts[listener].addresses[0].ip.compressed, "9618", str(dscp), str(count)]
        for name, (dscp, count) in ends.items()
    }

    def end(name: str, role: str) -> list[str]:
        return ["python3", "-c", END, role, *arguments[name]]

    accepting = net.start(hosts[listener], end(listener, "accept"))
    assert accepting.stdout is not None
    assert accepting.stdout.readline() == "ready\n"
    command(["ip", "netns", "exec", hosts[opener].namespace, *end(opener, "connect")])
    accepting.wait(20)

    def packets(table: int, fields: str) -> int:
        shown = ovs.ofctl(bridge, "dump-flows", f"table={table},{fields}")
        return sum(int(count) for count in re.findall(r"n_packets=([0-9]+)", shown))

    ovs.appctl("revalidator/wait")
    # Of the side that sends the file some hundred packets, but for those that leave before the worker's first one with
    # the mark is there; of the other its confirmations.
    least = size // 1500 // 2 if way == "input" else 3
    wait(lambda: packets(int(tables.Core.INBOUND), f"ct_mark={CMS:#x}") >= least)
    assert packets(int(tables.Core.INBOUND), f"ct_mark={OTHER:#x}") == 0

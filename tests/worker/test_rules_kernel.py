"""Rules in the kernel, frame by frame: the same verdict as the edge tables, and as what the rules are said to mean."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import IPv4Address, ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lab.namespaces import Net
from lab.run import run
from lark_common.runs import AddressType, NetworkType, link_local
from lark_common.worker_rules import JobRules, WorkerRules
from lark_controller.flows.desired import Desired
from lark_controller.flows.worker_rules import permits
from lark_controller.jobs.job import Job
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from lark_worker.network import linux_bridge
from lark_worker.records.records import Record
from lark_worker.rules import bridged, render, routed
from lark_worker.rules.render import Port
from lark_worker.rules.table import Table, change, delete
from tests.fixtures import frames
from tests.flows.test_pipeline import (
    GATEWAY,
    UPLINK,
    Site,
    a_job,
)

pytestmark = pytest.mark.ovs

POLICY = """
version: 1
networks:
  jobs: [10.64.0.0/16, "2001:db8:64::/48"]
  hosts: [10.64.0.53]
  local: [10.0.0.0/8, "2001:db8::/32"]
policies:
  - block: {when: 'Owner == "mallory"'}
  - slice: {by: Owner, when: 'Owner != "carol"'}
  - wan: {when: 'Owner == "bob"', action: drop, except: [192.0.2.1, "2001:db9::1"]}
"""
GROUPS = "groups: {cms: {dscp: 10}, default: {dscp: 20}}\n"
JOBS = (1, 2, 3)
PREFIX = "wtrk"
BROADCAST = "ff:ff:ff:ff:ff:ff"
SENTINEL = bytes.fromhex("ffffffffffff02000000000188b5") + bytes(50)


def own_mac(number: int) -> str:
    return f"02:00:00:00:00:{number:02x}"


def multicast_mac(group: str) -> str:
    """The MAC address of a group (RFC 2464, section 7)."""
    return "33:33:" + ip_address(group).packed[-4:].hex(":")


LOCAL_MACS = [bytes.fromhex(f"02000000000{number}") for number in JOBS]


class Wire:
    """Frames in and out of one device's other end."""

    def __init__(self, device: str) -> None:
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.socket.bind((device, 0))
        self.socket.setblocking(False)

    def send(self, frame: bytes) -> None:
        self.socket.send(frame)

    def taken(self) -> list[bytes]:
        """The frames that have come since the last call, without those that this end sent itself."""
        found: list[bytes] = []
        while True:
            try:
                frame, where = self.socket.recvfrom(65536)
            except BlockingIOError:
                return found
            if where[2] != socket.PACKET_OUTGOING:
                found.append(frame)


class Bench:
    """A Linux bridge with the ports of jobs, made as a worker makes them, and an uplink; wires at their other ends."""

    def __init__(self, net: Net) -> None:
        self.bridge = net.name("k")
        self.devices = [self.bridge]
        run(["ip", "link", "add", self.bridge, "type", "bridge", "mcast_snooping", "0"])
        _quiet(self.bridge)
        run(["ip", "link", "set", self.bridge, "up"])
        self.ports = {number: f"{PREFIX}{number:011x}" for number in JOBS}
        self.wires: dict[int, Wire] = {}
        for number, port in self.ports.items():
            self._pair(port, f"{PREFIX[:3]}i{number}")
            linux_bridge.attach(a_record(number, port, self.bridge))
            self.wires[number] = Wire(f"{PREFIX[:3]}i{number}")
        self._pair(net.name("u"), net.name("v"))
        run(["ip", "link", "set", net.name("u"), "master", self.bridge, "up"])
        self.wires[0] = Wire(net.name("v"))
        self._pair(net.name("s"), net.name("t"))
        run(["ip", "link", "set", net.name("s"), "up"])
        self._clock = (Wire(net.name("s")), Wire(net.name("t")))

    def _pair(self, outer: str, inner: str) -> None:
        run(["ip", "link", "add", outer, "type", "veth", "peer", "name", inner])
        self.devices.append(outer)
        for device in (outer, inner):
            _quiet(device)
        run(["ip", "link", "set", inner, "up", "arp", "off"])

    def pass_frame(self, at: int, frame: bytes) -> dict[int, list[bytes]]:
        """The frames that come out, by place, after one at a job's end (its number) or beyond the uplink (0)."""
        self.settle()
        for wire in self.wires.values():
            wire.taken()
        self.wires[at].send(frame)
        self.settle()
        return {number: found for number, wire in self.wires.items() if (found := wire.taken())}

    def settle(self) -> None:
        """Let the kernel deliver what is under way: frames behind it on the same processor, once for each hop."""
        for _ in range(4):
            self._clock[0].send(SENTINEL)
            while SENTINEL not in self._clock[1].taken():
                os.sched_yield()

    def close(self) -> None:
        for wire in (*self.wires.values(), *self._clock):
            wire.socket.close()
        for device in self.devices:
            run(["ip", "link", "del", device], check=False)


def _quiet(device: str) -> None:
    Path("/proc/sys/net/ipv6/conf", device, "disable_ipv6").write_text("1")


def a_record(number: int, port: str, bridge: str) -> Record:
    return Record(
        f"{number:016x}", number, "", 0, 0, "", 0, "", "", "", port, own_mac(number), "bridge", "static", "",
        bridge=bridge,
    )  # fmt: skip


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    processors = os.sched_getaffinity(0)
    # Frames keep their order on one processor alone.
    os.sched_setaffinity(0, {min(processors)})
    with Net() as net:
        made = Bench(net)
        try:
            yield made
        finally:
            made.close()
            os.sched_setaffinity(0, processors)


@contextmanager
def loaded(table: Table) -> Iterator[None]:
    run(["nft", "-f", "-"], stdin=delete(table.family, table.name) + change(table, None))
    try:
        yield
    finally:
        run(["nft", "-f", "-"], stdin=delete(table.family, table.name))


def rules_of(policy: str, jobs: list[Job]) -> WorkerRules:
    parsed = load(policy)
    pool, decider = Desired(parsed), Decider(parsed)
    for job in jobs:
        pool.put(replace(job, network_type=NetworkType.BRIDGE, datapath=None), decider.decide(job.facts))
    return pool.worker_rules("worker1")


def job_of(number: int, owner: str, versions: str) -> Job:
    job = a_job(number, owner)
    if versions == "dhcp":
        return replace(job, ipv4=None, ipv6=None, address_type=AddressType.DHCP)
    return replace(job, ipv4=job.ipv4 if "4" in versions else None, ipv6=job.ipv6 if "6" in versions else None)


some_jobs = st.tuples(
    *(
        st.builds(
            job_of,
            st.just(number),
            st.sampled_from(["alice", "alice", "bob", "carol", "mallory"]),
            st.sampled_from(["46", "46", "4", "6", "dhcp"]),
        )
        for number in JOBS
    )
)
macs = st.sampled_from([own_mac(1), own_mac(2), own_mac(3), GATEWAY])
ipv4 = st.sampled_from(
    ["10.64.0.1", "10.64.0.2", "10.64.0.3", "10.64.9.9", "10.64.0.53", "10.1.1.1", "192.0.2.1", "198.51.100.7"]
)
ipv6 = st.sampled_from(
    ["2001:db8:64::1", "2001:db8:64::2", "2001:db8:64::3", "2001:db8:64:9::9", "2001:db8:1::1", "2001:db9::1",
     "2001:db9::7", str(link_local(own_mac(1))), str(link_local(own_mac(2))), "::"]
)  # fmt: skip
ports = st.sampled_from([67, 68, 546, 547, 53, 2000])


def four(draw: Any, smac: str, src: str) -> bytes:
    dmac, dst = draw(macs), draw(ipv4)
    kind = draw(st.sampled_from(["udp", "tcp", "icmp", "arp", "arp", "probe", "reply", "dhcp"]))
    if kind == "arp":
        return frames.arp(smac, draw(st.sampled_from([smac, draw(macs)])), src, "00:00:00:00:00:00", dst)
    if kind == "probe":
        return frames.arp(smac, smac, "0.0.0.0", "00:00:00:00:00:00", draw(st.sampled_from([src, dst])))
    if kind == "reply":
        # Nobody answers to another's MAC address: a bridge would not flood that, an edge goes by the address asked for.
        known = {f"10.64.0.{number}": own_mac(number) for number in JOBS}
        dmac = known.get(dst, GATEWAY)
        return frames.arp(smac, smac, src, dmac, dst, 2, dmac)
    if kind == "dhcp":
        return frames.udp(smac, BROADCAST, "0.0.0.0", "255.255.255.255", *draw(st.sampled_from([(68, 67), (67, 68)])))
    if kind == "udp":
        return frames.udp(smac, dmac, src, dst, draw(ports), draw(ports), dscp=draw(st.sampled_from([0, 46])))
    if kind == "tcp":
        return frames.tcp(smac, dmac, src, dst, 1000, 80)
    return frames.icmp(smac, dmac, src, dst, 8)


def six(draw: Any, smac: str, src: str) -> bytes:
    dmac, dst = draw(macs), draw(ipv6)
    kind = draw(
        st.sampled_from(["udp", "echo", "ns", "ns", "probe", "na", "dad", "rs", "ra", "redirect", "mld", "dhcp"])
    )
    claimed = draw(st.sampled_from([None, smac, draw(macs)]))
    # Routers speak from a link-local address (RFC 4861); of others the kernel believes less than an edge does.
    if kind in ("ra", "redirect"):
        src = str(link_local(smac))
    if kind == "probe":
        # A neighbour that is known already is asked directly, and a liar asks for another.
        return frames.nd(smac, dmac, src, dst, draw(st.sampled_from([dst, dst, draw(ipv6)])), sll=claimed)
    if kind == "ns":
        return frames.nd(smac, "33:33:ff:00:00:01", src, "ff02::1:ff00:1", dst, sll=claimed)
    if kind == "na":
        return frames.nd(smac, dmac, src, dst, draw(st.sampled_from([src, dst])), tll=claimed or smac)
    if kind == "dad":
        return frames.nd(smac, "33:33:ff:00:00:01", "::", "ff02::1:ff00:1", draw(st.sampled_from([src, dst])))
    if kind in ("rs", "ra", "redirect", "mld"):
        number = {"rs": 133, "ra": 134, "redirect": 137, "mld": 143}[kind]
        group = draw(st.sampled_from(["ff02::1", {"rs": "ff02::2", "mld": "ff02::16"}.get(kind, "ff02::1")]))
        to = draw(st.sampled_from([(multicast_mac(group), group), (multicast_mac(group), group), (dmac, dst)]))
        return frames.icmp(smac, to[0], src, to[1], number, rest=bytes(36 if kind == "redirect" else 12))
    if kind == "dhcp":
        group = "ff02::1:2"
        to = draw(st.sampled_from([(multicast_mac(group), group), (dmac, dst)]))
        return frames.udp(smac, to[0], src, to[1], *draw(st.sampled_from([(546, 547), (547, 546)])))
    if kind == "udp":
        return frames.udp(smac, dmac, src, dst, draw(ports), draw(ports), dscp=draw(st.sampled_from([0, 46])))
    return frames.icmp(smac, dmac, src, dst, 128)


@st.composite
def some_frame(draw: Any) -> tuple[int, bytes]:
    """A frame's entry (a job's number; 0: the uplink), and the frame: mostly nearly right."""
    at = draw(st.sampled_from((0, *JOBS, *JOBS)))
    version = draw(st.sampled_from([4, 6]))
    smac, src = draw(macs), draw(ipv4 if version == 4 else ipv6)
    if at and draw(st.integers(0, 4)):
        smac = own_mac(at)
        src = f"10.64.0.{at}" if version == 4 else draw(st.sampled_from([f"2001:db8:64::{at}", str(link_local(smac))]))
    elif not at:
        # Beyond the uplink nobody has a local job's MAC: the bridge would be told so, and so would an edge.
        smac = GATEWAY
    frame = four(draw, smac, src) if version == 4 else six(draw, smac, src)
    odd = draw(st.integers(0, 15))
    if odd == 0:
        frame = frame[:12] + bytes.fromhex("81000007") + frame[12:]
    elif odd == 1:
        frame = frame[:12] + bytes.fromhex("88cc") + frame[14:]
    return at, frame


@settings(
    max_examples=30,
    deadline=None,
    report_multiple_bugs=False,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(some_jobs, st.booleans(), st.lists(some_frame(), min_size=20, max_size=20))
def test_the_kernel_passes_what_the_edge_passes(
    bench: Bench, jobs: tuple[Job, ...], grouped: bool, sent: list[tuple[int, bytes]]
) -> None:
    policy = POLICY + (GROUPS if grouped else "")
    rules = rules_of(policy, list(jobs))
    site = Site(*jobs, policy=policy)
    table = bridged.table("wtrk", PREFIX, rules, [Port(rules.jobs[number - 1], bench.ports[number]) for number in JOBS])
    with loaded(table):
        for at, frame in sent:
            if at and frame[:6] == bytes.fromhex(own_mac(at).replace(":", "")):
                continue  # to itself: no bridge sends a frame back where it came from
            out = bench.pass_frame(at, frame)
            edge = dict(site.send(site.edge, 10 + at if at else UPLINK, frame).outputs)
            expected = {number: edge[10 + number] for number in JOBS if 10 + number in edge}
            shown = (at, frame.hex(), [job.owner for job in jobs])
            assert {number: found[0] for number, found in out.items() if number} == expected, shown
            assert all(len(found) == 1 for found in out.values()), shown
            own = link_local(own_mac(at)).packed
            # What asks for a job's link-local address an edge hands to that job alone, also where the job asks itself.
            # A job without a slice may ask for a sliced one of another worker, and for none of its own.
            here = {each.packed for job in jobs for each in (job.ipv6, link_local(own_mac(job.number))) if each}
            near = not here.isdisjoint((frame[38:54], frame[62:78]))
            if at and frame[:6] not in LOCAL_MACS and frame[62:78] != own and not near:
                # A bridge floods where an edge hands over to one job alone, so what goes up is the sender's part: what
                # an edge sends up where all others are elsewhere.
                far = [job if job.number == at else replace(job, datapath=2) for job in jobs]
                alone = Site(*far, policy=policy)
                up = dict(alone.send(alone.edge, 10 + at, frame).outputs)
                assert out.get(0) == ([up[UPLINK]] if UPLINK in up else None), shown


HOST = WorkerRules(
    job_networks=(ip_network("10.64.0.0/16"), ip_network("2001:db8:64::/48")),
    hosts=(ip_network("10.64.0.53/32"),),
    local_networks=(ip_network("10.0.0.0/8"), ip_network("2001:db8::/32"), ip_network("fe80::/10")),
    exceptions={1: (ip_network("192.0.2.1/32"), ip_network("2001:db9::1/128"))},
    slices={5: (ip_network("10.64.0.2/31"), ip_network("2001:db8:64::2/127")), 6: ()},
)
some_rules = st.builds(
    lambda isolated, of, wan, dscp: JobRules(
        f"{1:016x}",
        NetworkType.NAT,
        own_mac(1),
        (IPv4Address("10.255.64.2"), ip_address("fd00::2")),
        isolated=isolated,
        slice=of,
        wan=wan,
        dscp=dscp,
    ),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([0, 5, 6]),
    st.sampled_from([0, 1]),
    st.sampled_from([None, 10]),
)


def counts(table: str) -> dict[str, int]:
    listed = json.loads(run(["nft", "-j", "list", "counters", "table", "inet", table]).stdout)["nftables"]
    return {part["counter"]["name"]: part["counter"]["packets"] for part in listed if "counter" in part}


@settings(
    max_examples=30,
    deadline=None,
    report_multiple_bugs=False,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    some_rules,
    st.lists(st.one_of(ipv4, ipv6.filter(lambda text: not text.startswith(("fe80", "::")))), min_size=8, max_size=8),
    st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_the_kernel_decides_for_nat_jobs_as_the_rules_say(
    bench: Bench, job: JobRules, targets: list[str], forged: list[bool]
) -> None:
    own = [ip_network("10.255.64.0/24"), ip_network("fd00::/64")]
    table = routed.table(
        "wtrk", PREFIX, HOST, [Port(job, bench.ports[1])], networks=own,
        gateways=[ip_address("10.255.64.1"), ip_address("fd00::1")], external=bench.bridge, routes=False,
    )  # fmt: skip
    # A device of a bridge is none for the routed hooks, so here the port stands alone.
    run(["ip", "link", "set", bench.ports[1], "nomaster"])
    outer = Path("/sys/class/net", bench.ports[1], "address").read_text().strip()
    switch = Path("/proc/sys/net/ipv6/conf", bench.ports[1], "disable_ipv6")
    switch.write_text("0")
    try:
        with loaded(table):
            for target, lies in zip(targets, forged, strict=True):
                address = ip_address(target)
                honest, forged_one = (("10.255.64.2", "10.64.0.1"), ("fd00::2", "fd00::9"))[address.version == 6]
                source = forged_one if lies else honest
                before = counts("wtrk")
                bench.wires[1].send(frames.udp(own_mac(1), outer, source, target))
                bench.settle()
                after = counts("wtrk")
                # What the worker itself answers goes the other way.
                (counted,) = [name for name in after if after[name] != before.get(name, 0) and "_in_" not in name]
                if job.isolated:
                    expected = "out_dropped"
                elif lies:
                    expected = "spoofed"
                elif permits(HOST, job, address, sends=True):
                    expected = "out_dropped"
                else:
                    local = any(address in network for network in HOST.local_networks)
                    expected = "out_local" if local else "out_wan"
                assert counted == render.counter(job.id, expected), (target, lies)
    finally:
        switch.write_text("1")
        linux_bridge.attach(a_record(1, bench.ports[1], bench.bridge))

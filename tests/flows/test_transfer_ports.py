"""Transfers with a WAN port: cores find them by a mark of their own, in which nobody else can send."""

from __future__ import annotations

import pytest

from lab.namespaces import Host, Net
from lab.openvswitch import OpenVSwitch
from lab.run import run as command
from lark_common.worker_rules import CT_ZONE_GROUPS
from lark_controller.flows import core, tables
from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.desired import Desired
from lark_controller.flows.model import FlowData, Match, Track
from lark_controller.flows.origins import origin
from lark_controller.flows.placement import Switch, place_switch
from lark_controller.flows.simulation.simulate import ConnectionTable, PortView, Result, Tables, run
from lark_controller.flows.text import flow_text
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from lark_controller.policies.model import Policy
from tests.fixtures import frames
from tests.flows.test_pipeline import CORE, a_job, mac

LAN, WAN, FAST = 1, 2, 3
WORKER = "02:00:00:00:0e:01"
# The routers behind each WAN port, and the one to which the worker sends whatever leaves the site.
ROUTERS = {WAN: "02:00:00:00:ff:02", FAST: "02:00:00:00:ff:03"}
# A worker's own address, another address of the site, and one outside.
ENDS = {4: ("10.0.0.11", "10.0.0.5", "198.51.100.7"), 6: ("2001:db8::11", "2001:db8::5", "2001:db9::7")}
CMS, OTHER = 18, 10
POLICY = """
version: 1
networks:
  jobs: [10.64.0.0/16, "2001:db8:64::/48"]
  local: [10.0.0.0/8, "2001:db8::/32"]
switches:
  core1:
    datapath: "00000000000000c0"
    role: core
    groups_by: %s
    ports:
      lan: {port: 1, speed: 1000}
      wan: {port: 2, next_hop: "02:00:00:00:ff:02", speed: 1000}
      wan-fast: {port: 3, next_hop: "02:00:00:00:ff:03", speed: 1000, backup: wan}
policies:
  - wan: {when: 'Owner == "carol"', port: wan-fast}
  - transfers: {port: wan-fast}
groups:
  cms: {guarantee: 250Mbit, ceiling: 300Mbit, dscp: 18}
  other: {ceiling: 100Mbit, dscp: 10, queue: 5}
"""
CONTROLS = pytest.mark.parametrize("control", ["queues", "meters", "preprovisioned"])
VERSIONS = pytest.mark.parametrize("version", [4, 6])
NORMAL = pytest.mark.parametrize("normal", [True, False], ids=["normal", "without NORMAL"])


def mark_of(policy: Policy, group: str) -> int:
    return next(each.dscp for each in policy.transfer_marks if each.group == group)


def dscp_of(match: Match) -> int | None:
    return next((term.value for term in match if term.name == "ip_dscp"), None)


def placed(policy: Policy, *, down: frozenset[int] = frozenset(), ports: int = 3, normal: bool = True) -> Switch:
    numbers = {f"p{number}": number for number in range(1, ports + 1)}
    return place_switch(policy, CORE, numbers, normal=normal, tracks=True, max_meter=63, down=down)


class Core:
    """A core whose groups' queues stand."""

    def __init__(self, control: str = "queues", text: str = POLICY, normal: bool = True) -> None:
        self.policy = load(text % control)
        self.desired = Desired(self.policy)
        self.desired.place_switch(placed(self.policy, normal=normal))
        self.desired.set_group_queues(CORE, frozenset({CMS, OTHER}))
        self.connections = ConnectionTable()

    def send(self, in_port: int, src: str, dst: str, dscp: int = 0, *, by: str = WORKER, sport: int = 5000) -> Result:
        there = (by, ROUTERS[WAN]) if in_port == LAN else (ROUTERS[in_port], by)
        frame = frames.udp(*there, src, dst, sport, 443, dscp=dscp)
        return run(Tables(self.desired.build(CORE)), in_port, frame, PortView.of((LAN, WAN, FAST)), self.connections)


def sent(result: Result) -> tuple[int, int | None, int, str]:
    """Port, queue, DSCP and next hop with which a packet leaves."""
    (port,) = result.ports
    hop = ":".join(f"{result.headers[0]['eth_dst']:012x}"[at : at + 2] for at in range(0, 12, 2))
    return port, result.queues[0], result.headers[0]["ip_dscp"], hop


@VERSIONS
@CONTROLS
@NORMAL
def test_a_transfer_leaves_by_its_port_in_its_group(version: int, control: str, normal: bool) -> None:
    worker, _, outside = ENDS[version]
    core = Core(control, normal=normal)
    queue = {"queues": (CMS, OTHER), "meters": (None, 5), "preprovisioned": (None, 5)}[control]
    for group, dscp, expected in (("cms", CMS, queue[0]), ("other", OTHER, queue[1]), ("", 0, None)):
        # Behind the core it is any packet of the group's.
        assert sent(core.send(LAN, worker, outside, mark_of(core.policy, group))) == (
            FAST, expected, dscp, ROUTERS[FAST]
        )  # fmt: skip
        # What has the group's mark alone leaves as ever: transfers under no rule, jobs behind NAT.
        assert sent(core.send(LAN, worker, outside, dscp)) == (WAN, expected, dscp, ROUTERS[WAN])
    flows = core.desired.build(CORE).flows
    meters = {data.meter for key, data in flows.items() if dscp_of(key.match) == mark_of(core.policy, "cms")}
    assert meters == {CMS if control == "meters" else None}


@VERSIONS
@CONTROLS
@NORMAL
def test_a_transfer_leaves_by_its_port_where_there_are_no_groups(version: int, control: str, normal: bool) -> None:
    worker, access, outside = ENDS[version]
    core = Core(control, POLICY.partition("groups:\n")[0], normal)
    mark = mark_of(core.policy, "")
    assert sent(core.send(LAN, worker, outside, mark)) == (FAST, None, 0, ROUTERS[FAST])
    assert sent(core.send(LAN, worker, outside)) == (WAN, None, 0, ROUTERS[WAN])
    assert FAST not in core.send(LAN, worker, access, mark).ports
    # From outside nobody steers.
    assert core.send(WAN, outside, worker, mark).headers[0]["ip_dscp"] == mark


@VERSIONS
def test_what_stays_on_the_site_is_not_steered(version: int) -> None:
    worker, access, _ = ENDS[version]
    core = Core()
    passed = core.send(LAN, worker, access, mark_of(core.policy, "cms"))
    assert passed.headers[0]["eth_dst"] == int(ROUTERS[WAN].replace(":", ""), 16)
    assert FAST not in passed.ports


@VERSIONS
def test_nobody_outside_steers_by_a_mark(version: int) -> None:
    worker, _, outside = ENDS[version]
    core = Core()
    mark = mark_of(core.policy, "cms")
    # By a WAN port to another's router: as the switch sends everything.
    as_ever, with_mark = (core.send(WAN, outside, worker, dscp) for dscp in (0, mark))
    assert with_mark.ports == as_ever.ports
    assert with_mark.headers[0]["ip_dscp"] == mark


@VERSIONS
def test_a_jobs_own_wan_rule_is_not_the_transfers(version: int) -> None:
    outside = ENDS[version][-1]
    core = Core()
    job = a_job(1, "carol", group="cms")
    core.desired.put(job, Decider(core.policy).of(job))
    # An edge would not let it have the mark; with it, it would have its own rule's port once.
    for dscp in (CMS, mark_of(core.policy, "other")):
        passed = core.send(LAN, str(job.ipv4 if version == 4 else job.ipv6), outside, dscp, by=mac(job))
        assert passed.ports == (FAST,)
        assert passed.headers[0]["ip_dscp"] == dscp


@VERSIONS
def test_the_answer_has_the_groups_queue_towards_the_site(version: int) -> None:
    worker, _, outside = ENDS[version]
    core = Core()
    core.send(LAN, worker, outside, mark_of(core.policy, "cms"))
    there = frames.udp(ROUTERS[WAN], WORKER, outside, worker, 443, 5000)
    back = run(Tables(core.desired.build(CORE)), WAN, there, PortView.of((LAN, WAN, FAST)), core.connections)
    assert back.queues[0] == CMS


@VERSIONS
def test_while_the_port_is_down_its_backup_takes_its_place(version: int) -> None:
    worker, _, outside = ENDS[version]
    core = Core()
    mark = mark_of(core.policy, "cms")
    before = core.desired.build(CORE)
    changes = core.desired.set_switch(placed(core.policy, down=frozenset({FAST})))
    assert sent(core.send(LAN, worker, outside, mark)) == (WAN, CMS, CMS, ROUTERS[WAN])
    # One flow for each mark, one for what jobs are steered by, and one for the next hop.
    assert len(changes) == len(core.policy.transfer_marks) + 5
    core.desired.set_switch(placed(core.policy))
    assert core.desired.build(CORE) == before
    # Gone, it is as good as down.
    core.desired.set_switch(placed(core.policy, ports=2))
    assert sent(core.send(LAN, worker, outside, mark))[0] == WAN


def test_a_core_that_lacks_the_port_leaves_the_mark_for_the_one_that_has_it() -> None:
    text = POLICY.replace(", backup: wan", "")
    core_ = Core(text=text)
    switch = placed(core_.policy, ports=2)
    core_.desired.set_switch(switch)
    worker, _, outside = ENDS[4]
    mark = mark_of(core_.policy, "cms")
    passed = core_.send(LAN, worker, outside, mark)
    assert (passed.queues[0], passed.headers[0]["ip_dscp"]) == (CMS, mark)
    line = 1 + text[: text.index("transfers:")].count("\n")
    assert f"transfers rule in line {line}: the switch has no port wan-fast as it is declared" in core.remarks(
        switch, core_.policy
    )


def test_no_job_has_a_mark_even_where_there_are_no_groups() -> None:
    text = POLICY.partition("groups:\n")[0] % "queues"
    desired = Desired(load(text))
    (mark,) = desired.policy.transfer_marks
    assert mark.group == ""
    edge = place_switch(desired.policy, 0xE1, {"eth0": 1, "p1": 2}, normal=True, tracks=True, max_meter=0)
    desired.set_switch(edge, ["worker1"])
    job = a_job(1, "alice", datapath=0xE1, port="p1")
    desired.put(job, Decider(desired.policy).of(job))
    frame = frames.udp(mac(job), ROUTERS[WAN], str(job.ipv4), "198.51.100.7", 5000, 443, dscp=mark.dscp)
    passed = run(Tables(desired.build(0xE1)), 2, frame, PortView.of((1, 2)), ConnectionTable())
    assert passed.headers[0]["ip_dscp"] == 0
    without = Desired(load(text.replace("  - transfers: {port: wan-fast}\n", "")))
    assert without.policy.marks_packets is False


def test_a_flow_of_transfers_names_its_rule() -> None:
    core = Core()
    for group, words in (("cms", " of group cms"), ("", "")):
        mark = mark_of(core.policy, group)
        line = next(each.line for each in core.policy.transfer_marks if each.group == group)
        found = origin(core.desired, {}, FlowData(cookie(Category.GROUP, mark)))
        assert found.text == f"transfers{words} by WAN port wan-fast (policy line {line})"


def test_the_access_point_gives_answers_the_group_and_not_the_port() -> None:
    text = (POLICY % "queues").replace(
        "policies:\n",
        '  submit1: {datapath: "00000000000000a0", role: access-point, groups_by: queues, ports: {uplink: 1}}\n'
        "policies:\n",
    )
    desired = Desired(load(text))
    desired.place_switch(place_switch(desired.policy, 0xA0, {"eth0": 1}, normal=True, tracks=True, max_meter=0))
    marks = {
        action.mark
        for data in desired.build(0xA0).flows.values()
        for action in data.actions
        if isinstance(action, Track) and action.zone == CT_ZONE_GROUPS and action.commit
    }
    assert marks == {CMS, OTHER}
    read = {dscp_of(key.match) for key in desired.build(0xA0).flows if key.table == tables.Core.QOS}
    assert read == {None, CMS, OTHER, mark_of(desired.policy, "cms"), mark_of(desired.policy, "other")}


@pytest.mark.ovs
@VERSIONS
def test_open_vswitch_sends_a_transfer_out_of_its_port_and_out_of_the_backup(
    ovs: OpenVSwitch, net: Net, version: int
) -> None:
    worker, _, outside = ENDS[version]
    length = 32 if version == 4 else 128
    behind = net.host("w", addresses=[f"{worker}/{length}"], mac=WORKER)
    # Two ways to one address.
    beyond = {port: net.host(f"o{port}", addresses=[f"{outside}/{length}"], mac=ROUTERS[port]) for port in ROUTERS}
    for host, address, hop in (
        (behind, outside, ROUTERS[WAN]), *((each, worker, WORKER) for each in beyond.values())
    ):  # fmt: skip
        inside = ["ip", f"-{version}", "-n", host.namespace]
        command([*inside, "route", "add", address, "dev", "eth0"])
        command([*inside, "neigh", "replace", address, "lladdr", hop, "dev", "eth0", "nud", "permanent"])
    bridge, core = net.name("t"), Core()
    ovs.add_bridge(bridge, CORE)
    for number, host in ((LAN, behind), *beyond.items()):
        assert ovs.add_port(bridge, host.port, number) == number

    def ways(dscp: int) -> set[int]:
        """The WAN ports by which three pings leave."""
        ovs.ofctl(bridge, "del-flows")
        for key, data in core.desired.build(CORE).flows.items():
            ovs.ofctl(bridge, "add-flow", flow_text(key, data))
        before = {port: received(net, host) for port, host in beyond.items()}
        ping = ["ping", f"-{version}", "-n", "-q", "-c3", "-i0.2", "-W1", "-Q", hex(dscp << 2), outside]
        assert net.exec(behind, ping).returncode == 0
        return {port for port, host in beyond.items() if received(net, host) - before[port] >= 3}

    mark = mark_of(core.policy, "cms")
    assert (ways(CMS), ways(mark)) == ({WAN}, {FAST})
    core.desired.set_switch(placed(core.policy, down=frozenset({FAST})))
    assert ways(mark) == {WAN}
    core.desired.set_switch(placed(core.policy))
    assert ways(mark) == {FAST}


def received(net: Net, host: Host) -> int:
    """The echo requests that a host has answered."""
    shown = net.exec(host, ["cat", "/proc/net/snmp", "/proc/net/snmp6"]).stdout
    lines = [line.split() for line in shown.splitlines()]
    names, values = (line for line in lines if line[0] == "Icmp:")
    v6 = {line[0]: int(line[1]) for line in lines if len(line) == 2}
    return int(dict(zip(names, values, strict=True))["InEchos"]) + v6["Icmp6InEchos"]


def test_a_group_whose_queue_is_at_another_port_is_a_remark() -> None:
    text = POLICY.replace("dscp: 18}", "dscp: 18, port: wan}")
    line = next(each.line for each in load(text % "queues").transfer_marks if each.group == "cms")
    words = f"group cms: its transfers leave by port wan-fast (line {line}), and its queue is on port wan"
    for control, expected in (("queues", [words]), ("meters", [])):
        policy = load(text % control)
        assert [each for each in core.remarks(placed(policy), policy) if "transfers leave" in each] == expected
        assert [str(each) for each in core.unkept(placed(policy), policy) if "transfers leave" in each.text] == expected

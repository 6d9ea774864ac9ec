"""The lab itself: a private Open vSwitch switches packets between namespaces, and leaves nothing behind."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from lab.namespaces import Host, Net
from lab.openvswitch import OpenVSwitch
from lab.run import LabError, run

pytestmark = pytest.mark.ovs


def three_hosts(net: Net, ovs: OpenVSwitch, bridge: str) -> list[Host]:
    hosts = [net.host(f"h{n}", addresses=[f"10.64.0.{n}/24", f"2001:db8:64::{n}/64"]) for n in (1, 2, 3)]
    for number, host in enumerate(hosts, 1):
        assert ovs.add_port(bridge, host.port, number) == number
    return hosts


def test_three_hosts_reach_each_other_through_normal(ovs: OpenVSwitch, net: Net) -> None:
    bridge = net.name("br")
    ovs.add_bridge(bridge, dpid=0x1001)
    hosts = three_hosts(net, ovs, bridge)
    pairs = [(a, address) for a, b in itertools.permutations(hosts, 2) for address in (b.ipv4, b.ipv6)]

    assert net.ping_all(pairs, tries=1) == [False] * 12  # secure: without flows nothing passes

    ovs.ofctl(bridge, "add-flow", "priority=1,actions=NORMAL")
    assert net.ping_all(pairs) == [True] * 12
    for address in (hosts[1].ipv4, hosts[1].ipv6):
        assert net.tcp(hosts[0], hosts[1], address)
        assert net.udp(hosts[0], hosts[1], address)


def test_probes_say_no_when_the_way_is_closed(ovs: OpenVSwitch, net: Net) -> None:
    bridge = net.name("br")
    ovs.add_bridge(bridge, dpid=0x1002)
    hosts = three_hosts(net, ovs, bridge)
    ovs.ofctl(bridge, "add-flow", "priority=1,actions=NORMAL")
    ovs.ofctl(bridge, "add-flow", f"priority=2,in_port=1,ip,nw_dst={hosts[1].ipv4},actions=drop")

    assert not net.ping(hosts[0], hosts[1].ipv4)
    assert not net.tcp(hosts[0], hosts[1], hosts[1].ipv4, wait=0.5)
    assert not net.udp(hosts[0], hosts[1], hosts[1].ipv4, wait=0.5)
    assert net.ping(hosts[0], hosts[2].ipv4)


def test_a_bridge_is_made_as_lark_wants_it(ovs: OpenVSwitch, net: Net) -> None:
    bridge = net.name("br")
    ovs.add_bridge(bridge, dpid=0xC0, controller=["tcp:127.0.0.1:1", "tcp:127.0.0.1:2"])

    assert ovs.vsctl("get", "bridge", bridge, "fail_mode").strip() == "secure"
    assert ovs.vsctl("get", "bridge", bridge, "other-config:disable-in-band").strip() == '"true"'
    assert ovs.vsctl("get", "bridge", bridge, "datapath_id").strip() == '"00000000000000c0"'
    assert set(ovs.vsctl("get-controller", bridge).split()) == {"tcp:127.0.0.1:1", "tcp:127.0.0.1:2"}
    assert not ovs.is_connected(bridge)
    # In-band control would add hidden flows at priorities above 65535 that open the controller's port to everybody.
    assert "priority=18" not in ovs.appctl("bridge/dump-flows", bridge)


def test_a_killed_switch_comes_back_without_flows(own_ovs: OpenVSwitch) -> None:
    with Net() as net:
        bridge = net.name("br")
        own_ovs.add_bridge(bridge, dpid=0x1003)
        hosts = three_hosts(net, own_ovs, bridge)
        own_ovs.ofctl(bridge, "add-flow", "priority=1,actions=NORMAL")
        assert net.ping(hosts[0], hosts[1].ipv4)

        own_ovs.restart(kill9=True)

        assert own_ovs.flows(bridge) == []
        assert own_ovs.port_number(hosts[0].port) == 1
        assert not net.ping(hosts[0], hosts[1].ipv4)


def test_nothing_is_left_behind(own_ovs: OpenVSwitch) -> None:
    with Net() as net:
        own_ovs.add_bridge(net.name("br"), dpid=0x1004)
        three_hosts(net, own_ovs, net.name("br"))
        net.link("a", "b")
        pid = own_ovs.switch_pid
    own_ovs.stop()

    assert not [entry for entry in Path("/run/netns").iterdir() if entry.name.startswith(net.prefix)]
    assert not [name for name in os.listdir("/sys/class/net") if name.startswith(net.prefix)]
    assert not Path(f"/proc/{pid}").exists()


def test_a_failed_command_says_what_failed() -> None:
    with pytest.raises(LabError, match="ovs-nothing is not installed"):
        run(["ovs-nothing"])
    with pytest.raises(LabError, match=r"status 2: .*nowhere"):
        run(["ls", "/nowhere"])

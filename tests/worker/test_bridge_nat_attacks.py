"""Attacks of root inside a namespace, which is more than any job has, on a Linux bridge and behind NAT."""

from __future__ import annotations

import subprocess

import pytest

from lab.namespaces import Net
from lab.openvswitch import OpenVSwitch
from tests.worker.test_bridge_nat import BRIDGE, LAN, NAT, a_site, counters, enforced, pings, within
from tests.worker.test_jobs import value

pytestmark = pytest.mark.ovs


@pytest.mark.parametrize("kind", [NAT, BRIDGE])
def test_no_other_address_or_mac_is_admitted(ovs: OpenVSwitch, net: Net, kind: str) -> None:
    with a_site(ovs, net) as (pool, site):
        alice, bob = pool.starter(1, "alice", kind), pool.starter(2, "bob", kind)
        said = enforced(pool, alice, "alice", 1)
        victim = value(enforced(pool, bob, "bob", 2), "LarkInnerAddressIPv4")
        assert pings(pool, alice, LAN)
        finish = site.net.capture(site.lan, f"host {victim} or host 10.77.0.7 or ether src 02:99:99:99:99:99")
        for forged in (victim, "10.77.0.7"):
            within(pool, said, f"ip address add {forged}/32 dev eth0; ping -n -q -c1 -W1 -I {forged} {LAN}")
            within(pool, said, f"ip address del {forged}/32 dev eth0")
        within(pool, said, "ip link set eth0 address 02:99:99:99:99:99")
        within(pool, said, f"ip route replace default via 10.64.0.1 dev eth0; ping -n -q -c1 -W1 {LAN}")
        assert finish() == []
        assert counters(pool, said).spoofed.packets >= 2


def test_nobody_on_the_bridge_sees_a_neighbours_packets(ovs: OpenVSwitch, net: Net) -> None:
    with a_site(ovs, net) as (pool, _):
        alice, bob = pool.starter(1, "alice", BRIDGE), pool.starter(2, "bob", BRIDGE)
        enforced(pool, alice, "alice", 1)
        spy = enforced(pool, bob, "bob", 2)
        namespace = f"{pool.prefix}-{value(spy, 'LarkJobId')}"
        listener = subprocess.Popen(
            ["ip", "netns", "exec", namespace, "tcpdump", "-lnn", "-i", "eth0", "-c", "50"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert listener.stderr is not None
        while "listening on" not in listener.stderr.readline():
            pass
        assert pings(pool, alice, LAN)
        assert not pings(pool, alice, "10.64.77.77")
        listener.terminate()
        seen, _ = listener.communicate(timeout=60)
        assert [line for line in seen.splitlines() if "ICMP echo" in line or "ARP" in line] == []

"""A job's port, frame by frame: its own addresses out, frames for it in, and nothing else."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from lab.namespaces import Host
from lab.openvswitch import OpenVSwitch
from lark_common.runs import link_local
from tests.fixtures import frames
from tests.fixtures.service import (
    CORE,
    WORKER1,
    WORKER2,
    Lark,
    Site,
    enforcing,
    wait,
)
from tests.fixtures.wires import Wire, passes, vlan_of

pytestmark = pytest.mark.ovs

NOBODY = "02:99:99:99:99:99"
ALL = "ff:ff:ff:ff:ff:ff"
ZERO = "00:00:00:00:00:00"
ALL_NODES = "33:33:00:00:00:01"


@pytest.fixture(scope="module")
def started(ovs: OpenVSwitch) -> Iterator[tuple[Site, Lark]]:
    with enforcing(ovs, {"a": WORKER1, "b": WORKER1, "c": WORKER1, "d": WORKER2, "e": WORKER2}) as made:
        yield made


@pytest.fixture
def site(started: tuple[Site, Lark]) -> Iterator[Site]:
    site, lark = started
    yield site
    lark.end_all()
    wait(lambda: not any(site.port_flows(name) for name in site.hosts))


@pytest.fixture
def lark(started: tuple[Site, Lark]) -> Lark:
    return started[1]


def local(host: Host) -> str:
    return str(link_local(host.mac))


def hears(site: Site, sender: Host, receiver: Host, tried: dict[str, bytes]) -> set[str]:
    """The names of the frames that arrive as they were sent."""
    allowed = frames.udp(sender.mac, receiver.mac, sender.ipv4, receiver.ipv4, 4711)
    site.settle()
    with Wire(sender) as out, Wire(receiver) as listening:
        heard = passes(out, listening, tried.values(), allowed, allowed[26:36])
    return {name for name, frame in tried.items() if frame in heard}


def spoofs(a: Host, b: Host) -> dict[str, bytes]:
    """Frames that job ``a`` may never send to ``b``."""
    c4, c6, gateway = "10.64.0.3", "2001:db8:64::3", "10.64.255.3"
    la, lb = local(a), local(b)
    solicited = "33:33:ff:00:00:02"
    ra = b"\x40\x00\x07\x08" + b"\0" * 8
    return {
        "IPv4 source": frames.udp(a.mac, b.mac, c4, b.ipv4),
        "IPv4 source, the receiver's own": frames.udp(a.mac, b.mac, b.ipv4, b.ipv4),
        "IPv4 source of nobody": frames.icmp(a.mac, b.mac, "0.0.0.0", b.ipv4, 8),
        "IPv4 source outside": frames.udp(a.mac, b.mac, "192.0.2.1", b.ipv4),
        "MAC": frames.udp(NOBODY, b.mac, a.ipv4, b.ipv4),
        "MAC, IPv6": frames.udp(NOBODY, b.mac, a.ipv6, b.ipv6),
        "broadcast MAC as source": frames.udp(ALL, b.mac, a.ipv4, b.ipv4),
        "IPv6 source": frames.udp(a.mac, b.mac, c6, b.ipv6),
        "IPv6 link-local source": frames.udp(a.mac, b.mac, lb, b.ipv6),
        "ARP request, sender's address": frames.arp(a.mac, a.mac, gateway, ZERO, b.ipv4),
        "ARP request, sender's MAC": frames.arp(a.mac, NOBODY, a.ipv4, ZERO, b.ipv4),
        "ARP reply, sender's address": frames.arp(a.mac, a.mac, gateway, b.mac, b.ipv4, 2, b.mac),
        "ARP reply, sender's MAC": frames.arp(a.mac, NOBODY, a.ipv4, b.mac, b.ipv4, 2, b.mac),
        "ARP probe for another's address": frames.arp(a.mac, a.mac, "0.0.0.0", ZERO, b.ipv4),
        "gratuitous ARP for another": frames.arp(a.mac, a.mac, gateway, ZERO, gateway),
        "NS from another": frames.nd(a.mac, solicited, c6, "ff02::1:ff00:2", b.ipv6, sll=a.mac),
        "NS with another's link-layer option": frames.nd(
            a.mac, solicited, a.ipv6, "ff02::1:ff00:2", b.ipv6, sll=NOBODY
        ),
        "NS (DAD) for another's address": frames.nd(a.mac, solicited, "::", "ff02::1:ff00:2", b.ipv6),
        "NA for another's target": frames.nd(a.mac, b.mac, a.ipv6, b.ipv6, c6, tll=a.mac),
        "NA for the gateway from link-local": frames.nd(a.mac, b.mac, la, b.ipv6, "2001:db8:64:ffff::3", tll=a.mac),
        "NA with another's link-layer option": frames.nd(a.mac, b.mac, a.ipv6, b.ipv6, a.ipv6, tll=NOBODY),
        "NA from another": frames.nd(a.mac, b.mac, c6, b.ipv6, c6, tll=a.mac),
        "router advertisement": frames.icmp(a.mac, ALL_NODES, la, "ff02::1", 134, rest=ra),
        "router advertisement, unicast": frames.icmp(a.mac, b.mac, la, lb, 134, rest=ra),
        "router advertisement from the global address": frames.icmp(a.mac, b.mac, a.ipv6, b.ipv6, 134, rest=ra),
        "redirect": frames.icmp(a.mac, b.mac, a.ipv6, b.ipv6, 137, rest=b"\0" * 36),
        "DHCP offer": frames.udp(a.mac, b.mac, a.ipv4, b.ipv4, 67, 68),
        "DHCP offer to all": frames.udp(a.mac, ALL, a.ipv4, "255.255.255.255", 67, 68),
        "DHCPv6 reply": frames.udp(a.mac, b.mac, la, lb, 547, 546),
        "DHCPv6 reply, global": frames.udp(a.mac, b.mac, a.ipv6, b.ipv6, 547, 546),
        "VLAN tag": frames.udp(a.mac, b.mac, a.ipv4, b.ipv4, vlan=7),
        "priority tag": frames.udp(a.mac, b.mac, a.ipv4, b.ipv4, vlan=0),
        "two VLAN tags": frames.ethernet(a.mac, b.mac, 0x88A8, b"\0\7\x81\0\0\x08\x08\0" + b"x" * 40),
        "spanning tree": frames.ethernet(a.mac, "01:80:c2:00:00:00", 0x0026, b"\x42\x42\x03" + b"\0" * 40),
        "LLDP": frames.ethernet(a.mac, "01:80:c2:00:00:0e", 0x88CC, b"\x02\x07\x04" + b"\0" * 40),
        "another ethertype": frames.ethernet(a.mac, b.mac, 0x88B5, b"x" * 60),
        "MPLS": frames.ethernet(a.mac, b.mac, 0x8847, b"\0\0\x11\xff" + b"E" * 40),
        "PPPoE": frames.ethernet(a.mac, b.mac, 0x8864, b"\x11\0\0\1" + b"x" * 40),
        "RARP": frames.ethernet(a.mac, ALL, 0x8035, b"\0\1\x08\0\6\4\0\3" + b"\0" * 40),
    }


def allowed(a: Host, b: Host) -> dict[str, bytes]:
    """Frames that job ``a`` may send to job ``b``."""
    solicited = "33:33:ff:00:00:02"
    return {
        "IPv4": frames.udp(a.mac, b.mac, a.ipv4, b.ipv4),
        "IPv6": frames.udp(a.mac, b.mac, a.ipv6, b.ipv6),
        "ARP request": frames.arp(a.mac, a.mac, a.ipv4, ZERO, b.ipv4),
        "ARP reply": frames.arp(a.mac, a.mac, a.ipv4, b.mac, b.ipv4, 2, b.mac),
        "NS": frames.nd(a.mac, solicited, a.ipv6, "ff02::1:ff00:2", b.ipv6, sll=a.mac),
        "NS from link-local": frames.nd(a.mac, solicited, local(a), "ff02::1:ff00:2", b.ipv6, sll=a.mac),
        "NA": frames.nd(a.mac, b.mac, a.ipv6, b.ipv6, a.ipv6, tll=a.mac),
    }


@pytest.mark.parametrize("receiver", ["b", "gw"])
def test_a_job_sends_as_itself_or_not_at_all(site: Site, lark: Lark, receiver: str) -> None:
    site.run(lark, "a", "alice")
    site.run(lark, "b", "bob")
    a, b = site["a"], site[receiver]
    assert hears(site, a, b, spoofs(a, b)) == set()
    if receiver == "b":
        assert hears(site, a, b, allowed(a, b)) == set(allowed(a, b))


def test_neighbours_keep_the_right_address_while_a_job_lies(site: Site, lark: Lark) -> None:
    site.run(lark, "a", "alice")
    site.run(lark, "b", "bob")
    site.run(lark, "c", "carol")
    assert site.matrix("a", "b", "c") == {f"{x}>{y}" for x in "abc" for y in "abc" if x != y}
    a, b, c = site["a"], site["b"], site["c"]
    with Wire(a) as wire:
        wire.send(
            frames.arp(a.mac, a.mac, c.ipv4, b.mac, b.ipv4, 2, b.mac),
            frames.nd(a.mac, b.mac, a.ipv6, b.ipv6, c.ipv6, tll=a.mac),
        )
    assert site.net.ping(b, c.ipv4)
    known = {str(entry["dst"]): str(entry.get("lladdr")) for entry in site.net.neighbours(b)}
    assert (known[c.ipv4], known[c.ipv6]) == (c.mac, c.mac)


def test_a_port_without_a_job_sends_and_hears_nothing(site: Site, lark: Lark) -> None:
    site.run(lark, "b", "bob")
    c, b, gw = site["c"], site["b"], site["gw"]
    site.settle()
    with Wire(c) as unregistered, Wire(b) as job, Wire(gw) as router:
        unregistered.send(*spoofs(c, b).values(), *allowed(c, b).values())
        unregistered.send(*spoofs(c, gw).values(), *allowed(c, gw).values())
        assert site.net.ping(b, gw.ipv4)
        assert site.net.ping(gw, b.ipv4)
        site.net.ping(gw, c.ipv4, tries=1, wait=0.2)  # an ARP request to everybody
        mac = bytes.fromhex(c.mac.replace(":", ""))
        assert [frame for wire in (job, router) for frame in wire.heard() if frame[6:12] == mac] == []
        assert unregistered.heard() == []


def test_a_job_hears_nothing_that_is_for_others(site: Site, lark: Lark) -> None:
    site.run(lark, "a", "alice")
    site.run(lark, "b", "bob")
    site.run(lark, "d", "dora")
    a, b, d, gw = site["a"], site["b"], site["d"], site["gw"]
    for host in (b, d, gw):
        site.net.forget_neighbours(host)
    with Wire(a) as wire, Wire(gw) as router:
        assert site.net.ping_all([(b, d.ipv4), (d, b.ipv6), (b, gw.ipv4), (gw, d.ipv6)]) == [True] * 4
        router.send(
            frames.udp(gw.mac, ALL, "10.64.255.3", "255.255.255.255"),
            frames.udp(gw.mac, b.mac, "10.64.255.3", b.ipv4),
            frames.udp(gw.mac, b.mac, "10.64.255.3", a.ipv4),  # b's MAC, a's address
            frames.udp(gw.mac, NOBODY, "10.64.255.3", "10.64.7.7"),
            frames.arp(gw.mac, gw.mac, "10.64.255.3", ZERO, b.ipv4),
        )
        assert site.net.ping(gw, b.ipv4)
        assert wire.heard() == []


def test_a_vlan_job_is_tagged_on_the_uplink_and_meets_only_its_vlan(site: Site, lark: Lark) -> None:
    site.run(lark, "a", "alice", machine="LarkVLAN=42")
    site.run(lark, "b", "bob")
    site.run(lark, "d", "alice", machine="LarkVLAN=42")
    site.run(lark, "e", "alice", machine="LarkVLAN=43")
    assert site.matrix("a", "b", "d", "e") == {"a>d", "d>a"}
    a, gw = site["a"], site["gw"]
    with Wire(a) as wire, Wire(gw) as router, Wire(site["d"]) as peer:
        frame = frames.udp(a.mac, gw.mac, a.ipv4, gw.ipv4, 4712)
        wire.send(frame)
        heard = router.until(frame[26:36])
        del heard
        frame = frames.udp(a.mac, site["d"].mac, a.ipv4, site["d"].ipv4, 4713)
        wire.send(frame)
        peer.until(frame)
        tagged = frames.udp(gw.mac, a.mac, gw.ipv4, a.ipv4, 4714, vlan=42)
        foreign = frames.udp(gw.mac, a.mac, gw.ipv4, a.ipv4, 4715, vlan=43)
        untagged = frames.udp(gw.mac, a.mac, gw.ipv4, a.ipv4, 4716)
        last = frames.udp(gw.mac, a.mac, gw.ipv4, a.ipv4, 4717, vlan=42)
        untag = last[:12] + last[16:]
        arrived = passes(router, wire, [tagged, foreign, untagged], last, untag[26:36])
    assert [each for each in arrived if b"\x12\x6a" <= each[34:36] <= b"\x12\x6c"] == [tagged[:12] + tagged[16:]]


def test_what_leaves_a_vlan_job_is_tagged(site: Site, lark: Lark) -> None:
    site.run(lark, "a", "alice", machine="LarkVLAN=42")
    site.run(lark, "b", "bob")
    gw = site["gw"]
    for name, vlan in (("a", 42), ("b", None)):
        host = site[name]
        with Wire(host) as wire, Wire(gw) as router:
            frame, last = (frames.udp(host.mac, gw.mac, host.ipv4, gw.ipv4, port) for port in (4720, 4721))
            heard = passes(wire, router, [frame], last, last[-20:])
            assert [vlan_of(each) for each in heard if frame[-20:] in each] == [vlan]


def bootp(kind: int, mac: str, yours: str = "0.0.0.0") -> bytes:
    """A DHCP message (RFC 2131): 1 discover, 2 offer, 3 request, 5 acknowledgement."""
    op = 1 if kind in (1, 3) else 2
    head = struct.pack("!BBBBIHH", op, 1, 6, 0, 0x4C41524B, 0, 0x8000) + b"\0" * 4
    head += bytes(map(int, yours.split("."))) + b"\0" * 8
    head += bytes.fromhex(mac.replace(":", "")) + b"\0" * 10 + b"\0" * 192
    return head + b"\x63\x82\x53\x63" + bytes((53, 1, kind, 255)) + b"\0" * 8


def dhcp(kind: int, mac: str, source: tuple[str, str], target: tuple[str, str], yours: str = "0.0.0.0") -> bytes:
    """A frame with a DHCP message between (MAC, address) and (MAC, address)."""
    ports = (68, 67) if kind in (1, 3) else (67, 68)
    payload = frames.udp_payload(source[1], target[1], *ports, bootp(kind, mac, yours))
    return frames.ethernet(source[0], target[0], *frames.ip(source[1], target[1], 17, payload))


def test_a_dhcp_job_gets_its_address_and_then_the_rest(site: Site, lark: Lark) -> None:
    site.run(lark, "b", "bob")
    ads = site.ads("a", "alice", machine='LarkAddressType="dhcp"', address=False, number=900)
    answer = lark.post(ads)
    assert answer.status == 201, answer
    assert answer.body["state"] == "pending"
    assert "address" in answer.body["reason"]
    a, gw = site["a"], site["gw"]
    site.settle()
    with Wire(a) as client, Wire(gw) as server:
        discover = dhcp(1, a.mac, (a.mac, "0.0.0.0"), (ALL, "255.255.255.255"))
        # Nothing but DHCP leaves, whatever address it claims.
        early = [*allowed(a, gw).values(), *spoofs(a, gw).values()]
        heard = passes(client, server, early, discover, discover[42:60])
        mac = bytes.fromhex(a.mac.replace(":", ""))
        assert [frame for frame in heard if frame[6:12] == mac and frame[12:14] != b"\x86\xdd"] == []
        assert [frame for frame in heard if frame in early] == [
            frame for frame in heard if frame in early and local_only(frame)
        ]
        for offer in (
            dhcp(2, a.mac, (gw.mac, "10.64.255.3"), (ALL, "255.255.255.255"), a.ipv4),
            dhcp(5, a.mac, (gw.mac, "10.64.255.3"), (a.mac, a.ipv4), a.ipv4),
        ):
            server.send(offer)
            client.until(offer)
        request = dhcp(3, a.mac, (a.mac, "0.0.0.0"), (ALL, "255.255.255.255"))
        client.send(request)
        server.until(request)
        # Before the lease is told, others do not reach it.
        probe = frames.udp(gw.mac, a.mac, "10.64.255.3", a.ipv4)
        answered = dhcp(5, a.mac, (gw.mac, "10.64.255.3"), (a.mac, a.ipv4), a.ipv4)
        assert probe not in passes(server, client, [probe], answered, answered)

    lease = f'LarkInnerAddressIPv4="{a.ipv4}"\nLarkInnerAddressIPv6="{a.ipv6}"\nLarkAddressType="dhcp"'
    answer = lark.post(site.ads("a", "alice", machine=lease, address=False, number=900))
    assert answer.status == 200, answer
    assert answer.body["state"] == "enforced", answer
    assert site.matrix("a", "b") == {"a>b", "b>a"}
    assert hears(site, a, site["b"], spoofs(a, site["b"])) == set()
    # And the lease can be renewed.
    with Wire(a) as client, Wire(gw) as server:
        request = dhcp(3, a.mac, (a.mac, a.ipv4), (gw.mac, "10.64.255.3"))
        client.send(request)
        server.until(request)


def local_only(frame: bytes) -> bool:
    """True for neighbour discovery between link-local addresses, without which DHCPv6 does not work."""
    return frame[12:14] == b"\x86\xdd" and frame[22:24] == b"\xfe\x80"


def test_router_advertisements_reach_jobs_from_the_uplink_alone(site: Site, lark: Lark) -> None:
    site.run(lark, "a", "alice")
    site.run(lark, "b", "bob")
    gw, a, b = site["gw"], site["a"], site["b"]
    body = b"\x40\x00\x07\x08" + b"\0" * 8
    from_router = frames.icmp(gw.mac, ALL_NODES, local(gw), "ff02::1", 134, rest=body)
    with Wire(gw) as router, Wire(a) as one, Wire(b) as two:
        router.send(from_router)
        one.until(from_router)
        two.until(from_router)


def test_the_core_takes_no_jobs_address_from_outside(site: Site, lark: Lark) -> None:
    site.run(lark, "a", "alice")
    site.run(lark, "b", "bob")
    gw, a = site["gw"], site["a"]
    tried = {
        "IPv4": frames.udp(gw.mac, a.mac, "10.64.0.2", a.ipv4),
        "IPv6": frames.udp(gw.mac, a.mac, "2001:db8:64::2", a.ipv6),
    }
    assert hears(site, gw, a, tried) == set()
    assert lark.switch(CORE)["in_sync"]

"""Frames of a job to its neighbours unasked: none reaches another slice, whatever kind of address the job has.

Jobs with DHCP addresses may send neighbour discovery from their link-local address before they have another one, and
jobs without a slice may send to everybody but sliced jobs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from lab.namespaces import Host
from lab.openvswitch import OpenVSwitch
from lark_common.runs import link_local
from tests.fixtures import frames
from tests.fixtures.service import WORKER1, WORKER2, Lark, Site, enforcing, wait
from tests.fixtures.wires import Wire

pytestmark = pytest.mark.ovs

ALL_NODES = "33:33:00:00:00:01"
ROUTER = "2001:db8:64:ffff::3"
ZERO = "00:00:00:00:00:00"
# Multicast listener report, router solicitation, echo.
KINDS = (143, 133, 128)
_numbers = itertools.count(7000)


@pytest.fixture(scope="module")
def started(ovs: OpenVSwitch) -> Iterator[tuple[Site, Lark]]:
    hosts = {"a": WORKER1, "b": WORKER1, "c": WORKER1, "d": WORKER2, "e": WORKER2, "f": WORKER1}
    with enforcing(ovs, hosts) as made:
        yield made


@pytest.fixture
def site(started: tuple[Site, Lark]) -> Iterator[Site]:
    site, lark = started
    lark.put_policy(site.policy("slice: {by: Owner, when: 'Owner != \"carol\"'}"))
    yield site
    lark.end_all()
    lark.put_policy(site.policy())
    wait(lambda: not any(site.port_flows(name) for name in site.hosts))


@pytest.fixture
def lark(started: tuple[Site, Lark]) -> Lark:
    return started[1]


def local(host: Host) -> str:
    return str(link_local(host.mac))


def asks(site: Site, lark: Lark, name: str, owner: str, *, leased: bool = True) -> None:
    """Register a run with AddressType dhcp, that has been given its addresses or not."""
    number = next(_numbers)
    lark.post(site.ads(name, owner, machine='LarkAddressType="dhcp"', address=False, number=number))
    host = site[name]
    if leased:
        lease = f'LarkInnerAddressIPv4="{host.ipv4}"\nLarkInnerAddressIPv6="{host.ipv6}"\nLarkAddressType="dhcp"'
        answer = lark.post(site.ads(name, owner, machine=lease, address=False, number=number))
        assert answer.body["state"] == "enforced", answer
    site.settle()


def unasked(a: Host, b: Host) -> dict[str, bytes]:
    """Frames that ``a`` sends to ``b`` unasked."""
    found: dict[str, bytes] = {}
    at = {"local": local(a), "global": a.ipv6, "none": "::"}
    to = {"local": local(b), "global": b.ipv6}
    for source_name, source in at.items():
        for name, target in to.items():
            last = ip_address(target).packed[-3:]
            group = f"ff02::1:ff{last[0]:02x}:{last[1]:02x}{last[2]:02x}"
            sll = None if source == "::" else a.mac
            found[f"NS {source_name} for {name}"] = frames.nd(
                a.mac, f"33:33:ff:{last.hex(':')}", source, group, target, sll=sll
            )
            found[f"NS {source_name} directly for {name}"] = frames.nd(a.mac, b.mac, source, target, target, sll=sll)
            found[f"NS {source_name} to all for {name}"] = frames.nd(
                a.mac, ALL_NODES, source, "ff02::1", target, sll=sll
            )
            if source != "::":
                found[f"NA {source_name} to {name}"] = frames.nd(a.mac, b.mac, source, target, source, tll=a.mac)
                for whose, claimed in {"router": ROUTER, "receiver": target}.items():
                    found[f"NA {source_name} to {name} for {whose}"] = frames.nd(
                        a.mac, b.mac, source, target, claimed, tll=a.mac
                    )
            for kind in KINDS:
                found[f"ICMPv6 {kind} {source_name} to {name}"] = frames.icmp(
                    a.mac, b.mac, source, target, kind, rest=b"\0" * 20
                )
            if source != "::":
                found[f"DHCPv6 {source_name} to {name}"] = frames.udp(a.mac, b.mac, source, target, 546, 547)
                found[f"UDP {source_name} to {name}"] = frames.udp(a.mac, b.mac, source, target)
        if source != "::":
            found[f"NA {source_name} to all"] = frames.nd(a.mac, ALL_NODES, source, "ff02::1", source, tll=a.mac)
            found[f"NA {source_name} to all for the router"] = frames.nd(
                a.mac, ALL_NODES, source, "ff02::1", ROUTER, tll=a.mac
            )
            found[f"RA {source_name}"] = frames.icmp(
                a.mac, ALL_NODES, source, "ff02::1", 134, rest=b"\x40\0\x07\x08" + b"\0" * 8
            )
    broadcast = "ff:ff:ff:ff:ff:ff"
    for name, address in {"own": a.ipv4, "receiver": b.ipv4, "router": "10.64.255.3", "none": "0.0.0.0"}.items():
        for whom, target in {"itself": address, "receiver": b.ipv4, "router": "10.64.255.3"}.items():
            found[f"ARP of {name} about {whom}"] = frames.arp(a.mac, a.mac, address, ZERO, target)
            found[f"ARP answer of {name} to {whom}"] = frames.arp(a.mac, a.mac, address, b.mac, target, 2, b.mac)
            found[f"ARP answer of {name} to {whom}, to all"] = frames.arp(
                a.mac, a.mac, address, b.mac, target, 2, broadcast
            )
    found["DHCP to all"] = frames.udp(a.mac, broadcast, "0.0.0.0", "255.255.255.255", 68, 67)
    found["DHCP to the receiver"] = frames.udp(a.mac, b.mac, "0.0.0.0", "255.255.255.255", 68, 67)
    return {
        name: frame if frame[12:14] != b"\x86\xdd" else frame[:21] + b"\xff" + frame[22:]
        for name, frame in found.items()
    }


@pytest.mark.parametrize("sender", ["static", "leased", "asking", "without a slice", "asking without a slice"])
def test_nothing_unasked_reaches_another_slice(site: Site, lark: Lark, sender: str) -> None:
    owner = "carol" if "without" in sender else "alice"
    if sender in ("static", "without a slice"):
        site.run(lark, "a", owner)
    else:
        asks(site, lark, "a", owner, leased=sender == "leased")
    site.runs(lark, {"b": "bob", "d": "bob"})
    asks(site, lark, "c", "bob")
    asks(site, lark, "e", "bob")
    asks(site, lark, "f", "bob", leased=False)
    a = site["a"]
    mac = bytes.fromhex(a.mac.replace(":", ""))
    receivers = {name: site[name] for name in "bcdef"}
    wires = {name: Wire(host) for name, host in receivers.items()}
    leaks = {}
    with Wire(a) as out:
        for host in receivers.values():
            out.send(*unasked(a, host).values())
        assert site.matrix("b", "d") == {"b>d", "d>b"}  # frames later than those sent
        for name, wire in wires.items():
            sent = {
                frame: f"{what} ({to})" for to, host in receivers.items() for what, frame in unasked(a, host).items()
            }
            leaks[name] = sorted({sent.get(frame, frame.hex()) for frame in wire.heard() if frame[6:12] == mac})
            wire.__exit__(None, None, None)
    # What a job without a slice asks from its link-local address looks on another worker like a router's question.
    if owner == "carol":
        leaks |= {name: [each for each in leaks[name] if not each.startswith("NS local")] for name in "de"}
    assert {name: found for name, found in leaks.items() if found} == {}

"""Every policy on real switches with packets between hosts: two workers, a core with two WAN ports, IPv4 and IPv6."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from ipaddress import ip_address

import pytest

from lab.openvswitch import OpenVSwitch
from lab.run import run
from lark_common.runs import link_local
from lark_controller.flows.cookies import Category
from tests.fixtures import frames
from tests.fixtures.service import (
    CORE,
    OUTSIDE,
    WORKER1,
    WORKER2,
    Lark,
    Site,
    enforcing,
    wait,
)
from tests.fixtures.wires import Wire, passes

pytestmark = pytest.mark.ovs

HOSTS = {"a": WORKER1, "b": WORKER1, "c": WORKER1, "d": WORKER2, "e": WORKER2}


@pytest.fixture(scope="module")
def started(ovs: OpenVSwitch) -> Iterator[tuple[Site, Lark]]:
    with enforcing(ovs, HOSTS) as made:
        yield made


@pytest.fixture
def site(started: tuple[Site, Lark]) -> Iterator[Site]:
    """The site without jobs; afterwards no job has left anything behind, and no job's traffic was asked about."""
    site, lark = started
    yield site
    lark.end_all()
    lark.put_policy(site.policy())
    for datapath in site.bridges:
        wait(partial(is_free_of_jobs, site, datapath))
        assert site.flows(datapath, Category.SLICE) == []
        assert site.flows(datapath, Category.CLASSIFY) in ([], _edge_of_site(site, datapath))
        assert lark.switch(datapath)["packet_ins"] == 0


def is_free_of_jobs(site: Site, datapath: int) -> bool:
    return not site.flows(datapath, Category.JOB)


def _edge_of_site(site: Site, datapath: int) -> list[str]:
    """The flows against outsiders with jobs' addresses, which have to do with no job."""
    return [flow for flow in site.flows(datapath, Category.CLASSIFY) if "cookie=0x1a4b060000000000" in flow]


@pytest.fixture
def lark(started: tuple[Site, Lark]) -> Lark:
    return started[1]


def every_way(*groups: str) -> set[str]:
    """``a>b`` for every two within a group of one-letter names."""
    return {f"{a}>{b}" for group in groups for a in group for b in group if a != b}


def test_without_rules_registered_jobs_reach_each_other_and_others_nobody(site: Site, lark: Lark) -> None:
    site.runs(lark, {"a": "alice", "b": "bob", "d": "dora"})
    assert site.matrix("a", "b", "c", "d") == every_way("abd")
    assert site.reached([("a", "wan1"), ("c", "wan1"), ("gw", "c")]) == {
        ("a", "wan1"): (True, True), ("c", "wan1"): (False, False), ("gw", "c"): (False, False),
    }  # fmt: skip


def test_block_both_ways_and_for_outsiders(site: Site, lark: Lark) -> None:
    lark.put_policy(site.policy("block: {when: 'Owner == \"mallory\"'}"))
    site.runs(lark, {"a": "alice", "b": "mallory", "d": "dora", "e": "mallory"})
    assert site.matrix("a", "b", "d", "e") == every_way("ad")
    with Wire(site["b"]) as blocked:
        found = site.reached([("b", "wan1"), ("e", "wan1"), ("gw", "b"), ("gw", "e"), ("gw", "d"), ("d", "wan1")])
        assert {pair for pair, both in found.items() if any(both)} == {("d", "wan1")} | {
            pair for pair in [("gw", "d")] if any(found[pair])
        }
        assert blocked.heard() == []


def test_slice_by_owner_on_one_worker_and_across(site: Site, lark: Lark) -> None:
    lark.put_policy(site.policy("slice: {by: Owner}"))
    site.runs(lark, {"a": "alice", "b": "bob", "c": "alice", "d": "alice", "e": "bob"})
    assert site.matrix(*HOSTS) == every_way("acd", "be")
    assert site.reached([("a", "wan1"), ("e", "wan2")]) == {
        ("a", "wan1"): (True, True), ("e", "wan2"): (True, True),
    }  # fmt: skip
    jobs = {job["owner"] for job in lark.live()}
    assert jobs == {"alice", "bob"}


def test_slice_by_another_attribute_and_first_match(site: Site, lark: Lark) -> None:
    lark.put_policy(site.policy("slice: {by: Project}", "slice: {by: Owner}"))
    site.run(lark, "a", "alice", job='Project="higgs"')
    site.run(lark, "b", "bob", job='Project="higgs"')
    site.run(lark, "c", "carol")
    site.run(lark, "d", "dora", job='Project="higgs"')
    site.run(lark, "e", "carol")
    assert site.matrix(*HOSTS) == every_way("abd", "ce")


def test_slice_follows_the_jobs_that_come_and_go(site: Site, lark: Lark) -> None:
    lark.put_policy(site.policy("slice: {by: Owner}"))
    jobs = site.runs(lark, {"a": "alice", "d": "alice"})
    assert site.matrix("a", "d") == every_way("ad")
    site.end(lark, "d", jobs["d"])
    assert site.matrix("a", "d") == set()
    site.run(lark, "d", "bob")
    assert site.matrix("a", "d") == set()
    site.run(lark, "b", "bob")
    assert site.matrix("a", "b", "d") == every_way("bd")


def test_slices_do_not_meet_by_broadcast_or_multicast(site: Site, lark: Lark) -> None:
    lark.put_policy(site.policy("slice: {by: Owner}"))
    site.runs(lark, {"a": "alice", "b": "bob", "c": "alice", "d": "bob"})
    a, b, d = site["a"], site["b"], site["d"]
    mdns = "33:33:00:00:00:fb"
    sent = [
        frames.udp(a.mac, "ff:ff:ff:ff:ff:ff", a.ipv4, "255.255.255.255"),
        frames.udp(a.mac, "ff:ff:ff:ff:ff:ff", a.ipv4, "10.64.255.255"),
        frames.udp(a.mac, "01:00:5e:00:00:fb", a.ipv4, "224.0.0.251"),
        frames.udp(a.mac, mdns, a.ipv6, "ff02::fb"),
        frames.arp(a.mac, a.mac, a.ipv4, "00:00:00:00:00:00", b.ipv4),
    ]
    with Wire(a) as wire, Wire(b) as near, Wire(d) as far:
        wire.send(*sent)
        assert site.matrix("b", "d") == every_way("bd")  # frames later than those sent
        mac = bytes.fromhex(a.mac.replace(":", ""))
        assert [frame for one in (near, far) for frame in one.heard() if frame[6:12] == mac] == []


def test_slices_do_not_meet_by_neighbour_discovery(site: Site, lark: Lark) -> None:
    lark.put_policy(site.policy("slice: {by: Owner}"))
    site.runs(lark, {"a": "alice", "b": "bob", "c": "alice", "d": "bob", "e": "alice"})
    a = site["a"]
    own = str(link_local(a.mac))
    sent, allowed = [], []
    for name in "bdce":
        other = site[name]
        theirs = str(link_local(other.mac))
        asked = [
            solicitation(a.mac, a.ipv6, other.ipv6),
            solicitation(a.mac, own, other.ipv6),
            frames.nd(a.mac, other.mac, own, other.ipv6, other.ipv6, sll=a.mac),
            frames.nd(a.mac, other.mac, a.ipv6, other.ipv6, other.ipv6, sll=a.mac),
        ]
        if name in "ce":
            allowed += asked
            continue
        sent += [*asked, solicitation(a.mac, "::", theirs), solicitation(a.mac, "::", other.ipv6)]
        for source in (a.ipv6, own):
            sent.append(solicitation(a.mac, source, theirs))
            # Directly, and with a target of the slice's own for another's address, and the other way round.
            for to, target in ((theirs, theirs), (theirs, site["c"].ipv6), (other.ipv6, site["c"].ipv6)):
                sent.append(frames.nd(a.mac, other.mac, source, to, target, sll=a.mac))
            sent.append(frames.nd(a.mac, other.mac, source, site["c"].ipv6, theirs, sll=a.mac))
            # Advertisements that nobody asked for.
            sent += [frames.nd(a.mac, other.mac, source, to, source, tll=a.mac) for to in (theirs, other.ipv6)]
    mac = bytes.fromhex(a.mac.replace(":", ""))
    with Wire(a) as wire, Wire(site["b"]) as near, Wire(site["d"]) as far:
        wire.send(*map(unforwarded, sent))
        assert site.matrix("b", "d") == every_way("bd")  # frames later than those sent
        assert [frame.hex() for one in (near, far) for frame in one.heard() if frame[6:12] == mac] == []
        macs = {bytes.fromhex(site[name].mac.replace(":", "")) for name in "bd"}
        assert [frame.hex() for frame in wire.heard() if frame[6:12] in macs] == []
        # Of its own slice each is answered.
        wire.send(*map(unforwarded, allowed))
        answered = {bytes.fromhex(site[name].mac.replace(":", "")): 0 for name in "ce"}
        wait(partial(all_answered, wire, answered))


def solicitation(mac: str, source: str, target: str) -> bytes:
    """A multicast Neighbor Solicitation (RFC 4861, section 4.3; RFC 4291, section 2.7.1); without a sender's address it
    has no sender's MAC either."""
    last = ip_address(target).packed[-3:]
    group = f"ff02::1:ff{last[0]:02x}:{last[1]:02x}{last[2]:02x}"
    sll = None if source == "::" else mac
    return frames.nd(mac, f"33:33:ff:{last.hex(':')}", source, group, target, sll=sll)


def unforwarded(frame: bytes) -> bytes:
    """A frame with the hop limit without which nobody takes neighbour discovery (RFC 4861, section 7.1)."""
    return frame[:21] + b"\xff" + frame[22:]


def all_answered(wire: Wire, answered: dict[bytes, int]) -> bool:
    """True after four advertisements of each."""
    for frame in wire.heard():
        if frame[6:12] in answered and frame[12:14] == b"\x86\xdd" and frame[54] == 136:
            answered[frame[6:12]] += 1
    return min(answered.values()) >= 4


def test_wan_drop_with_exceptions_both_ways(site: Site, lark: Lark) -> None:
    rule = 'wan: {when: \'Owner == "bob"\', action: drop, except: [192.0.2.1, "2001:db8:ffff::1"]}'
    lark.put_policy(site.policy(rule))
    site.runs(lark, {"a": "alice", "b": "bob", "d": "bob"})
    pairs = [(name, where) for name in "abd" for where in OUTSIDE]
    found = site.reached(pairs)
    assert found == {(n, w): ((True, True) if n == "a" or w == "wan1" else (False, False)) for n, w in pairs}
    assert site.matrix("a", "b", "d") == every_way("abd")
    assert from_outside(site, "abd", "wan2") == {"a"}
    assert from_outside(site, "abd", "wan1") == {"a", "b", "d"}


def from_outside(site: Site, names: str, where: str) -> set[str]:
    """The jobs that single packets with a WAN source address reach, in both families alike."""
    router, reached = site["gw"], set()
    site.settle()
    with Wire(router) as wire:
        for name in names:
            host = site[name]
            targets = zip(OUTSIDE[where], (host.ipv4, host.ipv6), strict=True)
            tried = [frames.udp(router.mac, host.mac, source, target, 7777) for source, target in targets]
            allowed = frames.udp(router.mac, host.mac, router.ipv4, host.ipv4, 7778)
            with Wire(host) as listening:
                found = passes(wire, listening, tried, allowed, allowed[26:36])
            heard = [frame for frame in found if frame in tried]
            assert sorted(heard) in ([], sorted(tried)), name
            if heard:
                reached.add(name)
    return reached


def test_wan_steering_to_the_named_port_with_its_next_hop(site: Site, lark: Lark) -> None:
    lark.put_policy(site.policy("wan: {when: 'AcctGroup =?= \"group_cms.prod\"', port: wan-fast}"))
    site.run(lark, "a", "alice")
    site.run(lark, "b", "bob", job='AcctGroup="group_cms.prod"')
    site.run(lark, "d", "bob", job='AcctGroup="group_cms.prod"')
    with Wire(site["gw"]) as slow, Wire(site["gwfast"]) as fast:
        found = site.reached((name, where) for name in "abd" for where in OUTSIDE)
        assert set(found.values()) == {(True, True)}
        macs = {name: bytes.fromhex(site[name].mac.replace(":", "")) for name in "abd"}
        by = {
            router: {
                name
                for frame in wire.heard()
                for name, mac in macs.items()
                if frame[6:12] == mac and frame[12:14] in (b"\x08\x00", b"\x86\xdd") and is_echo_request(frame)
            }
            for router, wire in (("slow", slow), ("fast", fast))
        }
    assert by == {"slow": {"a"}, "fast": {"b", "d"}}
    assert site.matrix("a", "b", "d") == every_way("abd")


def routers_of(site: Site, name: str) -> set[str]:
    """The routers that hear what a host sends to the WAN now."""
    mac = bytes.fromhex(site[name].mac.replace(":", ""))
    with Wire(site["gw"]) as slow, Wire(site["gwfast"]) as fast:
        site.reached([(name, "wan1")])
        heard = {"gw": slow.heard(), "gwfast": fast.heard()}
    asked = {
        router: [frame for frame in frames if frame[6:12] == mac and frame[12:14] == b"\x08\x00"]
        for router, frames in heard.items()
    }
    return {router for router, found in asked.items() if any(map(is_echo_request, found))}


def test_a_wan_port_that_is_down_is_replaced_by_its_backup_until_it_is_up(site: Site, lark: Lark) -> None:
    rule = "wan: {when: 'Owner == \"bob\"', port: wan-fast}"
    hop = f'next_hop: "{site["gwfast"].mac}"'
    lark.put_policy(site.policy(rule).replace(hop, f"{hop}, backup: wan"))
    site.run(lark, "b", "bob")
    assert routers_of(site, "b") == {"gwfast"}
    port = site["gwfast"].port
    run(["ip", "link", "set", port, "down"])
    try:
        wait(lambda: routers_of(site, "b") == {"gw"})
        assert site.reached([("b", "wan1")]) == {("b", "wan1"): (True, True)}
        problems = [each["problem"] for each in lark.switch(CORE)["problems"]]
        assert "WAN port wan-fast is down; wan is used" in problems
    finally:
        run(["ip", "link", "set", port, "up"])
    wait(lambda: routers_of(site, "b") == {"gwfast"})


def is_echo_request(frame: bytes) -> bool:
    return frame[34] == 8 if frame[12:14] == b"\x08\x00" else frame[20] == 58 and frame[54] == 128


def test_wan_allow_exempts_from_later_rules(site: Site, lark: Lark) -> None:
    lark.put_policy(site.policy("wan: {when: 'Owner == \"alice\"', action: allow}", "wan: {action: drop}"))
    site.runs(lark, {"a": "alice", "b": "bob"})
    assert site.reached([("a", "wan1"), ("b", "wan1")]) == {
        ("a", "wan1"): (True, True), ("b", "wan1"): (False, False),
    }  # fmt: skip


def test_groups_are_marked_metered_and_queued(site: Site, lark: Lark) -> None:
    lark.put_policy(
        site.policy(
            groups=[
                "group_cms: {port: wan, guarantee: 100Mbit, ceiling: 200Mbit, dscp: 10, queue: 3}",
                "group_cms.prod: {port: wan, ceiling: 300Mbit, dscp: 12}",
                "default: {dscp: 20}",
            ]
        )
    )
    site.run(lark, "a", "alice", job='AcctGroup="group_cms.test"')
    site.run(lark, "b", "bob", job='AcctGroup="group_cms.prod"')
    site.run(lark, "d", "dora")
    expected = {"a": 10, "b": 12, "d": 20}
    with Wire(site["gw"]) as wan:
        for name, marks in expected.items():
            host = site[name]
            with Wire(host) as wire:
                # A job's own mark means nothing.
                wire.send(frames.udp(host.mac, site["gw"].mac, host.ipv4, "192.0.2.1", 6000, 6001, dscp=46))
                wire.send(frames.udp(host.mac, site["gw"].mac, host.ipv6, "2001:db8:ffff::1", 6000, 6001, dscp=46))
                wire.send(frames.udp(host.mac, site["gw"].mac, host.ipv4, "192.0.2.1", 6002, 6003))
                heard = wan.until(b"\x17\x72\x17\x73")
            marked = [dscp(frame) for frame in heard if b"\x17\x70\x17\x71" in frame]
            assert marked == [marks] * 2, name
    assert "meter=12" in site.ovs.ofctl(site.bridges[CORE], "dump-meters")
    grouped = site.flows(CORE, Category.GROUP)
    assert any("set_queue:3" in flow for flow in grouped), grouped
    assert any("meter:12" in flow for flow in grouped), grouped
    assert {group["name"] for group in lark.get("/v1/groups")["groups"]} >= {"group_cms", "group_cms.prod", "default"}
    lark.put_policy(site.policy())
    assert "meter=" not in site.ovs.ofctl(site.bridges[CORE], "dump-meters")


def dscp(frame: bytes) -> int:
    return frame[15] >> 2 if frame[12:14] == b"\x08\x00" else (frame[14] << 4 | frame[15] >> 4) >> 2 & 0x3F

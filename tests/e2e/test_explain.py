"""``explain`` and Open vSwitch agree on the same packet; decisions are made when asked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.namespaces import Net, temporary_directory
from lab.openvswitch import OpenVSwitch
from lark_controller.flows.cookies import Category
from lark_controller.flows.tables import Edge
from tests.fixtures.service import (
    CORE,
    WORKER1,
    WORKER2,
    Json,
    Lark,
    Site,
    wait,
)

pytestmark = pytest.mark.ovs

RULES = (
    "block: {when: 'Owner == \"mallory\"'}",
    "slice: {by: Owner}",
    'wan: {when: \'Owner == "bob"\', action: drop, except: [192.0.2.1, "2001:db8:ffff::1"]}',
)
OWNERS = {"a": "alice", "b": "bob", "c": "alice", "d": "alice", "e": "mallory"}
HOSTS = {"a": WORKER1, "b": WORKER1, "c": WORKER1, "d": WORKER2, "e": WORKER2}
STEP = re.compile(r"^ *(\d+)\. (?:.+, )?priority (\d+), cookie (0x[0-9a-f]+)$", re.MULTILINE)


@pytest.fixture
def site(ovs: OpenVSwitch) -> Iterator[Site]:
    with Net() as net:
        site = Site(ovs, net, HOSTS)
        yield site
        for bridge in site.bridges.values():
            ovs.vsctl("--if-exists", "del-br", bridge)


def traced(site: Site, source: str, target: str, version: int) -> list[tuple[int, int, int]]:
    """(table, priority, cookie) of the flows that a ping passes on the sender's switch, as Open vSwitch says."""
    a, b = site[source], site[target]
    kind, name, echo = ("icmp", "nw", "icmp_type=8,icmp_code=0")
    if version == 6:
        kind, name, echo = ("icmp6", "ipv6", "icmpv6_type=128,icmpv6_code=0")
    src, dst = (a.ipv4, b.ipv4) if version == 4 else (a.ipv6, b.ipv6)
    packet = f"in_port={site.ports[source]},{kind},dl_src={a.mac},dl_dst={b.mac},{name}_src={src},{name}_dst={dst}"
    shown = site.ovs.appctl("ofproto/trace", site.bridges[site.home[source]], f"{packet},{echo}")
    steps = [(int(table), int(priority), int(mark, 16)) for table, priority, mark in STEP.findall(shown)]
    # That a drop is counted is no step of the decision.
    return [step for step in steps if step[0] != Edge.DROPS]


def explained(body: Json, switch: str) -> list[tuple[int, int]]:
    """(table, cookie) of the flows on the first switch."""
    found = []
    for step in body["steps"]:
        if step["flow"] and step["where"].startswith(switch):
            flow = step["flow"]
            table = re.search(r"table=(\d+)", flow)
            mark = re.search(r"cookie=(0x[0-9a-f]+)", flow)
            assert mark is not None, flow
            found.append((0 if table is None else int(table[1]), int(mark[1], 16)))
    return found


def test_explain_says_what_open_vswitch_does(site: Site) -> None:
    with temporary_directory() as directory:
        lark = Lark(Path(directory), site.policy(*RULES))
        lark.start()
        try:
            site.connect(lark)
            jobs = site.runs(lark, OWNERS)
            reached = site.matrix(*OWNERS)
            assert reached == {f"{x}>{y}" for x in "acd" for y in "acd" if x != y}
            for source in OWNERS:
                for target in OWNERS:
                    if source == target:
                        continue
                    for version in (4, 6):
                        a, b = site[source], site[target]
                        pair = (a.ipv4, b.ipv4) if version == 4 else (a.ipv6, b.ipv6)
                        body = lark.get(f"/v1/explain?src={pair[0]}&dst={pair[1]}")
                        expected = "forwarded" if f"{source}>{target}" in reached else "dropped"
                        assert body["verdict"] == expected, (source, target, version, body)
                        steps = [(table, mark) for table, _, mark in traced(site, source, target, version)]
                        said = explained(body, f"{site.home[source]:016x}") or explained(body, "")
                        assert said[: len(steps)] == steps, (source, target, version)
            assert lark.get(f"/v1/explain?src={site['b'].ipv4}&dst=192.0.2.1")["verdict"] == "forwarded"
            assert lark.get(f"/v1/explain?src={site['b'].ipv4}&dst=192.0.2.2")["verdict"] == "dropped"
            assert [lark.switch(datapath)["packet_ins"] for datapath in site.bridges] == [0, 0, 0]
            lark.end(jobs["d"])
            over = (
                f"job {jobs['d']['cluster']}.0 has ended: nothing passes for it; accepted are live jobs and addresses"
            )
            for word in (f"{jobs['d']['cluster']}.0", jobs["d"]["id"]):
                for ends in (f"src={word}&dst=192.0.2.1", f"src={site['a'].ipv4}&dst={word}"):
                    answer = lark.request("GET", f"/v1/explain?{ends}")
                    assert (answer.status, answer.body["detail"]) == (404, over)
        finally:
            lark.stop()


def test_jobs_among_other_hosts_are_told_apart_when_they_meet(site: Site) -> None:
    with temporary_directory() as directory:
        lark = Lark(Path(directory), site.policy("slice: {by: Owner}", networks=False))
        lark.start()
        try:
            site.connect(lark)
            jobs = site.runs(lark, {"a": "alice", "b": "bob", "d": "alice"})
            assert site.matrix("a", "b", "d") == {"a>d", "d>a"}
            assert site.reached([("a", "gw"), ("b", "gw")]) == {
                ("a", "gw"): (True, True), ("b", "gw"): (True, True),
            }  # fmt: skip
            asked = lark.switch(WORKER1)["packet_ins"]
            assert asked > 0
            decided = site.flows(WORKER1, Category.REACTIVE)
            assert decided
            assert site.matrix("a", "b", "d") == {"a>d", "d>a"}
            about = [flow for flow in decided if site["d"].ipv4 in flow or site["d"].ipv6 in flow]
            assert about

            # What was decided about an address goes with the job; the next one there is another's.
            site.end(lark, "d", jobs["d"])
            wait(lambda: not [flow for flow in site.flows(WORKER1, Category.REACTIVE) if flow in about])
            site.run(lark, "d", "bob")
            assert site.matrix("a", "b", "d") == {"b>d", "d>b"}
        finally:
            lark.stop()


def test_a_core_without_normal_learns(ovs: OpenVSwitch) -> None:
    with temporary_directory() as directory, Net() as net:
        site = Site(ovs, net, {"a": WORKER1, "d": WORKER2, "e": WORKER2}, normal="false")
        lark = Lark(Path(directory), site.policy())
        lark.start()
        try:
            site.connect(lark)
            site.run(lark, "a", "alice")
            site.run(lark, "d", "alice", machine="LarkVLAN=7")
            site.run(lark, "e", "alice")
            assert not [flow for flow in site.flows(CORE) if "NORMAL" in flow]
            assert site.matrix("a", "d", "e") == {"a>e", "e>a"}
            assert site.reached([("a", "wan1"), ("e", "wan2")]) == {
                ("a", "wan1"): (True, True), ("e", "wan2"): (True, True),
            }  # fmt: skip
            learned = "".join(site.flows(CORE, Category.LEARNED))
            assert site["a"].mac in learned
            assert site["e"].mac in learned
        finally:
            lark.stop()
            for bridge in site.bridges.values():
                ovs.vsctl("--if-exists", "del-br", bridge)

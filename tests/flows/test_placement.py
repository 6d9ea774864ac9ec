"""Placement: the part of each port of a switch, a job's possible ports, and a core without what a policy needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from lark_controller.flows.core import frame, queue_plan, remarks, shortcomings
from lark_controller.flows.model import PORT_LOCAL, Output
from lark_controller.flows.placement import Switch, WanPort, place_switch, same_for_switches, same_frame
from lark_controller.flows.tables import Core
from lark_controller.jobs.job import Facts
from lark_controller.policies.file import load
from lark_controller.policies.model import GroupControl, Policy, SwitchRole
from tests.flows.test_desired import a_job

CORE, EDGE, UNKNOWN = 0xC0, 0xE1, 7
POLICY = """
version: 1
networks: {jobs: [10.64.0.0/16], local: [10.0.0.0/8]}
edge: {uplinks: ["eth*", "40"]}
switches:
  core1:
    datapath: "00000000000000c0"
    role: core
    max_rules: 500
    ports: {lan: 1, lan-b: spine, wan: {port: 3, next_hop: "02:00:00:00:ff:01"}, wan-fast: {port: 4, speed: 400Mbit}}
  worker1: {datapath: "00000000000000e1", role: edge, host: worker1, ports: {uplink: 9}}
policies:
  - wan: {when: 'Owner == "bob"', port: wan-fast}
  - wan: {when: 'Owner == "eve"', action: drop}
groups:
  cms: {ceiling: 250Mbit}
"""


def placed(datapath: int, ports: Mapping[str, int], *, max_meter: int = 64, policy: str = POLICY) -> Switch:
    return place_switch(
        load(policy), datapath, ports, normal=True, tracks=True, max_meter=max_meter, speeds={3: 1000.0, 4: 1000.0}
    )


def test_a_switch_that_no_policy_names_is_an_edge_with_the_uplinks_of_all() -> None:
    edge = placed(UNKNOWN, {"eth0": 1, "eth1": 2, "p40": 40, "tap1": 5, "eth-local": PORT_LOCAL, "ethx": 0xFFFFFFFD})
    assert (edge.role, edge.name, edge.is_edge) == (SwitchRole.EDGE, "0000000000000007", True)
    assert edge.uplinks == (1, 2, 40)
    assert (edge.lan, edge.wan) == ((), ())


def test_ports_have_numbers_up_to_the_greatest_of_openflow() -> None:
    """OFPP_MAX is a port, and those behind it are reserved (OpenFlow 1.3.5, section 7.2.1)."""
    ports = {"eth0": 1, "eth1": 0xFFFFFF00, "eth2": 0xFFFFFF01, "eth3": PORT_LOCAL}
    assert placed(UNKNOWN, ports).uplinks == (1, 0xFFFFFF00)
    core = place_switch(load(POLICY), CORE, {**ports, "a": 3}, normal=False, tracks=True, max_meter=0)
    flooded = [
        [action.port for action in flow.data.actions if isinstance(action, Output)]
        for flow in frame(core, load(POLICY))
        if flow.key.table == Core.FORWARD and flow.key.match == ()
    ]
    assert flooded == [[1, 3, 0xFFFFFF00]]


def test_what_is_not_said_of_a_switch() -> None:
    bare = Switch(5, "s", SwitchRole.EDGE)
    assert (bare.normal, bare.tracks, bare.max_meter, bare.max_rules, bare.local_mac) == (True, True, 0, 0, None)
    assert (bare.uplinks, bare.lan, bare.wan, dict(bare.ports), dict(bare.speeds)) == ((), (), (), {}, {})
    assert (bare.group_control, dict(bare.backups)) == (GroupControl.METERS, {})
    given = place_switch(load(POLICY), UNKNOWN, {"eth0": 1}, normal=False, tracks=False, max_meter=3, local_mac=9,
                         description="worker7")  # fmt: skip
    assert (given.name, given.normal, given.tracks, given.max_meter, given.local_mac) == ("worker7", False, False, 3, 9)


@pytest.mark.parametrize(("word", "measured", "normal"), [("auto", True, True), ("auto", False, False),
                                                          ("true", False, True), ("false", True, False)])  # fmt: skip
def test_the_policy_may_say_whether_normal_works(word: str, measured: bool, normal: bool) -> None:
    policy = load(POLICY.replace("max_rules: 500", f"normal: {word}"))
    core = place_switch(policy, CORE, {"a": 1}, normal=measured, tracks=True, max_meter=5, local_mac=7)
    assert (core.normal, core.tracks, core.max_meter, core.max_rules, core.local_mac) == (normal, True, 5, 0, 7)


def test_traffic_leaves_by_the_first_backup_that_is_up() -> None:
    def instead(name: str, *down: int, ports: Mapping[str, int] | None = None) -> str | None:
        policy = load(POLICY.replace("wan: {port: 3", "wan: {backup: wan-fast, port: 3").replace(
            "wan-fast: {port: 4", "wan-fast: {backup: wan-c, port: 4").replace("speed: 400Mbit}", "speed: 400Mbit}, "
            "wan-c: {port: 6, backup: wan}"))  # fmt: skip
        core = place_switch(policy, CORE, ports or {"a": 1, "b": 3, "c": 4, "d": 6}, normal=True, tracks=True,
                            max_meter=0, down=frozenset(down))  # fmt: skip
        found = core.wan_or_backup(name)
        return None if found is None else found.name

    assert [instead("wan"), instead("wan", 3), instead("wan", 3, 4), instead("wan", 3, 4, 6)] == [
        "wan", "wan-fast", "wan-c", "wan",
    ]  # fmt: skip
    assert [instead("wan-c", 6), instead("wan-c", 6, 3), instead("nowhere")] == ["wan", "wan-fast", None]
    # A port that is not there may have a backup, and without one nothing takes its place.
    assert instead("wan", ports={"a": 1, "c": 4}) == "wan-fast"
    assert instead("wan", 4, ports={"a": 1, "c": 4}) is None


def test_declared_uplinks_win_and_without_one_the_patterns_hold() -> None:
    assert placed(EDGE, {"eth0": 1, "odd": 9}).uplinks == (9,)
    assert placed(EDGE, {"eth0": 1}).uplinks == (1,)


def test_a_core_has_the_ports_that_are_declared_and_there() -> None:
    core = placed(CORE, {"a": 1, "spine": 2, "b": 3, "c": 4, "other": 5})
    assert (core.role, core.name, core.max_rules) == (SwitchRole.CORE, "core1", 500)
    assert core.lan == (1, 2)
    assert core.wan == (WanPort("wan", 3, 0x02000000FF01), WanPort("wan-fast", 4, None))
    assert (core.speeds[3], core.speeds[4]) == (1000.0, 400.0)
    less = placed(CORE, {"a": 1, "b": 3})
    assert (less.lan, [port.name for port in less.wan]) == ((1,), ["wan"])


def test_the_speed_of_uplinks_is_what_the_policy_says_or_else_the_switch() -> None:
    ports = {"eth0": 3, "eth1": 4, "tap1": 5}
    assert dict(placed(UNKNOWN, ports).speeds) == {3: 1000.0, 4: 1000.0}
    said = POLICY.replace('uplinks: ["eth*", "40"]', 'uplinks: ["eth0"], speed: 200Mbit')
    assert dict(placed(UNKNOWN, ports, policy=said).speeds) == {3: 200.0, 4: 1000.0}
    own = said.replace("ports: {uplink: 9}", "ports: {uplink: {port: 4, speed: 50Mbit}}")
    assert dict(placed(EDGE, ports, policy=own).speeds) == {3: 1000.0, 4: 50.0}


def test_a_job_is_at_a_port_of_an_edge_that_is_neither_uplink_nor_the_hosts() -> None:
    edge = placed(UNKNOWN, {"eth0": 1, "tap1": 5, "br": PORT_LOCAL})
    assert [edge.job_port(name) for name in ("tap1", "eth0", "br", "tap9", None)] == [5, None, None, None, None]
    assert "names no port" in edge.why_no_job_port(None)
    assert "has no port tap9" in edge.why_no_job_port("tap9")
    assert "eth0 is an uplink" in edge.why_no_job_port("eth0")
    assert "br is the host itself" in edge.why_no_job_port("br")
    core = placed(CORE, {"a": 1, "b": 3, "c": 4, "tap1": 5})
    assert core.job_port("tap1") is None
    assert [edge.why_no_job_port(name) for name in (None, "tap9", "eth0", "br")] == [
        "the machine ad names no port (ExternalInterface)",
        "it has no port tap9",
        "its port eth0 is an uplink, not a job's",
        "its port br is the host itself, not a job's",
    ]
    assert core.why_no_job_port("tap1") == "it is a core switch, and jobs are at edges"
    assert "core switch" in core.why_no_job_port("tap1")


@pytest.mark.parametrize("told", [shortcomings, remarks])
def test_a_core_without_a_port_that_packets_are_steered_to_says_so(
    told: Callable[[Switch, Policy], tuple[str, ...]],
) -> None:
    policy, ports = load(POLICY), {"a": 1, "b": 3, "c": 4}
    assert told(placed(CORE, ports), policy) == ()
    del ports["c"]
    assert [sentence.partition(":")[0] for sentence in told(placed(CORE, ports), policy)] == ["wan rule in line 13"]
    assert told(placed(UNKNOWN, ports), policy) == ()
    undeclared = load(POLICY.replace("wan-fast: {port", "wan-slow: {port").replace("port: wan-fast", "action: drop"))
    assert told(placed(CORE, ports), undeclared) == ()


def test_a_core_without_enough_meters_says_so() -> None:
    ports = {"a": 1, "b": 3, "c": 4}
    (sentence,) = shortcomings(placed(CORE, ports, max_meter=0), load(POLICY))
    assert "250 Mb/s is not enforced, because this switch has no meters" in sentence


def test_which_changes_are_nothing_for_switches() -> None:
    one = placed(UNKNOWN, {"eth0": 1, "tap1": 5})
    assert same_frame(one, replace(one, ports={"eth0": 1, "tap2": 6}, speeds={1: 5.0}))
    assert same_frame(replace(one, normal=False), replace(one, normal=False, ports={}))
    for change in ({"uplinks": (2,)}, {"normal": False}, {"tracks": False}, {"local_mac": 1}):
        assert not same_frame(one, replace(one, **change))
    core = placed(CORE, {"a": 1})
    assert same_frame(core, replace(core, ports={"a": 1, "b": 9}))
    # Without NORMAL a core floods by a list of its ports.
    flooding = replace(core, normal=False)
    assert not same_frame(flooding, replace(flooding, ports={"a": 1, "b": 9}))
    job = a_job(1)
    assert same_for_switches(job, job)
    assert same_for_switches(job, replace(job, lease_until=5.0, facts=Facts()))
    for other in ({"port": "p9"}, {"reason": "x"}, {"quarantine": "x"}, {"vlan": 3}):
        assert not same_for_switches(job, replace(job, **other))


@pytest.mark.parametrize(
    ("ports", "queued"), [({"a": 1, "b": 2}, {"a", "b"}), ({"b": 2}, {"b"}), ({"a": 1}, {"a"}), ({}, set())]
)
def test_a_cores_queues_are_at_its_ports_to_the_site_and_to_the_wan(ports: Mapping[str, int], queued: set[str]) -> None:
    text = """
version: 1
switches:
  core1:
    datapath: "00000000000000c0"
    role: core
    groups_by: queues
    ports: {lan: {port: 1, speed: 1Gbit}, wan: {port: 2, next_hop: "02:00:00:00:00:01", speed: 100Mbit}}
groups:
  group_a: {port: wan, guarantee: 10Mbit, ceiling: 50Mbit}
  default: {port: wan}
"""
    policy = load(text)
    assert queue_plan(placed(CORE, ports, policy=text), policy).ports.keys() == queued
    assert queue_plan(placed(UNKNOWN, ports, policy=text), policy).ports == {}
    metered = text.replace("groups_by: queues", "groups_by: meters")
    assert queue_plan(placed(CORE, ports, policy=metered), load(metered)).ports == {}

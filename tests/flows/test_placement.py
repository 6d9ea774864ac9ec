"""Which ports of a switch have which part, what a job's port may be, and what a core lacks for a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from lark_controller.flows.core import remarks, shortcomings
from lark_controller.flows.model import PORT_LOCAL
from lark_controller.flows.placement import Switch, WanPort, place_switch
from lark_controller.policies.file import load
from lark_controller.policies.model import Policy, SwitchRole

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

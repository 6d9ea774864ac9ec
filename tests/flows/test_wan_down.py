"""The WAN ports by which nothing leaves, by WAN rule, network and core."""

from __future__ import annotations

from lark_common.runs import NetworkType
from lark_controller.flows.placement import Switch, place_switch
from lark_controller.flows.wan_down import DownWay, DownWays
from lark_controller.policies.file import load

HOP = 'next_hop: "02:00:00:00:ff:01"'
POLICY = load(f"""
version: 1
networks: {{jobs: [10.64.0.0/16], local: [10.0.0.0/8]}}
switches:
  core1: {{datapath: "00000000000000c1", role: core, ports: {{lan: 1, wan: {{port: 2, {HOP}}}, wan-fast: {{port: 3}}}}}}
  core2: {{datapath: "00000000000000c2", role: core, ports: {{lan: 1, wan-fast: {{port: 3}}}}}}
  core3: {{datapath: "00000000000000c3", role: core, ports: {{lan: 1, wan-a: 2, wan-b: 3}}}}
policies:
  - wan: {{when: 'Owner == "carol"', port: wan-fast}}
  - wan: {{when: 'Owner == "bob"', action: drop}}
  - wan: {{when: 'Owner == "dora"', action: drop, except: [192.0.2.80]}}
  - wan: {{when: 'Owner == "eve"', action: allow}}
""")
STEERED, DROPPED, PARTLY, ALLOWED = 1, 2, 3, 4
BRIDGED, NAT = NetworkType.OVS_BRIDGE, NetworkType.NAT


def core(number: int, *down: int) -> Switch:
    ports = {f"p{port}": port for port in (1, 2, 3)}
    return place_switch(POLICY, 0xC0 + number, ports, normal=True, tracks=True, max_meter=0, down=frozenset(down))


def ways(*cores: Switch) -> DownWays:
    return DownWays(POLICY, cores)


def test_where_no_core_is_known_or_all_ports_are_up_nothing_is_said() -> None:
    assert not ways()
    assert not ways(core(1), core(2))


def test_a_steered_job_leaves_by_the_port_of_its_rule() -> None:
    found, fast = ways(core(1, 3)), DownWay("wan-fast", ("core1",))
    assert found.of(STEERED, BRIDGED) == found.of(STEERED, NetworkType.BRIDGE) == fast
    assert str(fast) == "WAN port wan-fast of core1 is down, and nothing takes its place"
    # A worker's address is steered nowhere.
    assert found.of(STEERED, NAT) is None
    assert {found.of(wan, BRIDGED) for wan in (0, DROPPED, PARTLY, ALLOWED)} == {None}


def test_what_no_rule_steers_leaves_by_the_first_port() -> None:
    found, first = ways(core(1, 2)), DownWay("wan", ("core1",))
    assert found.of(STEERED, BRIDGED) is None
    assert {found.of(wan, BRIDGED) for wan in (0, PARTLY, ALLOWED)} == {first} == {found.of(STEERED, NAT)}
    assert found.of(DROPPED, BRIDGED) is None
    assert found.of(0, NetworkType.NONE) is None


def test_a_port_of_several_cores_is_down_where_all_of_them_have_it_down() -> None:
    assert ways(core(1, 3), core(2)).of(STEERED, BRIDGED) is None
    assert ways(core(2, 3), core(1, 3)).of(STEERED, BRIDGED) == DownWay("wan-fast", ("core1", "core2"))


def test_without_a_next_hop_packets_leave_by_any_port_that_is_up() -> None:
    assert ways(core(3, 2)).of(0, BRIDGED) is None
    assert ways(core(3, 2, 3)).of(0, BRIDGED) == DownWay("wan-a", ("core3",))
    # The core lacks the rule's port: what comes under it leaves as the rest.
    assert ways(core(3, 2, 3)).of(STEERED, BRIDGED) == DownWay("wan-a", ("core3",))

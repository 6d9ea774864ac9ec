"""The section ``topology`` of a policy file."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from lark_common.errors import PolicyError
from lark_controller.policies.file import load
from lark_controller.policies.model import Duplex, Refused, Reserves, TopologySpec
from lark_controller.policies.topology import is_wan


def read(text: str) -> TopologySpec:
    spec = load("version: 1\n" + text).topology
    assert spec is not None
    return spec


def test_no_section_is_no_topology() -> None:
    assert load("version: 1\n").topology is None
    assert load("version: 1\ntopology:\n").topology is None


def test_defaults_and_what_overrides_them() -> None:
    spec = read(
        "topology:\n  duplex: half\n  reserves: wan\n  refused: idle\n"
        "  links: {one: {between: [A, wan-fast], capacity: 1Gbit, duplex: full}, two: {between: [A, b], capacity: 5}}\n"
        "  hosts: {W1: {switch: A, capacity: 10}, default: {switch: b}}\n"
    )
    assert [link.ends for link in spec.links] == [("a", "wan-fast"), ("a", "b")]
    assert [link.duplex for link in spec.links] == [Duplex.FULL, Duplex.HALF]
    assert spec.hosts["w1"].switch == "a"
    assert spec.hosts["w1"].duplex is Duplex.HALF
    assert spec.default is not None
    assert spec.default.capacity is None
    assert (spec.reserves, spec.refused) == (Reserves.WAN, Refused.IDLE)


def test_an_edge_switch_stands_for_its_host() -> None:
    spec = read(
        'switches:\n  Edge1: {datapath: "00000000000000e1", role: edge, host: W1.example}\n'
        "topology: {links: {one: {between: [edge1, core], capacity: 5}}}\n"
    )
    assert spec.links[0].ends == ("w1.example", "core")


EDGE = 'switches: {Edge1: {datapath: "00000000000000e1", role: edge, host: W1.example}, %s}\n'
CORE = 'Core1: {datapath: "00000000000000c0", role: core, ports: {lan: 1}}'


def test_the_name_of_an_edge_switch_is_that_of_its_host_among_hosts_too() -> None:
    spec = read(EDGE % CORE + "topology: {hosts: {EDGE1: {switch: s, capacity: 7}, core1: {switch: s}}}\n")
    assert {node: host.capacity for node, host in spec.hosts.items()} == {"w1.example": 7, "core1": None}
    # The name is as it was written, for messages.
    assert [host.name for host in spec.hosts.values()] == ["EDGE1", "core1"]
    with pytest.raises(PolicyError, match=r"host W1\.example stands twice"):
        read(EDGE % CORE + "topology: {hosts: {edge1: {switch: s}, W1.example: {switch: s}}}\n")


def test_a_host_hangs_on_an_end_of_a_link_or_a_declared_switch() -> None:
    links = "links: {one: {between: [Rack1, wan], capacity: 5}}"
    for switch in ("rack1", "RACK1", "core1", "edge1"):
        spec = read(EDGE % CORE + f"topology: {{{links}, hosts: {{h: {{switch: {switch}}}}}}}\n")
        assert spec.hosts["h"].switch == switch.lower()
    with pytest.raises(PolicyError, match=r"rack2 is an end of no link.*core1, edge1, rack1, wan"):
        read(EDGE % CORE + f"topology: {{{links}, hosts: {{h: {{switch: rack2}}}}}}\n")
    # Without links nothing is known of switches that no policy declares.
    assert read("topology: {hosts: {h: {switch: anywhere}}}\n").hosts["h"].switch == "anywhere"


def test_hosts_are_read_as_written() -> None:
    spec = read(
        "topology:\n  hosts:\n"
        "    f: {switch: s, capacity: 2Gbit, duplex: half, addresses: [10.0.0.5, 2001:db8::/64]}\n"
        "    default: {switch: Other, capacity: 3}\n"
    )
    server = spec.hosts["f"]
    assert (server.capacity, server.duplex, spec.default and spec.default.duplex) == (2000, Duplex.HALF, Duplex.FULL)
    assert server.addresses == (ip_network("10.0.0.5"), ip_network("2001:db8::/64"))
    assert spec.default is not None
    assert (spec.default.switch, spec.default.capacity, spec.default.addresses) == ("other", 3, ())
    assert set(spec.hosts) == {"f"}
    assert (spec.links, spec.reserves, spec.refused) == ((), Reserves.HOST, Refused.HOLD)


def test_a_world_has_many_ends_and_names_with_points() -> None:
    spec = read(
        "topology:\n  links:\n"
        "    a: {between: [WAN-fast, Core.1], capacity: 5}\n"
        "    b: {between: [core.1, x], capacity: 0.5, duplex: half}\n"
    )
    assert [(link.name, link.ends, link.capacity, link.duplex) for link in spec.links] == [
        ("a", ("wan-fast", "core.1"), 5, Duplex.FULL),
        ("b", ("core.1", "x"), 0.5, Duplex.HALF),
    ]
    assert [is_wan(node) for node in ("wan", "wan-fast", "awan", "lan")] == [True, True, False, False]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("links: {one: {between: [a, a], capacity: 5}}", "between a, a"),
        ("links: {one: {between: [wan, wan-fast], capacity: 5}}", "between wan, wan-fast"),
        ("links: {one: {between: [a], capacity: 5}}", "two different ends"),
        ("links: {one: {between: [a, b]}}", "capacity is missing"),
        ("links: {one: {between: [a, b], capacity: fast}}", "'fast' is not a rate"),
        ("links: {'access:x': {between: [a, b], capacity: 5}}", "do not begin with access:"),
        ("links: {one: {between: [a, b], capacity: 5, duplex: both}}", "both is not accepted"),
        ("{links: {one: {between: [a, b], capacity: 5}}, hosts: {h: {switch: c}}}", "c is an end of no link"),
        ("{links: {one: {between: [a, b], capacity: 5}}, hosts: {b: {switch: a}}}", "an end of a link already"),
        ("hosts: {h: {switch: s}, H: {switch: s}}", "stands twice"),
        ("hosts: {default: {switch: s, addresses: [10.0.0.1]}}", "addresses of every host"),
        ("refuse: hold", "did you mean refused"),
        ("links: {one: {between: [a, b, c], capacity: 5}}", "between a, b, c"),
        ("links: {one: {between: [], capacity: 5}}", "between nothing"),
        ("links: {one: {capacity: 5}}", "between is missing"),
        ("hosts: {h: {capacity: 5}}", "switch is missing"),
        ("hosts: {h: {switch: s, addresses: [10.0.0.x]}}", "not a network"),
    ],
)
def test_mistakes_are_named(section: str, said: str) -> None:
    text = section if section.startswith("{") else "{" + section + "}"
    with pytest.raises(PolicyError) as caught:
        load(f"version: 1\ntopology: {text}\n")
    assert said in str(caught.value)

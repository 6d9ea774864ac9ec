"""The section ``topology`` of a policy file."""

from __future__ import annotations

import pytest

from lark_common.errors import PolicyError
from lark_controller.policies.file import load
from lark_controller.policies.model import Duplex, Refused, Reserves, TopologySpec


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
    ],
)
def test_mistakes_are_named(section: str, said: str) -> None:
    text = section if section.startswith("{") else "{" + section + "}"
    with pytest.raises(PolicyError) as caught:
        load(f"version: 1\ntopology: {text}\n")
    assert said in str(caught.value)

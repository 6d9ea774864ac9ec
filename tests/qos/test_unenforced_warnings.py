"""Topologies of which no bandwidth rule enforces what jobs have booked: they say so, where anything can be booked."""

from __future__ import annotations

import pytest

from lark_controller.policies.file import load
from lark_controller.qos.warnings import policy_warnings, refuse_all
from tests.qos.test_warnings import ENFORCED, HEAD, TRUNK, UNENFORCED, policy


@pytest.mark.parametrize(
    ("topology", "booked"),
    [
        ("hosts: {default: {switch: r, capacity: 5}}", True),
        # The machine ad has the capacity, where it has one.
        ("hosts: {w1: {switch: r}}", True),
        ("hosts: {default: {switch: r, capacity: 2kbit, duplex: half}}", True),
        ("links: {cable: {between: [w1, r], capacity: 5}}", True),
        (f"reserves: wan, {TRUNK}, hosts: {{w1: {{switch: r}}}}", True),
        (f"reserves: wan, {TRUNK}, hosts: {{w1: {{switch: r}}}}, duplex: half", True),
        ("reserves: wan, links: {cable: {between: [w1, wan], capacity: 5}}", True),
        # Each asks for more than any link carries, or is at no link.
        ("hosts: {default: {switch: r, capacity: 0.0001}}", False),
        ("hosts: {default: {switch: r, capacity: 1kbit, duplex: half}}", False),
        ("hosts: {files: {switch: r, capacity: 5, addresses: [10.0.0.5]}}", False),
        (f"{TRUNK}, hosts: {{files: {{switch: r, capacity: 5, addresses: [10.0.0.5]}}}}", False),
        ("duplex: half", False),
        ("reserves: wan, hosts: {default: {switch: r, capacity: 5}}", False),
        (
            "reserves: wan, links: {i: {between: [core1, wan], capacity: 1}, x: {between: [p, q], capacity: 1}},"
            " hosts: {default: {switch: p, capacity: 5}, files: {switch: core1, addresses: [10.0.0.5]}}",
            False,
        ),
        ("reserves: wan, links: {i: {between: [r, wan], capacity: 0.0001}}, hosts: {default: {switch: r}}", False),
    ],
)
def test_a_topology_without_a_bandwidth_rule_says_that_nothing_is_enforced(topology: str, booked: bool) -> None:
    assert (UNENFORCED in policy_warnings(load(policy(topology, "")))) is booked
    # A rule that is for some jobs is a rule; for which of them one is is seen at their reservations.
    for rule in (ENFORCED, "bandwidth: {when: 'Owner == \"a\"'}"):
        assert UNENFORCED not in policy_warnings(load(policy(topology, rule)))


def test_without_a_topology_nothing_is_booked_that_a_rule_is_missing_for() -> None:
    assert policy_warnings(load(HEAD)) == ()


@pytest.mark.parametrize(
    ("capacities", "hosts", "refused"),
    [({}, ["w1", "W2"], True), ({"w2": 1000.0}, ["w1", "W2"], False), ({}, [], False)],
)
def test_a_pool_that_refuses_all_has_nothing_booked_that_a_rule_is_missing_for(
    capacities: dict[str, float], hosts: list[str], refused: bool
) -> None:
    learned = load(policy("hosts: {default: {switch: rack2}}", ""))
    assert refuse_all(learned, capacities, hosts) is refused
    assert (UNENFORCED in policy_warnings(learned, refused=refused)) is not refused
    assert not refuse_all(load(HEAD), capacities, hosts)

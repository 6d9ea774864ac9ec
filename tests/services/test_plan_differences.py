"""The sentences of a plan on what another policy changes for a job."""

from __future__ import annotations

from typing import Any

import pytest

from lark_common.runs import NetworkType
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from lark_controller.services.plan_differences import Differences
from tests.fixtures.databases import a_run
from tests.flows.test_desired import facts_of

FRAME = """\
version: 1
networks: {jobs: [10.64.0.0/16], local: [10.0.0.0/8]}
switches: {core1: {datapath: "00000000000000c0", role: core, ports: {lan: 1, wan: 2, wan-fast: 3}}}
"""
DROP = "wan: {action: drop, except: [192.0.2.1]}"
OTHERS = "wan: {when: 'Owner == \"nobody\"', action: drop}"


def differences(old: str, new: str, owner: str = "alice", **asked: Any) -> list[str]:
    """The sentences for a job of group cms, whose policies have these lines."""
    policies = [load(f"{FRAME}{text}\n") for text in (old, new)]
    facts = facts_of(owner, "cms", True, True)
    job = a_run(owner=owner, facts=facts, **asked)
    return list(Differences(*policies).of(job, *(Decider(policy).decide(facts) for policy in policies)))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (DROP, DROP, []),
        (DROP, "wan: {action: drop}", ["WAN rule in line 5 applies: drop"]),
        (DROP, "wan: {action: allow}", ["WAN rule in line 5 applies: allow"]),
        (DROP, "wan: {port: wan-fast}", ["WAN rule in line 5 applies: port wan-fast"]),
        ("wan: {port: wan-fast}", "wan: {port: wan}", ["WAN rule in line 5 applies: port wan"]),
        (DROP, "block: {when: 'Owner == \"x\"'}", ["no WAN rule applies any more"]),
        # Exempt from all rules is as without one.
        ("wan: {action: allow}", "block: {when: 'Owner == \"x\"'}", []),
        ("block: {when: 'Owner == \"x\"'}", "wan: {action: allow}", []),
        (
            DROP,
            "wan: {action: drop, except: [192.0.2.1, 198.51.100.0/24, 192.0.2.2, 192.0.2.3, 192.0.2.4]}",
            ["WAN rule in line 5 applies: drop, except 192.0.2.1, 198.51.100.0/24, 192.0.2.2 and 2 more"],
        ),
    ],
)
def test_a_wan_rule_that_does_something_else_is_a_difference(old: str, new: str, said: list[str]) -> None:
    assert differences(f"policies:\n  - {old}", f"policies:\n  - {new}") == said


@pytest.mark.parametrize(
    "new",
    [
        "policies: [{block: {when: 'Owner == \"alice\"'}}]",
        "policies: [{slice: {by: Owner}}]",
        "policies: [{wan: {action: drop}}]",
        "policies: [{connectivity: {inbound: deny}}]",
        "groups: {cms: {ceiling: 20Mbit}}",
    ],
)
def test_rules_about_packets_are_no_difference_to_a_job_without_a_network(new: str) -> None:
    old = "groups: {cms: {ceiling: 40Mbit}}" if "groups" in new else ""
    assert differences(old, new)
    assert differences(old, new, network_type=NetworkType.NONE) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("", "policies: [{transfers: {rate: 5}}]", ["transfers under no rule become at most 5 Mb/s"]),
        ("", "accounting: none", ["its use is no longer counted"]),
        ("groups: {other: {}}", "groups: {cms: {}}", ["group none becomes cms"]),
        # Its transfers are in its group's queue.
        (
            "policies: [{transfers: {rate: 5}}]\ngroups: {cms: {ceiling: 40Mbit}}",
            "policies: [{transfers: {rate: 5}}]\ngroups: {cms: {ceiling: 20Mbit}}",
            ["group cms: ceiling 40 Mb/s becomes 20 Mb/s"],
        ),
    ],
)
def test_what_htcondor_moves_and_accounts_are_a_difference_to_a_job_without_a_network(
    old: str, new: str, said: list[str]
) -> None:
    assert differences(old, new, network_type=NetworkType.NONE) == said


def test_a_rule_before_it_that_takes_other_jobs_is_no_difference() -> None:
    assert differences(f"policies:\n  - {DROP}", f"policies:\n  - {OTHERS}\n  - {DROP}") == []
    reordered = "wan: {action: drop, except: [192.0.2.2, 192.0.2.1]}"
    listed = reordered.replace("192.0.2.2, 192.0.2.1", "192.0.2.1, 192.0.2.2")
    assert differences(f"policies:\n  - {listed}", f"policies:\n  - {OTHERS}\n  - {reordered}") == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("ceiling: 40Mbit", "ceiling: 40Mbit", []),
        ("ceiling: 40Mbit", "ceiling: 20Mbit", ["group cms: ceiling 40 Mb/s becomes 20 Mb/s"]),
        ("ceiling: 40Mbit", "guarantee: 5Mbit", [
            "group cms: guarantee none becomes 5 Mb/s", "group cms: ceiling 40 Mb/s becomes none"
        ]),
        ("queue: 1", "queue: 2, port: wan", [
            "group cms: queue 1 becomes 2", "group cms: port none becomes wan"
        ]),
        ("ceiling: 1, burst: 10", "ceiling: 1, burst: 20, priority: 3", [
            "group cms: burst 10 Mb becomes 20 Mb", "group cms: priority 0 becomes 3"
        ]),
    ],
)  # fmt: skip
def test_what_its_group_is_given_is_a_difference(old: str, new: str, said: list[str]) -> None:
    others = "other: {when: 'Owner == \"nobody\"', ceiling: 9}"
    assert differences(f"groups: {{cms: {{{old}}}}}", f"groups: {{cms: {{{new}}}, {others}}}") == said
    assert differences(f"groups: {{other: {{{old}}}}}", f"groups: {{other: {{{new}}}}}") == []


@pytest.mark.parametrize(
    ("old", "new", "asked", "said"),
    [
        ("", "mode: guarantee", None, ""),
        ("mode: guarantee", "mode: guarantee, maximum: 50Mbit", None, ""),
        ("mode: guarantee", "mode: cap", 0.0, ""),
        ("mode: guarantee, maximum: 50Mbit", "mode: guarantee, maximum: 60Mbit", 10.0, ""),
        ("mode: guarantee, default: 5Mbit", "mode: guarantee, default: 6Mbit", 10.0, ""),
        ("", "mode: guarantee", 10.0, "not enforced becomes guarantee"),
        ("mode: guarantee", "mode: cap", 10.0, "guarantee becomes cap"),
        ("mode: guarantee", "mode: guarantee, ceiling: 50Mbit", 10.0, "guarantee becomes guarantee (ceiling 50 Mb/s)"),
        ("mode: guarantee, maximum: 50Mbit", "mode: guarantee, maximum: 60Mbit", 55.0,
         "guarantee (maximum 50 Mb/s) becomes guarantee (maximum 60 Mb/s)"),
        ("mode: cap", "mode: cap, default: 5Mbit", None, "cap becomes cap (default 5 Mb/s)"),
    ],
)  # fmt: skip
def test_bandwidth_is_a_difference_to_jobs_whose_rates_change(
    old: str, new: str, asked: float | None, said: str
) -> None:
    """A guarantee of nothing that becomes another one of nothing is none, and a job without a network has none."""

    def rule(text: str) -> str:
        return f"policies: [{{bandwidth: {{{text}}}}}]" if text else ""

    assert differences(rule(old), rule(new), bandwidth=asked) == ([f"bandwidth {said}"] if said else [])
    assert differences(rule(old), rule(new), bandwidth=asked, network_type=NetworkType.NONE) == []

"""Defaults: a value that nothing is said of is what a policy file without a word about it gives; and facts' limits."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import pytest

from lark_common.classads.ads import parse_post
from lark_controller.jobs.job import Facts
from lark_controller.policies.facts import MAX_FACT, MAX_FACTS, facts
from lark_controller.policies.file import load
from lark_controller.policies.model import (
    BandwidthMode,
    BandwidthRule,
    Decision,
    Duplex,
    GroupControl,
    GroupSpec,
    HostBandwidth,
    HostSpec,
    LinkSpec,
    Policy,
    PortSpec,
    SliceKey,
    SwitchRole,
    SwitchSpec,
    TopologySpec,
)
from lark_controller.policies.reach import Deciding, Party, Reach, reach
from lark_controller.policies.switches import DEFAULT_UPLINKS
from lark_controller.policies.transfer_rules import TransferRule, TransferTerms


def test_an_empty_policy_is_the_default_of_all_its_parts() -> None:
    text = "version: 1\n"
    found = load(text)
    assert found == Policy(text, sha256(text.encode()).hexdigest(), edge_uplinks=DEFAULT_UPLINKS)
    assert load("version: 1\ntopology: {}\n").topology == TopologySpec()


def test_ends_of_the_network_of_which_little_is_said() -> None:
    spec = load(
        "version: 1\ntopology: {links: {l: {between: [a, b], capacity: 5}}, hosts: {h: {switch: a}}}\n"
    ).topology
    assert spec is not None
    assert spec.links == (LinkSpec("l", ("a", "b"), 5.0),)
    assert spec.hosts["h"] == HostSpec("h", "a")
    assert (LinkSpec("l", ("a", "b"), 5.0).duplex, HostSpec("h", "a").duplex) == (Duplex.FULL, Duplex.FULL)
    edge = load("version: 1\nswitches: {e: {datapath: '00000000000000e1', role: edge, ports: {uplink: 4}}}\n")
    assert edge.switches[0xE1].ports["uplink"] == PortSpec(4)


def test_parts_of_a_policy_of_which_little_is_said() -> None:
    switch = SwitchSpec("s", 1, SwitchRole.CORE)
    assert (switch.max_rules, switch.group_control, dict(switch.ports)) == (0, GroupControl.METERS, {})
    assert {switch.host, switch.normal, switch.ovsdb} == {None}
    group = GroupSpec("g", 1, 5)
    assert (group.priority, group.queue, group.guarantee, group.ceiling, group.burst) == (0, None, None, None, None)
    rule = BandwidthRule(1, 2, BandwidthMode.CAP)
    assert {rule.when, rule.default, rule.maximum, rule.ceiling} == {None}
    transfers = TransferRule(1, 2)
    assert (transfers.block, transfers.group, transfers.rate) == (False, None, None)
    assert (TransferTerms().group, TransferTerms().block, TransferTerms().rate) == ("", False, None)
    told = load("version: 1\n").fireflies
    assert (told.collectors, told.destinations, told.local, told.ongoing) == ((), False, False, 0)
    assert (told.labels, told.own) == (False, False)


def test_without_rules_everything_passes_and_is_counted() -> None:
    nothing = Decision()
    assert (nothing.blocked, nothing.slice, nothing.wan, nothing.group, nothing.bandwidth) == (False, None, 0, "", None)
    assert (nothing.inbound, nothing.outbound, nothing.accounted, nothing.quarantine) == (True, True, True, "")
    assert (nothing.one_way, nothing.isolated) == (False, False)
    for decision, one_way, isolated in (
        (Decision(inbound=False), True, False),
        (Decision(outbound=False), True, False),
        (Decision(inbound=False, outbound=False), False, True),
        (Decision(blocked=True), False, True),
        (Decision(quarantine="why"), False, True),
        (Decision(blocked=True, inbound=False), True, True),
        (Decision(slice=SliceKey(1, "a")), False, False),
    ):
        assert (decision.one_way, decision.isolated) == (one_way, isolated)


@pytest.mark.parametrize(
    ("bandwidth", "requested", "rate"),
    [
        (HostBandwidth(borrows=False), None, None),
        (HostBandwidth(borrows=False), 5.0, 5.0),
        (HostBandwidth(borrows=False, default=3.0), None, 3.0),
        (HostBandwidth(borrows=False, default=3.0), 0.0, 3.0),
        (HostBandwidth(borrows=False, default=3.0), 2.0, 2.0),
        (HostBandwidth(borrows=False, maximum=4.0), 5.0, 4.0),
        (HostBandwidth(borrows=False, maximum=4.0), 3.0, 3.0),
        (HostBandwidth(borrows=False, maximum=4.0), None, None),
        (HostBandwidth(borrows=False, default=9.0, maximum=4.0), None, 4.0),
    ],
)
def test_the_rate_of_a_job_is_its_request_or_the_default_up_to_the_maximum(
    bandwidth: HostBandwidth, requested: float | None, rate: float | None
) -> None:
    assert bandwidth.rate(requested) == rate
    assert bandwidth.ceiling is None


def test_nobody_reaches_nobody() -> None:
    policy = load("version: 1\n")
    assert reach([], policy, 5) == Reach() == Reach((), 0, 0)
    assert reach([Deciding("a", Decision())], policy, 0) == Reach((), 1, 1)
    both = reach([Deciding("a", Decision()), Deciding("b", Decision()), Deciding("b", Decision())], policy, 5)
    assert both == Reach((Party("b", 2, "all", ("all", "all")), Party("a", 1, "all", ("all", "none"))), 0, 0)


# -- facts ------------------------------------------------------------------------------------------------------------

ERROR = "error"


def of_ads(names: str, *job: str, machine: str = "", also: str = "") -> Facts:
    body = "\n".join(('Owner = "bob"', 'GlobalJobId = "s#1.0#1"', *job, "------", 'Machine = "w1"', machine))
    job_ad, machine_ad = parse_post(f'{body}\nAddressType = "dhcp"\n'.encode(), "text/plain")
    return facts(job_ad, machine_ad, (frozenset(names.split()), frozenset(also.split())))


def test_a_fact_is_as_long_as_it_may_be() -> None:
    # The quotes are part of it.
    whole = "a" * (MAX_FACT - 2)
    assert of_ads("x", f'x = "{whole}"').job == (("x", f'"{whole}"'),)
    assert of_ads("x", f'x = "{whole}a"').job == (("x", ERROR),)


def test_all_facts_of_a_job_share_their_room() -> None:
    count = MAX_FACTS // MAX_FACT
    lines = [f'x{number} = "{"a" * (MAX_FACT - 2)}"' for number in range(count)]
    names = " ".join(f"x{number}" for number in range(count))
    full = of_ads(f"{names} y", *lines, "y = 5").job
    assert [len(text) for _, text in full[:-1]] == [MAX_FACT] * count
    assert full[-1] == ("y", ERROR)
    # Those of the machine come after those of the job, and one that is too long takes no room.
    less = of_ads(f"{names} y", *lines[1:], "y = 5", f'x0 = "{"a" * MAX_FACT}"', machine='m = "b"', also="m")
    assert less.job[0] == ("x0", ERROR)
    assert (less.job[-1], less.machine) == (("y", "5"), (("m", '"b"'),))
    assert of_ads(names, *lines, machine="m = 7", also="m").machine == (("m", ERROR),)


def test_facts_are_values_sorted_by_name() -> None:
    found = of_ads("z owner nowhere both u", "z = 1 + 2", "both = TARGET.m", machine="m = 4", also="m machine other")
    assert found.job == (("both", "4"), ("owner", '"bob"'), ("z", "3"))
    assert found.machine == (("m", "4"), ("machine", '"w1"'))


def test_attributes_of_a_machine_have_the_prefix_or_not() -> None:
    both = 'LarkExternalInterface = "a"\nExternalInterface = "b"\nLarkOther = "c"\nOther = "d"'
    found = of_ads("", machine=both, also="externalinterface larkexternalinterface other larkother")
    assert found.machine == (
        ("externalinterface", '"a"'), ("larkexternalinterface", '"a"'), ("larkother", '"c"'), ("other", '"d"'),
    )  # fmt: skip
    assert of_ads("", machine='ExternalInterface = "b"', also="larkexternalinterface").machine == (
        ("larkexternalinterface", '"b"'),
    )


@pytest.mark.parametrize(
    ("rule", "words", "mode"),
    [
        (HostBandwidth(borrows=True), "guarantee", "guarantee"),
        (HostBandwidth(borrows=False), "cap", "cap"),
        (HostBandwidth(borrows=True, default=5.0, ceiling=50.0), "guarantee (default 5, ceiling 50 Mb/s)", "guarantee"),
        (HostBandwidth(borrows=False, maximum=2.5), "cap (maximum 2.5 Mb/s)", "cap"),
        (
            HostBandwidth(borrows=False, default=1.0, maximum=2.0, ceiling=3.0),
            "cap (default 1, maximum 2, ceiling 3 Mb/s)",
            "cap",
        ),
    ],
)
def test_bandwidth_in_words(rule: HostBandwidth, words: str, mode: str) -> None:
    assert (rule.words, rule.mode.value) == (words, mode)


def test_true_and_false_are_predicates() -> None:
    rules = "".join(f"- block: {{when: {word}}}\n" for word in ("true", "false", "yes", "off"))
    policy = load(f"version: 1\npolicies:\n{rules}")
    assert [rule.when for rule in policy.blocks] == ["true", "false", "true", "false"]


def test_the_cores_of_a_policy_are_its_own_and_found_once() -> None:
    spec = SwitchSpec("c", 1, SwitchRole.CORE)
    policy = Policy("", "", switches={1: spec, 2: replace(spec, name="e", datapath=2, role=SwitchRole.EDGE)})
    assert policy.cores == {1}
    # It is asked for with each job that a core treats, of policies with thousands of switches.
    assert policy.cores is policy.cores
    assert replace(policy, switches={}).cores == frozenset()

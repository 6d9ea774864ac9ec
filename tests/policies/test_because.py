"""The reasons of a decision: for each kind of rule its position, line and predicate, and the values that it met."""

from __future__ import annotations

import pytest

from lark_controller.jobs.job import Facts
from lark_controller.policies.decide import decide, needed_attributes
from lark_controller.policies.file import load
from lark_controller.policies.model import Because, Decision, HostBandwidth, RuleKind, SliceKey

CORE = "switches: {c: {datapath: '00000000000000c0', role: core, ports: {lan: 1, wan: 2}}}\n"
FACTS = Facts(
    (
        ("acctgroup", '"Physics.CMS.prod"'), ("bandwidthmode", '"guarantee"'), ("inboundconnectivity", "false"),
        ("jobprio", "7"), ("outboundconnectivity", "true"), ("owner", '"bob"'),
    ),
    (("machine", '"w1"'),),
)  # fmt: skip


def decided(*rules: str, groups: str = "", facts: Facts = FACTS) -> Decision:
    listed = "".join(f"  - {rule}\n" for rule in rules)
    text = f"version: 1\n{CORE}policies:\n{listed}" + (f"groups: {groups}\n" if groups else "")
    return decide(facts, load(text))


OWNER, PRIO = ("Owner", '"bob"'), ("JobPrio", "7")
IN, OUT = ("InboundConnectivity", "false"), ("OutboundConnectivity", "true")


@pytest.mark.parametrize(
    ("rules", "because"),
    [
        (
            ["block: {when: 'Owner == \"eve\"'}", "block: {when: 'JobPrio > 5 && Owner == \"bob\"'}"],
            Because(RuleKind.BLOCK, 2, 5, 'JobPrio > 5 && Owner == "bob"', (PRIO, OWNER)),
        ),
        (["slice: {by: Owner}"], Because(RuleKind.SLICE, 1, 4, "true", (OWNER,))),
        (
            ["slice: {by: Nowhere}", "slice: {by: Owner, when: 'Owner != \"x\" && JobPrio > 0'}"],
            Because(RuleKind.SLICE, 2, 5, 'Owner != "x" && JobPrio > 0', (PRIO, OWNER)),
        ),
        (["wan: {action: drop}"], Because(RuleKind.WAN, 1, 4, "true", (), "drop")),
        (
            ["wan: {action: drop, when: 'JobPrio > 9'}", "wan: {port: wan, when: 'JobPrio > 6'}"],
            Because(RuleKind.WAN, 2, 5, "JobPrio > 6", (PRIO,), "port wan"),
        ),
        (["connectivity: {inbound: deny}"], Because(RuleKind.CONNECTIVITY, 1, 4, "true", ())),
        (
            ["connectivity: {inbound: requested, when: 'JobPrio > 6'}"],
            Because(RuleKind.CONNECTIVITY, 1, 4, "JobPrio > 6", (PRIO, IN)),
        ),
        (
            ["connectivity: {inbound: requested, outbound: requested}"],
            Because(RuleKind.CONNECTIVITY, 1, 4, "true", (IN, OUT)),
        ),
        (["bandwidth: {}"], Because(RuleKind.BANDWIDTH, 1, 4, "true", ())),
        (
            ["bandwidth: {mode: requested, when: 'JobPrio > 6'}"],
            Because(RuleKind.BANDWIDTH, 1, 4, "JobPrio > 6", (PRIO, ("BandwidthMode", '"guarantee"'))),
        ),
        (["transfers: {}"], Because(RuleKind.TRANSFERS, 1, 4, "true", ())),
        (
            ["transfers: {when: 'JobPrio > 9'}", "transfers: {rate: 5, when: 'JobPrio > 6'}"],
            Because(RuleKind.TRANSFERS, 2, 5, "JobPrio > 6", (PRIO,)),
        ),
    ],
)
def test_a_rule_that_decides_is_named(rules: list[str], because: Because) -> None:
    assert decided(*rules).because == (because,)


@pytest.mark.parametrize(
    ("groups", "name", "when"),
    [
        ("{a: {when: 'JobPrio > 6'}, physics.cms.prod: {}}", "a", "JobPrio > 6"),
        ("{a: {when: 'JobPrio > 8'}, physics.cms.prod: {}}", "physics.cms.prod", ""),
        ("{physics.cms: {}, physics: {}}", "physics.cms", ""),
        ("{physics: {}, default: {}}", "physics", ""),
        ("{cms: {}, default: {}}", "default", ""),
        ("{Physics.cms.PROD: {}, default: {}}", "Physics.cms.PROD", ""),
    ],
)
def test_the_group_is_the_nearest_that_takes_the_job(groups: str, name: str, when: str) -> None:
    found = decided("wan: {action: allow, when: 'false'}", groups=groups)
    (because,) = found.because
    names = groups.strip("{}").split("}, ")
    position = next(place for place, each in enumerate(names, 1) if each.startswith(f"{name}:"))
    met = (("JobPrio", "7"),) if when else (("AcctGroup", '"Physics.CMS.prod"'),)
    assert (found.group, because) == (name, Because(RuleKind.GROUP, position, 5, when, met))


def test_no_group_is_no_reason() -> None:
    assert (decided(groups="{cms: {}}").group, decided(groups="{cms: {}}").because) == ("", ())
    # The name of the last group is no accounting group.
    own = Facts((("acctgroup", '"default"'),))
    assert decided(groups="{cms: {}}", facts=own).group == ""
    assert decided(groups="{cms: {}, default: {}}", facts=own).group == "default"
    assert decided(groups="{cms: {}, default: {}}", facts=Facts()).group == "default"


def test_the_first_rule_of_a_kind_decides() -> None:
    found = decided(
        "slice: {by: Owner}", "slice: {by: JobPrio}", "connectivity: {inbound: deny}", "connectivity: {outbound: deny}",
        "bandwidth: {maximum: 3}", "bandwidth: {default: 9}", "wan: {action: allow}", "wan: {action: drop}",
    )  # fmt: skip
    assert (found.slice, found.inbound, found.outbound, found.wan) == (SliceKey(1, '"bob"'), False, True, 1)
    assert found.bandwidth == HostBandwidth(borrows=False, default=None, maximum=3.0, ceiling=None)
    assert [(because.kind, because.position) for because in found.because] == [
        (RuleKind.SLICE, 1), (RuleKind.WAN, 1), (RuleKind.CONNECTIVITY, 1), (RuleKind.BANDWIDTH, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("section", "job", "machine"),
    [
        ("", set(), set()),
        ("accounting: requested", {"networkaccounting"}, set()),
        ("accounting: none", set(), set()),
        ("policies: [{bandwidth: {mode: requested}}]", {"bandwidthmode"}, set()),
        ("policies: [{bandwidth: {mode: guarantee, when: 'MY.a'}}]", {"a"}, {"a"}),
        ("policies: [{transfers: {when: 'MY.i'}}]", {"i"}, {"i"}),
        ("policies: [{block: {when: 'TARGET.b'}}]", set(), {"b"}),
        ("policies: [{slice: {by: c, when: 'MY.d'}}]", {"c", "d"}, {"c", "d"}),
        ("policies: [{wan: {action: drop, when: 'MY.e'}}]", {"e"}, {"e"}),
        ("policies: [{connectivity: {inbound: deny, when: 'MY.f'}}]", {"f"}, {"f"}),
        ("groups: {g: {when: 'MY.h'}}", {"h"}, {"h"}),
    ],
)
def test_the_attributes_that_a_policy_needs(section: str, job: set[str], machine: set[str]) -> None:
    """An attribute of MY counts for both ads, since HTCondor's bindings name it without its scope."""
    always = {"acctgroup", "inboundconnectivity", "outboundconnectivity"}
    of_job, of_machine = needed_attributes(load(f"version: 1\n{section}"))
    assert (set(of_job), set(of_machine)) == (always | job, machine)


def test_what_a_wan_rule_does_is_one_text_for_all_jobs() -> None:
    policy = load("version: 1\npolicies: [{wan: {action: drop, when: 'JobPrio > 0', except: [192.0.2.1]}}]\n")
    found = [decide(Facts((("jobprio", str(prio)),), ()), policy).because[0] for prio in (1, 2)]
    assert [because.values for because in found] == [(("JobPrio", "1"),), (("JobPrio", "2"),)]
    assert found[0].does == "drop, except 192.0.2.1"
    assert found[0].does is found[1].does

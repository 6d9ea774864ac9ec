"""Bandwidth rules: whose request counts, as what, and how much of it; and what a rule may not say."""

from __future__ import annotations

import pytest

from lark_common.classads.ads import parse_post
from lark_common.errors import PolicyError
from lark_controller.policies.decide import decide, needed_attributes
from lark_controller.policies.facts import facts
from lark_controller.policies.file import load
from lark_controller.policies.model import HostBandwidth

POLICY = """
version: 1
policies:
  - bandwidth: {when: 'Owner == "alice"', mode: requested, default: 10Mbit, maximum: 500Mbit, ceiling: 800Mbit}
  - bandwidth: {when: 'Owner == "bob"', mode: guarantee}
  - bandwidth: {when: 'Owner == "carol"'}
"""


def decided(*lines: str) -> HostBandwidth | None:
    policy = load(POLICY)
    text = "\n".join(
        (
            *lines,
            'GlobalJobId = "s#1.0#1"',
            "------",
            'Machine = "w"',
            'Name = "slot1@w"',
            'LarkAddressType = "controller"',
        )
    )
    job, machine = parse_post(text.encode(), "text/plain")
    return decide(facts(job, machine, needed_attributes(policy)), policy).bandwidth


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (('Owner = "alice"',), HostBandwidth(False, 10, 500)),
        (('Owner = "alice"', 'BandwidthMode = "guarantee"'), HostBandwidth(True, 10, 500, 800)),
        (('Owner = "alice"', 'BandwidthMode = "all"'), HostBandwidth(False, 10, 500)),
        (('Owner = "bob"', 'BandwidthMode = "cap"'), HostBandwidth(True)),
        (('Owner = "carol"',), HostBandwidth(False)),
        (('Owner = "dave"',), None),
    ],
)
def test_the_first_rule_that_matches_decides(lines: tuple[str, ...], expected: HostBandwidth | None) -> None:
    assert decided(*lines) == expected


def test_what_counts_of_a_request() -> None:
    rule = HostBandwidth(False, 10, 500)
    assert [rule.rate(asked) for asked in (None, 0, 5, 500, 900)] == [10, 10, 5, 500, 500]
    # Nobody has a guarantee of what it cannot send.
    guaranteed = HostBandwidth(True, ceiling=50)
    assert [guaranteed.rate(asked) for asked in (None, 5, 50, 100)] == [None, 5, 50, 50]
    assert HostBandwidth(True, None, 40, 50).rate(100) == 40
    assert [HostBandwidth(False).rate(asked) for asked in (None, 0, 900)] == [None, None, 900]


@pytest.mark.parametrize(
    ("rule", "key", "problem"),
    [
        ("{mode: borrow}", "mode", "borrow is not accepted"),
        ("{default: 10, maximum: 5}", "default", "is above the maximum"),
        ("{ceiling: 10}", "ceiling", "beside mode: cap"),
        ("{mode: guarantee, maximum: 20, ceiling: 10}", "ceiling", "is below a guarantee of 20 Mb/s"),
        ("{maximum: 0}", "maximum", "is not a rate"),
    ],
)
def test_mistakes_are_named_with_their_place(rule: str, key: str, problem: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load(f"version: 1\npolicies:\n  - bandwidth: {rule}\n")
    (mistake,) = caught.value.mistakes
    assert (mistake.line, mistake.key) == (3, f"policies[0].bandwidth.{key}")
    assert problem in mistake.problem

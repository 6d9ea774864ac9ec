"""The section ``external``: its mistakes, what a rule is where little is said, and the rule of a job."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from lark_common.errors import PolicyError
from lark_controller.jobs.external import listed
from lark_controller.jobs.job import Facts
from lark_controller.policies.external import rule_of
from lark_controller.policies.file import load

POOLS = "pools: {public: [198.51.100.64/28]}"


def policy(section: str) -> str:
    return f"version: 1\nnetworks: {{jobs: [10.64.0.0/16]}}\nexternal: {{{section}}}\n"


@pytest.mark.parametrize(
    ("pools", "expected"),
    [
        ("{a: []}", [("external.pools.a", "a pool without addresses")]),
        ("{a: }", [("external.pools.a", "a pool without addresses")]),
        ("{a: 198.51.100.0/24}", [("external.pools.a", "'198.51.100.0/24' where a list is expected")]),
        ("{a: {}}", [("external.pools.a", "networks is missing")]),
        ('{a: ["2001:db8::/64", 198.51.100.7]}', [("external.pools.a[0]", "2001:db8::/64 is IPv6")]),
        ("{a: [198.51.100.7], b: [198.51.100.0/24]}", [("external.pools.b[0]", "overlaps 198.51.100.7/32")]),
        ("{a: [10.64.0.7]}", [("external.pools.a[0]", "overlaps 10.64.0.0/16")]),
        ("{a: [198.18.0.0/16, 198.51.100.7]}", [("external.pools.a", "a pool of 65537 addresses")]),
        ("{a: [198.18.0.0/16]}", []),
        ("{a: [nothing]}", [("external.pools.a[0]", "nothing")]),
    ],
)
def test_each_mistake_of_a_pool_is_reported_once(pools: str, expected: list[tuple[str, str]]) -> None:
    text = policy(f"pools: {pools}, rules: []")
    if not expected:
        assert load(text).external is not None
        return
    with pytest.raises(PolicyError) as caught:
        load(text)
    found = caught.value.mistakes
    assert [each.key for each in found] == [key for key, _ in expected]
    assert all(words in each.problem for each, (_, words) in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("opened", "problem"),
    [
        ("", "nothing is open"),
        ("[]", "nothing is open"),
        ("[http]", "'http' is no protocol"),
        ("[tcp/0]", "ports are 1 to 65535"),
        ("tcp", "where a list is expected"),
    ],
)
def test_a_rule_opens_something(opened: str, problem: str) -> None:
    text = policy(f"{POOLS}, rules: [{{pool: public, open: {opened}}}]")
    with pytest.raises(PolicyError) as caught:
        load(text)
    assert [each.key for each in caught.value.mistakes] == ["external.rules[0].open"]
    assert problem in caught.value.mistakes[0].problem


def test_what_a_rule_is_where_little_is_said() -> None:
    external = load(policy(f"{POOLS}, rules: [{{pool: public, open: [tcp/80, udp/53]}}]")).external
    assert external is not None
    assert dict(external.pools) == {"public": (ip_network("198.51.100.64/28"),)}
    (rule,) = external.rules
    assert (rule.position, rule.line, rule.pool, rule.when) == (1, 3, "public", None)
    assert rule.openings == listed("tcp/80 udp/53")
    assert (rule.per_user, rule.per_group, rule.seconds) == (1, None, None)
    assert (external.quarantine, external.refused.value) == (600.0, "hold")


def test_what_a_rule_is_where_all_is_said() -> None:
    rules = "[{pool: public, open: [icmp]}, {pool: public, open: [any], per_user: 0, per_group: 7, seconds: 60}]"
    external = load(policy(f"{POOLS}, rules: {rules}, quarantine: 0, refused: run")).external
    assert external is not None
    rule = external.rules[1]
    assert (rule.position, rule.per_user, rule.per_group, rule.seconds) == (2, 0, 7, 60)
    assert (external.quarantine, external.refused.value) == (0.0, "run")


ADS = {name: Facts((("owner", f'"{name}"'),)) for name in ("alice", "bob", "carol")}


@pytest.mark.parametrize(("owner", "position"), [("alice", 1), ("bob", 2), ("carol", None)])
def test_a_jobs_rule_is_the_first_that_matches(owner: str, position: int | None) -> None:
    rules = (
        """[{when: 'Owner == "alice"', pool: public, open: [tcp/1]}, """
        """{when: 'Owner != "carol"', pool: public, open: [tcp/2]}]"""
    )
    rule = rule_of(load(policy(f"{POOLS}, rules: {rules}")), ADS[owner])
    assert (None if rule is None else rule.position) == position


def test_a_policy_without_the_section_has_no_rule_and_one_without_when_is_for_all() -> None:
    assert rule_of(load("version: 1\n"), ADS["alice"]) is None
    rule = rule_of(load(policy(f"{POOLS}, rules: [{{pool: public, open: [tcp]}}]")), ADS["carol"])
    assert rule is not None

"""The section ``external``: its mistakes, what a rule is where little is said, and the rule of a job."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from lark_common.errors import PolicyError
from lark_controller.jobs.external import listed
from lark_controller.jobs.external_names import NameForm
from lark_controller.jobs.job import Facts
from lark_controller.policies.decide import decide, needed_attributes
from lark_controller.policies.external import leaves_by, pool_of, rule_of
from lark_controller.policies.external_spec import OWN_POOL, ExternalRule, ExternalSpec, PoolPlace, WithoutExternal
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
        # HTCondor has one attribute for these: whoever asks for one pool in `requirements` would be told of another.
        (
            "{a-1: [198.51.100.1], A.1: [198.51.100.2], a_2: [198.51.100.3]}",
            [("external.pools.A.1", "slots' ads have one ExternalHeadroom_A_1 for it and a-1")],
        ),
        ("{" + ", ".join(f"p{n}: [198.51.{n}.1]" for n in range(256)) + "}", []),
        ("{" + ", ".join(f"p{n}: [198.51.0.{n}]" for n in range(257)) + "}", [("external.pools", "257 pools")]),
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


BOTH = "[{family: ipv6, open: [tcp]}, {pool: public, open: [tcp]}]"


@pytest.mark.parametrize(
    ("rules", "family", "found"),
    [
        (BOTH, None, (2, 4, "public")),
        (BOTH, 6, (1, 6, OWN_POOL)),
        (BOTH, 4, (2, 4, "public")),
        ("[{family: ipv6, open: [tcp]}]", None, (1, 6, OWN_POOL)),
        ("[{family: ipv6, open: [tcp]}]", 4, None),
        ("[{pool: public, open: [tcp]}]", 6, None),
        ("[{pool: public, open: [tcp], when: 'false'}, {family: ipv6, open: [tcp]}]", None, (2, 6, OWN_POOL)),
        ("[{family: ipv4, pool: public, open: [tcp]}]", 4, (1, 4, "public")),
    ],
)
def test_a_rule_of_ipv4_is_looked_for_first(rules: str, family: int | None, found: tuple[int, int, str] | None) -> None:
    rule = rule_of(load(policy(f"{POOLS}, rules: {rules}")), ADS["alice"], family)
    assert (None if rule is None else (rule.position, rule.family, rule.pool)) == found


SITE = """
version: 1
networks: {jobs: [10.64.0.0/16]}
switches:
  core1: {datapath: "00000000000000c0", role: core, ports: {lan: 1, wan: 2, wan-b: 3, wan-c: 4}}
  core2: {datapath: "00000000000000c1", role: core, ports: {lan: 1, wan-d: 2}}
  edge1: {datapath: "00000000000000e1", role: edge, ports: {uplink: 1}}
policies:
  - wan: {when: 'Owner == "alice"', port: wan-b}
  - wan: {when: 'Owner == "bob"', port: wan-c}
  - wan: {when: 'Owner == "carol"', action: drop}
external:
  pools:
    everywhere: [198.51.100.0/28]
    at-wan: {networks: [198.51.100.16/28], port: wan}
    at-b: {networks: [198.51.100.32/28, 198.51.100.48/28], port: wan-b}
    at-d: {networks: [198.51.100.64/28], port: wan-d, switch: core2}
  rules: [{pool: POOLS, open: [any]}]
"""


@pytest.mark.parametrize(
    ("pools", "owner", "chosen"),
    [
        ("everywhere", "alice", "everywhere"),
        ("at-b", "alice", "at-b"),
        # Steered elsewhere, or nowhere: to that port others are steered.
        ("at-b", "bob", None),
        ("at-b", "carol", None),
        ("at-b", "eve", None),
        # Nobody is steered to this port, so it is where the gateway of all others is.
        ("at-wan", "eve", "at-wan"),
        ("at-wan", "carol", "at-wan"),
        ("at-wan", "alice", None),
        ("[at-b, at-wan]", "alice", "at-b"),
        ("[at-b, at-wan]", "eve", "at-wan"),
        ("[at-b, at-wan]", "bob", None),
        ("[at-b, everywhere, at-wan]", "eve", "everywhere"),
        ("[at-wan, at-d]", "bob", None),
    ],
)
def test_the_pool_is_the_first_where_a_jobs_traffic_leaves(pools: str, owner: str, chosen: str | None) -> None:
    found = load(SITE.replace("POOLS", pools))
    facts = Facts((("owner", f'"{owner}"'),))
    rule, decision = rule_of(found, facts), decide(facts, found)
    assert rule is not None
    assert pool_of(found, rule, decision) == chosen
    assert leaves_by(found, decision) == {"alice": "wan-b", "bob": "wan-c"}.get(owner)
    assert rule.more_pools == tuple(pools.strip("[]").split(", "))[1:]


def test_an_own_address_is_of_no_pool() -> None:
    found = load(SITE.replace("{pool: POOLS, open", "{family: ipv6, open"))
    rule = rule_of(found, Facts())
    assert rule is not None
    assert pool_of(found, rule, decide(Facts(), found)) == OWN_POOL
    assert found.external is not None
    assert found.external.opens
    other = load(SITE.replace("POOLS", "everywhere")).external
    assert other is not None
    assert not other.opens
    rules = "[{pool: a, open: [any]}, {family: ipv6, open: [any]}]"
    both = load(policy(f"pools: {{a: [198.51.100.7]}}, rules: {rules}")).external
    assert both is not None
    assert both.opens


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("198.51.100.1", PoolPlace(None, None)),
        ("198.51.100.17", PoolPlace("wan", None)),
        ("198.51.100.40", PoolPlace("wan-b", None)),
        ("198.51.100.63", PoolPlace("wan-b", None)),
        ("198.51.100.64", PoolPlace("wan-d", "core2")),
        ("192.0.2.1", PoolPlace(None, None)),
    ],
)
def test_an_address_is_where_its_pool_is(address: str, place: PoolPlace) -> None:
    spec = load(SITE.replace("POOLS", "everywhere")).external
    assert spec is not None
    assert spec.place(ip_address(address)) == place
    assert set(spec.places) == {"at-wan", "at-b", "at-d"}


@pytest.mark.parametrize(
    ("place", "problem", "accepted"),
    [
        ("port: lan", "lan is not accepted", "a WAN port of a core switch: wan, wan-b, wan-c, wan-d"),
        ("port: uplink", "uplink is not accepted", "a WAN port of a core switch: wan, wan-b, wan-c, wan-d"),
        ("port: wan, switch: core2", "wan is not accepted", "a WAN port of a core switch: wan-d"),
        ("switch: edge1", "edge1 is not accepted", "a core switch: core1, core2"),
        ("switch: [core1]", "a list where a string is expected", "a core switch: core1, core2"),
    ],
)
def test_a_pool_is_at_a_wan_port_of_a_core(place: str, problem: str, accepted: str) -> None:
    text = SITE.replace("POOLS", "everywhere").replace("port: wan}", f"{place}}}")
    with pytest.raises(PolicyError) as caught:
        load(text)
    (mistake,) = caught.value.mistakes
    assert (mistake.key.rpartition(".")[0], mistake.accepted) == ("external.pools.at-wan", accepted)
    assert problem in mistake.problem


def test_a_pool_that_is_wrong_has_no_place() -> None:
    text = SITE.replace("POOLS", "everywhere").replace("[198.51.100.16/28]", "[nothing]")
    with pytest.raises(PolicyError) as caught:
        load(text)
    assert [each.key for each in caught.value.mistakes] == ["external.pools.at-wan.networks[0]"]


ZONES = "zones: {a.org: 600, B.org.: 0}, pools: {public: [198.51.100.64/28]}"


def test_zones_and_names_are_read_as_written() -> None:
    rules = "[{pool: public, open: [any], names: '{name}.{owner}.a.org'}, {pool: public, open: [any]}]"
    external = load(policy(f"{ZONES}, rules: {rules}")).external
    assert external is not None
    assert external.zones == {"a.org": 600, "b.org": 0}
    assert external.rules[0].names == NameForm("{name}.{owner}.a.org", "a.org", 600)
    assert external.rules[1].names is None
    # No name is kept for longer than its address rests.
    longer = load(policy("quarantine: 86400, zones: {a.org: 86400}, rules: []")).external
    assert longer is not None
    assert (longer.zones, longer.quarantine) == ({"a.org": 86400}, 86400.0)


def test_numbers_of_the_section_are_the_greatest_that_are_accepted() -> None:
    rule = "{pool: public, open: [any], per_user: 65536, per_group: 65536, seconds: 31622400}"
    external = load(policy(f"{POOLS}, rules: [{rule}]")).external
    assert external is not None
    assert (external.rules[0].per_user, external.rules[0].per_group) == (65536, 65536)
    assert external.rules[0].seconds == 31622400
    least = rule.replace("65536", "0").replace("31622400", "1")
    assert load(policy(f"{POOLS}, rules: [{least}]")).external is not None
    zones = "{" + ", ".join(f"z{number}.org: 1" for number in range(64)) + "%s}"
    found = load(policy(f"zones: {zones % ''}, rules: []")).external
    assert found is not None
    assert len(found.zones) == 64
    for section, key, problem in (
        (f"zones: {zones % ', z.org: 1'}, rules: []", "external.zones", "65 zones"),
        ("quarantine: 86401, rules: []", "external.quarantine", "86401 is not accepted"),
        ("quarantine: -1, rules: []", "external.quarantine", "-1 is not accepted"),
        ("refused: maybe, rules: []", "external.refused", "maybe is not accepted"),
        (f"{POOLS}, rules: [{rule.replace('31622400', '31622401')}]", "external.rules[0].seconds", "31622401"),
        (f"{POOLS}, rules: [{rule.replace('31622400', '0')}]", "external.rules[0].seconds", "0 is"),
        (f"{POOLS}, rules: [{rule.replace('per_user: 65536', 'per_user: 65537')}]", "external.rules[0].per_user", ""),
        (f"{POOLS}, rules: [{rule.replace('per_group: 65536', 'per_group: -1')}]", "external.rules[0].per_group", ""),
    ):
        with pytest.raises(PolicyError) as caught:
            load(policy(section))
        (mistake,) = caught.value.mistakes
        assert mistake.key == key
        assert problem in mistake.problem


def test_a_rules_position_counts_those_that_are_right() -> None:
    external = load(policy(f"{POOLS}, rules: [{{family: ipv6, open: [tcp]}}, {{pool: public, open: [udp]}}]")).external
    assert external is not None
    assert [(rule.position, rule.pool, rule.family) for rule in external.rules] == [(1, OWN_POOL, 6), (2, "public", 4)]


def test_of_a_rule_or_a_spec_little_may_be_said() -> None:
    rule = ExternalRule(1, 2, "public", ())
    assert (rule.when, rule.per_user, rule.per_group, rule.seconds) == (None, 1, None, None)
    assert (rule.family, rule.more_pools, rule.names) == (4, (), None)
    spec = ExternalSpec({}, (), 5.0)
    assert (spec.refused, dict(spec.places), dict(spec.zones), spec.opens) == (WithoutExternal.HOLD, {}, {}, False)
    assert [each.value for each in WithoutExternal] == ["hold", "idle", "run"]
    assert PoolPlace() == (None, None)


def test_attributes_of_external_rules_are_needed() -> None:
    rules = "[{pool: public, open: [tcp], when: 'MY.a'}]"
    job, machine = needed_attributes(load(policy(f"{POOLS}, rules: {rules}")))
    assert ("a" in job, "a" in machine) == (True, True)

"""The policy file: all mistakes at once, and agreement with its JSON Schema."""

from __future__ import annotations

import json
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lark_common.errors import Mistake, PolicyError
from lark_controller.policies import file, schema
from lark_controller.policies.file import load
from lark_controller.policies.model import Policy, PortSpec, Reach, RuleKind, SwitchRole, WanAction
from lark_controller.policies.yaml_nodes import MAX_BYTES

ETC = Path(__file__).parents[2] / "etc"
EXAMPLE = (ETC / "policy.yaml").read_text(encoding="utf-8")
CORE = 'switches: {c: {datapath: "00000000000000c0", role: core, ports: {lan: 1, wan: 2, wan-fast: 3}}}\n'
EDGE = 'switches: {a: {datapath: "00000000000000e1", role: edge, %s}}'
VALIDATOR = jsonschema.Draft202012Validator(schema.schema())


def mistakes(text: str) -> tuple[Mistake, ...]:
    with pytest.raises(PolicyError) as caught:
        load(text)
    return caught.value.mistakes


def only(text: str) -> Mistake:
    found = mistakes(text)
    assert len(found) == 1, found
    return found[0]


def agrees(text: str) -> bool:
    return bool(VALIDATOR.is_valid(yaml.safe_load(text)))


def test_a_kind_without_a_parser_is_not_read_as_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "KINDS", (*file.KINDS, "shape"))
    with pytest.raises(AssertionError, match="shape"):
        load("version: 1\npolicies: [{shape: {mode: cap}}]")


def test_every_kind_of_rule_is_one_of_the_file_but_groups() -> None:
    """Types then hold that each has a parser."""
    assert {*file.KINDS, RuleKind.GROUP} == set(RuleKind)


def test_the_schema_has_the_kinds_that_the_file_has() -> None:
    rule = schema.schema()["properties"]["policies"]["items"]
    assert set(rule["properties"]) == set(file.KINDS)


def test_example_is_valid_and_reads_as_written() -> None:
    policy = load(EXAMPLE)
    assert policy.job_networks == (ip_network("10.64.0.0/16"), ip_network("2001:db8:64::/48"))
    assert policy.block_prefixes == (26, 122)
    core = policy.switches[0xC0]
    assert (core.role, core.max_rules, core.normal) == (SwitchRole.CORE, 4096, None)
    assert core.ports["wan-fast"] == PortSpec(3, "02:00:00:00:00:02")
    assert policy.switches[0xE1].host == "worker1.example"
    assert [rule.action for rule in policy.wans] == [WanAction.DROP, WanAction.STEER]
    assert policy.wans[0].exceptions == (ip_network("192.0.2.1"), ip_network("2001:db9:ffff::/48"))
    assert policy.connectivities[0].inbound is Reach.REQUESTED
    assert [(group.name, group.dscp) for group in policy.groups] == [("urgent", 1), ("group_cms", 2), ("default", 3)]
    assert EXAMPLE.splitlines()[policy.blocks[0].line - 1].lstrip().startswith("- block")
    assert agrees(EXAMPLE)


def test_published_schema_is_current_and_a_schema() -> None:
    assert (ETC / "policy.schema.json").read_text(encoding="utf-8") == schema.text()
    jsonschema.Draft202012Validator.check_schema(json.loads(schema.text()))


def test_smallest_policy_and_defaults() -> None:
    policy = load("version: 1\n")
    assert policy.edge_uplinks == ("uplink*", "eth*", "en*", "bond*")
    assert policy.switches == {}
    assert policy.block_prefixes == (26, 122)
    assert load("version: 1").digest != policy.digest


VALID = [
    "version: 1",
    "version: 1\npolicies:\ngroups:\nnetworks:\nswitches:\nedge:\n",
    "version: 1\nedge: {uplinks: ['p*', '7']}",
    "version: 1\npolicies: [{block: {when: true}}, {slice: {by: 'MY.Owner', when: 'JobPrio > 1'}}]",
    "version: 1\npolicies: [{wan: {action: allow}}, {connectivity: {inbound: deny}}]",
    "version: 1\n" + CORE + "policies: [{wan: {port: wan-fast}}]",
    "version: 1\n" + CORE + "groups: {a: {guarantee: 1.5Gbit, ceiling: 2000, burst: 800kbit, port: wan, dscp: 46}}",
    "version: 1\nswitches: {e: {datapath: '00:00:00:00:00:00:00:e1', role: edge, normal: false, ports: {uplink: e0}}}",
    "version: 1\nnetworks: {jobs: [10.0.0.0/30], local: []}",
    "version: 1\nnetworks: {jobs: [10.0.0.0/24], block_prefix: {ipv4: 32, ipv6: 64}}",
    "version: 1\npolicies: &p\n- block: &b {when: 'a'}\n- block: *b\n",
]


@pytest.mark.parametrize("text", VALID)
def test_valid_here_is_valid_in_the_schema(text: str) -> None:
    load(text)
    assert agrees(text)


# What a schema can see as well: text, key path, words of the problem.
SHAPES = [
    ("{}", "", "version is missing"),
    ("version: 2", "version", "not accepted"),
    ("version: '1'", "version", "not an integer"),
    ("version: 1\nnetwork: {}", "network", "did you mean networks?"),
    ("version: 1\nnetworks: {jobs: 10.0.0.0/8}", "networks.jobs", "where a list is expected"),
    ("version: 1\nnetworks: {jobs: [foo]}", "networks.jobs[0]", "not a network"),
    ("version: 1\nnetworks: {jobs: [10.0.0.1]}", "networks.jobs[0]", "no prefix length"),
    ("version: 1\nnetworks: {block_prefix: {ipv4: 33}}", "networks.block_prefix.ipv4", "not accepted"),
    ("version: 1\npolicies: [{block: {}}]", "policies[0].block", "when is missing"),
    ("version: 1\npolicies: [{blok: {when: a}}]", "policies[0].blok", "did you mean block?"),
    ("version: 1\npolicies: [{}]", "policies[0]", "0 kinds"),
    ("version: 1\npolicies: [{block: {when: a}, slice: {by: b}}]", "policies[0]", "2 kinds"),
    ("version: 1\npolicies: [{block: {when: 1}}]", "policies[0].block.when", "not a string"),
    ("version: 1\npolicies: [{wan: {when: a}}]", "policies[0].wan", "neither action nor port"),
    ("version: 1\npolicies: [{wan: {action: dorp}}]", "policies[0].wan.action", "did you mean drop?"),
    ("version: 1\npolicies: [{wan: {action: allow, except: [192.0.2.1]}}]", "policies[0].wan.except", "without action"),
    ("version: 1\n" + CORE + "policies: [{wan: {action: drop, port: wan}}]", "policies[0].wan.action", "both"),
    ("version: 1\npolicies: [{connectivity: {inbound: x}}]", "policies[0].connectivity.inbound", "x is not accepted"),
    ("version: 1\npolicies: [{connectivity: {}}]", "policies[0].connectivity", "neither inbound nor outbound"),
    ("version: 1\npolicies: [{block: {when: [a]}}]", "policies[0].block.when", "a list where a string is expected"),
    ("version: 1\nswitches: {a: {role: edge}}", "switches.a", "datapath is missing"),
    ("version: 1\n" + EDGE % "normal: 3", "switches.a.normal", "is not a boolean"),
    ("version: 1\n" + EDGE % "normal: never", "switches.a.normal", "never is not accepted"),
    ("version: 1\nnetworks: {jobs: [10.0.0.0/8], hosts: [10.0.0.0/x]}", "networks.hosts[0]", "not a network"),
    ("version: 1\nswitches: {a: {datapath: '12', role: edge}}", "switches.a.datapath", "'12'"),
    ("version: 1\nswitches: {a: {datapath: 12, role: edge}}", "switches.a.datapath", "write it in quotes"),
    ("version: 1\ngroups: {a: {guarantee: fast}}", "groups.a.guarantee", "not a rate"),
    ("version: 1\ngroups: {a: {ceiling: 0}}", "groups.a.ceiling", "not a rate"),
    ("version: 1\ngroups: {a: {dscp: 64}}", "groups.a.dscp", "not accepted"),
    ("version: 1\ngroups: {a: }", "groups.a", "nothing"),
    ("- 1", "", "a list where a mapping is expected"),
]


@pytest.mark.parametrize(("text", "key", "problem"), SHAPES)
def test_wrong_shapes_are_told_here_and_by_the_schema(text: str, key: str, problem: str) -> None:
    mistake = only(text)
    assert mistake.key == key
    assert problem in mistake.problem
    assert mistake.accepted
    assert not agrees(text)


# What only load can see.
MEANINGS = [
    ("", "", "empty"),
    ("a: [", "", "not YAML"),
    ("version: 1\nversion: 1", "version", "stands twice, first in line 1"),
    ("version: 1\nnetworks: {jobs: [10.64.0.1/16]}", "networks.jobs[0]", "the network is 10.64.0.0/16"),
    ("version: 1\nnetworks: {jobs: [10.0.0.0/8, 10.64.0.0/16]}", "networks.jobs[1]", "overlaps 10.0.0.0/8"),
    ("version: 1\nnetworks: {jobs: [10.0.0.0/24], block_prefix: {ipv4: 20}}", "networks.block_prefix.ipv4", "larger"),
    ("version: 1\npolicies: [{block: {when: 'Owner = \"bob\"'}}]", "policies[0].block.when", "compared with =="),
    ("version: 1\npolicies: [{block: {when: '\"bob\"'}}]", "policies[0].block.when", "constant"),
    ("version: 1\npolicies: [{block: {when: 'a; b = 1'}}]", "policies[0].block.when", "not one complete"),
    ("version: 1\npolicies: [{block: {when: 'a) || (b'}}]", "policies[0].block.when", "not one complete"),
    ("version: 1\npolicies: [{block: {when: 'a > time()'}}]", "policies[0].block.when", "time() cannot be used"),
    ("version: 1\npolicies: [{slice: {by: '1 + 1'}}]", "policies[0].slice.by", "constant"),
    ("version: 1\npolicies: [{wan: {port: wan}}]", "policies[0].wan.port", "not accepted"),
    ("version: 1\n" + CORE + "policies: [{wan: {port: wan-fats}}]", "policies[0].wan.port", "did you mean wan-fast?"),
    ("version: 1\n" + CORE + "groups: {a: {port: wan2}}", "groups.a.port", "wan2"),
    ("version: 1\ngroups: {a: {guarantee: 2Gbit, ceiling: 1Gbit}}", "groups.a.ceiling", "below the guarantee"),
    ("version: 1\ngroups: {a: {dscp: 5}, b: {dscp: 5}}", "groups.b", "group a already"),
    ("version: 1\ngroups: {default: {when: 'a'}}", "groups.default.when", "takes what no other"),
    (
        "version: 1\nswitches: {a: {datapath: '00000000000000c0', role: core, ports: {wan: 1}}}",
        "switches.a.ports",
        "LAN",
    ),
    (
        "version: 1\nswitches: {a: {datapath: '00000000000000c0', role: core, ports: {lan: 1, wan: 1}}}",
        "switches.a.ports.wan",
        "is lan already",
    ),
    (
        "version: 1\nswitches: {a: {datapath: '00000000000000c0', role: edge}, "
        "b: {datapath: '00:00:00:00:00:00:00:C0', role: edge}}",
        "switches.b",
        "switch a already",
    ),
    ("version: 1\nnetworks: {jobs: [10.0.0.0/255.0.0.0]}", "networks.jobs[0]", "not a network"),
    ("version: 1\nnetworks: {jobs: ['fe80::%1/64']}", "networks.jobs[0]", "not a network"),
    ("version: 1\nnetworks: {jobs: [10.0.0.0/16], hosts: [10.1.0.1]}", "networks.hosts[0]", "is in no job network"),
    ("version: 1\nnetworks: {jobs: [10.0.0.0/8], hosts: [10.1.0.0/16]}", "networks.hosts[0]", "65536 addresses"),
    ("version: 1\nswitches: {a: {datapath: '0000000000000000', role: edge}}", "switches.a.datapath", "zeros"),
    ("version: 1\n" + EDGE % "groups_by: meters", "switches.a.groups_by", "on an edge"),
    ("version: 1\n" + CORE.replace("role: core", "role: core, host: w"), "switches.c.host", "beside role: core"),
    (
        "version: 1\n" + CORE.replace("wan: 2", "wan: {port: 2, next_hop: '03:00:00:00:00:01'}"),
        "switches.c.ports.wan.next_hop",
        "multicast",
    ),
    (
        "version: 1\n" + CORE.replace("lan: 1", "lan: {port: 1, next_hop: '02:00:00:00:00:01'}"),
        "switches.c.ports.lan.next_hop",
        "a next hop on lan",
    ),
    ("version: 1\n" + "#" * (1 << 18), "", "too large"),
    (
        "version: 1\nswitches: {a: {datapath: '00000000000000c0', role: edge, ports: {uplnk: 1}}}",
        "switches.a.ports.uplnk",
        "port uplnk",
    ),
]


@pytest.mark.parametrize(("text", "key", "problem"), MEANINGS)
def test_mistakes_of_meaning(text: str, key: str, problem: str) -> None:
    mistake = only(text)
    assert mistake.key == key
    assert problem in mistake.problem
    assert mistake.accepted


def test_every_mistake_at_once_with_its_line() -> None:
    text = """\
version: 1
networks: {jobs: [10.64.0.1/16]}
polices: []
policies:
  - block: {when: 'Owner = "bob"'}
  - wan:
      action: drop
      port: nowhere
  - slice: {by: Owner, whn: x}
groups:
  a: {ceiling: fast}
"""
    found = mistakes(text)
    assert [each.line for each in found] == [2, 3, 5, 7, 8, 9, 11]
    with pytest.raises(PolicyError, match=r"site\.yaml: line 2, networks\.jobs\[0\]: .*accepted: 10\.64\.0\.0/16"):
        load(text, "site.yaml")


def test_columns_are_counted_from_one() -> None:
    mistake = only("version: 3\n")
    assert (mistake.line, mistake.column) == (1, 10)


def test_alias_bombs_and_depth_are_refused() -> None:
    bomb = "a: &a [x]\n" + "".join(f"b{i}: &b{i} [{'*a, ' * 30}]\n" for i in range(5))
    assert "too many aliases" in only(bomb).problem
    assert "nested too deeply" in only("a: " + "[" * 20000 + "]" * 20000).problem
    assert mistakes("a: &a [*a]")
    assert mistakes("version: 1\npolicies: &p [*p]")
    assert "tag" not in only("version: !!python/object:os.system 1").problem


def test_a_text_of_the_largest_size_is_read() -> None:
    head = "version: 1\n"
    assert load(head + "#" * (MAX_BYTES - len(head))).blocks == ()
    assert "too large" in only(head + "#" * (MAX_BYTES - len(head) + 1)).problem


def test_blocks_are_no_larger_than_the_smallest_job_network() -> None:
    def blocks(*jobs: str) -> tuple[int, int]:
        return load(f"version: 1\nnetworks: {{jobs: {list(jobs)}}}").block_prefixes

    assert blocks("10.0.0.0/16", "10.1.0.0/29") == (29, 122)
    assert blocks("2001:db8::/125", "2001:db9::/64") == (26, 125)
    assert blocks("10.0.0.0/16", "2001:db8::/64") == (26, 122)


def test_the_rules_of_a_switch_are_limited_or_not() -> None:
    for limit in (0, 1, 100_000):
        assert load("version: 1\n" + EDGE % f"max_rules: {limit}").switches[0xE1].max_rules == limit
    assert "not accepted" in only("version: 1\n" + EDGE % "max_rules: -1").problem


def test_a_switch_may_leave_it_to_the_controller_whether_normal_works() -> None:
    assert [
        load("version: 1\n" + EDGE % f"normal: {word}").switches[0xE1].normal for word in ("auto", "true", "off")
    ] == [
        None,
        True,
        False,
    ]


def test_dscp_avoids_those_that_are_given() -> None:
    text = "version: 1\ngroups: {a: {}, b: {dscp: 1}, c: {}, d: {dscp: 3}, e: {}}"
    assert [group.dscp for group in load(text).groups] == [2, 1, 4, 3, 5]


def test_at_most_63_groups() -> None:
    groups = "".join(f"  g{index}: {{}}\n" for index in range(64))
    assert "64 groups" in only("version: 1\ngroups:\n" + groups).problem
    assert len({group.dscp for group in load("version: 1\ngroups:\n" + groups.replace("  g63: {}\n", "")).groups}) == 63


def test_at_most_127_wan_rules() -> None:
    rules = "version: 1\npolicies:\n" + "  - wan: {action: allow}\n" * 127
    assert len(load(rules).wans) == 127
    assert "128th" in only(rules + "  - wan: {action: allow}\n").problem


def test_rates_are_megabits() -> None:
    groups = load("version: 1\ngroups: {a: {ceiling: 1.5Gbit}, b: {ceiling: 250}, c: {ceiling: 800 kbit}}").groups
    assert [group.ceiling for group in groups] == [1500, 250, 0.8]


def test_job_networks_are_local() -> None:
    policy = load("version: 1\nnetworks: {jobs: [10.64.0.0/16], local: [192.168.0.0/16]}")
    assert policy.local_networks == (ip_network("192.168.0.0/16"), ip_network("10.64.0.0/16"))


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5000),
    st.sampled_from(["wan", "drop", "Owner", "edge", "10.0.0.0/8", "x"]),
)
KEYS = (
    "version networks jobs local block_prefix ipv4 edge uplinks switches datapath role host ports lan wan policies "
    "block slice connectivity when by action except port inbound groups default guarantee ceiling dscp next_hop"
)
NAMES = st.sampled_from(KEYS.split())
TREES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=12,
)


def outcome(text: str) -> Policy | PolicyError:
    try:
        return load(text)
    except PolicyError as error:
        return error


@settings(max_examples=250, deadline=None)
@given(st.dictionaries(NAMES, TREES, max_size=5))
def test_any_tree_is_a_policy_or_a_list_of_mistakes(tree: dict[str, Any]) -> None:
    text = yaml.safe_dump({"version": 1, **tree})
    result = outcome(text)
    if isinstance(result, Policy):
        assert agrees(text)
    else:
        assert result.mistakes
        assert all(each.line >= 1 and each.column >= 1 and each.problem for each in result.mistakes)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_told_what_is_wrong(text: str) -> None:
    result = outcome(text)
    assert isinstance(result, Policy) or result.mistakes


def test_hosts_are_addresses_inside_job_networks() -> None:
    policy = load("version: 1\nnetworks: {jobs: [10.64.0.0/16], hosts: [10.64.0.1, 10.64.1.0/24]}\n")
    assert policy.hosts == (ip_network("10.64.0.1/32"), ip_network("10.64.1.0/24"))
    with pytest.raises(PolicyError) as caught:
        load("version: 1\nnetworks: {jobs: [10.64.0.0/16], hosts: [10.65.0.1, 10.64.0.0/17]}\n")
    assert [mistake.key for mistake in caught.value.mistakes] == ["networks.hosts[0]", "networks.hosts[1]"]


def test_a_network_that_is_none_is_answered_by_those_that_are_accepted() -> None:
    with pytest.raises(PolicyError) as caught:
        load("version: 1\nnetworks: {jobs: [x], hosts: [y]}")
    network = "a network such as 10.64.0.0/16 or 2001:db8::/32"
    assert [each.accepted for each in caught.value.mistakes] == [network, f"{network}, or an address"]

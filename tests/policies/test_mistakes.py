"""Each mistake in a policy: its place, key and problem, and the accepted values, word by word."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from lark_common.errors import PolicyError
from lark_controller.policies.file import load
from lark_controller.policies.model import BandwidthMode, GroupControl, InboundShares, Policy, Reach, SwitchRole
from lark_controller.policies.yaml_nodes import MAX_MISTAKES

TABLE = Path(__file__).with_name("mistakes.txt").read_text(encoding="utf-8")
CASES = [case for case in TABLE.strip().split("\n\n") if "=> " in case]


def noted(text: str) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        load(text)
    return [
        f"=> {each.line}:{each.column} | {each.key} | {each.problem} | {each.accepted}"
        for each in caught.value.mistakes
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.splitlines()[1][:50])
def test_a_mistake_word_by_word(case: str) -> None:
    lines = case.splitlines()
    text = [line for line in lines if not line.startswith("=> ")]
    assert noted("\n".join(text) + "\n") == lines[len(text) :]


@pytest.mark.parametrize(
    ("text", "place"), [("\x02", "1:1"), ("version: 1\nx: \x01\n", "2:4"), ("a\nb\x7f", "2:2"), ("\n\n\ufffe", "3:1")]
)
def test_a_character_that_yaml_does_not_allow_is_pointed_at(text: str, place: str) -> None:
    number = ord(next(letter for letter in text if letter not in "version: 1\nxab"))
    problem = f"a character that YAML does not allow (U+{number:04X})"
    assert noted(text) == [f"=> {place} |  | {problem} | printable text"]


@pytest.mark.parametrize("letter", ["\r", "\x85", "\u2028", "\u2029", "\u202a", "\u202e", "\u2066", "\u2069"])
def test_a_character_that_hides_a_rule_is_refused(letter: str) -> None:
    """YAML ends a line, and so a comment, where an editor, a terminal or a diff shows one line."""
    text = f"version: 1\n# harmless{letter}policies: [{{block: {{when: true}}}}]\n"
    problem = f"column 11: a character that ends a line, or changes how it is shown, unseen (U+{ord(letter):04X})"
    accepted = 'an escape inside double quotes, such as "\\u2028", or no such character'
    assert noted(text) == [f"=> 2:11 |  | {problem} | {accepted}"]
    load(text, stored=True)


@pytest.mark.parametrize("name", ["policy", "Controller", "joins", "00000000000000e2"])
def test_a_stored_policy_may_have_switches_of_any_name(name: str) -> None:
    """A controller starts with what it had accepted before."""
    text = f'version: 1\nswitches: {{"{name}": {{datapath: "00000000000000e1", role: edge}}}}\n'
    assert f"a switch cannot be called {name}" in noted(text)[0]
    (switch,) = load(text, stored=True).switches.values()
    assert switch.name == name


def test_a_character_that_hides_a_rule_may_be_an_escape() -> None:
    assert read("policies: [{block: {when: \"Owner == '\\u2028'\"}}]\r\n").blocks


def read(section: str) -> Policy:
    return load(f"version: 1\n{section}")


def a_switch(role: str, members: str) -> Any:
    (switch,) = read(
        f"switches: {{a: {{datapath: 'E1:00:00:00:00:00:00:0f', role: {role}, {members}}}}}"
    ).switches.values()
    return switch


def a_group(members: str) -> Any:
    (group,) = read(f"groups: {{a: {{{members}}}}}").groups
    return group


def test_the_least_and_the_greatest_values_are_accepted() -> None:
    assert read("edge: {speed: 1000000}").edge_speed == 1_000_000
    assert read("edge: {speed: 1000Gbit}").edge_speed == 1_000_000
    assert read("edge: {speed: 0.001kbit}").edge_speed == pytest.approx(0.000001)
    assert len(read("edge: {uplinks: [" + ", ".join(f"p{number}" for number in range(64)) + "]}").edge_uplinks) == 64
    for blocks in ((8, 16), (32, 128)):
        section = f"networks: {{block_prefix: {{ipv4: {blocks[0]}, ipv6: {blocks[1]}}}}}"
        assert read(section).block_prefixes == blocks
    assert read("networks: {jobs: [10.0.0.0/30], block_prefix: {ipv4: 30}}").block_prefixes == (30, 122)
    hosts = read("networks: {jobs: [10.0.0.0/8], hosts: [10.16.0.0/20]}").hosts
    assert hosts == (ip_network("10.16.0.0/20"),)
    for port in (1, 0xFFFFFF00):
        assert a_switch("edge", f"ports: {{uplink: {port}}}").ports["uplink"].port == port
    assert a_switch("edge", "ports: {uplink: abcdefghijklmno}").ports["uplink"].port == "abcdefghijklmno"
    assert a_switch("edge", "max_rules: 10000000").max_rules == 10_000_000
    for dscp in (1, 63):
        assert a_group(f"dscp: {dscp}").dscp == dscp
    for priority in (-1000, 1000):
        assert a_group(f"priority: {priority}").priority == priority
    for queue in (0, 0xFFFFFFFE):
        assert a_group(f"queue: {queue}").queue == queue
    assert (a_group("guarantee: 5, ceiling: 5").ceiling, a_group("").priority, a_group("").queue) == (5, 0, None)


def test_switches_are_read_as_written() -> None:
    edge = a_switch("edge", "host: W1.example, ovsdb: 'ssl:[2001:db8::1]:6640', normal: true, ports: {uplink-a: 3}")
    assert (edge.datapath, edge.name, edge.role) == (0xE10000000000000F, "a", SwitchRole.EDGE)
    assert (edge.host, edge.ovsdb, edge.normal) == ("W1.example", "ssl:[2001:db8::1]:6640", True)
    assert (edge.max_rules, edge.group_control) == (0, GroupControl.METERS)
    ports = "ports: {lan: 1, lan2: x0, wan: {port: 2, next_hop: '02:00:00:00:00:0A', speed: 5, backup: wan2}, wan2: 3}"
    for control in GroupControl:
        assert a_switch("core", f"groups_by: {control.value}, {ports}").group_control is control
    core = a_switch("core", ports)
    assert (core.ports["lan"].port, core.ports["lan2"].port) == (1, "x0")
    wan = core.ports["wan"]
    assert (wan.port, wan.next_hop, wan.speed, wan.backup) == (2, "02:00:00:00:00:0a", 5, "wan2")
    assert (core.ports["wan2"].speed, core.ports["wan2"].backup, core.host, core.ovsdb) == (None, None, None, None)
    for database in ("unix:/run/db.sock", "tcp:10.0.0.1:1", "tcp:ovs.example:66400"):
        assert a_switch("edge", f"ovsdb: '{database}'").ovsdb == database


def test_only_wan_ports_of_cores_take_a_rule() -> None:
    switches = (
        "switches:\n"
        "  e: {datapath: '00000000000000e1', role: edge, ports: {uplink: 1}}\n"
        "  c: {datapath: '00000000000000c0', role: core, ports: {lan: 1, wan: 2}}\n"
        "  d: {datapath: '00000000000000c1', role: core, ports: {lan: 1, wan-far: 2}}\n"
    )
    for port in ("wan", "wan-far"):
        assert read(f"{switches}policies: [{{wan: {{port: {port}}}}}]").wans[0].port == port
    for port in ("lan", "uplink"):
        (line,) = noted(f"version: 1\n{switches}policies: [{{wan: {{port: {port}}}}}]")
        assert line.endswith("a WAN port of a core switch: wan, wan-far")


def test_rates_of_groups_are_compared_where_queues_share_a_port() -> None:
    def policy(control: str, speed: str, groups: str) -> str:
        core = f"{{datapath: '00000000000000c0', role: core, groups_by: {control}, ports: {{lan: 1, wan: {speed}}}}}"
        return f"version: 1\nswitches: {{c: {core}}}\ngroups: {groups}\n"

    enough = "{a: {guarantee: 60}, b: {guarantee: 40, port: wan, ceiling: 100}}"
    much = "{a: {guarantee: 60}, b: {guarantee: 40.5}}"
    assert len(load(policy("queues", "{port: 2, speed: 100}", enough)).groups) == 2
    assert len(noted(policy("queues", "{port: 2, speed: 100}", much))) == 1
    # Meters, and ports whose speed is not known, promise nothing.
    assert len(load(policy("meters", "{port: 2, speed: 100}", much)).groups) == 2
    assert len(load(policy("queues", "2", much)).groups) == 2
    # Each group that is too much is named, and does not count for those behind it.
    three = "{a: {guarantee: 60}, b: {guarantee: 70}, c: {guarantee: 40}, d: {guarantee: 41}}"
    assert [line.split(" | ")[1] for line in noted(policy("queues", "{port: 2, speed: 100}", three))] == [
        "groups.b.guarantee",
        "groups.d.guarantee",
    ]


def test_bandwidth_rules_are_read_as_written() -> None:
    def rule(members: str) -> Any:
        return read(f"policies: [{{bandwidth: {{{members}}}}}]").bandwidths[0]

    assert (rule("").mode, rule("").default, rule("").maximum, rule("").ceiling) == (
        BandwidthMode.CAP,
        None,
        None,
        None,
    )
    equal = rule("mode: guarantee, default: 5, maximum: 5, ceiling: 5")
    assert (equal.mode, equal.default, equal.maximum, equal.ceiling) == (BandwidthMode.GUARANTEE, 5, 5, 5)
    # A ceiling is compared with what the rule gives, and it may give less than 1 Mb/s.
    assert rule("mode: guarantee, ceiling: 0.5").ceiling == 0.5
    assert rule("mode: requested, default: 0.2, ceiling: 0.5").ceiling == 0.5
    assert rule("mode: requested, maximum: 0.2, ceiling: 0.5").maximum == 0.2


def test_rules_are_counted_by_kind() -> None:
    policy = read(
        "policies:\n"
        "- block: {when: a}\n"
        "- connectivity: {inbound: deny}\n"
        "- block: {when: b}\n"
        "- connectivity: {outbound: requested}\n"
        "- slice: {by: Owner}\n"
        "- bandwidth: {}\n"
        "- wan: {action: drop}\n"
    )
    assert [(rule.position, rule.line) for rule in policy.blocks] == [(1, 3), (2, 5)]
    assert [(rule.position, rule.line) for rule in policy.connectivities] == [(1, 4), (2, 6)]
    reaches = [(rule.inbound, rule.outbound) for rule in policy.connectivities]
    assert reaches == [(Reach.DENY, Reach.ALLOW), (Reach.ALLOW, Reach.REQUESTED)]
    assert (policy.slices[0].position, policy.bandwidths[0].position, policy.wans[0].position) == (1, 1, 1)
    assert policy.edge_inbound is InboundShares.SPLIT
    assert read("edge: {inbound: open}").edge_inbound is InboundShares.OPEN


def test_mistakes_are_in_file_order_and_no_more_than_a_thousand() -> None:
    found = noted("networks: {jobs: [x]}\nversion: 2\nedge: {speed: 0, uplinks: 3}\n")
    assert [line.split(" | ")[0] for line in found] == ["=> 1:19", "=> 2:10", "=> 3:15", "=> 3:27"]
    many = "version: 1\n" + "".join(f"k{number}: 1\n" for number in range(MAX_MISTAKES + 5))
    assert len(noted(many)) == MAX_MISTAKES == 1000
    assert len(noted("version: 1\nnetworks: {jobs: [" + "x, " * 1001 + "]}")) == MAX_MISTAKES


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ("a: &a 1\nb: [" + "*a, " * 64 + "]", "unknown key a"),
        ("a: &a 1\nb: [" + "*a, " * 65 + "]", "too many aliases"),
        ("%TAG !a! b\n" * 17 + "---\nversion: 1\n", "=> 17:1 |  | too many directives"),
        ("a: " + "[" * 31 + "]" * 31, "unknown key a"),
        ("a: " + "[" * 32 + "]" * 32, "nested too deeply"),
        ("[" + "1," * 99_998 + "1]", "a list where a mapping is expected"),
        ("[" + "1," * 99_999 + "1]", "too many values"),
    ],
)
def test_documents_are_as_large_as_they_may_be(document: str, problem: str) -> None:
    assert problem in noted(document)[0]


def test_a_document_that_is_too_much_is_pointed_at() -> None:
    (line,) = noted("version: 1\na:\n  " + "[" * 40 + "]" * 40 + "\n")
    assert line == "=> 3:34 |  | nested too deeply | at most 32 levels"


def test_lists_have_at_most_4096_entries() -> None:
    block = "version: 1\npolicies: [" + "{block: {when: a}}, " * 4096 + "%s]"
    assert len(load(block % "").blocks) == 4096
    assert noted(block % "{block: {when: a}}") == ["=> 2:1 | policies | a list of 4097 | at most 4096 entries"]


def test_a_name_is_shown_as_far_as_it_can_be_read() -> None:
    assert "unknown key " + "k" * 60 + " |" in noted("version: 1\n" + "k" * 60 + ": 1\n")[0]
    assert "unknown key " + "k" * 57 + "... |" in noted("version: 1\n" + "k" * 61 + ": 1\n")[0]


def test_attributes_of_all_expressions_are_counted_together() -> None:
    def policy(count: int) -> str:
        rules = "".join(f"- block: {{when: 'A{number}'}}\n" for number in range(count))
        return f"version: 1\npolicies:\n{rules}"

    # AcctGroup and others are needed by any policy.
    least = next(count for count in range(200, 300) if not _is_accepted(policy(count)))
    (line,) = noted(policy(least))
    assert line == "=> 1:1 | policies | 257 different attributes in all expressions | at most 256"


def test_attributes_are_counted_where_all_else_is_right() -> None:
    rules = "".join(f"- block: {{when: 'A{number}'}}\n" for number in range(300))
    (line,) = noted(f"version: 1\nedge: {{speed: 0}}\npolicies:\n{rules}")
    assert "is not a rate" in line


def test_the_lowest_bit_of_the_first_byte_makes_a_group_address() -> None:
    for first in ("00", "02", "0a", "1a", "fe", "F0"):
        ports = f"ports: {{lan: 1, wan: {{port: 2, next_hop: '{first}:00:00:00:00:01'}}}}"
        assert a_switch("core", ports).ports["wan"].next_hop == f"{first.lower()}:00:00:00:00:01"
        odd = f"{int(first, 16) + 1:02x}:00:00:00:00:01"
        wrong = ports.replace(f"{first}:00:00:00:00:01", odd)
        (line,) = noted(f"version: 1\nswitches: {{c: {{datapath: '00000000000000c0', role: core, {wrong}}}}}")
        assert f"{odd} is a multicast address" in line


def _is_accepted(text: str) -> bool:
    try:
        load(text)
    except PolicyError:
        return False
    return True

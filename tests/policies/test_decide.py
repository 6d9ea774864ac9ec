"""Predicates, facts and decisions."""

from __future__ import annotations

import subprocess
import sys

import classad2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark_common.classads.ads import parse_post
from lark_common.errors import AdError
from lark_controller.jobs.job import Facts, shared_facts
from lark_controller.policies import decide as deciding
from lark_controller.policies.decide import Decider, decide, needed_attributes
from lark_controller.policies.facts import MAX_FACT, facts
from lark_controller.policies.file import load
from lark_controller.policies.model import Decision, Policy, RuleKind, SliceKey
from lark_controller.policies.predicate import ads_of, compiled, holds, problem, references, value, values_met

CORE = 'switches: {c: {datapath: "00000000000000c0", role: core, ports: {lan: 1, wan: 2, wan-fast: 3}}}\n'


def policy(text: str) -> Policy:
    return load("version: 1\n" + CORE + text)


def decided(text: str, job: str = "", machine: str = "") -> Decision:
    """The decision for the ads of bob on w1 with further lines."""
    body = f'Owner = "bob"\nGlobalJobId = "s#1.0#1"\n{job}\n------\nMachine = "w1"\nAddressType = "dhcp"\n{machine}\n'
    job_ad, machine_ad = parse_post(body.encode(), "text/plain")
    decider = Decider(policy(text))
    return decider.decide(facts(job_ad, machine_ad, decider.names))


SOME = ads_of(
    Facts(
        (("e", "error"), ("l", '{"a", 1}'), ("owner", '"bob"'), ("p", "11"), ("u", "undefined")),
        (("machine", '"w1"'), ("owner", '"root"'), ("u", "1")),
    )
)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ('Owner == "bob"', True),
        ('owner == "BOB"', True),
        ('Owner =?= "BOB"', False),
        ('TARGET.Owner == "root"', True),
        ('Machine == "w1"', True),
        ('MY.Machine == "w1"', False),
        ("p", True),
        ("p - 11", False),
        ("0.5", True),
        ("nowhere", False),
        ("nowhere == 1", False),
        ("!nowhere", False),
        ("nowhere =?= undefined", True),
        ("e", False),
        ("Owner", False),
        ("u", False),
        ('member("a", l)', True),
        ("nowhere || p > 10", True),
        (None, True),
    ],
)
def test_what_holds(text: str | None, want: bool) -> None:
    assert holds(text, SOME) is want


def test_names_mean_the_same_whatever_was_parsed_before() -> None:
    program = (
        "from lark_controller.jobs.job import Facts\n"
        "from lark_controller.policies.predicate import ads_of, holds\n"
        "assert holds('Machine == \"w1\"', ads_of(Facts((), (('machine', '\"w1\"'),))))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    ("text", "job", "machine"),
    [
        ("TARGET.X == 1", set(), {"x"}),
        ("Y == 1", {"y"}, {"y"}),
        ("other.Z && self.W", {"w"}, {"z", "w"}),
        ('stringListMember("x", Foo)', {"foo"}, {"foo"}),
        ("'a b' == 1", {"a b"}, {"a b"}),
        ("true", set(), set()),
    ],
)
def test_references(text: str, job: set[str], machine: set[str]) -> None:
    needed = references(text)
    assert needed.job == job
    assert needed.machine >= machine


def test_my_names_are_the_job_s() -> None:
    assert references("MY.Foo").job == {"foo"}


@pytest.mark.parametrize("text", ["a; b", "1]", "a) || (b", "", "a b", "a,b", "(" * 100, "a\0b", 'eval("a") b'])
def test_what_is_no_expression(text: str) -> None:
    assert problem(text)
    with pytest.raises(AdError):
        compiled(text)


@pytest.mark.parametrize("text", ['eval("Owner")', "time() > 1", "random(2) == 1", '"x"', "1", "1 == 1"])
def test_predicates_that_are_refused(text: str) -> None:
    assert problem(text)


def test_values_met() -> None:
    assert values_met('Owner == "x" && TARGET.Machine == nowhere', SOME) == (
        ("nowhere", "undefined"),
        ("Owner", '"bob"'),
        ("TARGET.Machine", '"w1"'),
    )


def test_needed_attributes_hold_what_is_always_needed() -> None:
    job, machine = needed_attributes(load("version: 1"))
    assert job == {"acctgroup", "inboundconnectivity", "outboundconnectivity"}
    assert machine == set()


def test_facts_are_values_and_small() -> None:
    body = (
        'Owner = "bob"\nGlobalJobId = "g"\nWant = Site\nSite = strcat("a", TARGET.Rack)\nUnused = 1\nBad = Bad + 1\n'
        "Rec = [a = 1; b = a + a]\nPlain = [a = 1]\n"
        f'Long = "{"x" * 5000}"\nNone = undefined\n'
        '------\nMachine = "w1"\nAddressType = "dhcp"\nRack = 5\nLarkVLAN = 7\n'
    )
    job_ad, machine_ad = parse_post(body.encode(), "text/plain")
    names = frozenset({"want", "bad", "none", "absent", "rec", "plain", "long"}), frozenset({"vlan", "rack"})
    assert facts(job_ad, machine_ad, names) == Facts(
        (("bad", "error"), ("long", "error"), ("plain", "[ a = 1 ]"), ("rec", "error"), ("want", '"a5"')),
        (("rack", "5"), ("vlan", "7")),
    )


def test_a_fact_may_be_so_long_and_all_of_a_job_together_so_long() -> None:
    quotes = 2
    lines = [f'A{number} = "{"x" * (MAX_FACT - quotes)}"\n' for number in range(9)]
    names = frozenset(f"a{number}" for number in range(9))
    text = 'Owner = "bob"\nGlobalJobId = "g"\n' + "".join(lines) + 'B = "' + "x" * (MAX_FACT - 1) + '"\n'
    job_ad, machine_ad = parse_post((text + '------\nMachine = "w1"\nAddressType = "dhcp"\n').encode(), "text/plain")
    assert [len(value) for _, value in facts(job_ad, machine_ad, (names, frozenset())).job] == [MAX_FACT] * 8 + [5]
    assert facts(job_ad, machine_ad, (frozenset({"b"}), frozenset())).job == (("b", "error"),)


def test_no_policy_allows_everything() -> None:
    job = "InboundConnectivity = false\nOutboundConnectivity = false"
    assert decided("", job) == Decision()


def test_block_says_why() -> None:
    decision = decided("policies: [{block: {when: 'Owner == \"eve\"'}}, {block: {when: 'Owner == \"bob\"'}}]")
    assert decision.blocked
    assert decision.isolated
    [because] = decision.because
    assert (because.kind, because.position, because.line) == (RuleKind.BLOCK, 2, 3)
    assert because.values == (("Owner", '"bob"'),)


SLICES = "policies: [{slice: {by: Project, when: 'Shared =!= true'}}, {slice: {by: Owner}}]"


@pytest.mark.parametrize(
    ("job", "want"),
    [
        ('Project = "atlas"', SliceKey(1, '"atlas"')),
        ("", SliceKey(2, '"bob"')),
        ("Project = 1/0", SliceKey(2, '"bob"')),
        ('Project = "atlas"\nShared = true', SliceKey(2, '"bob"')),
        ("Project = 7", SliceKey(1, "7")),
    ],
)
def test_slice_of_the_first_rule_with_a_value(job: str, want: SliceKey) -> None:
    assert decided(SLICES, job).slice == want


WANS = """policies:
  - wan: {when: 'JobPrio > 10', action: allow}
  - wan: {when: 'Owner == "bob"', action: drop, except: [192.0.2.1]}
  - wan: {port: wan-fast}
"""


def test_first_wan_rule_decides() -> None:
    assert decided(WANS, "JobPrio = 11").wan == 1
    assert decided(WANS, "JobPrio = 10").wan == 2
    assert decided(WANS, 'Owner = "alice"').wan == 3


@pytest.mark.parametrize(
    ("rule", "job", "want"),
    [
        ("{inbound: requested, outbound: requested}", "", (True, True)),
        ("{inbound: requested, outbound: requested}", "InboundConnectivity = false", (False, True)),
        ("{inbound: requested}", "OutboundConnectivity = false\nInboundConnectivity = 0", (False, True)),
        ("{inbound: requested}", "InboundConnectivity = undefined", (True, True)),
        ("{inbound: requested}", "InboundConnectivity = 1/0", (True, True)),
        ("{inbound: deny, outbound: allow}", "InboundConnectivity = true", (False, True)),
        ("{inbound: deny, outbound: deny}", "", (False, False)),
        ("{inbound: deny, when: 'JobPrio > 1'}", "", (True, True)),
    ],
)
def test_connectivity(rule: str, job: str, want: tuple[bool, bool]) -> None:
    decision = decided(f"policies: [{{connectivity: {rule}}}]", job)
    assert (decision.inbound, decision.outbound) == want
    assert decision.isolated == (want == (False, False))
    assert decision.one_way == (want[0] != want[1])


GROUPS = "groups: {group_cms: {}, urgent: {when: 'JobPrio > 10'}, group_cms.prod: {}, default: {}}"


@pytest.mark.parametrize(
    ("job", "want"),
    [
        ('AcctGroup = "group_cms.prod.x"', "group_cms.prod"),
        ('AcctGroup = "GROUP_CMS.other"', "group_cms"),
        ('AcctGroup = "group_cms2"', "default"),
        ('AccountingGroup = "group_cms.prod.bob"', "group_cms.prod"),
        ('AcctGroup = "group_cms"\nJobPrio = 11', "urgent"),
        ('AcctGroup = "urgent"', "default"),
        ("", "default"),
    ],
)
def test_group(job: str, want: str) -> None:
    assert decided(GROUPS, job).group == want
    without = decided(GROUPS.replace(", default: {}", ""), job).group
    assert without == ("" if want == "default" else want)


@pytest.mark.parametrize(("job", "place"), [('AcctGroup = "group_cms.prod"', 3), ("JobPrio = 11", 2), ("", 4)])
def test_a_group_is_named_by_its_place_in_the_file(job: str, place: int) -> None:
    (because,) = [each for each in decided(GROUPS, job).because if each.kind is RuleKind.GROUP]
    assert because.position == place


def test_equal_facts_share_one_decision() -> None:
    decider = Decider(policy(SLICES))
    one, two = (Facts((("owner", '"bob"'),)) for _ in range(2))
    assert decider.decide(one) is decider.decide(two)
    assert decider.shared(two) is one


@pytest.mark.parametrize("bound", ["MAX_REMEMBERED", "MAX_CHARACTERS"])
def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    decider = Decider(policy(SLICES))

    def a_user(number: int) -> Facts:
        return Facts((("owner", f'"{number:01998d}"'),))

    # The value, once more as the reason, and the slice's.
    each = a_user(0).size + decide(a_user(0), decider.policy).size
    assert each > 2 * 2_000
    monkeypatch.setattr(deciding, bound, 3 * (1 if bound == "MAX_REMEMBERED" else each))
    first = decider.shared(a_user(0))
    before = decider.decide(first)
    for number in range(1, 3):
        decider.decide(a_user(number))
    assert decider.shared(a_user(0)) is first
    decider.decide(a_user(3))
    # Forgotten, and decided as before.
    assert decider.shared(a_user(0)) is not first
    assert decider.decide(a_user(0)) == before
    # By identity too: the place of facts that are forgotten may be that of others by now.
    again = decider.shared(a_user(0))
    assert decider.shared(first) is again


@pytest.mark.parametrize("by", ["{Owner, Project}", "{{Owner}, Project}", 'split(strcat(Owner, " ", Project))'])
def test_a_list_makes_a_slice_of_the_values_of_its_items(by: str) -> None:
    sliced = policy(f"policies: [{{slice: {{by: '{by}'}}}}]\n")
    keys = {
        decide(Facts((("owner", f'"{owner}"'), ("project", f'"{project}"'))), sliced).slice
        for owner in ("alice", "bob")
        for project in ("p1", "p2")
    }
    assert len(keys) == 4
    assert None not in keys


def test_a_long_value_of_a_slice_is_kept_as_its_hash() -> None:
    sliced = policy("policies: [{slice: {by: 'strcat(" + ", ".join(["Owner"] * 12) + ")'}}]\n")
    keys = [decide(Facts((("owner", f'"{number:04000d}"'),)), sliced).slice for number in (1, 2, 1)]
    assert keys[0] == keys[2] != keys[1]
    assert all(key is not None and len(key.value) < 100 for key in keys)


def test_one_decision_is_made_in_many_steps() -> None:
    """A policy of thousands of rules may be planned by each user that may read: in steps, between which others work."""
    rules = "".join(f"  - block: {{when: 'regexp(\"b{number}\", Owner)'}}\n" for number in range(100))
    rules += f"  - block: {{when: 'regexpMember(\"c\", {{{', '.join(['Owner'] * 250)}}})'}}\n"
    steps: list[None] = []
    decide(Facts((("owner", '"a"'),)), load(f"version: 1\npolicies:\n{rules}"), lambda: steps.append(None))
    assert len(steps) >= 2 * 100 + 250


def test_long_facts_are_kept_for_no_other_job() -> None:
    one, two = (Facts((("owner", f'"{"u" * 10}"'),)) for _ in range(2))
    assert shared_facts(two) is shared_facts(one)
    one, two = (Facts((("owner", f'"{"u" * 2_000}"'),)) for _ in range(2))
    assert shared_facts(one) is one
    assert shared_facts(two) is two


VALUES = st.sampled_from(['"bob"', '"eve"', "true", "false", "11", "0", "1.5", "undefined", "error", "{1}", "[a = 1]"])
NAMES = ["acctgroup", "inboundconnectivity", "jobprio", "outboundconnectivity", "owner", "project", "shared"]
WHOLE = (
    SLICES.rstrip("]")
    + ", {block: {when: 'Owner == \"eve\" && Project'}}, {wan: {when: 'TARGET.Shared', action: drop}},"
    + " {connectivity: {inbound: requested, outbound: requested, when: 'JobPrio'}}]\n"
    + GROUPS
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), VALUES), st.dictionaries(st.sampled_from(NAMES), VALUES))
def test_every_job_gets_one_decision(job: dict[str, str], machine: dict[str, str]) -> None:
    given_facts = Facts(tuple(sorted(job.items())), tuple(sorted(machine.items())))
    whole = policy(WHOLE)
    decision = decide(given_facts, whole)
    assert decision == Decider(whole).decide(given_facts) == decide(given_facts, whole)
    assert decision.group in {"group_cms", "group_cms.prod", "urgent", "default"}
    assert [because.kind for because in decision.because] == sorted(
        {because.kind for because in decision.because}, key=list(RuleKind).index
    )


def test_values_met_of_names_with_blanks_and_of_parts_of_records() -> None:
    assert values_met("'a b' == 1", SOME) == (("a b", "undefined"),)
    names = ("'it\\'s'", "'a\\\\b;'", "'a.1'", "'a b.c'", "'a b'.c", "'it\\'s'.c")
    met = tuple(values_met(f"{name} == 1", SOME) for name in names)
    written = ("it's", "a\\b;", "a.1", "a b.c", "'a b'.c", "'it\\'s'.c")
    assert met == tuple(((name, "undefined"),) for name in written)
    assert values_met("MY.Owner == 1 && TARGET.Gone.Part == 2", SOME)[-1] == ("TARGET.Gone.Part", "undefined")


@pytest.mark.parametrize(
    ("section", "needed"),
    [
        ("topology: {hosts: {default: {switch: a}}}", {"requestmpibandwidth", "node"}),
        ("policies: [{scitags: {experiment: 3, requested: [4]}}]", {"scitagactivity"}),
        ("policies: [{scitags: {experiment: 3, when: 'MY.x'}}]", {"x"}),
        # One rule of several is enough.
        ("policies: [{scitags: {experiment: 3, requested: [4]}}, {scitags: {experiment: 4}}]", {"scitagactivity"}),
        ("policies: [{bandwidth: {mode: requested, when: 'MY.x'}}, {bandwidth: {}}]", {"bandwidthmode", "x"}),
        ("policies: [{bandwidth: {}}]", set()),
    ],
)
def test_attributes_that_reservations_and_marks_need(section: str, needed: set[str]) -> None:
    always = {"acctgroup", "inboundconnectivity", "outboundconnectivity"}
    assert needed_attributes(load(f"version: 1\n{section}"))[0] == always | needed


def test_whose_use_is_counted() -> None:
    asks, not_ = (Facts((("networkaccounting", text),)) for text in ("true", "1"))
    for word, counted in (("all", (True, True)), ("requested", (True, False)), ("none", (False, False))):
        whole = load(f"version: 1\naccounting: {word}\n")
        assert (decide(asks, whole).accounted, decide(not_, whole).accounted) == counted


def test_an_expression_handles_so_many_characters_of_attributes() -> None:
    """Nothing else of the process runs while HTCondor evaluates, which takes 50 ms for a megabyte."""
    facts = Facts((("l", '"' + "x" * 4094 + '"'), ("s", '"a"')))
    assert value(f"size(strcat({', '.join(['L'] * 16)}))", ads_of(facts)) == 16 * 4094
    assert value(f"size(strcat({', '.join(['MY.L'] * 17)}))", ads_of(facts)) is classad2.Value.Error
    assert value(f"size(strcat({', '.join(['S'] * 255)}, L))", ads_of(facts)) == 255 + 4094


def test_no_long_attribute_takes_a_job_out_of_a_rule_that_holds_for_errors() -> None:
    """A user may write any length into an attribute; a rule that accepts some values alone holds for all others."""
    accepted = " || ".join(f'Project == "p{number}"' for number in range(20))
    rule = policy(f"policies: [{{block: {{when: '({accepted}) =!= true && Owner == \"a\"'}}}}]\n")
    for project, blocked in (('"p7"', False), ('"p70"', True), ('"' + "x" * 4000 + '"', True), ("error", True)):
        assert decide(Facts((("owner", '"a"'), ("project", project))), rule).blocked is blocked

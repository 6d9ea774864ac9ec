"""Rules of transfers: whose files are moved how, what a rule may not say, and what the worker's table makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lark_common.errors import PolicyError
from lark_common.transfers import MOST_BITS, UNTREATED, SharedRate, Treatment, treatment_of
from lark_controller.jobs.job import Facts
from lark_controller.policies.decide import decide
from lark_controller.policies.file import load
from lark_controller.policies.model import Policy
from lark_controller.policies.transfer_rules import TransferTerms
from lark_controller.policies.transfers import LEAST_RATE, MOST_RATE
from lark_controller.qos.groups import GroupPort, group_plan
from lark_controller.qos.queues import bits
from lark_controller.services.treatments import UNHEARD, Said, Treatments, treatment
from tests.fixtures.databases import a_run

POLICY = """
version: 1
policies:
  - transfers: {when: 'Owner == "mallory"', block: true}
  - transfers: {when: 'Owner == "alice"', rate: 250Mbit, group: bulk}
  - transfers: {when: 'Owner == "bob"', rate: 0.1}
  - transfers: {when: 'Owner == "carol"', block: false}
  - transfers: {when: 'Owner == "erin"', rate: 5, group_rate: 2Gbit, access_point_rate: 9Gbit}
groups:
  cms: {dscp: 11}
  bulk: {dscp: 9}
"""


# Three lines, with WAN ports and the networks that are not the WAN.
CORE = """\
networks: {local: [10.0.0.0/8]}
switches:
  core1: {datapath: "00000000000000c0", role: core, ports: {lan: 1, wan: 2, wan-fast: 3}}
"""


def facts(owner: str, group: str = "") -> Facts:
    return Facts((("acctgroup", f'"{group}"'), ("owner", f'"{owner}"')))


@pytest.mark.parametrize(
    ("owner", "group", "terms", "words", "wanted"),
    [
        ("mallory", "cms", TransferTerms("cms", None, True), "blocked", Treatment(None, 11, True)),
        (
            "alice", "cms", TransferTerms("bulk", 250.0), "at most 250 Mb/s, group bulk", Treatment(250_000_000, 9),
        ),
        ("bob", "cms.prod", TransferTerms("cms", 0.1), "at most 0.1 Mb/s, group cms", Treatment(100_000, 11)),
        ("bob", "", TransferTerms("", 0.1), "at most 0.1 Mb/s", Treatment(100_000)),
        ("carol", "cms", TransferTerms("cms"), "no limit, group cms", Treatment(dscp=11)),
        ("carol", "", TransferTerms(), "no limit", UNTREATED),
        (
            "erin", "cms", TransferTerms("cms", 5.0, False, 2000.0, 9000.0),
            "at most 5 Mb/s, at most 2000 Mb/s with its group on the worker, "
            "at most 9000 Mb/s with its access point on the worker, group cms",
            Treatment(5_000_000, 11, False, (
                SharedRate("group cms", 2_000_000_000), SharedRate("access point ap1.example", 9_000_000_000),
            )),
        ),
        (
            "erin", "", TransferTerms("", 5.0, False, 2000.0, 9000.0),
            "at most 5 Mb/s, at most 2000 Mb/s with its group on the worker, "
            "at most 9000 Mb/s with its access point on the worker",
            Treatment(5_000_000, None, False, (
                SharedRate("group ", 2_000_000_000), SharedRate("access point ap1.example", 9_000_000_000),
            )),
        ),
    ],
)  # fmt: skip
def test_the_first_rule_decides_with_the_jobs_own_group_where_it_names_none(
    owner: str, group: str, terms: TransferTerms, words: str, wanted: Treatment
) -> None:
    policy = load(POLICY)
    found = decide(facts(owner, group), policy)
    assert found.transfers == terms
    assert terms.words == words
    assert treatment(terms, policy, "ap1.example") == wanted
    # The group of the job itself, its accounts among others, stays as it is.
    assert found.group == group.partition(".")[0]
    assert found.because[-1].kind == "transfers"


def test_no_rule_is_no_treatment() -> None:
    assert decide(facts("dave", "cms"), load(POLICY)).transfers is None
    assert decide(facts("mallory"), load("version: 1\npolicies: [{block: {when: true}}]\n")).transfers is None


@pytest.mark.parametrize(
    ("rule", "key", "problem"),
    [
        ("{port: lan}", ".port", "lan is not accepted"),
        ("{port: wan-fast, block: true}", ".port", "a WAN port beside block: true"),
        ("{group: tape, port: wan-fast}", ".port", "port wan-fast, and group tape is on port wan"),
        ("{ceiling: 5}", ".ceiling", "a ceiling, which is a group's"),
        ("{guarantee: 5}", ".guarantee", "a guarantee, which is a group's"),
        ("{group: nobody}", ".group", "nobody is not accepted"),
        ("{group: 9}", ".group", "'9' is not a string"),
        ("{rate: 0}", ".rate", "'0' "),
        ("{rate: 0.05}", ".rate", "a rate of 0.05 Mb/s"),
        ("{rate: 101Gbit}", ".rate", "a rate of 101000 Mb/s"),
        ("{rate: 5, block: true}", ".rate", "a rate beside block: true"),
        ("{group_rate: 5, block: true}", ".group_rate", "a rate beside block: true"),
        ("{access_point_rate: 5, block: true}", ".access_point_rate", "a rate beside block: true"),
        ("{group_rate: 0.05}", ".group_rate", "a rate of 0.05 Mb/s"),
        ("{access_point_rate: fast}", ".access_point_rate", "'fast' "),
        ("{block: yes please}", ".block", "'yes please' is not a boolean"),
        ("{when: 'Owner =='}", ".when", ""),
        ("{speed: 5}", ".speed", "unknown key speed"),
        ("[block]", "", "a list where a mapping is expected"),
    ],
)
def test_what_a_rule_may_not_say(rule: str, key: str, problem: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load(f"version: 1\ngroups: {{bulk: {{}}, tape: {{port: wan}}}}\n{CORE}policies:\n  - transfers: {rule}\n")
    (mistake,) = caught.value.mistakes
    assert (mistake.line, mistake.key) == (7, f"policies[0].transfers{key}")
    assert problem in mistake.problem
    assert mistake.accepted


def test_a_group_may_stand_below_the_rules_and_block_may_stand_beside_rate() -> None:
    policy = load("version: 1\npolicies: [{transfers: {rate: 5, block: false, group: b}}]\ngroups: {b: {}}\n")
    assert (policy.transfers[0].rate, policy.transfers[0].block, policy.transfers[0].group) == (5.0, False, "b")


def test_the_capacity_for_transfers_is_by_group_and_access_point() -> None:
    text = """
version: 1
transfer_capacity: {groups: {cms: 4Gbit}, access_points: {Submit1.Example.org: 10Gbit, ap2: 500}}
groups: {cms: {}}
"""
    found = load(text).transfer_capacity
    assert found.groups == {"cms": 4000.0}
    assert found.access_points == {"submit1.example.org": 10_000.0, "ap2": 500.0}
    assert load("version: 1\ntransfer_capacity:\n").transfer_capacity.groups == {}


@pytest.mark.parametrize(
    ("section", "key", "problem"),
    [
        ("{groups: {atlas: 5}}", "groups", "unknown key atlas"),
        ("{groups: {cms: fast}}", "groups.cms", "'fast' is not a rate"),
        ("{access_points: {a: fast}}", "access_points.a", "'fast' is not a rate"),
        ("{access_points: [a]}", "access_points", "a list where a mapping"),
        ("{hosts: {}}", "hosts", "unknown key hosts"),
        ("{access_points: {" + ", ".join(f"a{each}: 1" for each in range(257)) + "}}", "", "257 access points"),
    ],
)
def test_what_a_capacity_may_not_say(section: str, key: str, problem: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load(f"version: 1\ngroups: {{cms: {{}}}}\ntransfer_capacity: {section}\n")
    (mistake,) = caught.value.mistakes
    assert problem in mistake.problem
    assert mistake.line == 3
    assert key in mistake.key


@given(st.floats(LEAST_RATE, MOST_RATE), st.booleans(), st.text(max_size=2000))
def test_every_rate_that_the_policy_takes_has_a_treatment_that_the_worker_takes(
    rate: float, block: bool, name: str
) -> None:
    terms = TransferTerms("", None if block else rate, block, rate, rate)
    made = treatment(terms, load("version: 1\n"), name)
    assert treatment_of(made.to_json()) == made
    assert made.rate is None or abs(made.rate - 1e6 * rate) <= 1


@given(
    st.dictionaries(
        st.sampled_from(["rate", "dscp", "block", "shared", "more"]),
        st.none()
        | st.booleans()
        | st.integers(-5, 2 * MOST_BITS)
        | st.floats()
        | st.text()
        | st.lists(
            st.none()
            | st.fixed_dictionaries({"name": st.text() | st.none(), "rate": st.integers(-5, 2 * MOST_BITS) | st.none()})
        ),
    )
)
def test_what_is_no_treatment_is_refused_and_nothing_else(given_: dict[str, object]) -> None:
    try:
        found = treatment_of(given_)
    except ValueError:
        return
    assert found.to_json() == {"shared": []} | {
        name: given_[name] for name in ("rate", "dscp", "block", "shared") if name in given_
    }
    assert len(found.shared) <= 2
    assert all(1 <= each.rate <= MOST_BITS for each in found.shared)
    assert found.rate is None or 1 <= found.rate <= MOST_BITS
    assert found.dscp is None or 0 <= found.dscp <= 63


def test_nothing_is_claimed_but_what_the_worker_said_of_the_terms_as_they_are_now() -> None:
    policy, live = load(POLICY), set(range(3000))
    words = Treatments(live.__contains__)
    terms = TransferTerms("bulk", 250.0)

    def state(number: int, asked: TransferTerms | None = terms, now: Policy = policy) -> tuple[bool, str] | None:
        found = words.state(replace(a_run(), number=number), asked, now)
        return None if found is None else (found.enforced, found.reason)

    assert state(1, None) is None
    assert state(1) == (False, UNHEARD)
    asked = treatment(terms, policy, "schedd.example")
    words.note({1: Said(None, "no nf_tables"), 2: Said(asked)}, {1: asked, 2: asked})
    assert (state(1), state(2)) == ((False, "no nf_tables"), (True, ""))
    assert state(2, TransferTerms("bulk", 251.0)) == (False, UNHEARD)
    # Another DSCP of the same group is another treatment.
    assert state(2, now=load(POLICY.replace("dscp: 9", "dscp: 10"))) == (False, UNHEARD)
    # Jobs that are over take no memory for ever.
    for number in range(100_000):
        live.add(number)
        words.note({number: Said(None)}, {number: asked})
        live.discard(number - 100)
    assert len(words._said) <= 2 * 3000


def ports_of(rules: str, groups: str) -> Policy:
    return load(f"version: 1\n{CORE}policies: [{rules}]\ngroups: {{{groups}}}\n")


def test_a_wan_port_makes_a_mark_for_each_group_whose_transfers_may_have_it() -> None:
    rules = "{transfers: {when: 'Owner == \"a\"', group: b, port: wan}}, {transfers: {port: wan-fast, rate: 5}}"
    policy = ports_of(rules, "a: {}, b: {dscp: 33}")
    marks = {(each.group, each.port): each.dscp for each in policy.transfer_marks}
    assert set(marks) == {("b", "wan"), ("a", "wan-fast"), ("b", "wan-fast"), ("", "wan-fast")}
    dscps = [*marks.values(), *(group.dscp for group in policy.groups)]
    assert len(set(dscps)) == 6
    # Even ones have meanings of their own in other networks, such as expedited forwarding.
    assert all(each % 2 for each in marks.values())
    for owner, group, terms in (
        ("a", "a", TransferTerms("b", port="wan")),
        ("c", "a", TransferTerms("a", 5.0, port="wan-fast")),
        ("c", "", TransferTerms("", 5.0, port="wan-fast")),
    ):
        found = decide(facts(owner, group), policy).transfers
        assert found == terms
        assert found.words.endswith(f"WAN port {terms.port}")
        assert treatment(found, policy, "ap").dscp == marks[terms.group, str(terms.port)]
    # With a group for all others, every job is in one.
    assert {each.group for each in ports_of("{transfers: {port: wan}}", "default: {}").transfer_marks} == {"default"}
    assert [each[:2] for each in ports_of("{transfers: {port: wan}}", "").transfer_marks] == [("", "wan")]


def test_marks_stay_when_others_come_and_go() -> None:
    """So transfers that are under way do not leave by another's port until their worker has heard of a policy."""
    before = ports_of("{transfers: {group: g3, port: wan}}", ", ".join(f"g{each}: {{dscp: {each}}}" for each in (3, 5)))
    (mark,) = before.transfer_marks
    more = ", ".join(f"g{each}: {{dscp: {each}}}" for each in range(1, 10))
    after = ports_of("{transfers: {port: wan-fast}}, {transfers: {group: g3, port: wan}}", more)
    assert next(each.dscp for each in after.transfer_marks if each[:2] == ("g3", "wan")) == mark.dscp


@given(st.integers(1, 31), st.integers(0, 31), st.integers(1, 32))
@example(17, 0, 32)
@example(31, 0, 32)
def test_no_group_that_comes_has_the_mark_of_transfers_before(pairs: int, count: int, more: int) -> None:
    """So no job is steered as transfers are while switches go over, until the 33rd group or the 32nd pair."""
    ports = ("wan", "wan-fast")
    rules = ", ".join(
        f"{{transfers: {{group: g{each // 2}, port: {ports[each % 2]}}}}}" for each in reversed(range(pairs))
    )

    def policy(groups: int) -> Policy:
        return ports_of(rules, ", ".join(f"g{each}: {{}}" for each in range(groups)))

    least = pairs // 2 + pairs % 2
    before, after = policy(min(32, least + count)), policy(min(32, least + count + more))
    for one, other in ((before, after), (after, before)):
        assert not {each.dscp for each in one.groups} & {each.dscp for each in other.transfer_marks}
    assert before.transfer_marks == after.transfer_marks
    # As long as there are odd ones, each is.
    assert sum(each.dscp % 2 for each in before.transfer_marks) == min(16, pairs)


@given(st.integers(1, 30), st.integers(1, 30))
def test_a_pair_for_each_group_leaves_the_groups_their_dscps(one: int, other: int) -> None:
    """One rule without group makes one pair more than there are groups."""
    few, many = (
        ports_of("{transfers: {port: wan}}", ", ".join(f"g{each}: {{}}" for each in range(groups)))
        for groups in sorted((one, other))
    )
    assert len(many.transfer_marks) == max(one, other) + 1
    assert not {each.dscp for each in many.groups} & {each.dscp for each in (*few.transfer_marks, *many.transfer_marks)}


@given(st.integers(0, 62), st.integers(1, 3))
def test_every_mark_and_group_has_a_dscp_of_its_own_or_the_policy_is_refused(count: int, rules: int) -> None:
    ports = ("wan", "wan-fast", "wan")[:rules]
    text = ", ".join(f"{{transfers: {{port: {port}}}}}" for port in ports)
    groups = ", ".join(f"g{each}: {{}}" for each in range(count))
    needed = count + (count + 1) * len(set(ports))
    if needed > 63:
        with pytest.raises(PolicyError) as caught:
            ports_of(text, groups)
        (mistake,) = caught.value.mistakes
        assert f"beside {count} groups" in mistake.problem
        assert (mistake.line, mistake.key.rpartition(".")[2]) == (5, "port")
        return
    policy = ports_of(text, groups)
    found = [*(group.dscp for group in policy.groups), *(mark.dscp for mark in policy.transfer_marks)]
    assert len(set(found)) == needed
    assert min(found) >= 1
    assert max(found) <= 63


def test_a_group_without_jobs_has_a_guarantee_for_transfers_alone_and_it_counts_at_the_port() -> None:
    text = """
version: 1
switches:
  core1:
    datapath: "00000000000000c0"
    role: core
    groups_by: queues
    ports: {lan: 1, wan: {port: 2, speed: 6Gbit}}
policies:
  - transfers: {when: 'AcctGroup =?= "cms"', group: cms_files}
groups:
  cms: {guarantee: 2Gbit}
  cms_files: {when: false, guarantee: 3Gbit}
"""
    policy = load(text)
    # A user who names that group is not in it.
    assert decide(facts("mallory", "cms_files"), policy).group == ""
    found = decide(facts("alice", "cms"), policy)
    assert (found.group, found.transfers) == ("cms", TransferTerms("cms_files"))
    plan = group_plan(policy, {"wan": GroupPort("wan", 6000.0), "lan": GroupPort(None, 6000.0)})
    for port in plan.ports.values():
        assert {bits(2000.0), bits(3000.0)} <= {queue.least for queue in port.queues.values()}
    with pytest.raises(PolicyError) as caught:
        load(text.replace("3Gbit", "5Gbit"))
    assert caught.value.mistakes[0].problem == "7000 Mb/s are guaranteed on port wan of core1, which has 6000"


def test_a_wan_port_needs_the_networks_that_are_not_the_wan() -> None:
    text = f"version: 1\n{CORE}policies: [{{transfers: {{port: wan}}}}]\n"
    assert load(text).transfer_marks
    with pytest.raises(PolicyError) as caught:
        load(text.replace("{local: [10.0.0.0/8]}", "{jobs: [10.0.0.0/8]}"))
    (mistake,) = caught.value.mistakes
    assert mistake.problem.startswith("a WAN port without networks.local")


def test_rates_and_access_points_are_the_greatest_that_are_accepted() -> None:
    def policy(text: str) -> Policy:
        return load(f"version: 1\npolicies: [{{transfers: {{{text}}}}}]\n")

    (rule,) = policy("rate: 100Gbit, group_rate: 0.1, access_point_rate: 100000").transfers
    assert (rule.rate, rule.group_rate, rule.access_point_rate) == (100_000.0, 0.1, 100_000.0)
    assert (rule.position, rule.line, rule.when, rule.group, rule.block) == (1, 2, None, None, False)
    with pytest.raises(PolicyError) as caught:
        policy("rate: 100001")
    assert caught.value.mistakes[0].accepted == "0.1 to 100000 Mb/s"
    points = ", ".join(f"a{each}: 1" for each in range(256))
    found = load(f"version: 1\ntransfer_capacity: {{access_points: {{{points}}}}}\n").transfer_capacity
    assert len(found.access_points) == 256


def test_a_rule_is_refused_word_by_word() -> None:
    text = "{port: wan, ceiling: 5, guarantee: 5, rate: 1, block: true}"
    with pytest.raises(PolicyError) as caught:
        load(f"version: 1\n{CORE}policies:\n  - transfers: {text}\n")
    found = {each.key.rpartition(".")[2]: each.accepted for each in caught.value.mistakes}
    assert found == {
        "port": "one of port and block",
        "ceiling": "rate, group_rate",
        "guarantee": "group: a group with the guarantee, and with when: false if it is for transfers alone",
        "rate": "one of rate and block",
    }

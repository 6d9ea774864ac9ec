"""No policy costs more than linear in its size, whatever stands in it: read, checked, planned, or decided by."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lark_common.errors import PolicyError
from lark_controller.flows.desired import Desired
from lark_controller.flows.placement import Switch, place_switch
from lark_controller.jobs.job import Facts
from lark_controller.policies import predicate
from lark_controller.policies.decide import decide
from lark_controller.policies.file import load
from lark_controller.policies.model import Policy
from lark_controller.qos.warnings import policy_warnings
from lark_controller.reconcile.policy_change import BothPlaces
from lark_controller.services.policy_plan import Pace, plan
from tests.fixtures.work import assert_linear

SIZE = 8_000
EMPTY = load("version: 1\n")
FACTS = Facts(
    tuple((name, '"' + "a," * 2000 + '"') for name in ("a", "acctgroup", "owner", "x")), (("machine", '"w1"'),)
)


def repeated(head: str, unit: Callable[[int], str], tail: str = "") -> Callable[[int], str]:
    """Policies of so many characters, of which most is one thing again and again."""

    def make(size: int) -> str:
        return f"version: 1\n{head}{''.join(unit(number) for number in range(size // len(unit(9999))))}{tail}"

    return make


def address(number: int) -> str:
    return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


RULES = "policies:\n"
LINKS = "topology:\n  reserves: wan\n  links:\n    w: {between: [a0, wan], capacity: 1}\n"
SHAPES: dict[str, Callable[[int], str]] = {
    "blocks": repeated(RULES, lambda n: f"  - block: {{when: 'X == {n}'}}\n"),
    "attributes": repeated(RULES, lambda n: f"  - block: {{when: 'X{n} == 1'}}\n"),
    "slices": repeated(RULES, lambda n: f"  - slice: {{when: 'X == {n}', by: X}}\n"),
    "wans": repeated(RULES, lambda _: "  - wan: {action: drop}\n"),
    "exceptions": repeated(
        f"{RULES}  - wan: {{action: drop, except: [", lambda n: f"{address(n)}, ", "192.0.2.1]}\n"
    ),
    "one expression": repeated(f"{RULES}  - block: {{when: '", lambda n: f"X == {n} || ", "X'}\n"),
    "one list": repeated(f"{RULES}  - block: {{when: 'stringListMember(X, \"", lambda n: f"u{n},", "\")'}\n"),
    "references": repeated(f"{RULES}  - block: {{when: 'strcat(", lambda _: "A,", "A) == X'}\n"),
    "subsets": repeated(f"{RULES}  - block: {{when: 'stringListSubsetMatch(A, \"", lambda n: f"b{n},", "a\")'}\n"),
    "separators": repeated(f"{RULES}  - block: {{when: 'size(split(A, \"", lambda _: "bcd", "\")) == 1'}\n"),
    "patterns": repeated(RULES, lambda n: f"  - block: {{when: 'regexp(\"(a+,?)+u{n}{'b' * 40}$\", A)'}}\n"),
    "hostile patterns": repeated(RULES, lambda n: "  - block: {when: 'regexp(\"((a{0,20},?){0,9}b)\", A)'}\n"),
    "alternatives": repeated(f"{RULES}  - block: {{when: 'regexp(\"^(", lambda n: f"u{n}|", "a)$\", A)'}\n"),
    "nested replaceAll": repeated(f"{RULES}  - block: {{when: '", lambda _: 'replaceAll("a", "aa", ', "'}\n"),
    "deep": repeated(RULES, lambda _: f"  - block: {{when: 'size({'{' * 60}A{'}' * 60}) == 1'}}\n"),
    "quotes": repeated(f"{RULES}  - block: {{when: '", lambda _: '"', "'}\n"),
    "a name": repeated(f"{RULES}  - block: {{when: '", lambda _: "a", "'}\n"),
    "job networks": repeated("networks:\n  jobs: [", lambda n: f"{address(n)}/32, ", "192.0.2.0/24]\n"),
    "overlapping networks": repeated("networks:\n  jobs: [", lambda n: f"10.0.0.0/{8 + n % 24}, ", "192.0.2.0/24]\n"),
    "local networks": repeated("networks:\n  local: [", lambda n: f"{address(n)}/32, ", "192.0.2.0/24]\n"),
    "hosts": repeated("networks:\n  jobs: [10.0.0.0/8]\n  hosts: [", lambda n: f"{address(n)}, ", "10.0.0.1]\n"),
    "local networks and rules": lambda size: SHAPES["local networks"](size)
    + "policies: [{wan: {action: drop, when: 'X == 1'}}]\n",
    "switches": repeated("switches:\n", lambda n: f"  s{n}: {{datapath: '{n + 1:016x}', role: edge}}\n"),
    "ports": repeated(
        "switches:\n  a: {datapath: '00000000000000c0', role: core, ports: {lan: 1",
        lambda n: f", wan{n}: {n + 2}",
        "}}\n",
    ),
    "ports and rules": lambda size: repeated(
        "switches:\n  a: {datapath: '00000000000000c0', role: core, ports: {lan: 1",
        lambda n: f", wan{n}: {n + 2}",
        "}}\n",
    )(size // 2)
    + repeated(RULES, lambda n: f"  - wan: {{port: wanx{n}}}\n")(size // 2)[len("version: 1\n") :],
    "uplinks": repeated("edge: {uplinks: [", lambda n: f"'*{n}*', ", "x]}\n"),
    "groups": repeated("groups:\n", lambda n: f"  g{n}: {{guarantee: 1}}\n"),
    "rates": lambda size: "version: 1\ngroups:\n"
    + "".join(f"  g{n}: {{guarantee: 1}}\n" for n in range(60))
    + repeated(
        "switches:\n  a: {datapath: '00000000000000c0', role: core, groups_by: queues, ports: {lan: 1",
        lambda n: f", wan{n}: {{port: {n + 2}, speed: 1}}",
        "}}\n",
    )(size)[len("version: 1\n") :],
    "links": repeated(LINKS, lambda n: f"    l{n}: {{between: [a{n}, a{n + 1}], capacity: 1}}\n"),
    "links and hosts": lambda size: repeated(
        LINKS, lambda n: f"    l{n}: {{between: [a{n}, a{n + 1}], capacity: 1}}\n"
    )(size // 2)
    + repeated("  hosts:\n", lambda n: f"    h{n}: {{switch: a{n % 80}, capacity: 1}}\n")(size // 2).partition("\n")[2],
    "unknown switches": repeated(f"{LINKS}  hosts:\n", lambda n: f"    h{n}: {{switch: b{n}, capacity: 1}}\n"),
    "unknown keys": repeated("", lambda n: f"k{n}: 1\n"),
    "long keys": repeated("", lambda n: f"{'policies' * 20}{n}: 1\n"),
    "a long key": lambda size: f"version: 1\n? {'k' * size}\n: " + "{a: {b: 1}}\n",
    "the same key": repeated("", lambda _: "edge: 1\n"),
    "a flow list": repeated("edge: [", lambda _: "1,", "1]\n"),
    "a flow mapping": repeated("edge: {", lambda _: "a,", "b}\n"),
    "open lists": repeated("edge: ", lambda _: "["),
    "dashes": repeated("edge:\n  ", lambda _: "- "),
    "questions": repeated("", lambda _: "? "),
    "blanks": repeated("", lambda _: " "),
    "anchors": repeated("edge: [", lambda n: f"&a{n} 1, ", "1]\n"),
    "tags": repeated("edge: [", lambda _: "!a 1, ", "1]\n"),
    "escapes": repeated('edge: "', lambda _: "\\x41", '"\n'),
    "digits": repeated("edge: ", lambda _: "1"),
    "sixties": repeated("edge: 1", lambda _: ":59"),
    "documents": repeated("", lambda _: "---\n"),
    "directives": lambda size: "%FOO a\n" * (size // 7) + "---\nversion: 1\n",
}  # fmt: skip


def switch(policy: Policy) -> Switch:
    return place_switch(
        policy, 0xC0, {f"p{n}": n + 1 for n in range(40)}, normal=True, tracks=True, max_meter=0, description="c"
    )


def work(text: str) -> None:
    """All that whoever may read can have done with a policy, on one switch, and one job's decision."""
    # What was read before is no part of it.
    predicate.forget()
    try:
        policy = load(text)
    except PolicyError as error:
        str(error)
        return
    policy_warnings(policy)
    places = [BothPlaces(switch(EMPTY), switch(policy))]
    plan(Desired(EMPTY), Desired(policy), [], places, Pace(1e9, lambda: 0.0))
    decide(FACTS, policy)


@pytest.mark.parametrize("line", ["%TAG !{:05}! b\n", "%TAG !{:05}! b\r", "%TAG !{:05}! b\u2028"])
def test_a_policy_of_directives_costs_what_it_is_long(line: str) -> None:
    """The parser of YAML looks through all of them for each, and nothing else of the process runs meanwhile."""
    assert_linear(work, lambda size: "".join(map(line.format, range(size // 13))), 4 * SIZE)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_policy_costs_what_it_is_long(shape: str) -> None:
    assert_linear(work, SHAPES[shape], SIZE)

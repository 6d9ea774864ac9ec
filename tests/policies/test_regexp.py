"""Predicates match regular expressions in linear time, and refuse what has no bound before anything is evaluated."""

from __future__ import annotations

from typing import Any

import classad2
import pytest

from lark_common.errors import PolicyError
from lark_controller.jobs.job import Facts
from lark_controller.policies import predicate, regexp
from lark_controller.policies.file import load

ADS = Facts(
    (("owner", '"Bob"'), ("groups", '{ "cms", "atlas" }'), ("mixed", '{ "cms", 3 }'), ("n", "3"), ("lines", '"a\\nb"')),
    (("machine", '"w1.example.org"'),),
)


def value(text: str) -> Any:
    return predicate.value(text, predicate.ads_of(ADS))


@pytest.mark.parametrize(
    "text",
    [
        'regexp("^b.b$", Owner)',
        'regexp("^b.b$", Owner, "i")',
        'regexp("O", MY.Owner) || regexp("^W", TARGET.Machine)',
        'regexp("^(alice|bob)$", toLower(Owner))',
        'regexp("a.b", Lines)',
        'regexp("a.b", Lines, "s")',
        'regexp("^b", Lines, "m")',
        'regexp("^b", Lines, "im")',
        'regexp("x", Nowhere)',
        'regexp("x", N)',
        'regexp("x", error)',
        'regexpMember("^at", Groups)',
        'regexpMember("^xt", Groups)',
        'regexpMember("^xt", Mixed)',
        'regexpMember("^cms", Mixed)',
        'regexpMember("x", Owner)',
        'regexpMember("x", {})',
        'regexpMember("x", { "a", Nowhere })',
        'regexp("x", { "x" })',
        'regexp("^AT", Groups[1], "i")',
        'regexp("^b", { "a", "b" }[1])',
        'regexp("b", strcat("a", ("b")), "i")',
        r'regexps("^(.)(.*)$", Owner, "\\2-\\1")',
        r'regexps("^(.)(x?)b", Owner, "<\\2>")',
        'regexps("^x", Owner, "y")',
        'regexps("^x", Nowhere, "y")',
        r'regexp("^w[0-9]+$", regexps("^(\\w+)[.]", TARGET.Machine, "\\1"))',
        'regexp("^bob$", strcat(Owner, "")) ?: 7',
        '(regexp("a", Owner) is undefined) || regexp("[)]", ")") || regexp("[(]", "(")',
    ],
)
def test_a_match_is_what_htcondor_says(text: str) -> None:
    ads = predicate.ads_of(ADS)
    assert value(text) == classad2.ExprTree(text).eval(ads.job, ads.machine)


REFUSED = [
    ('regexp("(?=(.*))(.*)(.*)\\\\1[xy]", Owner)', "RE2"),
    ('regexp("(a)\\\\1", Owner)', "RE2"),
    ('regexp("(", Owner)', "RE2"),
    ('regexp("(a{500}){9}", Owner)', "repetition"),
    ('regexp("((a{0,100}){0,9}b)", Owner)', "repeats too much"),
    ('regexp("\\\\pL{1,200}", Owner)', "repeats too much"),
    ('regexp("' + "a" * 513 + '", Owner)', "513 characters"),
    ("regexp(Pattern, Owner)", "an expression"),
    ('regexp(strcat("(a+", ")+$"), Owner)', "an expression"),
    ('regexp("a", Owner, Options)', "an expression"),
    ('regexp("a", Owner, "x")', "i, m and s"),
    ('regexp("a")', "2 or 3"),
    ('regexps("a", Owner, "\\\\1")', "0 groups"),
    ('regexps("a", Owner)', "3 or 4"),
    (" || ".join(['regexp("a", Owner)'] * 17), "more than 16"),
    ('replaceAll("a", "aa", replaceAll("a", "aa", Owner)) == "b"', "replaceAll()"),
    ('replace("a", "aa", Owner) == "b"', "replace()"),
    ('stringList_regexpMember("a", Owner)', "stringList_regexpMember()"),
    ("join(" * 30 + "Owner" + ")" * 30 + ' == "a"', "join()"),
    ("string(split(" * 30 + "Owner" + "))" * 30 + ' == "a"', "within each other, 30 deep"),
    ('userHome(Owner) == "/"', "userHome()"),
    ('unparse(Owner) == "a"', "unparse()"),
    ('formatTime(N) == "a"', "formatTime()"),
    ("debug(Owner == 1)", "debug()"),
    ("N < time()", "time()"),
    ("N < 'time'()", "time()"),
    ("N < time /* a */ ()", "time()"),
    ('N < /* " */ time() /* " */', "time()"),
    ("absTime() > N", "absTime()"),
    ("CurrentTime > N", "the name CurrentTime"),
    ('MY["Owner"] == "a"', "the name MY"),
    ("string(self) == Owner", "the name self"),
    ("TARGET.Site.parent is Owner", "the name parent"),
    (".root is Owner", "the name root"),
    ('lCtx["ad"]["A"].left is Owner', "the name left"),
    ("(ifThenElse(N > 1, TARGET.A, self.A)).B isnt 1", "selects out of"),
    ("{ TARGET.A, self.A }[1].B isnt 1", "selects out of"),
    ("TARGET.'a]b' isnt 1", "a quoted name"),
    ("Site.'attribute left' isnt 1", "a quoted name"),
    ("MY.'x /*\"*/ + time() /*\"*/ ' isnt 1", "a quoted name"),
    ("[a = N; b = a + a; c = b + b].c > 1", "record"),
    (" || ".join(f"A{n}" for n in range(257)), "257 names"),
    ('Owner == "' + "a" * 16400 + '"', "16384"),
]


@pytest.mark.parametrize(("text", "reason"), REFUSED, ids=lambda text: text[:40])
def test_a_predicate_without_a_bound_is_refused(text: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(*_: object) -> None:
        raise AssertionError("evaluated")

    if "regexp(" not in text and "regexps(" not in text:
        monkeypatch.setattr(classad2.ExprTree, "eval", no)
    assert reason in predicate.problem(text)
    assert reason in predicate.expression_problem(text)
    quoted = text.replace("'", "''")
    with pytest.raises(PolicyError) as caught:
        load(f"version: 1\npolicies: [{{block: {{when: '{quoted}'}}}}, {{slice: {{by: '{quoted}'}}}}]")
    assert [reason in mistake.problem for mistake in caught.value.mistakes] == [True, True]


@pytest.mark.parametrize("pattern", ["(" + "a" * 99, "((a{0,100}){0,9}b)" + "c" * 60])
def test_a_refused_pattern_is_named_by_its_first_sixty_characters(pattern: str) -> None:
    assert f"the pattern {pattern[:60]!r} of regexp()" in predicate.problem(f'regexp("{pattern}", Owner)')


@pytest.mark.parametrize(
    "function",
    ["time", "currentTime", "random", "eval", "evalInEachContext", "countMatches", "daytime", "timezoneOffset"],
)
def test_a_predicate_may_not_ask_for_the_moment(function: str) -> None:
    assert predicate.problem(f"{function}() > 1") == (
        f"{function}() cannot be used: a decision may depend on the two ads alone"
    )


@pytest.mark.parametrize(("text", "accepted"), [("true", True), ("False", True), ("1", False)])
def test_true_and_false_are_the_only_constants_that_a_predicate_may_be(text: str, accepted: bool) -> None:
    assert ("is a constant" not in predicate.problem(text)) == accepted


def test_a_match_is_evaluated_for_each_job() -> None:
    for owner, expected in (("bob", True), ("eve", False), ("rob", True)):
        ads = predicate.ads_of(Facts((("owner", f'"{owner}"'),), ()))
        assert predicate.holds('regexp("ob$", Owner) && true', ads) is expected
        assert predicate.values_met('regexp("ob$", Owner)', ads) == (("Owner", f'"{owner}"'),)


def test_a_text_that_is_too_long_is_an_error() -> None:
    ads = predicate.ads_of(Facts((("owner", '"' + "a" * 4000 + '"'),), ()))
    assert predicate.value('regexp("a", Owner)', ads) is True
    assert predicate.value('regexp("a", strcat(Owner, Owner))', ads) is classad2.Value.Error


@pytest.mark.parametrize(
    ("text", "argument"),
    [
        ('regexp(Owner, "x")', "pattern"),
        ('regexp("x", Owner, Owner)', "options"),
        ('regexps("x", Owner, N)', "substitute"),
    ],
)
def test_an_argument_that_is_no_string_is_named(text: str, argument: str) -> None:
    with pytest.raises(PolicyError, match=f"the {argument} of regexps?\\(\\) is an expression"):
        load(f"version: 1\npolicies:\n  - block: {{when: '{text}'}}\n")


def test_limits_are_the_greatest_that_is_accepted() -> None:
    longest = "[" + "a" * (regexp.MAX_PATTERN - 2) + "]"
    assert predicate.problem(f'regexp("{longest}", Owner)') == ""
    assert "a pattern of 513 characters in regexp(); at most 512" in predicate.problem(f'regexp("{longest}?", Owner)')
    calls = ['regexp("a", Owner)'] * regexp.MAX_CALLS
    assert predicate.problem(" || ".join(calls)) == ""
    groups = r"\\0" * regexp.MAX_CALLS
    assert predicate.problem(f'regexps("a", Owner, "{groups}") == "a"') == ""
    assert "more than 16 groups in the substitute of regexps()" in predicate.problem(
        f'regexps("a", Owner, "{groups}\\\\0") == "a"'
    )
    names = [f"A{number}" for number in range(predicate.MAX_REFERENCES)]
    assert predicate.problem(" || ".join(names)) == ""
    exact = 'Owner == "' + "a" * (predicate.MAX_LENGTH - 11) + '"'
    assert (len(exact), predicate.problem(exact)) == (predicate.MAX_LENGTH, "")
    assert "16385 characters; at most 16384" in predicate.problem(f"{exact} ")


def test_a_text_may_be_as_long_as_a_fact() -> None:
    half = "a" * (regexp.MAX_TEXT // 2)
    ads = predicate.ads_of(Facts((("half", f'"{half}"'),), ()))
    assert predicate.value('regexp("^a+$", strcat(Half, Half))', ads) is True
    assert predicate.value('regexp("^a+$", strcat(Half, Half, "a"))', ads) is classad2.Value.Error


@pytest.mark.parametrize(
    "text",
    [
        'regexp("a" ?: "b", Owner)',
        'regexp(("a"), Owner)',
        'regexp("a", Owner, "i" ?: "m")',
        'regexps("a", Owner, "x" ?: "y") == "x"',
    ],
)
def test_an_argument_that_begins_with_a_string_may_be_an_expression(text: str) -> None:
    assert "is an expression; a string is accepted" in predicate.problem(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('regexp("a", Owner, "i", "m")', "regexp() with 4 arguments; 2 or 3 are accepted"),
        ('regexp("a")', "regexp() with 1 arguments; 2 or 3 are accepted"),
        ('regexpMember("a", Groups, "i", "m")', "regexpMember() with 4 arguments; 2 or 3 are accepted"),
        ('regexps("a", Owner)', "regexps() with 2 arguments; 3 or 4 are accepted"),
        ('regexps("a", Owner, "b", "i", "m") == "b"', "regexps() with 5 arguments; 3 or 4 are accepted"),
        ('regexps("(a)", Owner, "\\\\2") == "b"', r"\2 in the substitute of regexps(): the pattern has 1 groups"),
        (f'regexp("a", Owner, "{"x" * 30}")', f"options {'x' * 20!r} of regexp(); i, m and s are accepted"),
    ],
)
def test_what_a_call_accepts_is_named(text: str, reason: str) -> None:
    assert reason in predicate.problem(text)


@pytest.mark.parametrize("template", [r"\\1\\0", r"\\n", r"\\1x\\2y", r"\\10", r"\\0", "", r"a\\1b", r"\\1\\1"])
def test_a_substitute_is_what_htcondor_makes_of_it(template: str) -> None:
    ads = predicate.ads_of(Facts((("name", '"Boob"'),), ()))
    text = f'regexps("B(oo)(b)", Name, "{template}")'
    found = predicate.value(text, ads)
    assert isinstance(found, str)
    assert found == classad2.ExprTree(text).eval(ads.job, ads.machine)


def test_names_of_more_parts_are_looked_up_by_the_first() -> None:
    needed = predicate.references("Resources.Disk > 1 && TARGET.Load.One > 1 && MY.Jobs.Count > 1")
    assert needed.job == {"resources", "jobs"}
    assert "load" in needed.machine
    assert "one" not in needed.machine
    assert "disk" not in needed.job | needed.machine


@pytest.mark.parametrize(
    "text",
    [
        'substr(Site, 0, 1) == "é"',
        'regexp("", substr(Site, 1))',
        'regexpMember("b", { substr(Site, 0, 1) })',
        'regexpMember("b", split(Site, "è"))',
    ],
)
def test_half_a_letter_is_an_error(text: str) -> None:
    ads = predicate.ads_of(Facts((("site", '"é,b"'),), ()))
    assert predicate.value(text, ads) in (classad2.Value.Error, False)
    assert not predicate.holds(text, ads)

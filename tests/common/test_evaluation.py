"""Text of users is evaluated only where its work has a bound; everything else is refused before it is begun."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import classad2
import pytest

from lark_common.classads import evaluation
from lark_common.classads.ads import JobAd, MachineAd, parse_post
from lark_common.classads.evaluation import contents, evaluate
from lark_common.classads.text import parse_ad
from lark_common.errors import AdError
from lark_controller.policies import predicate
from lark_controller.policies.facts import facts

JOB = 'Owner = "bob"\nGlobalJobId = "s1#12.3#1700000000"\n'
MACHINE = 'Machine = "w1.example"\nLarkInnerAddressIPv4 = "10.64.0.5"\n'
BACKTRACKING = r'regexp("(?=(.*))(.*)(.*)\\1[xy]", "' + "a" * 1500 + '")'


def post(job: str = "", machine: str = "") -> tuple[JobAd, MachineAd]:
    return parse_post(f"{JOB}{job}------\n{MACHINE}{machine}".encode(), "text/plain")


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The expressions that reach HTCondor's evaluation."""
    seen: list[str] = []
    evaluate_it = classad2.ExprTree.eval

    def noted(tree: Any, *ads: Any) -> Any:
        seen.append(repr(tree))
        return evaluate_it(tree, *ads)

    monkeypatch.setattr(classad2.ExprTree, "eval", noted)
    return seen


# Each with a piece of the reason for its refusal. None of them may ever be evaluated: most would not end.
HOSTILE = [
    (BACKTRACKING, "regexp()"),
    ('REGEXP("(a+)+$", strcat("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "!"))', "REGEXP()"),
    ('regexps("(a|aa)+$", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", "x")', "regexps()"),
    ('regexpMember("(a+)+$", { "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!" })', "regexpMember()"),
    ('stringList_regexpMember("(a+)+$", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaa!,b")', "stringList_regexpMember()"),
    ('ifThenElse(false, 1, regexp("(a+)+$", "aaaaaaaaaaaaaaaaaaaaaaaaaaaa!"))', "regexp()"),
    ("false && " + BACKTRACKING, "regexp()"),
    ("{ 1, { 2, " + BACKTRACKING + " } }[1][1]", "regexp()"),
    ('userHome("postgres")', "userHome()"),
    ('strcat("", userHome("root"))', "userHome()"),
    ('userMap("m", "bob")', "userMap()"),
    ('replaceAll("a", "aaaaaaaaaa", replaceAll("a", "aaaaaaaaaa", "aaaaaaaaaa"))', "replaceAll()"),
    ('replace(".*", "aa", "b")', "replace()"),
    ("join(" * 40 + '"a"' + ")" * 40, "join()"),
    ('join("aaaaaaaaaaaaa", { 1, 1, 1, 1, 1, 1, 1, 1, 1 })', "join()"),
    ('eval("regexp(\\"(a+)+$\\", Long)")', "eval()"),
    ('evalInEachContext(A, { "a" })', "evalInEachContext()"),
    ("countMatches(true, { 1 })", "countMatches()"),
    ("unparse(Owner)", "unparse()"),
    ("unresolved(Owner)", "unresolved()"),
    ("debug(Owner)", "debug()"),
    ("random()", "random()"),
    ("time()", "time()"),
    ('mergeEnvironment("a=b")', "mergeEnvironment()"),
    ("noSuchFunction(1)", "noSuchFunction()"),
    ("[a = 1; b = a + a; c = b + b].c", "record"),
    ("[].Owner", "record"),
    ("TARGET.MY.Machine", "selects"),
    ("MY.TARGET.Machine", "selects"),
    ("MY.R.a", "selects"),
    ("R.a.b", "selects"),
    (".Owner", "selects"),
    ('MY["A"]', "the name MY,"),
    ('MY["RequestBandwidth"] + MY["InboundConnectivity"]', "the name MY,"),
    ('{ self }[0]["A"]', "the name self,"),
    ('ifThenElse(true, TARGET, 1)["A"]', "the name TARGET,"),
    ('root["LEFT"]["A"]', "the name root,"),
    ('TARGET.parent["A"]', "the name parent,"),
    ("'ad'[\"A\"]", "the name ad,"),
    ("strcat(" + ", ".join(["toplevel"] * 800) + ")", "the name toplevel,"),
    ('lCtx["ad"]["A"]', "the name lCtx,"),
    ('{ TARGET.rctx }[0]["ad"]["A"]', "the name rctx,"),
    ("leftRankValue + 1", "the name leftRankValue,"),
    ("int(MY.symmetricMatch)", "the name symmetricMatch,"),
    ("CurrentTime % 2", "the name CurrentTime,"),
    ("TARGET.currentTime % 2", "the name currentTime,"),
    ('absTime() < absTime("2030-01-01T00:00:00Z") ? 5 : "x"', "absTime() without a time"),
    ("int(AbsTime( /* now */ )) % 2", "absTime() without a time"),
    ("'TARGET'.'MY'.Machine", "selects"),
    (" + ".join(["Owner"] * 1500), "8192 characters"),
    ("string(splitUserName(" * 30 + '"\\""' + "))" * 30, "within each other, 30 deep"),
    ("strcat(Split(" * 30 + '"\\""' + "))" * 30, "within each other, 30 deep"),
    ("{ toLower(splitSlotName(split({ 'a', split(Owner) }[1])[0])) }[0]", "within each other, 3 deep"),
]
ATTRIBUTES = ["InboundConnectivity", "RequestBandwidth", "JobPrio", "NetworkAccounting"]


@pytest.mark.parametrize(("expression", "reason"), HOSTILE, ids=lambda text: text[:30])
def test_an_expression_without_a_bound_is_refused_and_never_evaluated(
    expression: str, reason: str, evaluated: list[str]
) -> None:
    for attribute in ATTRIBUTES:
        with pytest.raises(AdError) as caught:
            post(f"{attribute} = {expression}\n")
        assert caught.value.attribute == attribute
        assert reason in caught.value.reason
    with pytest.raises(AdError) as caught:
        post(machine=f"NetworkType = {expression}\n")
    assert reason in caught.value.reason
    assert evaluated == []


@pytest.mark.parametrize("through", ["A", "MY.A", "'A'", "size({ A })", "ifThenElse(A, 1, 2)", "-A", "A ?: 1", "B"])
def test_an_attribute_in_between_hides_nothing(through: str, evaluated: list[str]) -> None:
    with pytest.raises(AdError, match=r"regexp\(\)"):
        post(f"RequestBandwidth = {through}\nA = {BACKTRACKING}\nB = A\n")
    with pytest.raises(AdError, match=r"regexp\(\)"):
        post(f"A = {BACKTRACKING}\nB = A\n", f"NetworkType = {through.replace('MY.', 'TARGET.')}\n")
    assert evaluated == []


@pytest.mark.parametrize("quoted", ['\'regexp\'("a", "b") /* */', '/* " */ regexp /* ( */ ("a", "b") /* " */'])
def test_comments_and_quotes_hide_nothing(quoted: str, evaluated: list[str]) -> None:
    with pytest.raises(AdError, match=r"regexp\(\)"):
        parse_post(f"[ {JOB.replace(chr(10), ';')} JobPrio = {quoted} ]\n------\n{MACHINE}".encode(), "text/plain")
    assert evaluated == []


# HTCondor's own text of these names has no quotes around them, behind a scope.
UNQUOTED = [
    "a]b",
    "x y",
    "true",
    "is",
    "Undefined",
    'x"',
    "x\\'",
    "x /*",
    "x // ",
    "x.y",
    "1a",
    "A + 1",
    "x.'Left'",
    "[",
    "",
]


@pytest.mark.parametrize("name", UNQUOTED)
def test_a_quoted_name_behind_a_scope_hides_nothing(name: str, evaluated: list[str]) -> None:
    for scope in ("MY", "TARGET"):
        hiding = f"{scope}.'{name}' ?: {BACKTRACKING} ?: {scope}.'{name}'"
        with pytest.raises(AdError) as caught:
            post(f"RequestBandwidth = {hiding}\n")
        assert caught.value.attribute == "RequestBandwidth"
        assert evaluated == []
        assert predicate.problem(hiding)
        evaluated.clear()


def test_what_is_out_of_sight_of_its_text_is_not_evaluated() -> None:
    """To whoever reads the text, a string stands between two names."""
    ad = classad2.ClassAd("""[ A = MY.'x + "' ?: Seven ?: MY.'y"'; Seven = 3 + 4 ]""")
    assert (ad.lookup("A").eval(ad), evaluate(ad, "A", classad2.ClassAd())) == (7, None)


@pytest.mark.parametrize("word", ["true", "FALSE", "is", "isnt", "undefined", "error"])
def test_an_attribute_named_as_a_word_of_the_language_hides_nothing(word: str, evaluated: list[str]) -> None:
    with pytest.raises(AdError, match="quoted name"):
        post(f"{word} = {BACKTRACKING}\nRequestBandwidth = MY.'{word}'\n")
    assert evaluated == []


@pytest.mark.parametrize("text", ["absTime(-1)", "- -3", "{ -1, - -2 }[1] + 1", '"\\303\\251" == "é" ? 3 : 1'])
def test_what_htcondor_writes_in_another_way_is_evaluated_all_the_same(text: str) -> None:
    job, _ = post(f"RequestBandwidth = ifThenElse(A =?= undefined, 1, 3)\nA = {text}\n")
    assert job.bandwidth == 3


@pytest.mark.parametrize("scope", ["MY", "TARGET", "self", "Other"])
def test_an_attribute_with_a_scopes_name_hides_nothing(scope: str, evaluated: list[str]) -> None:
    """HTCondor takes MY.A for the A of a record MY, where an ad has that."""
    hiding = f"{scope} = [ A = {BACKTRACKING} ]\nA = 1\n"
    with pytest.raises(AdError, match=f"has {scope.lower()}. before a name"):
        post(f"RequestBandwidth = {scope}.A\n{hiding}")
    with pytest.raises(AdError, match=f"has {scope.lower()}. before a name"):
        post(f"RequestBandwidth = {scope}.A\nA = 1\n", hiding)
    assert evaluated == []


def test_names_with_a_value_of_htcondors_own_are_known() -> None:
    """Of all names in HTCondor's libraries, and in the ad that it puts two others into to evaluate one, those that have
    a value where no ad has them. Short names stand in no library as a text: the compiler makes numbers of them."""
    folder = Path(str(classad2.__file__)).parents[1]
    libraries = [path for path in folder.rglob("*.so*") if "classad" in path.name or "condor_utils" in path.name]
    names = {
        name.lower().decode()
        for path in libraries
        for name in re.findall(rb"[A-Za-z_][A-Za-z0-9_]{0,40}", path.read_bytes())
    }
    assert {"currenttime", "toplevel"} <= names
    # Some values are made of these two.
    made_of = {"rank", "requirements"}
    ads = [classad2.ClassAd(dict.fromkeys(made_of, 1)) for _ in range(2)]
    around = repr(classad2.ExprTree("root").eval(*ads))
    assert "leftMatchesRight" in around
    names |= {name.lower() for name in re.findall(r"[A-Za-z_][A-Za-z0-9_]*", around)}
    names |= {"".join(letters) for count in (1, 2) for letters in itertools.product(ascii_lowercase, repeat=count)}
    valued = {
        name
        for name in names
        if any(
            classad2.ExprTree(f"{scope}'{name}'").eval(*ads) is not classad2.Value.Undefined
            for scope in ("", "MY.", "TARGET.")
        )
    }
    assert valued - made_of == evaluation.OWN_NAMES


@pytest.mark.parametrize("name", sorted(evaluation.HIDDEN_NAMES))
def test_an_attribute_of_a_whole_ads_name_is_an_attribute_where_an_ad_has_it(name: str) -> None:
    job, machine = post(f'{name} = "10"\nRequestBandwidth = int({name}) + int(TARGET.{name})\n', f'{name} = "5"\n')
    assert job.bandwidth == 15
    needed = predicate.references(f'int({name}) == 10 && TARGET.{name} == "5" && regexp("^1", MY.{name}, "i")')
    found = facts(job, machine, (needed.job, needed.machine))
    assert (found.job, found.machine) == (((name, '"10"'),), ((name, '"5"'),))
    for text in (
        f"int({name}) == 10",
        f'TARGET.{name} == "5"',
        f'regexp("^1", {name.upper()})',
        f"'{name}' == MY.{name}",
    ):
        assert predicate.holds(text, predicate.ads_of(found)), text
    # Where no ad has it, it is as absent as any other.
    nothing = predicate.ads_of(facts(*post(), (frozenset({name}), frozenset({name}))))
    assert predicate.holds(f"{name} =?= undefined && TARGET.{name} =?= undefined", nothing)


@pytest.mark.parametrize("name", sorted(evaluation.HIDDEN_NAMES))
@pytest.mark.parametrize(
    ("job", "machine"),
    [
        # HTCondor takes its own value before an attribute of the other ad, and an attribute of the ad alone.
        ('RequestBandwidth = {0}["A"]\nA = 1\n', "{0} = 1\n"),
        ('RequestBandwidth = TARGET.{0}["A"]\n{0} = 1\n', ""),
        ('RequestBandwidth = {0}["A"]\n{0} = [ A = {1} ]\n', ""),
        ('RequestBandwidth = {0}["A"]\n{0} = MY\n', ""),
        ("RequestBandwidth = TARGET.B\n{0} = 1\n", "B = {0}\n"),
    ],
)
def test_the_whole_ad_of_such_a_name_stays_out_of_reach(
    name: str, job: str, machine: str, evaluated: list[str]
) -> None:
    with pytest.raises(AdError):
        post(*(text.format(name, BACKTRACKING.replace("{", "{{")) for text in (job, machine)))
    assert evaluated == []


@pytest.mark.parametrize("half", ['substr("é", 0, 1)', 'split("é,a", substr("é", 1))'])
def test_half_a_letter_is_an_error(half: str) -> None:
    job, machine = post(f"RequestBandwidth = {half}\nSite = {half}\n")
    assert job.bandwidth is None
    assert facts(job, machine, (frozenset({"site"}), frozenset())).job == (("site", "error"),)


@pytest.mark.parametrize("time", ["absTime(-1)", "absTime(9223372036854775807)", 'absTime("2026-01-01T00:00:00Z")'])
def test_a_fact_that_is_a_time_is_read_again(time: str) -> None:
    found = facts(*post(f"Site = {time}\n"), (frozenset({"site"}), frozenset()))
    assert predicate.holds(f"Site == {time}", predicate.ads_of(found))


def test_doubling_through_attributes_of_both_ads_is_refused(evaluated: list[str]) -> None:
    chain = "".join(f"A{n} = TARGET.A{n + 1} + TARGET.A{n + 1}\n" for n in range(40))
    with pytest.raises(AdError):
        post(f"JobPrio = A0\n{chain}", chain)
    strings = "".join(f"A{n} = strcat(A{n + 1}, A{n + 1})\n" for n in range(40)) + 'A40 = "a"\n'
    with pytest.raises(AdError):
        post(f"RequestBandwidth = size(A0)\n{strings}")
    lists = "".join(f"A{n} = {{ A{n + 1}, A{n + 1} }}\n" for n in range(40)) + "A40 = 1\n"
    with pytest.raises(AdError):
        post(f"RequestBandwidth = size({{ A0, A0 }})\n{lists}")
    assert evaluated == []


def test_splits_within_each_other_through_attributes_are_refused(evaluated: list[str]) -> None:
    chain = "".join(f"A{n} = string(split(TARGET.A{n + 1}))\n" for n in range(40))
    with pytest.raises(AdError, match="within each other"):
        post(f"JobPrio = A0\n{chain}", chain)
    assert evaluated == []


def test_no_two_accepted_functions_by_turns_make_a_long_text() -> None:
    """Two functions called by turns have, where accepted, an answer that is hardly longer than the expression."""
    text = '"a\\"b,c@d 1"'
    calls = [f"{name}({{}}{more})" for name in evaluation.FUNCTIONS for more in ("", ', "a"', ", 0")]
    calls += ["({} ?: 1)", "{{ {} }}", "{{ {} }}[0]", "{}[0]"]

    def value(expression: str) -> Any:
        try:
            ad = classad2.ClassAd(f"[x = {expression}]")
            return evaluate(ad, "x", classad2.ClassAd())
        except (AdError, classad2.ClassAdException):
            return None

    keeping = [call for call in calls if isinstance(value(call.format(text)), str | list)]
    assert len(keeping) > 10
    for first, second in itertools.product(keeping, repeat=2):
        expression = text
        for _ in range(8):
            expression = second.format(first.format(expression))
        assert len(str(value(expression))) <= 4 * len(expression), (first, second)


def test_what_nobody_evaluates_may_be_anything() -> None:
    job, _ = post(f"Requirements = {BACKTRACKING} && regexp(TARGET.Machine, eval(Owner))\nR = [a = b; b = a]\n")
    assert "regexp" in job.text


def test_an_attribute_that_a_policy_asks_for_is_an_error_there(evaluated: list[str]) -> None:
    job, machine = post(f'Site = {BACKTRACKING}\nL = {{ 1, userHome("root") }}\nGood = strcat("a", "b")\n')
    found = facts(job, machine, (frozenset({"site", "l", "good"}), frozenset({"site"})))
    assert dict(found.job) == {"site": "error", "l": "error", "good": '"ab"'}
    assert evaluated == ['strcat("a","b")']


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ('stringListMember("b", "a,b")', True),
        ("ifThenElse(TARGET.Machine =!= undefined, 5, 6)", 5),
        ('versionGE("10.2", "9.1")', True),
        ("{ 1, 2, 3 }[1] + size({ 1, 2 }) * MY.Two", 6),
        ('toUpper(substr("abc", 1)) == "bc"', True),
        ('split("a b")[1]', "b"),
        ('strcat(split(splitUserName("c.d@e")[0], ".")[1], split("a b")[1], split("a b")[0])', "dba"),
        ("Two is 2 && Three isnt 3", True),
        ("strcat('Two', \"[a = 1; b = a]\")", "2[a = 1; b = a]"),
        ('"regexp(" == "regexp("', True),
    ],
)
def test_what_real_ads_have_is_evaluated(expression: str, value: Any) -> None:
    ad, _ = parse_ad(f"A = {expression}\nTwo = 2\nThree = 4\n")
    assert evaluate(ad, "A", parse_ad('Machine = "w"')[0]) == value


def test_contents_are_those_of_the_text() -> None:
    found = contents("f(MY.a,\"g(b)\") + TARGET.'c d' + L[0] + 1.0E+00 + h")
    assert found.functions == ("f",)
    assert found.references == (("my", "a", 0), ("target", "c d", 0), ("", "L", 0), ("", "h", 0))
    assert (found.has_record, found.selects, found.splits) == (False, False, 0)
    nested = contents("split(a)[b] + Split({c, (d), splitUserName(e)}) + splits(f)")
    assert [(name, splits) for _, name, splits in nested.references] == [
        ("a", 1), ("b", 0), ("c", 1), ("d", 1), ("e", 2), ("f", 0)
    ]  # fmt: skip
    assert nested.splits == 2


@pytest.mark.parametrize("function", sorted(evaluation.FUNCTIONS))
def test_every_accepted_function_evaluates_its_arguments_once(function: str) -> None:
    """Nested 40 times, a function that evaluated an argument twice would take for ever; the tests' time limit is the
    judge. join(x) is such a function."""
    for arguments in ("{}", "{}, 1", '{}, "a"', "{{ {} }}", "1, {}", '"a", {}', '"a", {{ {} }}', '"==", {{ {} }}, 1'):
        expression = "1"
        for _ in range(40):
            expression = f"{function}({arguments.format(expression)})"
        try:
            tree = classad2.ExprTree(expression)
        except classad2.ClassAdException:
            # A literal of this function that cannot be one: absTime("a").
            assert function in ("abstime", "reltime")
            continue
        try:
            tree.eval(classad2.ClassAd(), classad2.ClassAd())
        except classad2.ClassAdException:
            continue

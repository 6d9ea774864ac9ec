"""SciTags: the rules' decisions, the section of those who are told, and the registry's names and numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_common.errors import PolicyError
from lark_common.scitags import LABEL_MASK, Collector, Marks, Scitag, from_json, to_json
from lark_controller.jobs.job import Facts
from lark_controller.policies.decide import decide, needed_attributes
from lark_controller.policies.file import load
from lark_controller.policies.model import FireflySpec, NamedScitag, RuleKind
from lark_controller.policies.scitag_registry import Registry, RegistryError, parse
from lark_controller.services.scitags import RegistryFile, check_names

ETC = Path(__file__).parents[2] / "etc"
REGISTRY = parse((ETC / "scitags.json").read_text(encoding="utf-8"))


def policy(*rules: str, section: str = "") -> Any:
    return load("version: 1\n" + section + "policies:\n" + "".join(f"  - scitags: {rule}\n" for rule in rules))


def facts(**values: str) -> Facts:
    return Facts(tuple(sorted(values.items())))


def mark(rules: list[str], **values: str) -> NamedScitag | None:
    return decide(facts(**values), policy(*rules)).scitag


def test_the_first_rule_that_matches_marks_the_job() -> None:
    rules = ["{experiment: 3, activity: 12, when: 'Owner == \"alice\"'}", "{experiment: cms}"]
    assert mark(rules, owner='"alice"') == NamedScitag(3, 12)
    assert mark(rules, owner='"bob"') == NamedScitag("cms", 1)
    assert mark(rules[:1], owner='"bob"') is None
    because = decide(facts(owner='"alice"'), policy(*rules)).because[-1]
    assert (because.kind, because.position, because.line) == (RuleKind.SCITAGS, 1, 3)
    assert because.values == (("Owner", '"alice"'),)


@pytest.mark.parametrize(
    ("asked", "activity"),
    [
        ("15", 15), ("16", 1), ('"Analysis Input"', "Analysis Input"), ('"analysis input"', "Analysis Input"),
        ('"15"', 1), ("true", 1), ("15.0", 1), ("undefined", 1), ("error", 1), ('""', 1), ("-1", 1),
    ],
)  # fmt: skip
def test_a_job_may_ask_for_what_the_rule_lists_and_for_nothing_else(asked: str, activity: int | str) -> None:
    listed = "{experiment: 3, requested: [15, Analysis Input]}"
    assert mark([listed], scitagactivity=asked) == NamedScitag(3, activity)
    # Without a list nothing of what a user writes counts, and it is not even kept.
    assert mark(["{experiment: 3}"], scitagactivity=asked) == NamedScitag(3, 1)
    assert "scitagactivity" in needed_attributes(policy(listed))[0]
    assert "scitagactivity" not in needed_attributes(policy("{experiment: 3}"))[0]


def test_nobody_is_told_unless_the_section_says_so() -> None:
    assert policy("{experiment: 3}").fireflies == FireflySpec()
    section = "scitags:\n  collectors: [c.example.org, '[2001:db8::5]:99', '192.0.2.1:5']\n  ongoing: 0\n"
    hosts = (Collector("c.example.org"), Collector("2001:db8::5", 99), Collector("192.0.2.1", 5))
    assert policy(section=section).fireflies == FireflySpec(hosts, False, False, 0)
    section = "scitags: {destinations: true, flows: all, labels: true}\n"
    assert policy(section=section).fireflies == FireflySpec((), True, True, 60, True)


@given(st.integers(1, 511), st.integers(1, 63))
def test_each_mark_has_bits_of_its_own_in_the_flow_label(experiment: int, activity: int) -> None:
    label = Scitag(experiment, activity).label
    assert label & ~LABEL_MASK == 0
    # The specification draws the experiment with its lowest bit at the left.
    assert f"{label:020b}"[2:11] == f"{experiment:09b}"[::-1]
    assert f"{label:020b}"[12:18] == f"{activity:06b}"


def test_the_flow_labels_mask_is_the_specifications() -> None:
    assert LABEL_MASK == 0x3FEFC == Scitag(511, 63).label
    assert Scitag(1, 1).label == 0b00_100000000_0_000001_00


def test_marks_survive_the_wire() -> None:
    marks = Marks("1.2", (Collector("a", 5),), True, (), 60, True, {"x": Scitag(3, 4), "y": None})
    assert from_json(json.loads(json.dumps(to_json(marks)))) == marks


@pytest.mark.parametrize(
    "changed",
    [
        {"revision": 1}, {"collectors": [{"host": "a", "port": 0}]}, {"collectors": 5}, {"silent": ["x"]},
        {"ongoing": -1}, {"ongoing": True}, {"jobs": [{"job": "x", "experiment": 512, "activity": 1}]},
        {"jobs": [{"job": "x", "experiment": 1, "activity": 64}]}, {"jobs": [{"job": "x" * 300, "experiment": None}]},
        {"jobs": [1]}, {"jobs": None},
    ],
)  # fmt: skip
def test_what_is_no_mark_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(to_json(Marks("1")) | changed)


def test_the_shipped_registry_has_names_and_numbers() -> None:
    assert REGISTRY.resolve("Example", "Production Input") == REGISTRY.resolve(510, "production input")
    assert REGISTRY.resolve("nobody", 1) is None
    assert REGISTRY.resolve("example", "nothing") is None
    assert Registry().resolve(3, 4) == Scitag(3, 4)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", "5", '{"experiments": 5}', '{"experiments": [5]}', '{"experiments": [{"expName": "a"}]}',
        '{"experiments": [{"expName": "a", "expId": 512}]}', '{"experiments": [{"expName": "a", "expId": true}]}',
        '{"experiments": [{"expName": "a", "expId": 1, "activities": [{"activityName": "b", "activityId": 64}]}]}',
        "[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_registry_is_refused(text: str) -> None:
    with pytest.raises(RegistryError):
        parse(text)


def test_names_that_the_registry_lacks_are_refused_with_what_is_accepted() -> None:
    wrong = policy("{experiment: example}", "{experiment: cern}", "{experiment: example, requested: [Nothing]}")
    with pytest.raises(PolicyError) as caught:
        check_names(wrong, REGISTRY)
    found = [(each.line, each.problem, each.accepted) for each in caught.value.mistakes]
    assert found == [
        (4, "no experiment cern in the registry", "a number from 1 to 511, or default, example"),
        (
            5,
            "no activity Nothing of experiment example",
            "a number from 1 to 63, or analysis input, analysis output, default, production input, production output",
        ),
    ]
    with pytest.raises(PolicyError, match="there is no registry with names"):
        check_names(policy("{experiment: cms}"), Registry())
    check_names(policy("{experiment: 511, activity: 63}"), Registry())


def test_a_registry_is_read_again_when_it_changes_and_a_bad_one_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "scitags.json"
    file = RegistryFile(path)
    assert file.registry.resolve("a", 1) is None
    path.write_text('{"experiments": [{"expName": "A", "expId": 7, "activities": []}]}')
    assert file.registry.resolve("a", 1) == Scitag(7, 1)
    path.write_text("nonsense, and of another length than before")
    assert file.registry.resolve("a", 1) == Scitag(7, 1)
    path.unlink()
    assert file.registry.resolve("a", 1) == Scitag(7, 1)
    path.write_text('{"experiments": [{"expName": "A", "expId": 8, "activities": []}]}')
    assert file.registry.resolve("a", 1) == Scitag(8, 1)
    assert RegistryFile(None).registry == Registry()


def section(text: str) -> FireflySpec:
    return load(f"version: 1\nscitags: {text}\n").fireflies


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("{jobs: true}", FireflySpec(ongoing=60, own=True)),
        ("{flows: wan}", FireflySpec(ongoing=60)),
        ("{ongoing: 5}", FireflySpec(ongoing=5)),
        ("{ongoing: 3600}", FireflySpec(ongoing=3600)),
        ("{collectors: [a, b, a]}", FireflySpec((Collector("a"), Collector("b")), ongoing=60)),
        ("{collectors: ['a:1', 'b:65535']}", FireflySpec((Collector("a", 1), Collector("b", 65535)), ongoing=60)),
        ("{collectors: ['[::1]']}", FireflySpec((Collector("::1"),), ongoing=60)),
    ],
)
def test_the_section_is_read_as_written(text: str, spec: FireflySpec) -> None:
    assert section(text) == spec


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{ongoing: 1}", "1 is too often"),
        ("{ongoing: 4}", "4 is too often"),
        ("{ongoing: 3601}", "3601 is not accepted"),
        ("{ongoing: -1}", "-1 is not accepted"),
        ("{collectors: ['a:65536']}", "65536 is no port"),
        ("{collectors: [" + ", ".join(f"c{number}" for number in range(9)) + "]}", "a list of 9"),
    ],
)
def test_what_the_section_may_not_say(text: str, problem: str) -> None:
    with pytest.raises(PolicyError) as caught:
        section(text)
    assert [problem in each.problem for each in caught.value.mistakes] == [True]


def test_as_many_are_accepted_as_may_be() -> None:
    assert len(section("{collectors: [" + ", ".join(f"c{number}" for number in range(8)) + "]}").collectors) == 8
    (rule,) = policy("{experiment: 511, activity: 63, requested: [" + ", ".join(["1"] * 64) + "]}").scitags
    assert (rule.experiment, rule.activity, len(rule.requested), rule.position) == (511, 63, 64, 1)
    with pytest.raises(PolicyError, match="a list of 65"):
        policy("{experiment: 1, requested: [" + ", ".join(["1"] * 65) + "]}")
    name = "n" * 64
    assert policy(f"{{experiment: {name}}}").scitags[0].experiment == name
    with pytest.raises(PolicyError, match="is not accepted"):
        policy(f"{{experiment: {name}n}}")


def test_the_activity_of_an_ad_is_a_reason() -> None:
    rules = ["{experiment: 3, requested: [15], when: 'JobPrio > 1'}"]
    because = decide(facts(jobprio="7", scitagactivity="15"), policy(*rules)).because[-1]
    assert (because.position, because.when) == (1, "JobPrio > 1")
    assert because.values == (("JobPrio", "7"), ("ScitagActivity", "15"))
    (plain,) = decide(facts(), policy("{experiment: 3, activity: 4}")).because
    assert (plain.when, plain.values) == ("true", ())


def a_registry(*names: str, activities: tuple[str, ...] = ()) -> Registry:
    listed = [{"activityName": name, "activityId": number} for number, name in enumerate(activities, 1)]
    return parse(
        json.dumps(
            {
                "experiments": [
                    {"expName": name, "expId": number, "activities": listed} for number, name in enumerate(names, 1)
                ]
            }
        )
    )


def test_numbers_are_those_that_a_flow_label_holds() -> None:
    text = '{"experiments": [{"expName": " A ", "expId": %d, "activities": [{"activityName": "b", "activityId": %d}]}]}'
    for experiment, activity in ((1, 1), (511, 63)):
        assert parse(text % (experiment, activity)).resolve("a", "B") == Scitag(experiment, activity)
    for numbers in ((0, 1), (512, 1), (1, 0), (1, 64)):
        with pytest.raises(RegistryError, match=r"has the number .*; accepted are 1 to (511|63)"):
            parse(text % numbers)
    assert parse('{"experiments": [{"expName": "a", "expId": 7}]}').activities == {7: {}}


def test_names_that_are_accepted_are_listed_as_far_as_they_can_be_read() -> None:
    twelve, more = (a_registry(*(f"e{number:02}" for number in range(count))) for count in (12, 14))
    assert twelve.problem("x", 1)[1] == "a number from 1 to 511, or " + ", ".join(f"e{n:02}" for n in range(12))
    assert more.problem("x", 1)[1].endswith(", e11 and 2 more")
    assert Registry().problem("x", 1) == (
        "no experiment x in the registry", "a number from 1 to 511; there is no registry with names"
    )  # fmt: skip
    known = a_registry("e", activities=("read", "write"))
    assert known.problem("E", "Write") == ("", "")
    assert known.problem("e", "delete") == (
        "no activity delete of experiment e", "a number from 1 to 63, or read, write"
    )  # fmt: skip
    assert known.problem(5, "read") == (
        "no activity read of experiment 5", "a number from 1 to 63; there is no registry with names"
    )  # fmt: skip


def test_a_registry_changes_its_digest_with_its_text_and_has_a_size() -> None:
    one, other = a_registry("a"), a_registry("b")
    assert len(one.digest) == 16
    assert one.digest != other.digest
    assert one.digest == a_registry("a").digest
    head = '{"experiments": [], "x": "'
    most = head + "x" * ((4 << 20) - len(head) - 2) + '"}'
    assert parse(most).experiments == {}
    with pytest.raises(RegistryError, match="the registry is too large; at most 4194304 bytes"):
        parse(most + " ")

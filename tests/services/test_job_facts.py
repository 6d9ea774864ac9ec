"""Facts out of stored ads: those of the whole ads, whatever is parsed of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.population import ads, jobs
from lark_common.classads.ads import parse_post
from lark_common.classads.text import parse_ad
from lark_common.errors import AdError
from lark_controller.policies.facts import Known, facts, taken
from lark_controller.services import job_facts
from lark_controller.store import LiveAds

NAMES = (frozenset({"owner", "projectname", "memory", "a", "b"}), frozenset({"memory", "larkvlan", "b", "lark"}))
KNOWN = Known("alice", "alice@example", "", None, None)

NAME = st.sampled_from(["A", "a", "B", "ba", "Memory", "ProjectName", "VLAN", "LarkVLAN", "LARKvlan", "Lark", "Owner"])
VALUE = st.sampled_from(
    [
        "1", "-7", "2.5", '"x"', '"B = 1"', r'"\"a = 2\""', '"[ a = 1 ]"', "true", "undefined", "error", "A", "b + 1",
        "TARGET.Memory", "MY.VLAN", "{1, 2}", "[ a = 1 ]", 'strcat("a", B)', '"ſ"', '"tab\there"',
    ]
)  # fmt: skip
AD = st.lists(st.tuples(NAME, VALUE), max_size=8).map(
    lambda lines: "".join(f"{name} = {value}\n" for name, value in lines)
)


def stored(job_ad: str, machine_ad: str) -> LiveAds:
    return LiveAds(1, "0123456789abcdef", "alice", "alice@example", "", None, None, job_ad, machine_ad)


@settings(max_examples=400, deadline=None)
@given(AD, AD, st.booleans())
def test_facts_are_those_of_the_whole_ads(job: str, machine: str, newer: bool) -> None:
    try:
        (job_ad, job_text), (machine_ad, machine_text) = parse_ad(job), parse_ad(machine)
    except AdError:
        return
    if newer:
        job_text = repr(job_ad)
    wanted = taken(KNOWN, job_ad, machine_ad, NAMES)
    assert job_facts._facts_of(stored(job_text, machine_text), NAMES) == wanted


def test_of_a_starter_s_ads_only_the_attributes_asked_for_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(text: str) -> object:
        raise AssertionError(f"parsed as a whole: {text[:60]}")

    (job,) = jobs(1, 26)
    job_ad, machine_ad = parse_post(ads(job).encode(), "text/plain")
    names = frozenset({"owner", "acctgroup", "projectname"}), frozenset({"opsysname", "larkdatapathid", "absent"})
    wanted = facts(job_ad, machine_ad, names)
    assert {name for name, _ in (*wanted.job, *wanted.machine)} == {*names[0], "opsysname", "larkdatapathid"}
    entry = LiveAds(1, job.id, job.owner, job.user, job.group, None, None, job_ad.text, machine_ad.text)
    monkeypatch.setattr(job_facts, "parse_ad", whole)
    assert job_facts._facts_of(entry, names) == wanted

"""Ads of which as much is parsed as is asked for: they say the same as whole ones, and are refused for the same."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bench.population import ads, jobs
from lark_common.classads.ads import parse_post
from lark_common.classads.evaluation import evaluate
from lark_common.classads.parts import Ad, PartAd, whole
from lark_common.classads.text import parse_named
from lark_common.errors import AdError
from lark_controller.policies.facts import facts

NAMES = ("Owner", "owner", "Foo", "Bar", "ClaimId", "true", "a.b", "Is", "MY", "_condor_priv1")
VALUES = (
    "1", "-0", '"text"', '"a\\"b"', '"a\\"', '"\\\\"', "TRUE", "undefined", "Foo", "MY.Bar + 1", "TARGET.Owner", "1 +",
    "", '"open', "{1, 2}", "error", '"\u2028"', '"a\tb"', "  7 ", "99999999999999999999", "1.5e3", "[x = 1]",
    "is", "é",
)  # fmt: skip
LINES = st.one_of(
    st.builds("{} = {}".format, st.sampled_from(NAMES), st.sampled_from(VALUES)),
    st.builds("{}={}".format, st.sampled_from(NAMES), st.sampled_from(VALUES)),
    st.builds('{} = "{}"'.format, st.sampled_from(NAMES), st.text(max_size=6)),
    st.sampled_from(["", "# a comment", "no attribute", "= 1", " Owner = 1", 'Owner = "x"\r']),
)
ASKED = frozenset({"owner", "foo", "true", "a.b", "claimid", "absent"})


def _value(ad: Any, name: str) -> object:
    try:
        return repr(evaluate(ad, name, ad))
    except AdError as error:
        return str(error)


def _read(text: str, asked: frozenset[str] | None) -> tuple[Ad, tuple[str, frozenset[str]]] | str:
    """An ad with its text and names, or why there is none."""
    try:
        ad, shown, names = parse_named(text, asked)
    except AdError as error:
        return str(error)
    return ad, (shown, names)


@settings(max_examples=300, deadline=None)
@given(st.lists(LINES, max_size=8).map("\n".join))
def test_a_part_says_what_the_whole_ad_says(text: str) -> None:
    read, expected = _read(text, ASKED), _read(text, None)
    if isinstance(read, str) or isinstance(expected, str):
        assert read == expected
        return
    (found, same), (other, shown) = read, expected
    assert same == shown
    for name in (*NAMES, "Absent"):
        assert _value(found, name) == _value(other, name)
        assert (name in found) == (name in other)
    assert whole(found) == whole(other)


def test_a_post_of_a_starter_is_not_parsed_as_a_whole() -> None:
    job = next(jobs(1, 26))
    job_ad, machine_ad = parse_post(ads(job).encode(), "text/plain")
    known = frozenset({"acctgroup", "owner", "inboundconnectivity", "outboundconnectivity"})
    assert facts(job_ad, machine_ad, (known, frozenset())) == job.facts
    assert isinstance(job_ad.ad, PartAd)
    assert isinstance(machine_ad.ad, PartAd)
    assert job_ad.ad._whole is None
    assert machine_ad.ad._whole is None
    # What nobody reads of every ad is found all the same.
    found = facts(job_ad, machine_ad, (frozenset({"requestcpus"}), frozenset({"cpus"})))
    assert {name for name, _ in (*found.job, *found.machine)} == {"requestcpus", "cpus"}
    assert job_ad.ad._whole is not None


def test_an_expression_finds_attributes_that_are_not_read_of_every_ad() -> None:
    body = (
        'Owner = "bob"\nGlobalJobId = "s#1.0#1"\nWanted = 250\nRequestBandwidth = Wanted + TARGET.More\n------\n'
        'Machine = "w"\nMore = 5\nLarkAddressType = "controller"\n'
    )
    job_ad, _ = parse_post(body.encode(), "text/plain")
    assert job_ad.bandwidth == 255.0

"""Ads of any kind: read whole, or refused in words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark_common.classads.ads import parse_post
from lark_common.classads.text import parse_ad
from lark_common.errors import AdError
from tests.fixtures.stored_ads import reparse


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(["text/plain", "application/json"]))
def test_any_bytes_are_refused_in_words(body: bytes, media: str) -> None:
    with pytest.raises(AdError) as caught:
        parse_post(body, media)
    assert caught.value.reason


LITERALS = st.one_of(
    st.integers(-(2**63) + 1, 2**63 - 1),
    st.booleans(),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30),
    st.floats(-1e300, 1e300),
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True), LITERALS, max_size=6))
def test_whatever_json_says_reads_back_from_text(extra: dict[str, Any]) -> None:
    wanted = {f"X_{name}": value for name, value in extra.items() if not str(value).startswith("/Expr(")}
    wanted = {
        name: value for name, value in wanted.items() if [each.lower() for each in wanted].count(name.lower()) == 1
    }
    body = {
        "job_ad": {"Owner": "bob", "GlobalJobId": "g", **wanted},
        "machine_ad": {"Machine": "w", "AddressType": "dhcp"},
    }
    job, machine = parse_post(json.dumps(body).encode(), "application/json")
    again, _ = reparse(job.text, machine.text)
    for name, value in wanted.items():
        assert job.ad[name] == value
        assert (
            again.ad[name] == pytest.approx(value, rel=1e-9, abs=1e-300)
            if isinstance(value, float)
            else again.ad[name] == value
        )


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(["Foo", "=", " ", "1", '"', "\\", "(", ")", "\n", "[", "]", ";", "{", "}", "x", "+"]),
        max_size=14,
    )
)
def test_an_ad_comes_out_whole_or_not_at_all(pieces: list[str]) -> None:
    text = "".join(pieces)
    try:
        ad, kept = parse_ad(text)
    except AdError:
        return
    assert parse_ad(kept)[0] == ad
    if not text.lstrip().startswith("["):
        assert len({line.partition("=")[0].strip().lower() for line in text.split("\n") if line.strip()}) == len(ad)


# Parts of values that a line of plain form may have, and of some that only look so.
PARTS = (
    '"',
    "\\",
    "1",
    "0",
    "-",
    ".",
    "e",
    "9" * 18,
    "true",
    "undefined",
    "fal\u017fe",
    "x",
    " ",
    "=",
    "'",
    "\t",
    "\r",
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PARTS), max_size=6))
def test_a_line_of_plain_form_is_read_as_any_other(parts: list[str]) -> None:
    value = "".join(parts)
    found = []
    for line in (f"Plain = {value}", f"Plain  = {value}"):
        try:
            ad, text = parse_ad(f"A = 1\n{line}\n")
            found.append((text, repr(ad)))
        except AdError as error:
            found.append((str(error), ""))
    assert found[0] == found[1]


LINES = [
    "A = 1", "a = 2", 'B = "x"', 'B = "a \\" b"', 'B = "ends in a backslash\\"', "C=3", "\tD  =\t4  ", "E = A + 1",
    "E = {1, 2}", "F = (1", "F = 1 2", "G =", "H == 1", "1 = 2", "no attribute", "# A = 5", "  # x", "", "   ", "\r",
    "A = 1\r", "A = 1\x0bB = 2", 'A = "\x85"', 'ClaimId = "secret"', "claimids = 1", "_condor_privKey = 1", "true = 1",
    "K.b = 1", "ſ = 1", "A = TRUE", "A = undefined", "A = 007", "A = 99999999999999999999", "A = -1.5", "]", "------",
]  # fmt: skip


def outcome(text: str) -> tuple[dict[str, str], str, AdError | None]:
    """The values of an ad as they are written, its text, and why it is refused."""
    try:
        ad, kept = parse_ad(text)
    except AdError as error:
        return {}, "", error
    return {name.lower(): repr(ad.lookup(name)) for name in ad}, kept, None


@settings(max_examples=500, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(LINES), st.text(max_size=8).filter(set("\n\0[").isdisjoint)), max_size=8))
def test_the_lines_of_an_ad_are_read_as_each_by_itself(lines: list[str]) -> None:
    values, kept, refused = outcome("\n".join(lines))
    alone = [outcome(line) for line in lines]
    errors = [(number, error) for number, (_, _, error) in enumerate(alone, 1) if error is not None]
    # What only HTCondor's parser refuses, such as a name that is a word of its own, is found after all lines were seen.
    first = next((each for each in errors if not each[1].reason.endswith("is not a ClassAd expression")), None)
    if not errors:
        assert refused is None
        assert values == {name: value for each, _, _ in alone for name, value in each.items()}
        assert kept == "".join(text for _, text, _ in alone)
    else:
        number, error = first or errors[0]
        assert refused is not None
        assert refused.attribute == error.attribute
        assert refused.reason == error.reason.replace("line 1, ", f"line {number}, ", 1)

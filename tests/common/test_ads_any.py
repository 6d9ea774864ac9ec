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

"""Ads: their size, depth and brackets are bounded, whatever stands in them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import classad2
import pytest

from lark_common.classads.ads import parse_post
from lark_common.classads.evaluation import evaluate
from lark_common.classads.text import MAX_BRACKETS, from_json, parse_ad
from lark_common.errors import AdError
from tests.common.test_ads import JOB, MACHINE, new, old


def test_deep_text_cannot_crash_the_process() -> None:
    program = (
        "from lark_common.classads.text import MAX_BRACKETS, from_json, parse_ad, parse_expression\n"
        "from lark_common.errors import AdError\n"
        "for unit in ('(', '1+', '!', '{', '[a=', 'x?', 'x.', '- ', 'f(', 'x[', '~', '1?:'):\n"
        "    for text in ('a = ' + unit * 100000, '[a = ' + unit * 100000 + ']'):\n"
        "        for parse in (parse_ad, parse_expression):\n"
        "            try:\n"
        "                parse(text)\n"
        "            except AdError:\n"
        "                continue\n"
        "            raise SystemExit(unit)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_longest_accepted_expression_is_safe() -> None:
    ad, _ = parse_ad("a = " + "1+" * 8000 + "1")
    with pytest.raises(AdError):
        evaluate(ad, "a", classad2.ClassAd())


def test_limit_in_bytes() -> None:
    body = f"{old(JOB)}------\n{old(MACHINE)}".encode()
    parse_post(body, "text/plain", limit=len(body))
    with pytest.raises(AdError, match=f"{len(body)} bytes; at most {len(body) - 1}"):
        parse_post(body, "text/plain", limit=len(body) - 1)


@pytest.mark.parametrize("opening", ["{1}", "(1)", "[a = 1]", "ifThenElse(true, 1, {1})"])
def test_an_ad_opens_a_bounded_number_of_brackets(opening: str) -> None:
    count = MAX_BRACKETS // sum(map(opening.count, "([{"))
    accepted = {f"X{number}": opening for number in range(count)}
    refused = accepted | {"Y": "{{{1}}}"}
    assert parse_ad(old(accepted))
    for text in (old(refused), new(refused)):
        with pytest.raises(AdError, match=f"more than {MAX_BRACKETS} brackets"):
            parse_ad(text)
    members = {name: f"/Expr({value})/" for name, value in refused.items()}
    with pytest.raises(AdError, match=f"more than {MAX_BRACKETS} brackets"):
        from_json(members)


def test_lists_of_json_count_as_brackets() -> None:
    assert from_json({f"X{number}": [[]] * (MAX_BRACKETS // 4 - 1) for number in range(4)})
    refused: list[dict[str, Any]] = [
        {"X": [[]] * MAX_BRACKETS}, {"X": [{"a": 1}] * MAX_BRACKETS}, {"X": [], "Y": [[]] * MAX_BRACKETS},
    ]  # fmt: skip
    for members in refused:
        with pytest.raises(AdError, match=f"more than {MAX_BRACKETS} brackets"):
            from_json(members)

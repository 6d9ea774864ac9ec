"""Answers written in portions have the text that a writer without portions gives them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lark_controller.rest.json_portions import text, written

SIMPLE = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(SIMPLE, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)
LONG = st.lists(st.integers(0, 9), min_size=17, max_size=40)


@given(st.dictionaries(st.text(), VALUES | LONG, max_size=5))
def test_the_text_is_the_same(value: dict[str, Any]) -> None:
    assert text(value) == json.dumps(value, separators=(",", ":"))


def test_an_answer_has_the_status_and_headers_that_are_given() -> None:
    answer = written({"name": "Jürgen"}, 201, {"Location": "/v1/jobs/1"})
    assert (answer.status_code, answer.headers["Location"], answer.json) == (201, "/v1/jobs/1", {"name": "Jürgen"})

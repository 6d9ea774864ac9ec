"""Answers written in portions have the text that Flask's own writer gives them."""

from __future__ import annotations

from typing import Any

from flask import Flask
from flask.json.provider import DefaultJSONProvider
from hypothesis import given
from hypothesis import strategies as st

from lark_controller.rest.json_portions import PortionedJson

SIMPLE = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(SIMPLE, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)
APP = Flask(__name__)


class Plain(DefaultJSONProvider):
    sort_keys = False


@given(st.dictionaries(st.text(), VALUES, max_size=5) | VALUES, st.sampled_from([None, (",", ":")]))
def test_the_text_is_the_same(value: Any, separators: tuple[str, str] | None) -> None:
    options = {} if separators is None else {"separators": separators}
    assert PortionedJson(APP).dumps(value, **options) == Plain(APP).dumps(value, **options)

"""JSON out of a stream, however it is cut into pieces."""

from __future__ import annotations

import cProfile
import json
import pstats
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_controller.switches.ovsdb import json_stream
from lark_controller.switches.ovsdb.json_stream import Parser

texts = st.one_of(st.text(max_size=20), st.sampled_from(['"', "\\", "}{", '[{"', '\\"}', "é\n", "\\\\"]))
leaves = st.one_of(texts, st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)
messages = st.one_of(st.lists(values, max_size=4), st.dictionaries(texts, values, max_size=4))


def read(pieces: list[str]) -> list[Any]:
    """The values that come out, with a new parser for each, as the library uses them."""
    found, parser = [], Parser()
    for piece in pieces:
        rest = piece
        while rest:
            taken = parser.feed(rest)
            rest = rest[taken:]
            if parser.is_done():
                found.append(parser.finish())
                parser = Parser()
            else:
                assert not rest, "what is not whole takes all that there is"
    return found


@given(
    st.lists(st.tuples(messages, st.sampled_from(["", " ", "\n\t"]), st.booleans()), min_size=1, max_size=4),
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
)
def test_values_come_out_as_they_went_in(sent: list[tuple[Any, str, bool]], sizes: list[int]) -> None:
    text = "".join(space + json.dumps(value, ensure_ascii=ascii_only) for value, space, ascii_only in sent)
    pieces, at, turn = [], 0, 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        pieces.append(text[at : at + size])
        at, turn = at + size, turn + 1
    assert read(pieces) == [value for value, _, _ in sent]
    assert read([text]) == [value for value, _, _ in sent]


@pytest.mark.parametrize("text", ["]", "nonsense", '{"a" 1}', "{]", '"text"', '"a":1}}', "[" * 100_000 + "]" * 100_000])
def test_what_is_no_json_ends_with_the_reason(text: str) -> None:
    parser = Parser()
    assert parser.feed(text) == len(text)
    assert parser.is_done()
    assert parser.finish().startswith("no JSON: ")


def test_a_value_that_has_not_ended_is_none() -> None:
    parser = Parser()
    assert parser.feed('{"a": "} \\') == 10
    assert not parser.is_done()
    assert parser.finish() == "the stream ends within a value"


def test_a_long_value_in_small_pieces_is_looked_at_once() -> None:
    """The schema of Open vSwitch comes as one string full of quotation marks."""

    def calls(size: int) -> int:
        text = json.dumps({"schema": json.dumps([{"column": "name"}] * size)})
        profile = cProfile.Profile()
        profile.enable()
        assert len(read([text[at : at + 4096] for at in range(0, len(text), 4096)])) == 1
        profile.disable()
        return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]  # typeshed leaves it out

    assert calls(40_000) < 12 * calls(4_000)


def test_what_follows_a_value_and_is_none_ends_the_stream_whatever_the_pieces() -> None:
    parser = Parser()
    assert parser.feed("{}x[") == 4
    assert parser.feed("]") == 1
    assert parser.is_done()
    assert parser.finish() == "no JSON: what follows it is neither an object nor an array"


def test_a_value_without_an_end_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "_MOST", 1000)
    parser = Parser()
    fed = 0
    while not parser.is_done():
        fed += parser.feed('["' + "x" * 98)
        assert fed < 2000
    assert parser.finish() == "more than 1000 characters in one value"


def test_a_value_of_too_many_arrays_is_not_made() -> None:
    parser = Parser()
    parser.feed("[[1]")
    for _ in range(100):
        if parser.is_done():
            break
        parser.feed(",[]" * 20_000)
    assert parser.is_done()
    assert "arrays and objects" in parser.finish()
    assert parser._length < 4 << 20

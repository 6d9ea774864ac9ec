"""The C client's reading of answers, with sanitizers, beside Python's."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mpi.odd_answers import HEAD, ODD
from tests.mpi.ranks import built

NUMBERS = st.integers(-(10**15), 10**15) | st.floats(
    allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12
)
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=10)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
DOCUMENTS = st.fixed_dictionaries(
    {"more": VALUES}, optional={"id": TEXTS | VALUES, "rate": NUMBERS, "links": st.lists(VALUES, max_size=4)}
)


def read(answers: Sequence[bytes]) -> list[str]:
    """The reading of answers by the client in C."""
    given_to_it = b"".join(len(each).to_bytes(4, "little") + each for each in answers)
    run = subprocess.run(
        [built("mpich") / "answers"],
        input=given_to_it,
        capture_output=True,
        timeout=60,
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=1", "LC_ALL": "C.UTF-8"},
    )
    assert run.returncode == 0, run.stderr.decode()
    return run.stdout.decode().splitlines()


def test_answers_that_are_none() -> None:
    assert set(read(ODD)) == {"it gave no answer", "its answer is no JSON object"}


def test_what_json_allows_and_what_not() -> None:
    good = [
        b'{"rate": -1.5e-3}',
        b' {"rate"\n:2E2 , "id":"\\ud83d\\ude00\\u00e9\\n"}\t',
        b'{"links": [], "id": "\\ud800x"}',
    ]
    assert read([HEAD + each for each in good]) == ["200  -0.0015 0", "200 f09f9880c3a93f 200 0", "200 3f78 none 0"]
    bad = [
        b"{,}",
        b'{"a" 1}',
        b'{"a": 1,}',
        b'{"a": tru}',
        b'{"a": "\t"}',
        b'{"a": -}',
        b"{} {}",
        b'{"a": "\\x"}',
        b"{'a': 1}",
    ]
    assert set(read([HEAD + each for each in bad])) == {"its answer is no JSON object"}


def test_a_number_without_end_is_none() -> None:
    rates = [b"1e301", b"-1e999", b"9" * 400, b"1e299"]
    said = read([HEAD + b'{"rate": ' + each + b"}" for each in rates])
    assert [line.split()[1] for line in said[:3]] == ["none"] * 3
    assert said[3].split()[1] != "none"


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(DOCUMENTS, st.booleans()), min_size=20, max_size=60))
def test_whole_documents_are_read_as_python_reads_them(documents: list[tuple[dict[str, Any], bool]]) -> None:
    texts = [json.dumps(document, ensure_ascii=ascii_alone).encode() for document, ascii_alone in documents]
    for (document, _), said in zip(documents, read([HEAD + text for text in texts]), strict=True):
        status, name, rate, count = said.split(" ")
        assert status == "200"
        whole = document.get("id") if isinstance(document.get("id"), str) else ""
        assert bytes.fromhex(name).decode() == str(whole)
        if "rate" in document:
            assert abs(float(rate) - document["rate"]) <= 1e-12 * abs(document["rate"])
        else:
            assert rate == "none"
        assert int(count) == len(document.get("links", []))


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(DOCUMENTS, st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4)), max_size=60
    )
)
def test_damaged_documents_are_read_within_their_bounds(
    damaged: list[tuple[dict[str, Any], list[tuple[int, int]]]],
) -> None:
    answers = []
    for document, changes in damaged:
        text = bytearray(HEAD + json.dumps(document).encode())
        for place, byte in changes:
            if byte < 32:
                del text[place % len(text) :]
                break
            text[place % len(text)] = byte
        answers.append(bytes(text) or b"x")
    assert len(read(answers)) == len(answers)

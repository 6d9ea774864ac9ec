"""Each border is fuzzed for a while in every run of the tests, its corpus first; ``make fuzz`` does it for hours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.__main__ import BORDERS, FOLDER, fuzz

SECONDS = 60


@pytest.mark.parametrize("border", BORDERS)
def test_a_border_keeps_its_promises_whatever_it_is_given(border: str, tmp_path: Path) -> None:
    result = fuzz(border, SECONDS // len(BORDERS), 1, tmp_path)
    assert not result.finding
    assert result.inputs >= len(list((FOLDER / "corpus" / border).iterdir()))

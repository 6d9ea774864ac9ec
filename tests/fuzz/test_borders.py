"""Each border is fuzzed for a while in every run of the tests, its corpus first; ``make fuzz`` does it for hours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.__main__ import BORDERS, FOLDER, fuzz

# A number of inputs and not of seconds, so that every machine tries the same ones: about seven seconds for each border.
INPUTS = {
    "ads": 100_000,
    "dhcp": 100_000,
    "hook_output": 30_000,
    "openflow": 20_000,
    "ovsdb": 12_000,
    "policy": 10_000,
    "rest": 80_000,
    "worker_socket": 25_000,
}


def test_every_border_has_its_number_of_inputs() -> None:
    assert set(INPUTS) == set(BORDERS)


@pytest.mark.parametrize("border", BORDERS)
def test_a_border_keeps_its_promises_whatever_it_is_given(border: str, tmp_path: Path) -> None:
    result = fuzz(border, tmp_path, 1, inputs=INPUTS[border])
    assert not result.finding, result.finding
    assert result.inputs >= len(list((FOLDER / "corpus" / border).iterdir()))

"""Inputs of programs: in proportion to the links, and with as much to compute at every rate."""

from __future__ import annotations

import pytest

from experiments import sizes


def given(name: str, most: float, *, light: bool = False) -> dict[str, int]:
    words = [word for word in sizes.arguments(name, most, light=light) if word != "-var"]
    return {key.lstrip("-"): int(value) for key, value in zip(words[::2], words[1::2], strict=True)}


@pytest.mark.parametrize("scale", [2.0, 1.0, 0.4, 0.2])
@pytest.mark.parametrize("light", [False, True])
def test_what_is_sent_is_in_proportion_to_the_links(scale: float, light: bool) -> None:
    most = sizes.MOST * scale
    sort, picture, bar = (given(name, most, light=light) for name in ("integer sort", "POV-Ray", "LAMMPS"))
    whole = {name: given(name, sizes.MOST, light=light) for name in ("integer sort", "POV-Ray", "LAMMPS")}
    assert sort["keys"] / whole["integer sort"]["keys"] == pytest.approx(scale, rel=0.01)
    pixels = picture["width"] * picture["height"]
    assert pixels / (whole["POV-Ray"]["width"] * whole["POV-Ray"]["height"]) == pytest.approx(scale, rel=0.05)
    # Whole cells.
    assert bar["width"] ** 2 / whole["LAMMPS"]["width"] ** 2 == pytest.approx(scale, rel=0.25)
    assert bar["width"] ** 2 * bar["length"] == pytest.approx(
        whole["LAMMPS"]["width"] ** 2 * whole["LAMMPS"]["length"], rel=0.05
    )
    if not light:
        assert sort["keys"] * sort["passes"] == pytest.approx(sizes.KEYS * sizes.PASSES, rel=0.05)
        rays = pixels * (1 + picture["samples"] ** 2)
        assert scale > 1 or rays == pytest.approx(12 * sizes.QUARTER**2, rel=0.35)


def test_a_light_program_does_its_work_several_times() -> None:
    counts = {"integer sort": "rounds", "LAMMPS": "steps", "POV-Ray": "frames"}
    for name, count in counts.items():
        once, thrice = (
            dict(zip(words[::2], words[1::2], strict=True))
            for times in (1, 3)
            for words in [[word for word in sizes.arguments(name, 3e5, light=True, times=times) if word != "-var"]]
        )
        several = [key for key in once if once[key] != thrice[key]]
        assert [key.lstrip("-") for key in several] == [count]
        assert int(thrice[several[0]]) == 3 * int(once[several[0]])


def test_programs_with_a_file_of_settings_have_no_arguments() -> None:
    assert sizes.arguments("hpcc", sizes.MOST) == ()
    assert sizes.of_link(5.0, 35.0) == 5.0
    assert sizes.of_link(5.0, 70.0) == 10.0

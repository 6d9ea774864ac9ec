"""The sizes of the programs' inputs, for links of any rate. Pure.

What a program sends is in proportion to the links, so that it takes as long at every scale, and what it computes is
the same. Where time against allocation is measured, communicating takes as long as computing at a rate between the
least and the greatest, on a processor of 2025. Where programs stand beside others on the network, they compute as
little as they can.
"""

from __future__ import annotations

from math import sqrt
from typing import Final

from experiments import paper

# Nodes that the programs run on, with one rank on each.
NODES: Final = 4
# Bytes a second of the greatest reservation at a scale of 1, for which the numbers below are.
MOST: Final = 0.7e6
# Integer Sort: keys of each rank, and how often each rank puts them into buckets in a round.
KEYS, PASSES = 107_000, 12.0
LIGHT_KEYS = 262_144
# LAMMPS: cells across the bar, and in all of it; eight atoms in each.
WIDTH, CELLS = 15.0, 24_000
LIGHT_WIDTH, LIGHT_CELLS = 15.0, 6_250
# Atoms see no further than a cell, and each rank has two along the bar at least.
LEAST_WIDTH, LEAST_LENGTH = 4, 8
STEPS, LIGHT_STEPS = 10, 30
LIGHT_ROUNDS = 5
# POV-Ray: quarters of a picture's width, which are thirds of its height.
QUARTER = 240.0
LIGHT_QUARTER = 360.0


def arguments(name: str, most: float, *, light: bool = False, times: int = 1) -> tuple[str, ...]:
    """The arguments of a program where a flow's greatest reservation is ``most`` bytes a second.

    ``light``: with little computing; then it does all of it so many ``times``, one after the other. HPC Challenge has
    its sizes in its file of settings.
    """
    part = most / MOST
    if name == "integer sort":
        keys, passes = (LIGHT_KEYS, 1) if light else (KEYS, max(1, round(PASSES / part)))
        rounds = ("--rounds", f"{LIGHT_ROUNDS * times}") if light else ()
        return ("--keys", f"{max(1, round(keys * part))}", "--passes", f"{passes}", *rounds)
    if name == "LAMMPS":
        cells = LIGHT_CELLS if light else CELLS
        width = max(LEAST_WIDTH, round((LIGHT_WIDTH if light else WIDTH) * sqrt(part)))
        length = max(LEAST_LENGTH, round(cells / width**2))
        steps = LIGHT_STEPS * times if light else STEPS
        return ("-var", "steps", f"{steps}", "-var", "width", f"{width}", "-var", "length", f"{length}")
    if name == "POV-Ray":
        quarter = max(8, round((LIGHT_QUARTER if light else QUARTER) * sqrt(part)))
        size = ("--width", f"{4 * quarter}", "--height", f"{3 * quarter}")
        if light:
            return (*size, "--frames", f"{times}", "--quality", "3", "--bits", "16")
        # As many rays in a small picture as in a large one.
        return (*size, "--frames", "2", "--samples", f"{round(sqrt(max(0.0, 1 / part - 1)))}")
    return ()


def of_link(rate: float, limit: float) -> float:
    """A rate as large a part of what can be reserved as on the paper's links."""
    return round(rate * limit / paper.flow_limit(NODES), 3)

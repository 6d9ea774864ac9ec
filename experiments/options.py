"""The options of every experiment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from experiments.rates import Rates

# Of Lark's rates at a scale of 1. One guest CPU sends, forwards and receives every frame, over two switches and a
# router; at a tenth it has nothing to spare.
PART: Final = 0.05


@dataclass(frozen=True, slots=True)
class Options:
    """``scale``: all rates are those of the page at 1 times this, which calibration chooses.

    ``repetitions`` of everything. ``quick`` leaves points out. ``rates`` are the papers', or those of a file.
    """

    scale: float = 1.0
    repetitions: int = 3
    quick: bool = False
    rates: Rates = field(default_factory=Rates)

    @property
    def part(self) -> float:
        """Lark's rates are the paper's times this."""
        return PART * self.scale

    @property
    def fewer(self) -> int:
        """Repetitions of each point where there are many points."""
        return min(2, self.repetitions)

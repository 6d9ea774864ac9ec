"""The options of every experiment."""

from __future__ import annotations

from dataclasses import dataclass, field

from experiments.rates import Rates


@dataclass(frozen=True, slots=True)
class Options:
    """``scale``: all rates are the paper's times this. ``repetitions`` of everything. ``quick`` leaves points out.

    ``rates`` are the papers', or those of a file.
    """

    scale: float = 1.0
    repetitions: int = 3
    quick: bool = False
    rates: Rates = field(default_factory=Rates)

    @property
    def fewer(self) -> int:
        """Repetitions of each point where there are many points."""
        return min(2, self.repetitions)

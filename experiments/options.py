"""What every experiment is run with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """``scale``: all rates are the paper's times this. ``repetitions`` of everything. ``quick`` leaves points out."""

    scale: float = 1.0
    repetitions: int = 3
    quick: bool = False

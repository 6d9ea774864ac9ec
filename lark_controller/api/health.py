"""Whether the controller can do its work, as REST and the command line show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the controller can do its work; ``reasons`` say what is missing."""

    ready: bool
    reasons: tuple[str, ...] = ()


class HealthControls(Protocol):
    """Operations on the controller as a whole. Thread-safe."""

    def ready(self) -> Readiness:
        """Whether the database takes writes, the loop turns and every thread lives; waits for none of them."""

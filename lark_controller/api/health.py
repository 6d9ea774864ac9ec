"""The readiness of the controller, for REST and the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol


@dataclass(frozen=True, slots=True)
class Readiness:
    """The readiness of the controller; ``reasons`` are the faults."""

    ready: Annotated[bool, "True if it can do its work"]
    reasons: Annotated[tuple[str, ...], "The faults"] = ()


class HealthControls(Protocol):
    """Operations on the controller as a whole. Thread-safe.

    A load balancer asks every second or so, and must have its answer while a database or the loop stands still: nothing
    here waits for either, and an answer may be as old as the last look at them.
    """

    def ready(self) -> Readiness:
        """The readiness now: the database takes writes, the loop turns and every thread lives; waits for none of
        them."""

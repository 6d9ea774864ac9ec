"""The rule by which the active instance hands over since it has lost the switches that another keeps. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Seconds for which it holds without a pause, and the readings in which it is found so.
LOST_SECONDS: Final = 10.0
READINGS: Final = 5
# Of readings between which more time passed nothing is known: this process was paused, or the database was away.
GAP_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class Reach:
    """The switches that are ``expected``, since they are declared or have jobs, those of them that are ``connected`` to
    the active instance, and the most switches that one which stands by has ``kept``."""

    expected: int
    connected: int
    kept: int

    @property
    def is_lost(self) -> bool:
        """True where most of the expected switches are away from here alone. Those who make up switches at another
        instance cannot bring it about: they take none away from here."""
        return self.connected * 2 < self.expected <= self.kept * 2 and self.connected * 2 <= self.kept


@dataclass(frozen=True, slots=True)
class Loss:
    """Readings in a row in which most are lost, and no switch has come; times by the reader's own clock."""

    connected: int
    since: float
    last: float
    readings: int = 1

    @property
    def is_over(self) -> bool:
        """True where it is time to hand over."""
        return self.readings >= READINGS and self.last - self.since >= LOST_SECONDS


def followed(loss: Loss | None, reach: Reach, now: float) -> Loss | None:
    """The loss after one more reading; None where there is none. While switches come, as after a takeover, it begins
    anew with each reading."""
    if not reach.is_lost:
        return None
    if loss is None or now - loss.last > GAP_SECONDS or reach.connected > loss.connected:
        return Loss(reach.connected, now, now)
    return Loss(reach.connected, loss.since, now, loss.readings + 1)

"""The rule by which the active instance hands over since it has lost the switches that another keeps. Pure.

Switches that nobody expects, and those that are away from everybody, are no reason: a core that is down would have the
term go from one to another and back. So the others are asked for those that the active one misses.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

# Seconds for which it holds without a pause, and the readings in which it is found so.
LOST_SECONDS: Final = 10.0
READINGS: Final = 5
# Of readings between which more time passed nothing is known: this process was paused, or the database was away.
GAP_SECONDS: Final = 3.0
# Seconds for which one that got the term by this rule, or from an operator, keeps it: the term is not to go round and
# round, whoever connects where.
SETTLED_SECONDS: Final = 120.0
# The others are asked for so many of the switches that are away.
ASKED: Final = 64


def asked_for(away: Iterable[int]) -> tuple[int, ...]:
    """The switches that the others are asked for: all, or some of all parts of the range."""
    found = sorted(away)
    return tuple(found[:: max(1, -(-len(found) // ASKED))])


@dataclass(frozen=True, slots=True)
class Reach:
    """The switches that are ``expected``, since they are declared or have jobs, those of them that are ``connected`` to
    the active instance, how many of the others one that stands by was ``asked`` for, and the number that it has
    ``reached`` of those."""

    expected: int
    connected: int
    asked: int
    reached: int

    @property
    def there(self) -> int:
        """The switches that are away from here and connected to the other, by those that it was asked for."""
        if not self.asked:
            return 0
        # The answer may be to the question before.
        return (self.expected - self.connected) * min(self.reached, self.asked) // self.asked

    @property
    def is_lost(self) -> bool:
        """True where most of the expected switches are away from here, and half of them or more connected there: that
        one would have no reason to hand over in turn."""
        return self.connected * 2 < self.expected <= self.there * 2


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

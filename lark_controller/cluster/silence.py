"""The rule by which an instance counts as lost: readings of another in which it gave no new sign of life. Pure: values
and the reader's own clock in.

It is one rule for the active one, which is followed, and for all others, which are shown. No clocks are compared, and
how long a sign of life takes to be seen in a slow database says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from lark_controller.api.instances import AWAY_SECONDS, Sign

# Readings between which more time passed than this say nothing about what was between them: the process was paused, or
# the database was away, and then the other instance could give no sign of life either.
GAP_SECONDS: Final = 3.0
# But for readings that took as long themselves, with no longer than this between two: the database is slow, and so many
# of them without a new sign of life say that nobody gives any. What is slow for one is slow for the other, and each of
# both reads and writes again half a second later.
PAUSE_SECONDS: Final = 1.5
SLOW_READINGS: Final = 4
# Readings without a new sign of life.
READINGS: Final = 3
# Of an instance that was never read before, a sign of life of so many seconds ago is enough: it may have been killed
# yesterday. A database that takes longer for one is as good as away.
OLD_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Silence:
    """Readings in a row of one instance. Times are by the reader's own monotonic clock.

    ``since`` is the first of the ``readings`` with the present beat, ``last`` the last one. ``slow`` are those with the
    present beat that were themselves as long as readings may be apart.
    """

    beat: int
    since: float
    last: float
    readings: int = 1
    slow: int = 0

    def is_broken(self, now: float) -> bool:
        """True where a reading now is not in a row with the last one."""
        return now - self.last > GAP_SECONDS

    def then(self, beat: int, now: float, took: float) -> Silence:
        """The silence after one more successful reading, which ``took`` so many seconds."""
        moved = beat != self.beat
        if self.is_broken(now):
            waited = now - self.last - took
            return Silence(beat, now, now, slow=0 if moved or waited > PAUSE_SECONDS else self.slow + 1)
        if moved:
            return Silence(beat, now, now)
        return replace(self, last=now, readings=self.readings + 1)

    @property
    def seconds(self) -> float:
        """The seconds without a new sign of life."""
        return self.last - self.since

    @property
    def is_death(self) -> bool:
        """True where so long a silence says that the instance is lost."""
        return self.slow >= SLOW_READINGS or (self.readings >= READINGS and self.seconds >= AWAY_SECONDS)


@dataclass(frozen=True, slots=True)
class Peer:
    """An instance as another has read it; ``silence`` is None after a reading that failed. One that ``is_lost`` stays
    so until its next sign of life."""

    beat: int
    silence: Silence | None
    is_lost: bool


def judged(peers: Mapping[str, Peer], signs: Iterable[Sign], now: float, took: float) -> dict[str, Peer]:
    """The instances after one more successful reading of all, which ``took`` so many seconds."""
    return {each.instance: _judged(peers.get(each.instance), each, now, took) for each in signs}


def interrupted(peers: Mapping[str, Peer]) -> dict[str, Peer]:
    """The instances after a reading that failed."""
    return {instance: replace(each, silence=None) for instance, each in peers.items()}


def _judged(peer: Peer | None, sign: Sign, now: float, took: float) -> Peer:
    if peer is None:
        return Peer(sign.beat, Silence(sign.beat, now, now), sign.age >= OLD_SECONDS)
    silence = Silence(sign.beat, now, now) if peer.silence is None else peer.silence.then(sign.beat, now, took)
    return Peer(sign.beat, silence, silence.is_death or (peer.is_lost and sign.beat == peer.beat))

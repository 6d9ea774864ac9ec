"""The rules by which an instance that stands by takes over. Pure: values and the instance's own clock in, a reason out.

They decide only *when* to try. What keeps two instances from writing is the generation of the term, in the database.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from lark_controller.api.instances import AWAY_SECONDS, Identity, Look, Why

# Readings between which more time passed than this say nothing about what was between them: the process was paused, or
# the database was away, and then the active instance could give no sign of life either.
GAP_SECONDS: Final = 3.0
# But for readings that took as long themselves, with no longer than this between two: the database is slow, and so many
# of them without a new sign of life say that nobody gives any. What is slow for one is slow for the other, and each of
# both reads and writes again half a second later.
PAUSE_SECONDS: Final = 1.5
SLOW_READINGS: Final = 4
# Readings without a new sign of life: of an instance whose session is there, and of one whose session has ended.
READINGS: Final = 3
ENDED_SECONDS: Final = 1.5


@dataclass(frozen=True, slots=True)
class Watch:
    """The evidence of readings in a row about one holder. Times are by the reader's own monotonic clock.

    ``since`` is the first of the ``readings`` with the present beat, ``last`` the last one. ``held_in`` is the run of
    the database server in which the holder's session was seen, ``free`` the readings in a row without it. ``slow`` are
    those with the present beat that were themselves as long as readings may be apart.
    """

    look: Look
    since: float
    last: float
    readings: int = 1
    held_in: str = ""
    free: int = 0
    slow: int = 0


def watched(watch: Watch | None, look: Look, now: float, took: float = 0.0) -> Watch:
    """The watch after one more successful reading, which ``took`` so many seconds; ``None`` before the first, and after
    one that failed."""
    held_in = look.server if look.held else ""
    if watch is None or _other(watch.look, look):
        return Watch(look, now, now, held_in=held_in, free=not look.held)
    moved = look.beat != watch.look.beat
    if now - watch.last > GAP_SECONDS:
        waited = now - watch.last - took
        slow = 0 if moved or waited > PAUSE_SECONDS else watch.slow + 1
        return Watch(look, now, now, held_in=held_in, free=not look.held, slow=slow)
    return replace(
        watch,
        look=look,
        since=now if moved else watch.since,
        last=now,
        readings=1 if moved else watch.readings + 1,
        held_in=held_in or watch.held_in,
        free=0 if look.held else watch.free + 1,
        slow=0 if moved else watch.slow,
    )


def reason(watch: Watch, me: Identity) -> Why | None:
    """The reason for which ``me``, which stands by, is to take over now; None where it is to wait."""
    look = watch.look
    if not look.holder:
        return Why(look.why) if look.why else Why.FIRST
    # A copied configuration has the name and address of the one that is active, which may be without a session for
    # a moment; its machine is another, or another boot.
    own = (look.name, look.url, look.boot) == (me.name, me.url, me.boot)
    if look.alone or (own and not look.held):
        return Why.RESTARTED
    still = watch.last - watch.since
    # A server that was started again has ended every session: of that, the holder is not to die.
    ended = watch.held_in == look.server and watch.free >= READINGS
    if ended and watch.readings >= READINGS and still >= ENDED_SECONDS:
        return Why.ENDED
    if watch.slow >= SLOW_READINGS or (watch.readings >= READINGS and still >= AWAY_SECONDS):
        return Why.SILENT
    return None


def _other(one: Look, other: Look) -> bool:
    return (one.generation, one.holder) != (other.generation, other.holder)

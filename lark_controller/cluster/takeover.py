"""The rules by which an instance that stands by takes over. Pure: values and the instance's own clock in, a reason out.

They decide only *when* to try. What keeps two instances from writing is the generation of the term, in the database.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from lark_controller.api.instances import Identity, Look, Why
from lark_controller.cluster.silence import READINGS, Silence

# Seconds without a new sign of life of an instance whose session has ended.
ENDED_SECONDS: Final = 1.5


@dataclass(frozen=True, slots=True)
class Watch:
    """The evidence of readings in a row about one holder.

    ``held_in`` is the run of the database server in which the holder's session was seen, ``free`` the readings in a row
    without it.
    """

    look: Look
    silence: Silence
    held_in: str = ""
    free: int = 0


def watched(watch: Watch | None, look: Look, now: float, took: float = 0.0) -> Watch:
    """The watch after one more successful reading, which ``took`` so many seconds; ``None`` before the first, and after
    one that failed."""
    held_in = look.server if look.held else ""
    if watch is None or _other(watch.look, look):
        return Watch(look, Silence(look.beat, now, now), held_in, free=not look.held)
    silence = watch.silence.then(look.beat, now, took)
    if watch.silence.is_broken(now):
        return Watch(look, silence, held_in, free=not look.held)
    free = 0 if look.held else watch.free + 1
    return replace(watch, look=look, silence=silence, held_in=held_in or watch.held_in, free=free)


def reason(watch: Watch, me: Identity) -> Why | None:
    """The reason for which ``me``, which stands by, is to take over now; None where it is to wait."""
    look, silence = watch.look, watch.silence
    if not look.holder:
        return Why(look.why) if look.why else Why.FIRST
    # A copied configuration has the name and address of the one that is active, which may be without a session for
    # a moment; its machine is another, or another boot.
    own = (look.name, look.url, look.boot) == (me.name, me.url, me.boot)
    if look.alone or (own and not look.held):
        return Why.RESTARTED
    # A server that was started again has ended every session: of that, the holder is not to die.
    ended = watch.held_in == look.server and watch.free >= READINGS
    if ended and silence.readings >= READINGS and silence.seconds >= ENDED_SECONDS:
        return Why.ENDED
    return Why.SILENT if silence.is_death else None


def _other(one: Look, other: Look) -> bool:
    return (one.generation, one.holder) != (other.generation, other.holder)

"""Advice on the rates of reserved flows, by pair: what was asked for, against what was used and lost. Pure.

The calculation is that of a job's RequestBandwidth (:mod:`.advice`), with the flow's own queue in place of the job's.
Rates are Mb/s of L2 frame bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from lark_controller.accounting.pairs import PairUse
from lark_controller.qos.advice import FEW, LEAST_SECONDS, OFTEN, Rates, Seen, Verdict, judged, shown, throttling
from lark_controller.qos.topology import KILO

# Bytes of a full frame. What a queue drops is compared with the fewest packets that its bytes can be.
_FRAME: Final = 1514
# Characters of a summary: HTCondor's protocol for attributes of running jobs takes no longer texts.
LONGEST: Final = 240


class PairReason(StrEnum):
    """The reason why nothing can be compared."""

    NONE = ""
    INSIDE = "needs no link"
    NOT_COUNTED = "not counted"
    TOO_SHORT = "too short"


@dataclass(frozen=True, slots=True)
class PairAdvice:
    """Advice for one pair.

    ``asked`` is the highest rate that was reserved, ``asked_least`` the lowest. ``mean`` is over the ``seconds`` that
    its queue was counted, ``highest`` the mean of ``highest_seconds``. ``throttled`` is a share of the time at the
    highest rate. ``advised`` is the rate to ask for, whole Mb/s; ``bounded_by`` has the word for what keeps it from
    being more. ``sentence`` has all that.
    """

    verdict: Verdict
    reason: PairReason
    sentence: str
    asked: float
    asked_least: float
    steady: bool
    advised: int | None = None
    bounded_by: str = ""
    seconds: float = 0.0
    mean: float = 0.0
    highest: float = 0.0
    highest_seconds: float = 0.0
    throttled: float = 0.0
    dropped: int = 0
    so_far: bool = False


def pair_advice(use: PairUse, carried: float | None = None) -> PairAdvice:
    """The advice for a pair that has used so much; ``carried`` is what its path carries, Mb/s (None: not known)."""
    asked, least = use.kbps / KILO, use.least / KILO
    begin = _asked(asked, least, use.steady)
    reason, words = _why_not(use)
    seconds, settled = use.counted / 1000, use.settled / 1000
    mean = 8 * use.sent / seconds / 1e6 if seconds else 0.0
    highest = max(mean, use.peak / 1e6)
    throttled = min(1.0, use.throttled / use.settled) if use.settled else 0.0
    verdict, advised, bounded_by = Verdict.UNKNOWN, None, ""
    sentence = f"{begin}; {words}"
    if reason is PairReason.NONE:
        seen = Seen(
            seconds=settled,
            mean=Rates(0.0, mean),
            highest=Rates(0.0, highest),
            throttled=throttled,
            dropped=use.dropped,
            few_dropped=use.dropped * _FRAME <= FEW * use.sent,
        )
        verdict, _, advised = judged(asked, seen)
        most = None if carried is None else max(1, math.floor(carried))
        if advised is not None and most is not None and advised > most:
            advised, bounded_by = most, "its path carries"
        sentence = f"{begin}, {_used(seen, use.steady)}: {_figure(verdict, advised, bounded_by, seen, use.steady)}"
    return PairAdvice(
        verdict=verdict,
        reason=reason,
        sentence=sentence,
        asked=asked,
        asked_least=least,
        steady=use.steady,
        advised=advised,
        bounded_by=bounded_by,
        seconds=seconds,
        mean=mean,
        highest=highest,
        # Without a stretch of its own the highest rate is the mean.
        highest_seconds=use.peak_millis / 1000 if use.peak / 1e6 >= highest and use.peak else seconds,
        throttled=throttled,
        dropped=use.dropped,
        so_far=not use.final,
    )


def summary(named: Sequence[tuple[str, PairAdvice]], left_out: int = 0) -> str:
    """All pairs in a sentence of at most :data:`LONGEST` characters: how many want more or less, the rate that is
    enough for each, and the pair that misses most, by the names of its ends."""
    counts = {verdict: sum(each.verdict is verdict for _, each in named) for verdict in Verdict}
    begin = f"{len(named)} pair{'' if len(named) == 1 else 's'}"
    begin += f" (and {left_out} reservations that are not kept)" if left_out else ""
    parts = [
        f"{counts[verdict]} asked for {verdict}"
        for verdict in (Verdict.TOO_LITTLE, Verdict.TOO_MUCH)
        if counts[verdict]
    ]
    if (figure := figure_for_all([each for _, each in named])) is not None and len(named) > 1:
        parts.append(f"{figure} for each is enough")
    words = "; ".join((", ".join((begin, *parts)), *_worst(named)))
    return words if len(words) <= LONGEST else words[: LONGEST - 3] + "..."


def figure_for_all(found: Sequence[PairAdvice]) -> int | None:
    """The rate that every one of these pairs could ask for, whole Mb/s; None where nothing is known of any. Of one of
    which nothing is known what it asked for counts."""
    if all(each.advised is None for each in found):
        return None
    counted = [each for each in found if each.reason is not PairReason.INSIDE]
    return max(math.ceil(each.asked) if each.advised is None else each.advised for each in counted)


def _worst(named: Sequence[tuple[str, PairAdvice]]) -> list[str]:
    """The pair that misses most of what it needs, else the one that has most to spare, else the first."""

    def order(each: tuple[str, PairAdvice]) -> tuple[int, float]:
        _, found = each
        ratio = 1.0 if found.advised is None else found.advised / found.asked
        ranks = {Verdict.TOO_LITTLE: 0, Verdict.TOO_MUCH: 1, Verdict.ENOUGH: 2, Verdict.UNKNOWN: 3}
        return ranks[found.verdict], -ratio if found.verdict is Verdict.TOO_LITTLE else ratio

    return [f"{name}: {found.sentence}" for name, found in [min(named, key=order)]] if named else []


def _why_not(use: PairUse) -> tuple[PairReason, str]:
    if use.inside:
        return PairReason.INSIDE, "both ends are on one worker, so it needs no link"
    if not use.counted:
        return PairReason.NOT_COUNTED, "its queue was not counted"
    if use.settled / 1000 < LEAST_SECONDS:
        at = f" at {use.kbps / KILO:g} Mb/s" if use.settled < use.counted else ""
        return PairReason.TOO_SHORT, f"counted for {use.settled / 1000:.0f} seconds{at}, too short for advice"
    return PairReason.NONE, ""


def _asked(asked: float, least: float, steady: bool) -> str:
    rate = f"{asked:g}" if asked == least else f"{least:g} to {asked:g}"
    return f"asked for {'steady ' if steady else ''}{rate} Mb/s"


def _used(seen: Seen, steady: bool) -> str:
    used = f"used {shown(seen.most)} at most" if seen.most else "used nothing"
    # Above its rate a flow that is not steady waits for what others leave, and not for its reservation.
    held = throttling(seen.throttled) if steady or not seen.throttled else _waited(seen.throttled)
    lost = f", lost {seen.dropped:,} packets in its queue" if seen.dropped else ""
    return f"{used}, {held}{lost}"


def _waited(throttled: float) -> str:
    return "packets " + throttling(throttled).replace("throttled", "waited")


def _figure(verdict: Verdict, advised: int | None, bounded_by: str, seen: Seen, steady: bool) -> str:
    if verdict is Verdict.TOO_LITTLE and bounded_by:
        return f"ask for {advised}, the most that {bounded_by}"
    if verdict is Verdict.TOO_LITTLE:
        certain = "" if steady or seen.throttled >= OFTEN else " to have that for certain"
        return f"ask for {advised}{certain}"
    return f"{advised} is {'enough' if verdict is Verdict.TOO_MUCH else 'right'}"

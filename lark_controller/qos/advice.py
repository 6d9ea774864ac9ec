"""Advice on a job's RequestBandwidth: what it asked for, against what it used and lost. Pure.

Rates are Mb/s of L2 frame bytes. A job that was throttled shows what it was allowed, not what it would have used, so
its figure is a guess upwards, by a factor that grows with the share of time (``docs/design/accounting.md``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from lark_controller.accounting.usage import JobUsage
from lark_controller.policies.model import BandwidthMode, HostBandwidth

# Seconds of counting below which there is no advice: three readings at the default interval.
LEAST_SECONDS: Final = 30.0
# The factor above the highest rate: within the seconds that it is a mean of, the rate goes up and down.
ROOM: Final = 1.15
# Of what counts of a request: less than this is worth asking for, and a rate above this was more than asked for. Queues
# let a burst pass, and a mean may have that in it.
SPARE: Final = 0.8
ABOVE: Final = 1.05
# Shares of time. A job that is throttled less than the first may ask for less; from the second on it should for more.
RARELY: Final = 0.01
OFTEN: Final = 0.05
# The share of packets that a job may have lost in its queues, and still ask for less.
FEW: Final = 0.001
# The factor for a job that is throttled: at no time, and at half of the time and more.
LEAST_FACTOR: Final = 1.25
MOST_FACTOR: Final = 2.0


class Verdict(StrEnum):
    """The comparison of what a job asked for with what it used."""

    ENOUGH = "enough"
    TOO_MUCH = "too much"
    TOO_LITTLE = "too little"
    UNKNOWN = "unknown"


class Reason(StrEnum):
    """The reason why nothing can be compared."""

    NONE = ""
    NO_NETWORK = "no network"
    NOT_COUNTED = "not counted"
    TOO_SHORT = "too short"
    NEVER_LIMITED = "never limited"


class Rates(NamedTuple):
    """Rates to the job and from it, Mb/s."""

    inward: float = 0.0
    outward: float = 0.0


STILL: Final = Rates()


class Request(NamedTuple):
    """A job's request and its meaning: what it asked for (Mb/s; None or 0: nothing), the policy's rule for it (None:
    its request is not enforced), and the capacity of its worker's link (Mb/s, None where it is not known)."""

    asked: float | None
    rule: HostBandwidth | None = None
    link: float | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice for one job.

    ``counts`` is what counted of its request, by default and maximum of the policy (None: nothing limited it). ``mean``
    is over the ``seconds`` that were counted, ``highest`` what it kept up for some seconds. ``throttled`` is a share of
    the time. ``advised`` is the RequestBandwidth to ask for, whole Mb/s; ``bounded_by`` has the word for what keeps it
    from being more. ``sentence`` has all that. ``wan_bytes_in`` and ``wan_bytes_out`` are the WAN's part of its use
    (None: not counted).
    """

    verdict: Verdict
    reason: Reason
    sentence: str
    asked: float | None
    mode: BandwidthMode | None = None
    counts: float | None = None
    advised: int | None = None
    bounded_by: str = ""
    seconds: float = 0.0
    mean: Rates = STILL
    highest: Rates = STILL
    throttled: float = 0.0
    dropped_in: int = 0
    dropped_out: int = 0
    so_far: bool = False
    wan_bytes_in: int | None = None
    wan_bytes_out: int | None = None


def advice(request: Request, used: JobUsage | None, since: float, attached: bool = True) -> Advice:
    """The advice for a job that was registered at ``since`` (seconds since 1970) and used so much (None: not counted);
    ``attached`` is False for one without a network."""
    asked = request.asked or None
    rule = request.rule
    mode = None if rule is None else rule.mode
    counts = asked if rule is None else rule.rate(asked)
    if not attached:
        return Advice(Verdict.UNKNOWN, Reason.NO_NETWORK, "it has no network", asked, mode, counts)
    if used is None:
        sentence = "nothing is known of its use: the policy does not count it, or it is not kept any more"
        return Advice(Verdict.UNKNOWN, Reason.NOT_COUNTED, sentence, asked, mode, counts)
    seen = _seen(used, since)
    verdict, reason, figure = judged(counts, seen)
    most, by = _most(request)
    advised, bounded_by = figure, ""
    if figure is not None and most is not None and figure > most:
        advised, bounded_by = max(1, most), by
    words = _sentence(asked, rule, counts, seen, verdict, reason, advised, bounded_by)
    return Advice(
        verdict=verdict,
        reason=reason,
        sentence=words,
        asked=asked,
        mode=mode,
        counts=counts,
        advised=advised,
        bounded_by=bounded_by,
        seconds=seen.seconds,
        mean=seen.mean,
        highest=seen.highest,
        throttled=seen.throttled,
        dropped_in=used.usage.rate_drops_in,
        dropped_out=used.usage.rate_drops_out,
        so_far=not used.final,
        wan_bytes_in=used.usage.wan_bytes_in,
        wan_bytes_out=used.usage.wan_bytes_out,
    )


class Seen(NamedTuple):
    """Use in the terms that advice is made of; rates in Mb/s."""

    seconds: float
    mean: Rates
    highest: Rates
    throttled: float
    dropped: int
    few_dropped: bool
    refused: int = 0

    @property
    def most(self) -> float:
        """The highest rate in either direction: a request holds for both."""
        return max(self.highest)


def _seen(used: JobUsage, since: float) -> Seen:
    usage, seconds = used.usage, max(0.0, used.at - since)
    means = [8 * count / seconds / 1e6 if seconds else 0.0 for count in (usage.bytes_in, usage.bytes_out)]
    highest = [max(mean, peak / 1e6) for mean, peak in zip(means, used.peak, strict=True)]
    dropped = usage.rate_drops_in + usage.rate_drops_out
    return Seen(
        seconds=seconds,
        mean=Rates(*means),
        highest=Rates(*highest),
        # Drops of the port's device count the whole time between two readings, beside that of the queue.
        throttled=min(1.0, usage.throttled / 1000 / seconds) if seconds else 0.0,
        dropped=dropped,
        few_dropped=dropped <= FEW * (usage.packets_in + usage.packets_out),
        refused=usage.policy_drops_in + usage.policy_drops_out,
    )


def judged(counts: float | None, seen: Seen) -> tuple[Verdict, Reason, int | None]:
    """The verdict on what ``counts`` of a request, and the figure before it is bounded."""
    if seen.seconds < LEAST_SECONDS:
        return Verdict.UNKNOWN, Reason.TOO_SHORT, None
    fits = rounded_up(seen.most * ROOM)
    if counts is None:
        return Verdict.UNKNOWN, Reason.NEVER_LIMITED, fits
    if seen.throttled >= OFTEN:
        return Verdict.TOO_LITTLE, Reason.NONE, max(fits, rounded_up(counts * factor(seen.throttled)))
    if seen.most > ABOVE * counts:
        return Verdict.TOO_LITTLE, Reason.NONE, max(fits, math.ceil(counts))
    if seen.throttled < RARELY and seen.few_dropped and fits <= SPARE * counts:
        return Verdict.TOO_MUCH, Reason.NONE, fits
    return Verdict.ENOUGH, Reason.NONE, max(math.ceil(counts), math.ceil(seen.most))


def factor(throttled: float) -> float:
    """The factor by which a job that was throttled such a share of the time should ask for more."""
    return LEAST_FACTOR + (MOST_FACTOR - LEAST_FACTOR) * min(1.0, 2 * throttled)


def rounded_up(rate: float) -> int:
    """A rate, at least 1, rounded up: to 1 below 20, to 5 below 100, then to two digits."""
    whole = max(1, math.ceil(rate))
    if whole < 20:
        return whole
    step = 5 if whole < 100 else 10 ** (len(str(whole)) - 2)
    return -(-whole // step) * step


def _most(request: Request) -> tuple[int | None, str]:
    """The most to ask for, in whole Mb/s (None: anything), and the words for its reason."""
    rule = request.rule
    bounds = [] if request.link is None else [(request.link, "its worker's link carries")]
    if rule is not None:
        bounds += [(each, "the policy allows") for each in (rule.maximum, rule.ceiling) if each is not None]
    if not bounds:
        return None, ""
    most, by = min(bounds)
    return math.floor(most), by


def _sentence(
    asked: float | None,
    rule: HostBandwidth | None,
    counts: float | None,
    seen: Seen,
    verdict: Verdict,
    reason: Reason,
    advised: int | None,
    bounded_by: str,
) -> str:
    begin = _asked(asked, rule, counts)
    if reason is Reason.TOO_SHORT:
        return f"{begin}; counted for {seen.seconds:.0f} seconds, too short for advice"
    used = f"used {shown(seen.most)} at most" if seen.most else "used nothing"
    lost = f", lost {seen.dropped:,} packets in its queues" if seen.dropped else ""
    # No rate helps against these; without them a blocked job seems to have had all that it wanted.
    packets = "1 packet" if seen.refused == 1 else f"{seen.refused:,} packets"
    lost += f", had {packets} dropped by the policy's rules" if seen.refused else ""
    facts = f"{begin}, {used}, {throttling(seen.throttled)}{lost}" if rule is not None else f"{begin}, {used}{lost}"
    if reason is Reason.NEVER_LIMITED:
        # Queues of what it has reserved, or its part of what comes in, may have held it back.
        limit = "no rate of its own" if seen.throttled else "no rate" if seen.refused else "nothing"
        return f"{facts}: {limit} limited it; for what it used {advised} would be enough"
    if verdict is Verdict.TOO_LITTLE and bounded_by:
        return f"{facts}: ask for {advised}, the most that {bounded_by}"
    if verdict is Verdict.TOO_LITTLE:
        borrowed = rule is not None and rule.borrows and seen.throttled < OFTEN
        return f"{facts}: ask for {advised}" + (" to have that for certain" if borrowed else "")
    return f"{facts}: {advised} is enough" if verdict is Verdict.TOO_MUCH else f"{facts}: {advised} is right"


def _asked(asked: float | None, rule: HostBandwidth | None, counts: float | None) -> str:
    if counts is None:
        return "asked for nothing"
    if rule is None:
        return f"asked for {counts:g} Mb/s, which nothing enforced"
    what = "guaranteed " if rule.borrows else ""
    if asked is None:
        return f"asked for nothing, had the default of {what}{counts:g} Mb/s"
    part = f" of which the policy counts {counts:g}" if counts < asked else ""
    return f"asked for {what}{asked:g} Mb/s" + (f",{part}" if part else "")


def throttling(throttled: float) -> str:
    """A share of the time in words."""
    if not throttled:
        return "never throttled"
    percent = math.floor(100 * throttled + 1e-9)
    return f"throttled {percent} % of the time" if percent else "throttled less than 1 % of the time"


def shown(rate: float) -> str:
    """A rate as a sentence has it."""
    return f"{rate:.0f}" if rate >= 9.95 else f"{rate:.2g}"

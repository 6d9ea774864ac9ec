"""Delivered against promised: whether a guarantee was missed while there was something to send. Pure.

A queue that sent less than it was promised may have had nothing to send. Where somebody looks after the queue on its
host, the time decides for which packets were found waiting in it. Where nobody looks, packets that were dropped before
it do, or more bytes that came to it than left it. (These miss a TCP that gets less and so sends less, and they blame a
queue that held back a moment's burst and was idle after it.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

# A queue: the port's name and the number, or whose it is and the queue's name.
Key = TypeVar("Key", bound=tuple[str, str | int])

# Of what was promised, what counts as delivered: rates are kept within some 2 %, and looked at for a while only.
DELIVERED: Final = 0.95
# Of the time between two looks, for how much packets must have been waiting.
WAITED: Final = 0.8
# Seconds between two looks at least; and bytes that may come and not have left yet, as seconds of what is promised.
SHORTEST: Final = 5.0
UNDER_WAY: Final = 0.5


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters of a queue at a moment (``at`` in seconds): bytes that left it, packets dropped before it, bytes
    that flows sent to it (None: not known), and seconds in which packets were found waiting (None: nobody looks)."""

    at: float
    sent: int
    dropped: int
    offered: int | None = None
    waited: float | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """The delivery of a queue's guarantee between two readings; ``promised`` and ``delivered`` are bits a second.

    ``missed`` is True where less was delivered although there was more to send.
    """

    promised: int
    delivered: int
    seconds: float
    missed: bool


def at_both(before: Mapping[Key, int], now: Mapping[Key, int]) -> dict[Key, int]:
    """The guarantees in force from one reading to the next, by port and queue; of a guarantee that changed, the lesser
    one."""
    return {key: min(before[key], least) for key, least in now.items() if key in before}


def deliveries(
    before: Mapping[Key, Counters],
    now: Mapping[Key, Counters],
    promised: Mapping[Key, int],
) -> Iterator[tuple[Key, Delivery]]:
    """The delivery of each guarantee (bits a second, by port and queue); queues that were made anew are left out."""
    for key, least in promised.items():
        first, last = before.get(key), now.get(key)
        if first is None or last is None or least == 0:
            continue
        seconds, sent = last.at - first.at, last.sent - first.sent
        if seconds < SHORTEST or sent < 0 or last.dropped < first.dropped:
            continue
        delivered = round(sent * 8 / seconds)
        missed = delivered < DELIVERED * least and _had_more(first, last, least)
        yield key, Delivery(least, delivered, seconds, missed)


def _had_more(first: Counters, last: Counters, least: int) -> bool:
    if first.waited is not None and last.waited is not None and last.waited >= first.waited:
        return last.waited - first.waited >= WAITED * (last.at - first.at)
    if last.dropped > first.dropped:
        return True
    if first.offered is None or last.offered is None:
        return False
    left_behind = (last.offered - first.offered) - (last.sent - first.sent)
    return left_behind * 8 > least * UNDER_WAY

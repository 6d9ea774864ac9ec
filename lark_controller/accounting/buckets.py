"""Time buckets: how use is added up by minute, hour and day, for how long each is kept, and which answers a question.

Every use goes into a bucket of each width at once, so that a day is the sum of its hours whatever has been removed
since. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from lark_controller.accounting.entry import Entry
from lark_controller.accounting.usage import NOTHING, Usage

MINUTE: Final = 60
HOUR: Final = 3_600
DAY: Final = 86_400
WIDTHS: Final = (MINUTE, HOUR, DAY)
NAMES: Final = {"minute": MINUTE, "hour": HOUR, "day": DAY}

# The longest stretch that is added up from buckets of a width, where the question leaves the width open.
_FINE: Final = 6 * HOUR
# Use is spread over the minutes between two readings, or over the last so many seconds.
_SPREAD: Final = 15 * MINUTE
_MIDDLE: Final = 62 * DAY


class Subject(NamedTuple):
    """The subject of some use: ``kind`` is group, user or host; ``group`` is set for users, who may be in several."""

    kind: str
    name: str
    group: str


class Bucket(NamedTuple):
    """A subject's use in one bucket; ``start`` in seconds since 1970, ``seconds`` its width."""

    subject: Subject
    seconds: int
    start: int
    usage: Usage


def subjects(entry: Entry) -> Iterator[Subject]:
    """The subjects that a job's use is charged to."""
    yield Subject("group", entry.group, entry.group)
    yield Subject("user", entry.user, entry.group)
    yield Subject("host", entry.host, "")


def buckets(entries: Iterable[Entry]) -> list[Bucket]:
    """The new use of some jobs, added up by subject and bucket, in an order that is the same for the same keys.

    Use is spread evenly over the time between the readings that it was counted by: what is written once in a minute, at
    any second of it, is then in neither minute alone.
    """
    minutes: dict[tuple[Subject, int], Usage] = {}
    for entry in entries:
        if entry.new == NOTHING:
            continue
        parts = list(_by_minute(entry))
        for subject in subjects(entry):
            for start, new in parts:
                place = (subject, start)
                minutes[place] = new if (known := minutes.get(place)) is None else known.plus(new)
    sums: dict[tuple[Subject, int, int], Usage] = {}
    for (subject, start), new in minutes.items():
        for seconds in WIDTHS:
            key = (subject, seconds, start - start % seconds)
            sums[key] = new if (known := sums.get(key)) is None else known.plus(new)
    # Two writers that change the same rows in the same order cannot lock each other out.
    return [Bucket(*key, usage.kept()) for key, usage in sorted(sums.items())]


def _by_minute(entry: Entry) -> Iterator[tuple[int, Usage]]:
    """The new use by the minutes that it was counted in; all of it, whatever is rounded."""
    begun = max(min(entry.begun, entry.at), entry.at - _SPREAD)
    minute, last = (int(at) - int(at) % MINUTE for at in (begun, entry.at))
    # In whole numbers: what is left for the minutes to come then has no part either that is more than its whole.
    whole, counted = max(1, _micros(entry.at - begun)), NOTHING
    while minute < last:
        passed = min(whole, _micros(minute + MINUTE - begun))
        until = Usage(*(value * passed // whole for value in entry.new))
        if (new := until.minus(counted).bounded()) != NOTHING:
            yield minute, new
        minute, counted = minute + MINUTE, counted.plus(new)
    if (new := entry.new.minus(counted)) != NOTHING:
        yield last, new


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)


def width_for(start: float, end: float, chosen: str | None) -> int:
    """The width whose buckets answer for a stretch of time, in seconds: the one that is wanted, else one that fits."""
    if chosen is not None:
        return NAMES[chosen]
    if end - start <= _FINE:
        return MINUTE
    return HOUR if end - start <= _MIDDLE else DAY

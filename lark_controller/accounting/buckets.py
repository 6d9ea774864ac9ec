"""Time buckets: how use is added up by minute, hour and day, for how long each is kept, and which answers a question.

Every use goes into a bucket of each width at once, so that a day is the sum of its hours whatever has been removed
since. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from operator import sub
from typing import Final, NamedTuple, TypeAlias

from lark_controller.accounting.columns import added
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


# A subject as plain values, the sums of a usage, and those that are still to be added up, by subject and start.
_Who: TypeAlias = tuple[str, str, str]
_Sums: TypeAlias = tuple[int, ...]
_Parts: TypeAlias = dict[tuple[_Who, int], list[_Sums]]


def buckets(entries: Iterable[Entry]) -> list[Bucket]:
    """The new use of some jobs, added up by subject and bucket, in an order that is the same for the same keys.

    Use is spread evenly over the time between the readings that it was counted by: what is written once in a minute, at
    any second of it, is then in neither minute alone.
    """
    users: _Parts = {}
    minutes: _Parts = {}
    for entry in entries:
        user, host = ("user", entry.user, entry.group), ("host", entry.host, "")
        for start, new in _by_minute(entry):
            users.setdefault((user, start), []).append(new)
            minutes.setdefault((host, start), []).append(new)
    # A user is in a group, so the sums of groups are those of their users.
    for (user, start), use in added(users).items():
        minutes.setdefault((("group", user[2], user[2]), start), []).append(use)
        minutes[user, start] = [use]
    sums: dict[tuple[_Who, int], _Parts] = {}
    for (subject, start), use in added(minutes).items():
        for seconds in WIDTHS:
            of = sums.setdefault((subject, seconds), {})
            of.setdefault((subject, start - start % seconds), []).append(use)
    # Two writers that change the same rows in the same order cannot lock each other out.
    return [
        Bucket(Subject(*subject), seconds, start, Usage(*use).kept())
        for (subject, seconds), of in sorted(sums.items())
        for (_, start), use in sorted(added(of).items())
    ]


def _by_minute(entry: Entry) -> Iterable[tuple[int, _Sums]]:
    """The new use by the minutes that it was counted in; all of it, whatever is rounded."""
    if not any(entry.new):
        return ()
    whole, passed, last = _minutes(entry.begun, entry.at)
    if not passed:
        return ((last, entry.new),)
    if len(passed) > 1 or not entry.new.is_bounded():
        return _by_minutes(entry.new, whole, passed, last)
    # No part of these two is more than its whole: each is rounded the same way as that.
    (first, millionths), *_ = passed
    before = tuple([value * millionths // whole for value in entry.new])
    after = tuple(map(sub, entry.new, before))
    return [(minute, some) for minute, some in ((first, before), (last, after)) if any(some)]


def _by_minutes(new: Usage, whole: int, passed: Iterable[tuple[int, int]], last: int) -> Iterator[tuple[int, Usage]]:
    counted = NOTHING
    for minute, millionths in passed:
        until = Usage(*(value * millionths // whole for value in new))
        if (some := until.minus(counted).bounded()) != NOTHING:
            yield minute, some
        counted = counted.plus(some)
    if (rest := new.minus(counted)) != NOTHING:
        yield last, rest


# All jobs of a switch were read at the same time.
@lru_cache(maxsize=64)
def _minutes(begun: float, at: float) -> tuple[int, tuple[tuple[int, int], ...], int]:
    """The length of a stretch in microseconds, each of its minutes but the last with how much of it has passed by its
    end, and the last."""
    begun = max(min(begun, at), at - _SPREAD)
    minute, last = (int(each) - int(each) % MINUTE for each in (begun, at))
    # In whole numbers: what is left for the minutes to come then has no part either that is more than its whole.
    whole = max(1, _micros(at - begun))
    return (
        whole,
        tuple((each, min(whole, _micros(each + MINUTE - begun))) for each in range(minute, last, MINUTE)),
        last,
    )


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)


def width_for(start: float, end: float, chosen: str | None) -> int:
    """The width whose buckets answer for a stretch of time, in seconds: the one that is wanted, else one that fits."""
    if chosen is not None:
        return NAMES[chosen]
    if end - start <= _FINE:
        return MINUTE
    return HOUR if end - start <= _MIDDLE else DAY

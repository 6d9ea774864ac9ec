"""Time buckets: how use is added up by minute, hour and day, for how long each is kept, and which answers a question.

Every use goes into a bucket of each width at once, so that a day is the sum of its hours whatever has been removed
since. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache, partial
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias

from lark_controller.accounting.entry import Entry
from lark_controller.accounting.lanes import fraction, is_bounded, packed, share, unpacked
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


_bucket: Final[Callable[[Iterable[Any]], Bucket]] = partial(tuple.__new__, Bucket)
# The new use of subjects by the start of a bucket, as lanes.
_Starts: TypeAlias = dict[int, int]


def buckets(entries: Iterable[Entry]) -> list[Bucket]:
    """The new use of some jobs, added up by subject and bucket, in an order that is the same for the same keys.

    Use is spread evenly over the time between the readings that it was counted by: what is written once in a minute, at
    any second of it, is then in neither minute alone.
    """
    users: dict[tuple[str, str], _Starts] = {}
    hosts: dict[str, _Starts] = {}
    for entry in entries:
        new = _by_minute(entry)
        if not new:
            continue
        key = entry.user, entry.group
        if (user := users.get(key)) is None:
            user = users[key] = {}
        if (host := hosts.get(entry.host)) is None:
            host = hosts[entry.host] = {}
        for start, lanes in new:
            user[start] = user.get(start, 0) + lanes
            host[start] = host.get(start, 0) + lanes
    # A user is in a group, so the sums of groups are those of their users.
    groups: dict[str, _Starts] = {}
    for (_, group), some in users.items():
        of = groups.setdefault(group, {})
        for start, lanes in some.items():
            of[start] = of.get(start, 0) + lanes
    # Two writers that change the same rows in the same order cannot lock each other out.
    return [
        *chain.from_iterable(_of_widths(Subject("group", name, name), groups[name]) for name in sorted(groups)),
        *chain.from_iterable(_of_widths(Subject("host", name, ""), hosts[name]) for name in sorted(hosts)),
        *chain.from_iterable(_of_widths(Subject("user", *key), users[key]) for key in sorted(users)),
    ]


def _of_widths(subject: Subject, minutes: _Starts) -> Iterator[Bucket]:
    for seconds in WIDTHS:
        sums: _Starts = {}
        for minute, lanes in minutes.items():
            start = minute - minute % seconds
            sums[start] = sums.get(start, 0) + lanes
        for start in sorted(sums):
            yield _bucket((subject, seconds, start, unpacked(sums[start])))


def _by_minute(entry: Entry) -> Sequence[tuple[int, int]]:
    """The new use, as lanes, by the minutes that it was counted in; all of it, whatever is rounded."""
    rest = packed(entry.new)
    if not rest:
        return ()
    passed, last = _minutes(entry.begun, entry.at)
    if not passed:
        return ((last, rest),)
    if not is_bounded(rest):
        return _bounded_by_minute(entry.new, passed, last)
    whole, counted, found = rest, 0, []
    for minute, part, _ in passed:
        until = share(whole, part)
        if some := until - counted:
            # Of the first minute no part is more than its whole: each is rounded the same way as that.
            if counted and not is_bounded(some):
                return _bounded_by_minute(entry.new, passed, last)
            found.append((minute, some))
        counted = until
    if rest := whole - counted:
        found.append((last, rest))
    return found


def _bounded_by_minute(new: Usage, passed: Iterable[tuple[int, int, Fraction]], last: int) -> list[tuple[int, int]]:
    """The same, where a part is more than its whole, or becomes more by rounding: that goes to a later minute."""
    counted, found = NOTHING, []
    for minute, _, part in passed:
        until = Usage(*(value * part.numerator // part.denominator for value in new))
        if (some := until.minus(counted).bounded()) != NOTHING:
            found.append((minute, packed(some)))
        counted = counted.plus(some)
    if (rest := new.minus(counted)) != NOTHING:
        found.append((last, packed(rest)))
    return found


# All jobs of a switch were read at the same time, and those of some dozen switches are written together.
@lru_cache(maxsize=256)
def _minutes(begun: float, at: float) -> tuple[tuple[tuple[int, int, Fraction], ...], int]:
    """Each minute of a stretch but the last with how much of it has passed by its end, for lanes and as it is, and the
    last."""
    begun = max(min(begun, at), at - _SPREAD)
    minute, last = (int(each) - int(each) % MINUTE for each in (begun, at))
    # In whole numbers: what is left for the minutes to come then has no part either that is more than its whole.
    whole = max(1, _micros(at - begun))
    ends = [(each, min(whole, _micros(each + MINUTE - begun))) for each in range(minute, last, MINUTE)]
    return tuple((each, fraction(passed, whole), Fraction(passed, whole)) for each, passed in ends), last


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)


def width_for(start: float, end: float, chosen: str | None) -> int:
    """The width whose buckets answer for a stretch of time, in seconds: the one that is wanted, else one that fits."""
    if chosen is not None:
        return NAMES[chosen]
    if end - start <= _FINE:
        return MINUTE
    return HOUR if end - start <= _MIDDLE else DAY

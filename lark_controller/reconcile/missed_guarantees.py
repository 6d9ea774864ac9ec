"""The guarantees that are missed now, and the lines of the audit trail on each: one at its beginning, one at its end.

For the reconcile loop's thread.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from lark_common.limits import Buckets
from lark_controller.api.audit import AuditEntry, Happening

MISSED: Final = "guarantee missed"
OVER: Final = "guarantee no longer missed"
UNREAD: Final = "guarantee not read"
ACTIONS: Final = (MISSED, OVER, UNREAD)

# A guarantee that goes on being missed is told again once in so many seconds.
TELL_SECONDS: Final = 3600.0
# Readings in a row without a miss after which it is over: a job that sends in bursts has some between two misses.
LOOKS: Final = 2
# Intervals of readings, and seconds beside them, after which it is not known any more whether it is missed.
_UNREAD_INTERVALS: Final = 3.0
_UNREAD_SECONDS: Final = 60.0
# Seconds between two readings of one that a controller before this has told of.
_INTERVAL: Final = 300.0
# All jobs may miss guarantees at a time; older ones are forgotten.
_REMEMBERED: Final = 10_000
# One whose guarantee is missed again and again: so many beginnings at once, and then one in so many seconds.
_BURST: Final = 4
_RATE: Final = 1 / 900
# The same of all places where a job or group has one: a worker names those of its jobs.
_BURST_OF_ALL: Final = 16
_RATE_OF_ALL: Final = 4 / 900
# The group in a line about a core.
_GROUP: Final = re.compile(r"group (\S+?):? ")
# The place in a line.
_PLACE: Final = re.compile(r" at (port .+?|uplink .+? of .+?)(?:: | for [0-9]+ s)")
# A reservation behind an uplink's name.
_RESERVATION: Final = re.compile(r"^(uplink [^ /]+)/\S+")


# Subject, group and place.
_Key = tuple[str, str, str]


class Whose(NamedTuple):
    """The one whose guarantee it is, a job's id or a switch's with a group of its, and the ``place`` of the queue;
    ``called`` is its name in a sentence."""

    subject: str
    group: str = ""
    called: str = ""
    place: str = ""

    @property
    def key(self) -> _Key:
        """Its subject, group and place alone."""
        return self.subject, self.group, self.place


def port_of_switch(port: str) -> str:
    """The place of a queue at a switch, in a sentence."""
    return f"port {port}"


def host_of_uplink(place: str) -> str | None:
    """The worker whose uplink a place is, None of a place at a switch."""
    return place.rpartition(" of ")[2] if place.startswith("uplink ") else None


def uplink_of_worker(queue: str, host: str) -> str:
    """The place of a worker's queue, in a sentence: its uplink, behind whose name there may be a reservation's."""
    return _RESERVATION.sub(r"\1", f"uplink {queue} of {host}")


class Reading(NamedTuple):
    """The last interval (seconds) of all guarantees that one has at a switch or worker: ``missed`` is the sentence on
    one of them that was missed, ``""`` where none was."""

    seconds: float
    missed: str = ""


@dataclass(slots=True)
class _Miss:
    """A missed guarantee that was told, by monotonic time: ``source`` is where it was read last, None where that is not
    known; ``kept`` are its readings in a row without a miss. ``was_read`` is False of one that another controller has
    told, until it is read here."""

    whose: Whose
    source: Hashable | None
    told: float
    read: float
    interval: float
    kept: int = 0
    was_read: bool = True


class MissedGuarantees:
    """The missed guarantees of which the beginning was told, and the end was not."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._of: dict[_Key, _Miss] = {}
        self._at: defaultdict[Hashable, set[_Key]] = defaultdict(set)
        self._limits = Buckets(_RATE, _BURST, clock=clock)
        self._limits_of_all = Buckets(_RATE_OF_ALL, _BURST_OF_ALL, clock=clock)

    def load(
        self,
        entries: Iterable[AuditEntry],
        called: Callable[[str], str],
        source_of: Callable[[Whose], Hashable | None],
    ) -> None:
        """Go on with those that a controller before has told, from its lines, the oldest first; ``called`` is the name
        of a job in a sentence, ``source_of`` where one is read."""
        now = self._clock()
        for entry in entries:
            found = _GROUP.match(entry.detail)
            group = found[1] if found is not None else ""
            at = _PLACE.search(entry.detail)
            place = "" if at is None else _RESERVATION.sub(r"\1", at[1])
            name = f"group {group}" if group else called(entry.subject)
            whose = Whose(entry.subject, group, name, place)
            self._forget(whose.key)
            if entry.action == MISSED:
                self._remember(_Miss(whose, source_of(whose), now, now, _INTERVAL, was_read=False))

    def read(
        self, source: Hashable, found: Mapping[Whose, Reading], promised: Collection[Whose] | None
    ) -> list[Happening]:
        """Take in a reading of the guarantees at a switch or worker; returns what is to be told. ``promised`` are those
        that have one there, with a reading or without; None where that is not known."""
        lines = []
        keys = set()
        for whose, reading in found.items():
            keys.add(whose.key)
            lines += self._read(source, whose, reading)
        if promised is None:
            return lines
        keys.update(each.key for each in promised)
        for key in sorted(self._at.get(source, set()) - keys, key=repr):
            miss = self._of[key]
            miss.kept += 1
            if miss.kept >= LOOKS:
                lines.append(self._over(miss, "it is promised nothing there any more"))
        return lines

    def look(self, is_live: Callable[[str], bool], is_promised: Callable[[Whose], bool]) -> list[Happening]:
        """Find those of jobs that are over, those that the policy does not promise any more (``is_promised``) since the
        controller that has told them, and those that nobody reads any more."""
        lines, now = [], self._clock()
        for miss in list(self._of.values()):
            unread = now - miss.read
            if not miss.whose.group and not is_live(miss.whose.subject):
                lines.append(self._over(miss, "it is over"))
            elif not miss.was_read and not is_promised(miss.whose):
                # Its queue goes as its switch connects, or never: no reading would say so.
                lines.append(self._over(miss, "the policy promises it nothing any more"))
            elif unread > _UNREAD_INTERVALS * miss.interval + _UNREAD_SECONDS:
                self._forget(miss.whose.key)
                words = f"{_where(miss.whose)}: its queue was not read for {unread:.0f} s; whether it gets what it was"
                lines.append(Happening(miss.whose.subject, UNREAD, f"{words} promised is not known"))
        return lines

    def _read(self, source: Hashable, whose: Whose, reading: Reading) -> list[Happening]:
        now, miss = self._clock(), self._of.get(whose.key)
        if miss is None:
            if not reading.missed or self._limits.take(whose.key) or self._limits_of_all.take(whose.key[:2]):
                return []
            self._remember(_Miss(whose, source, now, now, reading.seconds))
            return [Happening(whose.subject, MISSED, reading.missed)]
        self._move(miss, source)
        miss.was_read = True
        miss.whose, miss.read, miss.interval = whose, now, reading.seconds
        if not reading.missed:
            miss.kept += 1
            words = "it gets what it was promised, or has no more to send"
            return [self._over(miss, words)] if miss.kept >= LOOKS else []
        miss.kept = 0
        if now - miss.told < TELL_SECONDS:
            return []
        miss.told = now
        return [Happening(whose.subject, MISSED, reading.missed)]

    def _over(self, miss: _Miss, words: str) -> Happening:
        self._forget(miss.whose.key)
        return Happening(miss.whose.subject, OVER, f"{_where(miss.whose)}: {words}")

    def _remember(self, miss: _Miss) -> None:
        while len(self._of) >= _REMEMBERED:
            self._forget(next(iter(self._of)))
        self._of[miss.whose.key] = miss
        self._at[miss.source].add(miss.whose.key)

    def _move(self, miss: _Miss, source: Hashable) -> None:
        if miss.source != source:
            self._leave(miss)
            miss.source = source
            self._at[source].add(miss.whose.key)

    def _forget(self, key: _Key) -> None:
        miss = self._of.pop(key, None)
        if miss is not None:
            self._leave(miss)

    def _leave(self, miss: _Miss) -> None:
        there = self._at[miss.source]
        there.discard(miss.whose.key)
        if not there:
            del self._at[miss.source]


def _where(whose: Whose) -> str:
    return f"{whose.called} at {whose.place}" if whose.place else whose.called

"""The promises, held against what was seen from outside: the client's log, the database's rows, the switches' flows.

Pure, and without a line of the controller's: :mod:`tests.chaos.evidence` gathers what is judged here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tests.chaos.log import Log

# (kind, width in seconds) of a table of use.
Bucket = tuple[str, int]
# A worker and the name of a port.
Place = tuple[int, str]
# What a table, priority and match are for, and what is done: all that can be seen of a flow, as two texts.
Flows = Mapping[str, str]
# The queues of each port of a worker, as texts.
Queues = Mapping[str, str]


class Promise(StrEnum):
    """The promises that are checked."""

    RUNS = "the controller runs again"
    STANDS = "an acknowledged ad stands"
    ENDS = "an acknowledged end stands"
    KNOWN = "nobody is told that a job which lives is unknown"
    OWNER = "an address has one owner"
    FLOWS = "a switch holds what follows from the live jobs"
    QUEUES = "a worker's database holds the queues of its live jobs"
    CAPACITY = "what is promised on a link is at most what it carries"
    SUMS = "what is reserved of a link is the sum of its reservations"
    RESERVED = "an acknowledged reservation stands"
    RELEASED = "an acknowledged release stands"
    USE = "use is counted once"
    POLICY = "an acknowledged policy is in force"


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept, and where."""

    promise: Promise
    what: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.what}"


@dataclass(frozen=True, slots=True)
class Row:
    """A run in the database; ``name`` is its GlobalJobId, ``marked`` whether its stored ad is the posted one."""

    number: int
    name: str
    id: str
    live: bool
    address: str
    marked: bool
    place: Place


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation in the database: the id of its job, and what it holds of each channel, in kb/s."""

    id: str
    of_job: bool
    kbps: int
    job: str
    holds: Mapping[str, int]


@dataclass(frozen=True)
class Evidence:
    """A look while nothing was asked. ``used`` are bytes from and to a job by its number, ``counted`` those of
    a port since it was made; ``sums`` what the database holds of each table of use, of every column. ``running`` is
    true while a controller answers."""

    rows: tuple[Row, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    reserved: Mapping[str, int] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    used: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    counted: Mapping[Place, tuple[int, int]] = field(default_factory=dict)
    job_sums: tuple[int, ...] = ()
    sums: Mapping[Bucket, tuple[int, ...]] = field(default_factory=dict)
    desired: Mapping[int, Flows] = field(default_factory=dict)
    held: Mapping[int, Flows] = field(default_factory=dict)
    wanted_queues: Mapping[int, Queues] = field(default_factory=dict)
    queues: Mapping[int, Queues] = field(default_factory=dict)
    policy: str = ""
    running: bool = True


def check(log: Log, seen: Evidence, now: float) -> list[Violation]:
    """Every promise that was not kept at a time of the log's clock."""
    return [
        *runs(seen), *ads(log, seen.rows, now), *owners(log, seen.rows), *flows(seen.desired, seen.held),
        *queues(seen.wanted_queues, seen.queues), *links(seen), *reservations(log, seen, now), *use(seen),
        *policy(log, seen.policy),
    ]  # fmt: skip


def runs(seen: Evidence) -> Iterator[Violation]:
    """The controller itself."""
    if not seen.running:
        yield Violation(Promise.RUNS, "its process has ended, or does not answer renewals")


def ads(log: Log, rows: Iterable[Row], now: float) -> Iterator[Violation]:
    """Acknowledged posts and ends."""
    by_name = {row.name: row for row in rows}
    for name, post in log.standing(now).items():
        row = by_name.get(name)
        if row is None:
            yield Violation(Promise.STANDS, f"{name} is not in the database")
        elif not row.live:
            yield Violation(Promise.STANDS, f"{name} has ended, and nobody has ended it")
        elif not row.marked:
            yield Violation(Promise.STANDS, f"{name} has another ad than was posted")
        elif post.said != row.address:
            yield Violation(Promise.STANDS, f"{name} was given {post.said or 'no address'} and has {row.address}")
    for name in sorted(log.gone()):
        if (row := by_name.get(name)) is not None and row.live:
            yield Violation(Promise.ENDS, f"{name} lives, though it was ended or refused")
    for entry in log.denied():
        yield Violation(Promise.KNOWN, f"{entry.asked} of {entry.run}, answered at {entry.answered:.2f}")


def owners(log: Log, rows: Iterable[Row]) -> Iterator[Violation]:
    """Addresses: in the database now, and by what was acknowledged at any time."""
    live = defaultdict(list)
    for row in rows:
        if row.live and row.address:
            live[row.address].append(row.name)
    for address, names in live.items():
        if len(names) > 1:
            yield Violation(Promise.OWNER, f"{address} is in the database that of {' and '.join(names)}")
    held: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for address, name, since, until in log.holdings():
        held[address].append((since, until, name))
    for address, times in held.items():
        # Of each run how far its time reaches; a run's own times may overlap.
        reach: dict[str, float] = {}
        for since, until, name in sorted(times):
            for other, end in reach.items():
                if other != name and end > since:
                    yield Violation(Promise.OWNER, f"{address} was given to {name} and {other} at {since:.2f}")
            reach = {other: end for other, end in reach.items() if end > since}
            reach[name] = max(until, reach.get(name, 0.0))


def flows(desired: Mapping[int, Flows], held: Mapping[int, Flows]) -> Iterator[Violation]:
    """Each switch's flows."""
    for datapath, what in _different(desired, held):
        yield Violation(Promise.FLOWS, f"switch {datapath:x}: {what}")


def queues(desired: Mapping[int, Queues], held: Mapping[int, Queues]) -> Iterator[Violation]:
    """Each worker's queues."""
    for worker, what in _different(desired, held):
        yield Violation(Promise.QUEUES, f"worker {worker}: {what}")


def _different(
    desired: Mapping[int, Mapping[str, str]], held: Mapping[int, Mapping[str, str]]
) -> Iterator[tuple[int, str]]:
    """Differences between the held state and the desired one."""
    for place, wanted in desired.items():
        there = held.get(place, {})
        kinds = {
            "missing": wanted.keys() - there.keys(),
            "too many": there.keys() - wanted.keys(),
            "other": {key for key in wanted.keys() & there.keys() if wanted[key] != there[key]},
        }
        for kind, keys in kinds.items():
            if keys:
                key = min(keys)
                yield place, f"{len(keys)} {kind}, as {key}: {there.get(key)} instead of {wanted.get(key)}"


def links(seen: Evidence) -> Iterator[Violation]:
    """Reservations against sums, and sums against what links carry."""
    total: Counter[str] = Counter()
    for each in seen.reservations:
        total.update(each.holds)
    for channel in sorted(total.keys() | seen.reserved.keys()):
        there = seen.reserved.get(channel, 0)
        if there != total[channel]:
            yield Violation(Promise.SUMS, f"{channel}: {there} kb/s, and its reservations are {total[channel]}")
        most = seen.capacity.get(channel, 0)
        if max(there, total[channel]) > most:
            yield Violation(Promise.CAPACITY, f"{channel}: {max(there, total[channel])} of {most} kb/s")


def reservations(log: Log, seen: Evidence, now: float) -> Iterator[Violation]:
    """Acknowledged reservations, and the RequestBandwidth of jobs that live."""
    ids = {row.id: row for row in seen.rows}
    there = {each.id for each in seen.reservations}
    standing = log.standing(now)
    for reservation, name in log.reserved(standing).items():
        if reservation not in there:
            yield Violation(Promise.RESERVED, f"{reservation} of {name} is not in the database")
    for reservation in sorted(log.released() & there):
        yield Violation(Promise.RELEASED, f"{reservation} is in the database")
    promised = {row.name: each.kbps for each in seen.reservations if each.of_job and (row := ids.get(each.job))}
    for name in standing:
        asked = (log.runs[name].rate or 0) * 1000
        if promised.get(name, 0) != asked:
            yield Violation(Promise.RESERVED, f"{name} asked for {asked} kb/s and has {promised.get(name, 0)}")
    for each in seen.reservations:
        row = ids.get(each.job)
        if row is None or not row.live:
            yield Violation(Promise.RELEASED, f"{each.id} is of a job that does not live")


def use(seen: Evidence) -> Iterator[Violation]:
    """The jobs of a port together have used no more than passed it; and every sum over all jobs is the same."""
    at: dict[Place, list[int]] = defaultdict(lambda: [0, 0])
    places = {row.number: row.place for row in seen.rows}
    for number, amounts in seen.used.items():
        place = places.get(number)
        if place is None:
            yield Violation(Promise.USE, f"job number {number} has used something, and is not in the database")
            continue
        for direction, amount in enumerate(amounts):
            at[place][direction] += amount
    for place, (out, into) in at.items():
        passed = seen.counted.get(place, (0, 0))
        if out > passed[0] or into > passed[1]:
            yield Violation(Promise.USE, f"jobs at {place} have used {out} and {into} bytes of {passed}")
    for bucket, sums in seen.sums.items():
        if sums != seen.job_sums:
            yield Violation(Promise.USE, f"the jobs have used {seen.job_sums}, and by {bucket} it is {sums}")


def policy(log: Log, in_force: str) -> Iterator[Violation]:
    """The policy that was put last."""
    wanted = log.policy()
    if wanted is not None and wanted != in_force:
        yield Violation(Promise.POLICY, "the newest version is another one")

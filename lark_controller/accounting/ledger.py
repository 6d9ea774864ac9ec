"""The accounts of the live jobs: readings come in from switches and workers, usage and rates come out.

No I/O and no clock: times are handed in, in seconds since 1970. One lock; nothing under it takes long, since the
reconcile loop's thread and those of REST both come here.
"""

from __future__ import annotations

import json
import threading
from array import array
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest, nsmallest
from itertools import islice
from math import inf
from operator import add, itemgetter, lt, sub
from typing import Final

from lark_controller.accounting.account import DROPS, FLOWS, HELD, PORT, QUEUES, SIZE, SUMS, WORKER, ZEROS, Account
from lark_controller.accounting.counters import counted
from lark_controller.accounting.drops import Dropping, DropRate, DropSum
from lark_controller.accounting.entry import Entry, entry_of
from lark_controller.accounting.rates import Flowing, Rates
from lark_controller.accounting.readings import CountKind, FlowReading, PortReading, QueueReading, WorkerCounts
from lark_controller.accounting.recent import Recent
from lark_controller.accounting.usage import IDLE, MOST, NOTHING, JobUsage, Rate, Usage
from lark_controller.jobs.job import Job

# A port that is at most this much (seconds) older than its job was made for it, and all that it counted is the job's.
MADE_FOR_IT: Final = 60.0
# Accounts that are gone through before others get the lock.
_AT_ONCE: Final = 200
# Ports of ended jobs whose last reading is kept, for the next job that may come to the same port.
_REMEMBERED: Final = 65_536


# Which sums a flow's (bytes, packets) belong to; drops count packets alone.
_SPLITS: Final[dict[int, tuple[str | None, str]]] = {
    CountKind.WAN_OUT: ("wan_bytes_out", "wan_packets_out"),
    CountKind.WAN_IN: ("wan_bytes_in", "wan_packets_in"),
    CountKind.WAN_IN_IPV6: ("wan_bytes_in", "wan_packets_in"),
    CountKind.DROP_OUT: (None, "policy_drops_out"),
    CountKind.DROP_IN: (None, "policy_drops_in"),
    CountKind.DROP_IN_IPV6: (None, "policy_drops_in"),
}
_PLACES: Final = {name: place for place, name in enumerate(Usage._fields)}
# In the order of PortReading.
_PORT_PLACES: Final = tuple(
    _PLACES[name]
    for name in ("packets_out", "bytes_out", "packets_in", "bytes_in", "rate_drops_out", "rate_drops_in")
)  # fmt: skip
_RATE_PLACES: Final = tuple(_PLACES[name] for name in ("bytes_in", "bytes_out", "wan_bytes_in", "wan_bytes_out"))
_DROPS: Final = tuple(
    _PLACES[name] for name in ("policy_drops_in", "policy_drops_out", "rate_drops_in", "rate_drops_out")
)
_RATE_DROPS: Final = tuple(_PLACES[name] for name in ("rate_drops_in", "rate_drops_out"))
_THROTTLED: Final = _PLACES["throttled"]
# Each part with its whole, in the order of the numbers that are held over.
_PARTS: Final = tuple(
    (_PLACES[f"wan_{name}"], _PLACES[name]) for name in ("bytes_in", "bytes_out", "packets_in", "packets_out")
)
_HELD: Final = {part: HELD + place for place, (part, _) in enumerate(_PARTS)}
_FLOW_PLACES: Final = {
    kind: (None if size is None else _PLACES[size], _PLACES[packets]) for kind, (size, packets) in _SPLITS.items()
}
_WORKER_PLACES: Final = tuple(
    _PLACES[name]
    for name in (
        "wan_bytes_in", "wan_bytes_out", "wan_packets_in", "wan_packets_out", "policy_drops_in", "policy_drops_out"
    )
)  # fmt: skip


class Ledger:
    """All accounts; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._accounts: dict[int, Account] = {}
        self._changed: dict[int, None] = {}
        self._closed: dict[int, None] = {}
        # Accounts with a counter that began anew since their entry was made: what is stored of it is too much.
        self._anew: set[int] = set()
        self._rates: dict[str, Rate] = {}
        self._flowing = Rates()
        self._recent = Recent()
        self._dropping: dict[int, Dropping] = {}
        self._sums: dict[str, Usage] = {}
        # Last readings of ports whose job is over, by datapath and port name.
        self._ports: dict[tuple[int | str | None, str | None], PortReading] = {}
        # The jobs that are over and whose last counters are on their way, by the same.
        self._leaving: dict[tuple[int | str | None, str | None], Account] = {}

    def __len__(self) -> int:
        return len(self._accounts)

    def begin(self, job: Job, treatment: str, readings: str = "", usage: Usage = NOTHING) -> None:
        """Open a job's account, or learn of its new ``treatment`` (the policy's group).

        ``readings`` and ``usage`` are those that were written before, at a start of the controller.
        """
        with self._lock:
            account = self._accounts.get(job.number)
            if account is not None:
                self._rated(account, IDLE, treatment)
                account.place(job)
                return
            account = self._accounts[job.number] = Account(job, treatment)
            before, left = self._leaving.pop(account.port, None), self._ports.pop(account.port, None)
            if before is not None:
                # The reading kept of the port is of a job before that one.
                before.followed = account.follows = True
                left = None
            if readings:
                self._restore(account, readings, usage)
            elif left is not None:
                account.opened()[PORT:FLOWS] = array("Q", left)
                account.started = True

    def has_open(self, number: int) -> bool:
        """True if a job of that number has an account that is not closed."""
        account = self._accounts.get(number)
        return account is not None and not account.final

    def started(self, number: int) -> bool:
        """True if a job's port has been read."""
        account = self._accounts.get(number)
        return account is not None and account.started

    def read(
        self,
        number: int,
        at: float,
        port: PortReading | None,
        flows: Iterable[FlowReading] = (),
        port_age: float | None = None,
    ) -> None:
        """Readings of a job's port and counting flows, taken at the same time.

        ``port_age`` is how long (seconds) the port has been there, None where the switch does not say.
        """
        with self._lock:
            account = self._accounts.get(number)
            if account is None or account.final:
                return
            held = account.opened()[HELD:DROPS]
            before, first, last = account.sums, not account.started, account.last
            if port is not None and not account.reported:
                self._read_port(account, at, port, inf if account.follows else port_age)
            for reading in flows:
                self._read_flow(account, reading)
            _count_parts(account, held if port is not None else None)
            if port is not None:
                self._timed(number, account, at, before, first)
            self._moved(number, account, before, last)
            if first and account.started:
                # The port's counters when the job came must outlive this process.
                self._changed[number] = None

    def queues(self, number: int, reading: QueueReading) -> None:
        """The counts of a job's own queues, in sums that do not fall while the job and this controller live.

        Of queues that went while no controller looked nothing is known; what is left of the sums is where they go on.
        Packets may wait in both directions at once; the longer of the two is the time for which the job was held back.
        """
        with self._lock:
            account = self._accounts.get(number)
            if account is None or account.final:
                return
            numbers, before = account.opened(), account.sums
            new = [max(0, now - old) for old, now in zip(numbers[QUEUES:HELD], reading, strict=True)]
            numbers[QUEUES:HELD] = array("Q", reading)
            _add(numbers, _PLACES["rate_drops_in"], new[0])
            _add(numbers, _PLACES["rate_drops_out"], new[1])
            _add(numbers, _THROTTLED, max(new[2:]))
            self._moved(number, account, before)

    def flow_gone(self, number: int, reading: FlowReading) -> None:
        """Takes the last counters of a counting flow that was removed; one that comes in its place begins at 0."""
        with self._lock:
            account = self._accounts.get(number)
            if account is None or account.final:
                return
            account.opened()
            before = account.sums
            self._read_flow(account, reading)
            self._begin_anew(number, account, reading.kind)
            _count_parts(account, None)
            self._moved(number, account, before)

    def flows_there(self, number: int, at: float, flows: Sequence[FlowReading]) -> None:
        """Notes the counting flows of a job on a switch that has just connected; those that are missing begin at 0."""
        with self._lock:
            account = self._accounts.get(number)
            if account is None or account.final:
                return
            if account.numbers is ZEROS and not flows:
                return
            account.opened()
            before = account.sums
            for reading in flows:
                self._read_flow(account, reading)
            for kind in {*CountKind} - {reading.kind for reading in flows}:
                self._begin_anew(number, account, kind)
            _count_parts(account, None)
            self._moved(number, account, before)

    def report(self, number: int, at: float, report: WorkerCounts, final: bool) -> bool:
        """Takes a worker's counts; False where the job has no open account.

        After a ``final`` report the job's totals are final, and a switch's reading of the port is older.
        """
        with self._lock:
            account = self._accounts.get(number)
            if account is None or account.final or account.reported:
                return False
            held = account.opened()[HELD:DROPS]
            before, first, last = account.sums, not account.started, account.last
            # The worker made the port for this job.
            self._read_port(account, at, report.port, 0.0)
            counts = (*(report.wan or ()), *(report.policy_drops or ()))
            if counts:
                places = _WORKER_PLACES[: len(counts)] if report.wan else _WORKER_PLACES[4:]
                offset = WORKER if report.wan else WORKER + 4
                old = account.numbers[offset : offset + len(counts)]
                new = counted(old, counts)
                if any(map(lt, counts, old)):
                    self._must_be_written(number)
                account.numbers[offset : offset + len(counts)] = array("Q", counts)
                for place, value in zip(places, new, strict=True):
                    _add(account.numbers, _HELD.get(place, place), value)
            _count_parts(account, held)
            account.reported = final
            self._timed(number, account, at, before, first)
            self._moved(number, account, before, last)
            return True

    def quiet(self, numbers: Iterable[int]) -> None:
        """Notes that these jobs have no source of readings now: their rates are unknown, and no longer shown."""
        with self._lock:
            for number in numbers:
                account = self._accounts.get(number)
                if account is not None:
                    self._rated(account, IDLE, account.treatment)
                    self._dropping.pop(number, None)

    def leaves(self, number: int) -> None:
        """The job is over, and its last counters are on their way: the next one may come to its port before them."""
        with self._lock:
            account = self._accounts.get(number)
            if account is not None and not account.final:
                self._leaving[account.port] = account

    def close(self, number: int, at: float) -> None:
        """Closes the account of a job that is over and whose last counters are in."""
        with self._lock:
            account = self._accounts.get(number)
            if account is None or account.final:
                return
            self._rated(account, IDLE, account.treatment)
            self._recent.forget(number)
            self._dropping.pop(number, None)
            account.final = True
            account.at = max(account.at, at)
            self._changed[number] = self._closed[number] = None
            if self._leaving.get(account.port) is account:
                del self._leaving[account.port]
            if account.port_name is not None and account.started and not account.followed:
                while len(self._ports) >= _REMEMBERED:
                    del self._ports[next(iter(self._ports))]
                self._ports[account.port] = PortReading(*account.numbers[PORT:FLOWS])

    # what is known

    def usage(self, number: int) -> JobUsage | None:
        """A job's use; None where it has no account here."""
        with self._lock:
            account = self._accounts.get(number)
            if account is None:
                return None
            return JobUsage(account.usage, account.rate, account.at, account.final)

    def rates(self) -> Mapping[str, Rate]:
        """The rates of all live jobs by the policy's group."""
        with self._lock:
            return dict(self._rates)

    def sums(self) -> Mapping[str, Usage]:
        """The use of the jobs of each group of the policy since this controller's start."""
        with self._lock:
            return dict(self._sums)

    def recent(self, number: int) -> list[tuple[float, Rate]]:
        """A live job's rates at its last readings, each with its time, the oldest first."""
        with self._lock:
            return self._recent.of(number)

    def flowing(self, by: str, limit: int) -> tuple[Flowing, ...]:
        """The rates of live jobs now, by group (AcctGroup), user, host or job: the ``limit`` that move most."""
        if by != "job":
            with self._lock:
                return tuple(self._flowing.most(by, limit))
        with self._lock:
            accounts = list(self._accounts.values())
        busy = [
            (rate.inward + rate.outward, rate, account) for account in accounts if (rate := account.rate) is not IDLE
        ]
        chosen = nlargest(limit, busy, key=itemgetter(0))
        chosen.sort(key=lambda each: (-each[0], each[2].id))
        return tuple(
            Flowing(account.id, rate, 1, account.group, account.user, account.host, account.global_job_id)
            for _, rate, account in chosen
        )

    def dropping(self, limit: int) -> list[Dropping]:
        """The jobs whose packets are dropped now, the ``limit`` with the most."""
        with self._lock:
            found = list(self._dropping.values())
        return nsmallest(limit, found, key=lambda each: (-sum(each.rate), each.job))

    def drop_sum(self) -> DropSum:
        """The number of jobs whose packets are dropped now, and of these packets a second."""
        with self._lock:
            found = list(self._dropping.values())
        return DropSum(len(found), sum(sum(each.rate) for each in found))

    def drops_by_policy(self, numbers: Iterable[int]) -> bool:
        """True if a rule drops packets of one of these jobs now."""
        with self._lock:
            some = [known for number in numbers if (known := self._dropping.get(number)) is not None]
        return any(known.rate.policy_in or known.rate.policy_out for known in some)

    # to be written

    def changed(self) -> list[int]:
        """The numbers of the accounts with unwritten use, those of one host together.

        Jobs of few hosts and many users are few sums; with every host's jobs in every part they would be many.
        """
        with self._lock:
            numbers = list(self._changed)
        known = [(account.host, number) for number in numbers if (account := self._accounts.get(number))]
        return [number for _, number in sorted(known)]

    def ended(self) -> list[int]:
        """The numbers of the accounts that are closed and not written yet."""
        with self._lock:
            return [number for number in self._closed if number in self._accounts]

    def entries(self, numbers: Iterable[int]) -> list[Entry]:
        """The entries to write of some accounts. Those that are not there any more are left out."""
        rest = iter(numbers)
        found: list[Entry] = []
        while part := list(islice(rest, _AT_ONCE)):
            with self._lock:
                found += [entry_of(number, known) for number in part if (known := self._accounts.get(number))]
                self._anew.difference_update(part)
        return found

    def wrote(self, entries: Iterable[Entry]) -> None:
        """Notes that these were written; closed accounts among them are forgotten."""
        rest = iter(entries)
        while part := list(islice(rest, _AT_ONCE)):
            with self._lock:
                for entry in part:
                    self._wrote(entry)

    # inside; the caller holds the lock

    def _wrote(self, entry: Entry) -> None:
        account = self._accounts.get(entry.number)
        if account is None:
            return
        if account.numbers is not ZEROS:
            account.numbers[SUMS:PORT] = array("Q", entry.usage)
        account.unwritten = entry.at
        if entry.final:
            del self._accounts[entry.number]
            self._closed.pop(entry.number, None)
            self._anew.discard(entry.number)
        if entry.final == account.final and account.usage == entry.usage and entry.number not in self._anew:
            self._changed.pop(entry.number, None)

    def _read_port(self, account: Account, at: float, port: PortReading, age: float | None) -> None:
        numbers = account.numbers
        if not account.started and age is not None and age > at - account.created + MADE_FOR_IT:
            # The port was there long before the job; its counts so far are another job's.
            new: Sequence[int] = (0,) * len(port)
        else:
            new = counted(numbers[PORT:FLOWS], port)
        if any(map(lt, port, numbers[PORT:FLOWS])):
            self._must_be_written(account.number)
        account.started = True
        numbers[PORT:FLOWS] = array("Q", port)
        for place, value in zip(_PORT_PLACES, new, strict=True):
            _add(numbers, place, value)

    def _read_flow(self, account: Account, reading: FlowReading) -> None:
        if reading.kind not in _FLOW_PLACES:
            return
        place = FLOWS + 2 * reading.kind
        packets, size = counted(account.numbers[place : place + 2], reading[1:])
        account.numbers[place : place + 2] = array("Q", reading[1:])
        to_bytes, to_packets = _FLOW_PLACES[reading.kind]
        _add(account.numbers, _HELD.get(to_packets, to_packets), packets)
        if to_bytes is not None:
            _add(account.numbers, _HELD[to_bytes], size)

    def _begin_anew(self, number: int, account: Account, kind: int) -> None:
        """The flow that counts ``kind`` is gone; one that comes in its place begins at 0."""
        place = FLOWS + 2 * kind
        if any(account.numbers[place : place + 2]):
            account.numbers[place] = account.numbers[place + 1] = 0
            self._must_be_written(number)

    def _must_be_written(self, number: int) -> None:
        """A counter began anew: a controller that goes on from its last reading would count nothing up to that."""
        self._changed[number] = None
        self._anew.add(number)

    def _timed(self, number: int, account: Account, at: float, before: array[int], first: bool) -> None:
        """Rate and throttled time between this reading and the one before."""
        last, account.at = account.last, at
        elapsed = at - last
        if elapsed <= 0:
            return
        numbers = account.numbers
        if any(numbers[place] != before[place] for place in _RATE_DROPS):
            _add(numbers, _THROTTLED, round(1000 * elapsed))
        rate = Rate(*(round(8 * (numbers[place] - before[place]) / elapsed) for place in _RATE_PLACES)).bounded()
        self._rated(account, rate, account.treatment)
        self._recent.keep(number, at, rate, first)
        dropped = array("Q", (numbers[place] for place in _DROPS))
        if dropped != numbers[DROPS:SIZE]:
            rates = DropRate(*((now - old) / elapsed for old, now in zip(numbers[DROPS:SIZE], dropped, strict=True)))
            self._dropping[number] = Dropping(number, account.id, account.treatment, rates, at)
            numbers[DROPS:SIZE] = dropped
        else:
            self._dropping.pop(number, None)

    def _rated(self, account: Account, rate: Rate, treatment: str) -> None:
        old, new = account.rate, rate if any(rate) else IDLE
        if old is not IDLE:
            self._rates[account.treatment] = self._rates[account.treatment].minus(old)
        if new is not IDLE:
            self._rates[treatment] = self._rates.get(treatment, IDLE).plus(new)
        if old is not IDLE or new is not IDLE:
            self._flowing.change(account.group, account.user, account.host, old, new)
        account.rate, account.treatment = new, treatment

    def _moved(self, number: int, account: Account, before: array[int], last: float | None = None) -> None:
        """Note new use; ``last`` is the time of the reading that it begins at."""
        now = account.sums
        if now == before:
            return
        if before == account.numbers[SUMS:PORT]:
            account.unwritten = account.last if last is None else last
        self._changed[number] = None
        sums = self._sums.get(account.treatment, NOTHING)
        self._sums[account.treatment] = Usage(*map(add, sums, map(sub, now, before)))

    def _restore(self, account: Account, readings: str, usage: Usage) -> None:
        stored = json.loads(readings)
        numbers = account.opened()
        numbers[PORT : PORT + len(stored["counters"])] = array("Q", stored["counters"])
        numbers[:SUMS] = numbers[SUMS:PORT] = array("Q", usage)
        # Earlier versions wrote "reported" as "told".
        reported = stored["reported"] if "reported" in stored else stored["told"]
        account.started, account.reported, account.at = stored["started"], reported, stored["at"]
        account.unwritten = account.at
        numbers[DROPS:SIZE] = array("Q", (numbers[place] for place in _DROPS))


def _count_parts(account: Account, before: array[int] | None) -> None:
    """Count of each part that was read no more than its whole; the rest is held over, as flows may be ahead of ports.

    ``before`` is what was held before a reading that has the wholes too; None where it has not. After such a reading no
    more is held than came with it: packets that were counted and then dropped by a queue never arrive.
    """
    numbers = account.numbers
    for place, (part, whole) in enumerate(_PARTS):
        held = numbers[HELD + place]
        if not held:
            continue
        given = min(held, max(0, numbers[whole] - numbers[part]))
        numbers[part] += given
        rest = held - given
        numbers[HELD + place] = rest if before is None else min(rest, held - before[place])


def _add(numbers: array[int], place: int, value: int) -> None:
    numbers[place] = min(MOST, numbers[place] + value)

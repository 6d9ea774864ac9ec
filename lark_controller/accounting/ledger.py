"""The accounts of the live jobs: readings come in from switches and workers, usage and rates come out.

No I/O and no clock: times are handed in, in seconds since 1970. One lock; nothing under it takes long, since the
reconcile loop's thread and those of REST both come here.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from math import inf
from typing import Final

from lark_common.runs import NetworkType
from lark_controller.accounting.account import (
    DROPS,
    FLOWS,
    HELD,
    PEAK,
    PORT,
    SUMS,
    ZEROS,
    Account,
    keep_highest,
)
from lark_controller.accounting.departed import Departed
from lark_controller.accounting.drops import Dropping, DropSum
from lark_controller.accounting.entry import Entry, entry_of
from lark_controller.accounting.places import (
    RATE_DROPS,
    THROTTLED,
    add_to,
    count_parts,
    drops_of,
    is_as_it_was,
    rate_between,
    read_flow,
    read_port,
    read_queues,
    read_transfers,
    read_worker,
)
from lark_controller.accounting.plain import FlowCounts, PortCounts
from lark_controller.accounting.plain_readings import JobReading, PlainReadings
from lark_controller.accounting.plain_switches import PlainSwitches
from lark_controller.accounting.portions import by_host, parts, portions
from lark_controller.accounting.rates import Flowing, most_moving
from lark_controller.accounting.readings import CountKind, FlowReading, QueueReading, TransferCounts, WorkerCounts
from lark_controller.accounting.shares.steps import Step, is_sound, set_state, state_of
from lark_controller.accounting.shown import Shown
from lark_controller.accounting.stored import restore
from lark_controller.accounting.switch_reading import SwitchReading
from lark_controller.accounting.unwritten import Unwritten
from lark_controller.accounting.usage import IDLE, NOTHING, JobUsage, Rate, Usage
from lark_controller.jobs.job import Job

# A port that is at most this much (seconds) older than its job was made for it, and all that it counted is the job's.
MADE_FOR_IT: Final = 60.0


class Ledger:
    """All accounts; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._accounts: dict[int, Account] = {}
        self._unwritten = Unwritten()
        self._shown = Shown()
        self._departed = Departed()
        self._plain = PlainReadings(self._accounts, self._shown, self._unwritten)
        self._switches = PlainSwitches(self._accounts, self._shown, self._unwritten)
        # The jobs that are over and whose last counters are on their way, by datapath or host, and port name.
        self._leaving: dict[tuple[int | str, str | None], Account] = {}

    def __len__(self) -> int:
        return len(self._accounts)

    def resume(self, job: Job, treatment: str, readings: str = "", usage: Sequence[int] = NOTHING) -> None:
        """Open the account of a job that was there before this start of the controller, with what was written of it."""
        with self._lock:
            account = self._accounts[job.number] = Account(job, treatment)
            if readings:
                restore(account, readings, usage)
            # Until it is read, nothing is known of its rate: what it has moved since its beginning is none.
            account.timed, account.restored = False, True
            if job.network_type is not NetworkType.NONE:
                self._shown.unread.add(job.number)

    def begin(self, job: Job, treatment: str) -> None:
        """Open a job's account, or learn of its new ``treatment`` (the policy's group)."""
        with self._lock:
            account = self._accounts.get(job.number)
            if account is not None:
                self._shown.change(account, treatment)
                self._stay(account)
                port = account.port
                account.place(job)
                if account.port != port:
                    self._shown.leave(account)
                return
            account = self._accounts[job.number] = Account(job, treatment)
            self._departed.resume(account)
            before, left = self._leaving.pop(account.port, None), self._departed.at_port(account.port)
            if before is not None:
                # The reading kept of the port is of a job before that one.
                before.followed = account.follows = True
                left = None
            if left is not None:
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
        port: PortCounts | None,
        flows: Sequence[FlowCounts] = (),
        port_age: float | None = None,
    ) -> None:
        """Readings of a job's port (as a PortReading) and counting flows (each as a FlowReading), taken together; the
        port has been there for ``port_age`` seconds, None where the switch does not say."""
        with self._lock:
            self._read(number, at, port, flows, port_age)

    def read_all(self, at: float, readings: Iterable[JobReading]) -> None:
        """Readings of many jobs at the same time, each as :meth:`read` takes it; of each job one at most."""
        for part in parts(readings):
            with self._lock:
                for number, port, flows, port_age in self._plain.take(at, part):
                    self._read(number, at, port, flows, port_age)

    def read_switch(self, at: float, reading: SwitchReading) -> None:
        """A reading of a switch's jobs, each as :meth:`read` takes it; of each job one at most."""
        for part in reading.parts():
            with self._lock:
                for number, port, flows, port_age in part.jobs(self._switches.take(at, part)):
                    self._read(number, at, port, flows, port_age)

    def states(self, numbers: Iterable[int]) -> list[bytes | None]:
        """The states of these jobs' accounts, from which another may calculate the step to the next reading; None of
        one that may have no plain reading, ``b""`` of one that is not there."""
        with self._lock:
            found = [self._accounts.get(number) for number in numbers]
            return [b"" if account is None else state_of(account) for account in found]

    def take(self, steps: Iterable[tuple[int, bytes, Step]]) -> list[int]:
        """Takes steps of jobs that others have calculated, each from the state that the account was in; returns the
        numbers of those that are in another by now, of which nothing is taken."""
        others = list[int]()
        for part in parts(steps):
            with self._lock:
                others += [number for number, before, made in part if not self._take(number, before, made)]
        return others

    def queues(self, number: int, reading: QueueReading) -> None:
        """The counts of a job's own queues, in sums that do not fall while the job and this controller live."""
        with self._lock:
            account = self._accounts.get(number)
            if account is None or account.final:
                return
            before = account.sums
            read_queues(account.opened(), reading)
            self._moved(number, account, before)

    def flow_gone(self, number: int, reading: FlowReading) -> None:
        """Takes the last counters of a counting flow that was removed; one that comes in its place begins at 0."""
        with self._lock:
            account = self._accounts.get(number)
            if account is None or account.final:
                return
            account.opened()
            before = account.sums
            read_flow(account.numbers, reading)
            self._begin_anew(number, account, reading.kind)
            count_parts(account.numbers, None)
            self._moved(number, account, before)

    def flows_there(self, number: int, flows: Sequence[FlowReading]) -> None:
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
                read_flow(account.numbers, reading)
            for kind in {*CountKind} - {reading.kind for reading in flows}:
                self._begin_anew(number, account, kind)
            count_parts(account.numbers, None)
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
            if report.new_within is not None and account.started and account.unchanged_until(at - report.new_within):
                self._unwritten.note(number)
            before, first, last = account.sums, not account.started, account.last
            # The worker made the port for this job.
            self._read_port(account, at, report.port, 0.0)
            if read_worker(account.numbers, report):
                self._unwritten.begin_anew(number)
            count_parts(account.numbers, held)
            account.reported = final
            self._timed(number, account, at, before, first)
            self._moved(number, account, before, last)
            return True

    def transferred(self, number: int, at: float, moved: TransferCounts, within: float | None) -> bool:
        """Takes a worker's count of a job's transfers, of which all that is new came in the last ``within`` seconds
        (None: not known), and since the last count; False where the job has no open account.

        Sums that are less than they were are those of a worker that has lost some, or of a report that was overtaken:
        they count again once they are more.
        """
        with self._lock:
            account = self._accounts.get(number)
            if account is None or account.final:
                return False
            before = account.sums
            inward, outward = read_transfers(account.opened(), moved)
            seconds = at - (account.moved_at or account.created)
            if within is not None and account.timed:
                seconds = min(seconds, within)
            seconds, account.timed = max(1.0, seconds), True
            rate = account.rate._replace(
                transfer_inward=round(8 * inward / seconds), transfer_outward=round(8 * outward / seconds)
            )
            account.moved_at = at
            self._shown.rated(account, rate, account.treatment)
            self._moved(number, account, before, at - seconds)
            return True

    def quiet(self, numbers: Iterable[int], *, transfers: bool = False) -> None:
        """Notes that reports of these jobs, or of their ``transfers``, have ceased: no rate of them is known but 0."""
        with self._lock:
            self._shown.quiet(self._open(numbers), transfers)

    def lost(self, numbers: Iterable[int]) -> None:
        """Notes that these jobs have no source of readings now: their rates are not known, and no longer shown."""
        with self._lock:
            self._shown.unread.update(self._shown.quiet(self._open(numbers)))

    def uncount(self, numbers: Iterable[int]) -> None:
        """Notes that the policy does not count these jobs any more: their rates are no longer shown."""
        with self._lock:
            self._shown.unread.difference_update(self._shown.quiet(self._open(numbers)))

    def leaves(self, number: int) -> None:
        """Note a job that is over, and whose last counters are on their way: the next one may be at its port first."""
        with self._lock:
            account = self._accounts.get(number)
            if account is not None and not account.final:
                self._leaving[account.port], account.stays = account, False

    def close(self, number: int, at: float) -> None:
        """Closes the account of a job that is over and whose last counters are in."""
        with self._lock:
            account = self._accounts.get(number)
            if account is None or account.final or account.stays:
                return
            self._shown.rated(account, IDLE, account.treatment)
            self._shown.forget(number)
            account.final, account.at = True, max(account.at, at)
            self._unwritten.close(number)
            if self._leaving.get(account.port) is account:
                del self._leaving[account.port]
            self._departed.keep(account)

    # what is known

    def usage(self, number: int) -> JobUsage | None:
        """A job's use; None where it has no account here."""
        with self._lock:
            account = self._accounts.get(number)
            if account is None:
                return None
            unread = number in self._shown.unread
            return JobUsage(account.usage, account.rate, account.latest, account.final, account.peak, unread)

    def unread(self, wanted: Callable[[int], bool] | None = None) -> int:
        """The number of live jobs with a network (of those whose numbers are ``wanted``) whose rates are not known."""
        with self._lock:
            if wanted is None:
                return len(self._shown.unread)
            found = list(self._shown.unread)
        return sum(map(wanted, found))

    def latest(self) -> float:
        """The time of the last reading of any account; 0 where none was read."""
        with self._lock:
            return max((account.at for account in self._accounts.values()), default=0.0)

    def rates(self) -> Mapping[str, Rate]:
        """The rates of all live jobs by the policy's group."""
        with self._lock:
            return self._shown.rates()

    def access_points(self) -> Mapping[str, Rate]:
        """The rates of all live jobs by access point, in lower case."""
        with self._lock:
            return self._shown.flowing.of("access_point")

    def sums(self) -> Mapping[str, Usage]:
        """The use of the jobs of each group of the policy since this controller's start."""
        with self._lock:
            return self._shown.sums()

    def recent(self, number: int) -> list[tuple[float, Rate]]:
        """A live job's rates at its last readings, each with its time, the oldest first."""
        with self._lock:
            return self._shown.recent.of(number)

    def flowing(self, by: str, limit: int, hosts: Collection[str] = ()) -> tuple[Flowing, ...]:
        """The rates of live jobs now, by group (AcctGroup), user, host, access point or job (of these ``hosts`` alone,
        in lower case, where there are any): the ``limit`` that move most."""
        if by != "job":
            with self._lock:
                return tuple(self._shown.flowing.most(by, limit))
        with self._lock:
            accounts = list(self._accounts.values())
        return most_moving(accounts, limit, hosts)

    def dropping(self, limit: int, wanted: Callable[[Dropping], bool] | None = None) -> list[Dropping]:
        """The jobs whose packets are dropped now, the ``limit`` with the most of a kind, the most first (of those that
        are ``wanted``)."""
        with self._lock:
            found = list(self._shown.dropping.values())
        return nsmallest(limit, filter(wanted, found), key=lambda each: (-max(each.rate), each.job))

    def drop_sum(self) -> DropSum:
        """The number of jobs whose packets are dropped now, and of these packets a second."""
        with self._lock:
            found = list(self._shown.dropping.values())
        return DropSum(len(found), sum(sum(each.rate) for each in found))

    def drops_by_policy(self, numbers: Iterable[int]) -> bool:
        """True if a rule drops packets of one of these jobs now."""
        with self._lock:
            some = [known for number in numbers if (known := self._shown.dropping.get(number)) is not None]
        return any(known.rate.policy_in or known.rate.policy_out for known in some)

    # to be written

    def changed(self) -> list[int]:
        """The numbers of the accounts with unwritten use, those of one host together."""
        with self._lock:
            numbers = list(self._unwritten.changed)
        return by_host(numbers, self._accounts)

    def portions(self, most: int) -> Iterator[list[int]]:
        """The same in portions of up to ``most``, each of few hosts and few users: so it is few sums."""
        return portions(self.changed(), self._accounts, most)

    def ended(self) -> list[int]:
        """The numbers of the accounts that are closed and not written yet."""
        with self._lock:
            return [number for number in self._unwritten.closed if number in self._accounts]

    def entries(self, numbers: Iterable[int]) -> list[Entry]:
        """The entries to write of some accounts. Those that are not there any more are left out."""
        found = list[Entry]()
        for part in parts(numbers):
            with self._lock:
                found += [entry_of(number, known) for number in part if (known := self._accounts.get(number))]
                self._unwritten.took(part)
        return found

    def wrote(self, entries: Iterable[Entry]) -> None:
        """Notes that these were written; closed accounts among them are forgotten."""
        for part in parts(entries):
            with self._lock:
                for entry in part:
                    if (account := self._accounts.get(entry.number)) is None:
                        continue
                    self._unwritten.wrote(account, entry)
                    if entry.final and account.final:
                        del self._accounts[entry.number]

    # inside; the caller holds the lock

    def _open(self, numbers: Iterable[int]) -> list[Account]:
        """Those of these accounts that are there and not closed."""
        return [each for number in numbers if (each := self._accounts.get(number)) is not None and not each.final]

    def _read(
        self, number: int, at: float, port: PortCounts | None, flows: Sequence[FlowCounts], port_age: float | None
    ) -> None:
        account = self._accounts.get(number)
        if account is None or account.final:
            return
        if port is not None and is_as_it_was(account, port, flows):
            self._idle(number, account, at)
            return
        held = account.opened()[HELD:DROPS]
        before, first, last = account.sums, not account.started, account.last
        if port is not None and not account.reported:
            self._read_port(account, at, port, inf if account.follows else port_age)
        for reading in flows:
            read_flow(account.numbers, reading)
        count_parts(account.numbers, held if port is not None else None)
        if port is not None:
            self._timed(number, account, at, before, first)
        self._moved(number, account, before, last)
        if first and account.started:
            # The port's counters when the job came must outlive this process.
            self._unwritten.note(number)

    def _take(self, number: int, before: bytes, made: Step) -> bool:
        account = self._accounts.get(number)
        if account is None or state_of(account) != before or not is_sound(before, made):
            return False
        if not made.state:
            self._idle(number, account, made.at)
            return True
        sums, last, peak, dropped = account.sums, account.last, account.peak, tuple(account.numbers[DROPS:PEAK])
        set_state(account, made)
        if account.peak != peak:
            self._unwritten.note(number)
        self._shown.show(account, Rate(*made.rate[:4], *account.rate[4:]), made.at - last, dropped)
        self._moved(number, account, sums, last)
        return True

    def _read_port(self, account: Account, at: float, port: PortCounts, age: float | None) -> None:
        # A port that was there long before the job has counted another job's until now.
        own = account.started or age is None or age <= at - account.created + MADE_FOR_IT
        if read_port(account.numbers, port, counts=own):
            self._unwritten.begin_anew(account.number)
        account.started = True

    def _begin_anew(self, number: int, account: Account, kind: int) -> None:
        """Forget the counts of a flow that counts ``kind`` and is gone; one that comes in its place begins at 0."""
        place = FLOWS + 2 * kind
        if any(account.numbers[place : place + 2]):
            account.numbers[place] = account.numbers[place + 1] = 0
            self._unwritten.begin_anew(number)

    def _stay(self, account: Account) -> None:
        """Keep the account of a job that is there: one that its lease has ended may come back at any time."""
        if account.final:
            self._departed.reopen(account)
            self._unwritten.reopen(account.number)
        elif self._leaving.get(account.port) is account:
            del self._leaving[account.port]
            account.stays = True

    def _idle(self, number: int, account: Account, at: float) -> None:
        """As :meth:`_timed`, where the reading is the one before: so are most of a large pool."""
        if self._stretch(number, account, at, account.numbers) > 0:
            self._shown.idle(account)

    def _timed(self, number: int, account: Account, at: float, before: array[int], first: bool) -> None:
        """Rate and throttled time between this reading and the one before."""
        numbers, restored = account.numbers, account.restored
        elapsed, dropped, known = self._stretch(number, account, at, before), drops_of(numbers), numbers[DROPS:PEAK]
        if restored or elapsed > 0:
            numbers[DROPS:PEAK] = array("Q", dropped)
        if restored or elapsed <= 0:
            return
        if dropped[RATE_DROPS:] != drops_of(before)[RATE_DROPS:]:
            add_to(numbers, THROTTLED, round(1000 * elapsed))
        self._shown.show(account, rate_between(before, numbers, elapsed, account.rate), elapsed, tuple(known), first)

    def _stretch(self, number: int, account: Account, at: float, before: array[int]) -> float:
        """Go on with the stretch of highest rates by a reading; returns the seconds since the one before."""
        last, restored, account.at, account.restored = account.last, account.restored, at, False
        if keep_highest(account.numbers, account.numbers if restored else before, at if restored else last, at):
            self._unwritten.note(number)
        return at - last

    def _moved(self, number: int, account: Account, before: array[int], last: float | None = None) -> None:
        """Note new use; ``last`` is the time of the reading that it begins at."""
        now = account.sums
        if now == before:
            return
        if before == account.numbers[SUMS:PORT]:
            account.unwritten = account.last if last is None else last
        self._unwritten.note(number)
        self._shown.moved(account.treatment, now, before)

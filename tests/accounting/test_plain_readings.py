"""Readings of many jobs that are taken together have the effect of each by itself."""

from __future__ import annotations

from array import array
from operator import add
from typing import Any, Final

from hypothesis import example, given
from hypothesis import strategies as st

from lark_controller.accounting.account import FLOWS, PORT, SUMS, Account
from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.numeric import np
from lark_controller.accounting.plain_switches import PlainSwitches
from lark_controller.accounting.readings import (
    CountKind,
    FlowReading,
    PortReading,
    QueueReading,
    TransferCounts,
    WorkerCounts,
)
from lark_controller.accounting.shown import Shown
from lark_controller.accounting.switch_reading import SwitchReading
from lark_controller.accounting.unwritten import Unwritten
from lark_controller.accounting.usage import Usage
from tests.accounting.test_ledger import job
from tests.fixtures.databases import NOW

# Of two users in two groups, on two hosts.
JOBS: Final = (1, 4, 7, 10)
# Each of the counters goes on by so much; 1 << 63 is more than any sum.
COUNTS: Final = st.sampled_from([0, 0, 1, 9, 3_000_000, 2**40, 2**49, 2**55, 1 << 63])
SIZES: Final = st.sampled_from([0, 700, 2**40, 2**56])
# By which no reading is anything but plain.
FEW: Final = st.sampled_from([0, 0, 1, 9, 3_000_000, 2**40])
FEW_BYTES: Final = st.sampled_from([0, 700, 2**30])
DROPS: Final = st.sampled_from([0, 0, 0, 5])
EVENTS: Final = "anew", "gone", "queues", "moved", "fast", "report", "last", "leaves", "close", "begin", "swap", "lost"


def steps(counts: st.SearchStrategy[int], sizes: st.SearchStrategy[int], *others: str) -> st.SearchStrategy[list[Any]]:
    """Readings of some jobs whose counters go on by so much, and other events."""
    ports = st.tuples(counts, counts, counts, counts, DROPS, DROPS)
    kinds = st.sampled_from([*CountKind, 6, 99])
    flows = st.lists(st.tuples(kinds, st.sampled_from([0, 1, 8]), sizes), max_size=4)
    pauses = st.sampled_from([-1.0, 0.0, 0.001, 3.0, 5.0, 10.0, 10.001])
    reads = st.dictionaries(st.sampled_from(JOBS), st.tuples(ports, flows), min_size=1)
    events = st.tuples(st.sampled_from(others), st.sampled_from(JOBS))
    every = st.tuples(st.just("read"), pauses, reads), events, st.tuples(st.sampled_from(["write", "restart"]))
    return st.lists(st.one_of(*every), max_size=25)


def begin(ledger: Ledger, number: int) -> None:
    ledger.begin(job(number), f"treated_{number % 2}")


def seen(ledger: Ledger) -> list[Any]:
    """All that a ledger shows of its jobs."""
    entries = sorted(ledger.entries(JOBS), key=lambda entry: entry.number)
    for entry in entries:
        # No sum falls below what is written of it, which entries rely on.
        written = ledger._accounts[entry.number].numbers[SUMS:PORT]
        assert entry.usage == Usage(*map(add, written, entry.new))
        assert min(entry.new) >= 0
    return [
        [ledger.usage(number) for number in JOBS], [ledger.recent(number) for number in JOBS], ledger.states(JOBS),
        dict(ledger.rates()), dict(ledger.sums()), dict(ledger.access_points()), ledger.dropping(9),
        [usage.unread for number in JOBS if (usage := ledger.usage(number))], ledger.unread(),
        *(ledger.flowing(by, 9) for by in ("group", "user", "host", "access_point", "job")),
        ledger.changed(), ledger.ended(), entries,
    ]  # fmt: skip


def switch_reading(readings: list[Any]) -> SwitchReading:
    """The same readings, column by column."""
    rows, counted = [], []
    for _, port, flows, _ in readings:
        counts = {kind: counts for kind, *counts in flows}
        rows.append([*port, *(each for kind in CountKind for each in counts.get(kind, (7, 7)))])
        counted.append([True] * len(port) + [kind in counts for kind in CountKind for _ in range(2)])
    numbers, counters = [number for number, *_ in readings], np.array(rows, np.uint64).T.copy()
    return SwitchReading(numbers, counters, np.array(counted).T.copy(), lambda place: readings[place][3])


class Pool:
    """A ledger with some jobs, whose switch reads all of them at a time."""

    def __init__(self, way: str) -> None:
        self.way, self.ledger, self.now = way, Ledger(), NOW
        self.ports = {number: [0] * 6 for number in JOBS}
        self.flows = {number: dict[int, list[int]]() for number in JOBS}
        for number in JOBS[1:]:
            begin(self.ledger, number)

    def read(self, pause: float, more: dict[int, Any]) -> None:
        """Let counters go on, or begin anew where they would be more than there is room for; and read all of these."""
        self.now += pause
        readings: list[Any] = []
        for number, (port, flows) in more.items():
            counted = self.ports[number] = [
                (old + new) % (1 << 64) for old, new in zip(self.ports[number], port, strict=True)
            ]
            for kind, packets, size in flows:
                old = self.flows[number].get(kind, [0, 0])
                self.flows[number][kind] = [(old[0] + packets) % (1 << 64), (old[1] + size) % (1 << 64)]
            found = [(int(kind), *self.flows[number][kind]) for kind in dict.fromkeys(kind for kind, _, _ in flows)]
            readings.append((number, PortReading(*counted), found, self.now - NOW))
        if self.way == "switch":
            self.ledger.read_switch(self.now, switch_reading(readings))
        elif self.way == "together":
            self.ledger.read_all(self.now, readings)
        else:
            for number, counts, found, age in readings:
                self.ledger.read(number, self.now, counts, found, age)

    def restart(self) -> None:
        """Write all, and go on from that as another controller does."""
        entries = self.ledger.entries(JOBS)
        self.ledger = Ledger()
        for entry in entries:
            if not entry.final:
                self.ledger.resume(job(entry.number), f"treated_{entry.number % 2}", entry.readings, entry.usage)

    def step(self, event: str, number: int) -> None:
        ledger, now = self.ledger, self.now
        match event:
            case "anew":
                self.ports[number] = [0] * 6
            case "gone":
                for kind, counts in self.flows[number].items():
                    ledger.flow_gone(number, FlowReading(kind, *counts))
                self.flows[number].clear()
            case "queues":
                ledger.queues(number, QueueReading(max(0, int(now - NOW)), 1, 5, 0))
            case "moved":
                ledger.transferred(number, now, TransferCounts(9, 9, 0, 0, max(0, int(now - NOW))), None)
            case "fast":
                ledger.transferred(number, now, TransferCounts(1 << 60, 9, 0, 0, max(0, int(now - NOW))), 1.0)
            case "swap":
                other = JOBS[JOBS.index(number) - 1]
                self.ports[number], self.ports[other] = self.ports[other], self.ports[number]
            case "report" | "last":
                ledger.report(number, now, WorkerCounts(PortReading(*self.ports[number])), final=event == "last")
            case "leaves":
                ledger.leaves(number)
            case "close":
                ledger.close(number, now)
            case "lost":
                ledger.lost([number])
            case "begin":
                begin(ledger, number)


def play(steps: list[Any], way: str) -> list[Any]:
    """The state of a pool's ledger after each step."""
    pool, states = Pool(way), []
    for step in steps:
        match step:
            case ("read", pause, more):
                pool.read(pause, more)
            case ("write",):
                pool.ledger.wrote(pool.ledger.entries(pool.ledger.changed()))
            case ("restart",):
                pool.restart()
            case (event, number):
                pool.step(event, number)
        states.append(seen(pool.ledger))
    return states


def reading(counts: tuple[int, int, int, int], *flows: tuple[int, int, int], pause: float = 10.0) -> Any:
    """Some of the jobs are read: one whose port goes on by so much, and two that go on as most do."""
    usual = (9, 900, 9, 900, 0, 0), [(CountKind.WAN_IN, 1, 700)]
    return "read", pause, {4: ((*counts, 0, 0), list(flows)), 7: usual, 10: usual}


IDLE: Final = reading((0, 0, 0, 0))
USUAL: Final = reading((9, 900, 9, 900), (CountKind.WAN_OUT, 1, 700))


# Sums that are full, and a highest rate that is none of a network; a counter that goes over its end, by itself and with
# others that begin anew; a WAN's part that comes before the whole; transfers that are too fast; a job that is idle, and
# one whose highest rate is known when it is.
@example([reading((1 << 63, 1 << 63, 1 << 63, 1 << 63)), USUAL, USUAL, ("write",), USUAL])
@example([USUAL, reading((0, 1 << 56, 0, 1 << 56)), USUAL, USUAL])
@example([USUAL, reading((0, (1 << 64) - 1000, 0, 0)), reading((9, 2000, 0, 0)), USUAL])
@example([reading(((1 << 64) - 9,) * 4), reading((20, 20, 20, 20)), USUAL])
@example([reading((1, 9, 1, 9), (CountKind.WAN_OUT, 8, 7000)), reading((0, 0, 0, 0)), USUAL, reading((9, 9000, 9, 9))])
@example([IDLE, IDLE, USUAL, IDLE])
@example([USUAL, ("write",), reading((9, 9000, 9, 9000), pause=3.0), ("write",), reading((0, 0, 0, 0), pause=3.0)])
@example([USUAL, ("fast", 4), USUAL, ("fast", 7), USUAL])
@example([USUAL, reading((9, 9, 9, 9), (CountKind.DROP_IN, 5, 9), pause=0.001), reading((1 << 49,) * 4, pause=0.001)])
@given(st.one_of(steps(COUNTS, SIZES, *EVENTS), steps(FEW, FEW_BYTES, "queues", "moved")))
def test_readings_together_are_each_by_itself(steps: list[Any]) -> None:
    one_by_one = play(steps, "one by one")
    assert play(steps, "together") == one_by_one
    assert play(steps, "switch") == one_by_one


def test_a_reading_that_goes_on_is_taken_by_columns_and_others_one_by_one() -> None:
    """Of a switch whose counters went on; one of its jobs has a port that was made anew, and one has no account."""
    accounts, shown = dict[int, Account](), Shown()
    for number in JOBS[1:]:
        account = accounts[number] = Account(job(number), "")
        account.opened()
        account.started = True
    switches = PlainSwitches(accounts, shown, Unwritten())
    counts: list[tuple[int, Any, list[Any], float]] = [(number, (5, 400, 6, 500, 0, 0), [], 9.0) for number in JOBS]
    assert switches.take(NOW + 60, switch_reading(counts)) == [0]
    assert switches.take(NOW + 70, switch_reading(counts)) == [0]
    counts[2] = (JOBS[2], (4, 300, 5, 400, 0, 0), [], 1.0)
    counts[3] = (JOBS[3], (6, 500, 7, 600, 0, 0), [], 29.0)
    assert switches.take(NOW + 80, switch_reading(counts)) == [0, 2]
    assert [accounts[number].usage.bytes_in for number in JOBS[1:]] == [500, 500, 600]
    assert [accounts[number].at - NOW for number in JOBS[1:]] == [80, 70, 80]
    assert accounts[JOBS[3]].rate.inward == 80
    # The first stretch begins with the job.
    assert accounts[JOBS[2]].peak.inward == round(8 * 500 / (NOW + 60 - job(JOBS[2]).created))
    # A time that is no later is none that a rate could be of.
    assert switches.take(NOW + 80, switch_reading(counts)) == [0, 1, 2, 3]


def test_a_counter_that_goes_over_its_end_is_taken_by_itself() -> None:
    """One whose port is older than the job: its sums are small."""
    account = Account(job(1), "")
    account.opened()[PORT:FLOWS] = array("Q", [(1 << 64) - 9] * 6)
    account.started = True
    switches = PlainSwitches({1: account}, Shown(), Unwritten())
    assert switches.take(NOW + 60, switch_reading([(1, (5, 400, 6, 500, 0, 0), [], 99.0)])) == [0]
    assert account.usage == Usage()

"""Accounts at their edges: counters that begin anew, what is shown of now, what is written, and in which order."""

from __future__ import annotations

import pytest

from lark_controller.accounting import departed
from lark_controller.accounting import recent as recent_module
from lark_controller.accounting.drops import DropRate
from lark_controller.accounting.ledger import MADE_FOR_IT, Ledger
from lark_controller.accounting.queue_sums import JobQueue, QueueSums
from lark_controller.accounting.rates import Rates
from lark_controller.accounting.readings import CountKind, FlowReading, PortReading, QueueReading, WorkerCounts
from lark_controller.accounting.recent import Recent
from lark_controller.accounting.usage import IDLE, MOST, NOTHING, JobUsage, Rate, Usage
from tests.accounting.test_ledger import job, opened, used
from tests.fixtures.databases import NOW


def write(ledger: Ledger) -> list[int]:
    """Write all that is to be written; the numbers that are left."""
    ledger.wrote(ledger.entries(ledger.changed()))
    return ledger.changed()


# -- what is there ----------------------------------------------------------------------------------------------------


def test_what_is_known_of_an_account() -> None:
    ledger = opened()
    assert (len(ledger), ledger.has_open(1), ledger.has_open(2)) == (1, True, False)
    assert (ledger.started(1), ledger.started(2)) == (False, False)
    ledger.read(1, NOW + 10, None, [FlowReading(CountKind.DROP_OUT, 3, 300)])
    assert not ledger.started(1)
    ledger.read(1, NOW + 10, PortReading(0, 0, 0, 0), port_age=1.0)
    assert ledger.started(1)
    ledger.close(1, NOW + 20)
    assert (ledger.has_open(1), ledger.started(1)) == (False, True)
    assert ledger.ended() == [1]
    assert write(ledger) == []
    assert (len(ledger), ledger.ended(), ledger.usage(1)) == (0, [], None)


@pytest.mark.parametrize(
    ("age", "counted"), [(MADE_FOR_IT + 10, 500), (MADE_FOR_IT + 10.5, 0), (None, 500), (0.0, 500)]
)
def test_a_port_a_minute_older_than_its_job_was_made_for_it(age: float | None, counted: int) -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(5, 500, 0, 0), port_age=age)
    assert used(ledger).bytes_out == counted
    ledger.read(1, NOW + 20, PortReading(6, 600, 0, 0), port_age=age)
    assert used(ledger).bytes_out == counted + 100


def test_the_reading_that_is_left_of_a_port_is_the_next_jobs_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(departed, "MOST", 2)
    ledger = Ledger()
    for number in (1, 2, 3):
        ledger.begin(job(number, port=f"p{number}", datapath=1), "g")
        ledger.read(number, NOW + 10, PortReading(number, 100 * number, 0, 0), port_age=1.0)
        ledger.close(number, NOW + 20)
    # The first port is forgotten, so all that it counts is the next job's.
    for number, left in ((1, 0), (2, 200), (3, 300)):
        ledger.begin(job(10 + number, port=f"p{number}", datapath=1), "g")
        ledger.read(10 + number, NOW + 30, PortReading(9, 1000, 0, 0), port_age=1.0)
        assert used(ledger, 10 + number).bytes_out == 1000 - left


# -- what is shown of now ---------------------------------------------------------------------------------------------


def test_rates_are_of_the_time_between_two_readings() -> None:
    ledger = opened()
    ledger.read(1, NOW + 4, PortReading(1, 100, 2, 300), port_age=0.0)
    found = ledger.usage(1)
    assert found is not None
    assert (found.rate, found.at, found.final) == (Rate(600, 200), NOW + 4, False)
    # A second reading of the same moment counts, and gives no rate.
    ledger.read(1, NOW + 4, PortReading(2, 200, 2, 300))
    found = ledger.usage(1)
    assert found is not None
    assert (found.usage.bytes_out, found.rate) == (200, Rate(600, 200))
    ledger.read(1, NOW + 8, PortReading(2, 200, 2, 300))
    assert ledger.rates() == {"group_cms": IDLE}
    assert ledger.recent(1) == [(NOW + 4, Rate(600, 200)), (NOW + 8, IDLE)]


def test_time_is_throttled_while_packets_are_dropped_by_rate() -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(1, 100, 0, 0, 0, 0), port_age=0.0)
    for place, (dropped_in, dropped_out) in enumerate(((1, 0), (1, 0), (1, 2)), 1):
        ledger.read(1, NOW + 10 + 2.5 * place, PortReading(1, 100, 0, 0, dropped_out, dropped_in))
    assert used(ledger).throttled == 5000
    assert (used(ledger).rate_drops_in, used(ledger).rate_drops_out) == (1, 2)


def test_those_that_move_most_are_listed_by_rate_and_id() -> None:
    ledger = Ledger()
    for number, (inward, outward) in enumerate(((10, 0), (0, 30), (20, 10), (0, 0), (5, 5)), 1):
        ledger.begin(job(number, port=f"p{number}"), "g")
        ledger.read(number, NOW + 8, PortReading(1, outward, 1, inward), port_age=0.0)
    found = ledger.flowing("job", 10)
    assert [each.rate.inward + each.rate.outward for each in found] == [30, 30, 10, 10]
    assert [each.name for each in found[:2]] == sorted(each.name for each in found[:2])
    assert [each.name for each in found[2:]] == sorted(each.name for each in found[2:])
    assert {each.jobs for each in found} == {1}
    assert found[0].global_job_id is not None
    assert ledger.flowing("job", 2) == found[:2]
    (by_group,) = ledger.flowing("group", 5)
    assert (by_group.rate, by_group.jobs) == (Rate(35, 45), 4)
    ledger.quiet([1, 2, 99])
    assert [each.jobs for each in ledger.flowing("host", 5)] == [2]


def test_rates_by_subject_have_their_names() -> None:
    rates = Rates()
    rates.change("g", "u", "h", "ap1", (5, 1, 0, 0, 0, 0, 1))
    rates.change("g", "v", "h", "ap1", (1, 6, 0, 0, 0, 0, 1))
    rates.change("f", "u", "i", "ap1", (2, 2, 1, 1, 0, 0, 1))
    assert [(each.name, each.jobs, each.group, each.user, each.host) for each in rates.most("user", 9)] == [
        ("v", 1, "g", "v", None), ("u", 1, "g", "u", None), ("u", 1, "f", "u", None),
    ]  # fmt: skip
    assert [(each.name, each.group, each.host) for each in rates.most("host", 9)] == [
        ("h", None, "h"),
        ("i", None, "i"),
    ]
    assert [(each.name, each.rate) for each in rates.most("group", 1)] == [("g", Rate(6, 7))]
    assert [(each.name, each.jobs, each.group, each.host) for each in rates.most("access_point", 9)] == [
        ("ap1", 3, None, None)
    ]
    assert rates.of("access_point") == {"ap1": Rate(8, 9, 1, 1)}
    rates.change("g", "u", "h", "ap1", (-1, 0, 0, 0, 0, 0, 0))
    assert [each.jobs for each in rates.most("group", 9)] == [2, 1]
    rates.change("f", "u", "i", "ap1", (-2, -2, -1, -1, 0, 0, -1))
    assert [each.name for each in rates.most("group", 9)] == ["g"]


def test_drops_of_now_by_job_and_together() -> None:
    ledger = Ledger()
    for number in (1, 2, 3):
        ledger.begin(job(number, port=f"p{number}"), f"g{number}")
        ledger.read(number, NOW + 10, PortReading(0, 0, 0, 0), port_age=0.0)
    ledger.read(1, NOW + 20, PortReading(0, 0, 0, 0, 0, 10))
    ledger.read(2, NOW + 20, PortReading(0, 0, 0, 0, 40, 0), [FlowReading(CountKind.DROP_IN, 20, 0)])
    ledger.read(3, NOW + 20, PortReading(0, 0, 0, 0), [FlowReading(CountKind.DROP_OUT, 30, 0)])
    found = ledger.dropping(9)
    assert [(each.number, each.group, each.rate, each.at) for each in found] == [
        (2, "g2", DropRate(2, 0, 0, 4), NOW + 20),
        (3, "g3", DropRate(0, 3, 0, 0), NOW + 20),
        (1, "g1", DropRate(0, 0, 1, 0), NOW + 20),
    ]
    assert ledger.dropping(1) == found[:1]
    assert (ledger.drop_sum().jobs, ledger.drop_sum().packets) == (3, 10)
    assert [ledger.drops_by_policy([number]) for number in (1, 2, 3, 4)] == [False, True, True, False]
    assert ledger.drops_by_policy([1, 3])
    # No more drops since: none now. What is over or quiet drops nothing either.
    ledger.read(2, NOW + 30, PortReading(0, 0, 0, 0, 40, 0), [FlowReading(CountKind.DROP_IN, 20, 0)])
    assert [each.number for each in ledger.dropping(9)] == [3, 1]
    ledger.quiet([3])
    ledger.close(1, NOW + 40)
    assert ledger.dropping(9) == []


# -- what is written --------------------------------------------------------------------------------------------------


def test_a_port_that_begins_anew_at_nothing_is_written() -> None:
    """A controller that starts now would count up to 500 for nothing where the switch counted 500 before."""
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(5, 500, 0, 0), port_age=0.0)
    assert write(ledger) == []
    ledger.read(1, NOW + 20, PortReading(5, 0, 0, 0))
    assert ledger.changed() == [1]


def test_a_workers_counter_that_begins_anew_at_nothing_is_written() -> None:
    ledger = opened()
    port = PortReading(5, 500, 0, 0)
    assert ledger.report(1, NOW + 10, WorkerCounts(port, (100, 0, 1, 0), (3, 0)), False)
    assert write(ledger) == []
    assert ledger.report(1, NOW + 20, WorkerCounts(port, (100, 0, 1, 0), (3, 0)), False)
    assert ledger.changed() == []
    assert ledger.report(1, NOW + 30, WorkerCounts(port, (100, 0, 1, 0), (0, 0)), False)
    assert ledger.changed() == [1]
    assert used(ledger) == Usage(0, 500, 0, 5, 0, 0, 0, 0, 3)


def test_drops_alone_are_counted_beside_those_that_came_with_the_wan() -> None:
    ledger = opened()
    port = PortReading(9, 900, 9, 900)
    ledger.report(1, NOW + 10, WorkerCounts(port, (100, 200, 1, 2), (3, 4)), False)
    ledger.report(1, NOW + 20, WorkerCounts(port, None, (5, 7)), False)
    ledger.report(1, NOW + 30, WorkerCounts(port, (150, 260, 2, 4), None), True)
    assert used(ledger) == Usage(900, 900, 9, 9, 150, 260, 2, 4, 5, 7)
    assert not ledger.report(1, NOW + 40, WorkerCounts(port), False)


def test_a_counter_that_began_anew_while_its_entry_was_written_is_written_again() -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(5, 500, 0, 0), port_age=0.0)
    entries = ledger.entries([1])
    ledger.read(1, NOW + 20, PortReading(0, 0, 0, 0))
    ledger.wrote(entries)
    assert ledger.changed() == [1]
    assert write(ledger) == []


def test_use_that_came_while_an_entry_was_written_is_written_next() -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(5, 500, 0, 0), port_age=0.0)
    (entry,) = ledger.entries([1, 99])
    assert (entry.begun, entry.at, entry.since, entry.new, entry.usage) == (
        NOW,
        NOW + 10,
        NOW,
        entry.usage,
        used(ledger),
    )
    ledger.read(1, NOW + 20, PortReading(7, 700, 0, 0))
    ledger.wrote([entry])
    (rest,) = ledger.entries(ledger.changed())
    assert (rest.begun, rest.at, rest.new) == (NOW + 10, NOW + 20, Usage(0, 200, 0, 2))
    ledger.wrote([rest])
    # Of a time without use nothing is written, and the next use begins after it.
    ledger.read(1, NOW + 30, PortReading(7, 700, 0, 0))
    assert ledger.changed() == []
    ledger.read(1, NOW + 40, PortReading(8, 800, 0, 0))
    (last,) = ledger.entries([1])
    assert (last.begun, last.at) == (NOW + 30, NOW + 40)


def test_accounts_are_written_by_host() -> None:
    ledger = Ledger()
    for number, host in ((1, "w2"), (2, "w1"), (3, "w2"), (4, "w1")):
        ledger.begin(job(number, host=host, port=f"p{number}"), "g")
        ledger.read(number, NOW + 10, PortReading(1, 1, 1, 1), port_age=0.0)
    assert ledger.changed() == [2, 4, 1, 3]
    ledger.close(3, NOW + 20)
    ledger.close(1, NOW + 20)
    assert ledger.ended() == [3, 1]
    assert [entry.final for entry in ledger.entries([1, 2])] == [True, False]
    assert [entry.readings == "" for entry in ledger.entries([1, 2])] == [True, False]


def test_a_portion_of_accounts_has_few_users_on_few_hosts() -> None:
    ledger = Ledger()
    for number in range(64):
        placed = job(number, host=f"w{number % 8}", user=f"u{number // 8}@example", port=f"p{number}")
        ledger.begin(placed, "g")
        ledger.read(number, NOW + 10, PortReading(1, 1, 1, 1), port_age=0.0)
    portions = list(ledger.portions(4))
    assert sorted(number for portion in portions for number in portion) == list(range(64))
    for portion in portions:
        entries = ledger.entries(portion)
        assert (len({each.host for each in entries}), len({each.user for each in entries})) == (4, 1)
    assert list(ledger.portions(64)) == [ledger.changed()]


def test_a_close_is_no_earlier_than_the_last_reading() -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(1, 100, 0, 0), port_age=0.0)
    ledger.close(1, NOW + 5)
    found = ledger.usage(1)
    assert found is not None
    assert (found.at, found.final, found.rate) == (NOW + 10, True, IDLE)
    ledger.close(1, NOW + 99)
    assert ledger.usage(1) == found


# -- parts ------------------------------------------------------------------------------------------------------------


def test_queues_of_jobs_are_added_up_by_direction() -> None:
    places = {("e0", 5): JobQueue(1, inward=False), ("v1", 0): JobQueue(1, inward=True)}
    sums = QueueSums()
    assert sums.read(places, {}, {("e0", 5): 1.2345}) == {1: QueueReading(0, 0, 0, 1234)}
    assert sums.read(places, {("v1", 0): 3}, {("e0", 5): 2.0, ("v1", 0): 0.5}) == {1: QueueReading(3, 0, 500, 2000)}
    # The time of one fell: it was made anew, and what it had counted stays.
    assert sums.read(places, {("v1", 0): 3}, {("e0", 5): 0.1, ("v1", 0): 0.5}) == {1: QueueReading(3, 0, 500, 2100)}
    # A queue that is another job's now goes on for that.
    other = {**places, ("e0", 5): JobQueue(2, inward=False)}
    found = sums.read(other, {("v1", 0): 3}, {("e0", 5): 0.1, ("v1", 0): 0.5})
    assert found == {1: QueueReading(3, 0, 500, 2100), 2: QueueReading(0, 0, 0, 100)}


def test_the_longer_wait_is_the_time_for_which_a_job_was_held_back() -> None:
    ledger = opened()
    ledger.queues(1, QueueReading(1, 2, 300, 500))
    ledger.queues(1, QueueReading(1, 2, 900, 600))
    # Sums that fell have nothing new.
    ledger.queues(1, QueueReading(0, 1, 0, 0))
    ledger.queues(1, QueueReading(0, 1, 0, 0))
    assert used(ledger) == Usage(rate_drops_in=1, rate_drops_out=2, throttled=500 + 600)


def test_the_past_of_a_job_is_so_many_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_module, "READINGS", 3)
    monkeypatch.setattr(recent_module, "JOBS", 2)
    recent = Recent()
    for at in range(5):
        recent.keep(1, 1000.0 + at, Rate(at, 2 * at, 3 * at, 4 * at), at == 0)
    assert recent.of(1) == [(1000.0 + at, Rate(at, 2 * at, 3 * at, 4 * at)) for at in (2, 3, 4)]
    recent.keep(2, 7.0, Rate(1), first=True)
    # The third takes the place of the first, which gets it back no more.
    recent.keep(3, 8.0, Rate(1), first=True)
    assert [len(recent.of(number)) for number in (1, 2, 3)] == [0, 1, 1]
    recent.keep(1, 9.0, Rate(1), first=False)
    assert recent.of(1) == []
    recent.forget(2)
    recent.keep(1, 9.0, Rate(1), first=False)
    assert recent.of(1) == [(9.0, Rate(1))]
    recent.forget(99)


def test_sums_are_bounded() -> None:
    big = Usage(MOST, MOST + 1)
    assert (big.kept(), NOTHING.kept()) == (Usage(MOST, MOST), NOTHING)
    assert Usage(MOST).kept() == Usage(MOST)
    parts = Usage(5, 6, 7, 8, 9, 9, 9, 9, 1, 2, 3, 4, 5).bounded()
    assert parts == Usage(5, 6, 7, 8, 5, 6, 7, 8, 1, 2, 3, 4, 5)
    assert JobUsage() == JobUsage(NOTHING, IDLE, 0.0, final=False)
    assert big.minus(Usage(1, 1)).plus(Usage(1, 1)) == big


def test_jobs_that_follow_each_other_on_a_port_whatever_is_noted_first() -> None:
    """The last counters of a job are on their way, or in already, or the job was never here."""
    for late in (False, True):
        ledger = opened(port="p", datapath=1)
        ledger.read(1, NOW + 10, PortReading(5, 500, 0, 0), port_age=1.0)
        if late:
            ledger.leaves(1)
        else:
            ledger.close(1, NOW + 20)
            ledger.leaves(1)
        ledger.leaves(99)
        ledger.begin(job(2, port="p", datapath=1), "g")
        ledger.read(2, NOW + 30, PortReading(7, 700, 0, 0), port_age=1.0)
        assert used(ledger, 2).bytes_out == (0 if late else 200)
        ledger.read(2, NOW + 40, PortReading(8, 800, 0, 0), port_age=1.0)
        assert used(ledger, 2).bytes_out == (100 if late else 300)


def test_a_report_after_a_pause_writes_the_highest_rate_of_before_it() -> None:
    ledger = opened()
    for at, received, within in ((10, 1000, None), (11, 9_000_000, None)):
        ledger.report(1, NOW + at, WorkerCounts(PortReading(1, received, 0, 0), new_within=within), final=False)
    assert write(ledger) == []
    # Nothing is new, and that the rate had ended before is.
    ledger.report(1, NOW + 80, WorkerCounts(PortReading(1, 9_000_000, 0, 0), new_within=1.0), final=False)
    assert ledger.changed() == [1]
    assert write(ledger) == []
    ledger.report(1, NOW + 90, WorkerCounts(PortReading(1, 9_000_000, 0, 0), new_within=1.0), final=False)
    assert ledger.changed() == []

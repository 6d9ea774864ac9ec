"""From readings to usage, by tables and single histories; any sequence is in test_ledger_histories.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import sub
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_controller.accounting import recent
from lark_controller.accounting.counters import counted
from lark_controller.accounting.drops import DropRate, DropSum
from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.rates import Rates
from lark_controller.accounting.readings import (
    CountKind,
    FlowReading,
    PortReading,
    QueueReading,
    WorkerCounts,
)
from lark_controller.accounting.recent import READINGS
from lark_controller.accounting.usage import IDLE, NOTHING, Rate, Usage
from tests.fixtures.databases import NOW, a_run

GIGA = 2**32
WRAPPED = GIGA - 100


def job(number: int = 1, **changes: Any) -> Any:
    return replace(a_run(number, **changes), number=number, created=NOW)


def opened(number: int = 1, **changes: Any) -> Ledger:
    ledger = Ledger()
    ledger.begin(job(number, **changes), "group_cms")
    return ledger


def used(ledger: Ledger, number: int = 1) -> Usage:
    found = ledger.usage(number)
    assert found is not None
    return found.usage


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ((0, 0), (0, 0), (0, 0)),
        ((1, 10), (3, 30), (2, 20)),
        ((5, 50), (2, 20), (2, 20)),  # made anew
        ((5, 0), (2, 0), (2, 0)),
        ((5, 50), (0, 0), (0, 0)),
        ((10, WRAPPED), (20, 50), (10, 150)),  # bytes over 32 bits, packets go on
        ((10, 2**64 - 100), (20, 50), (10, 150)),
        ((10, WRAPPED), (2, 50), (2, 50)),  # both fell: made anew, however large it was
        ((10, 1000), (20, 50), (20, 50)),  # a fall from nowhere near an end is no wrap
        ((WRAPPED, 0, 7), (3, 0, 9), (103, 0, 2)),
        ((WRAPPED, 0), (3, 0), (3, 0)),  # the one that counted anything fell: made anew
        ((10, 3 << 30), (20, 5), (10, (1 << 30) + 5)),  # from the last quarter
        ((10, (3 << 30) - 1), (20, 5), (20, 5)),
        ((10, WRAPPED), (20, (1 << 30) - 1), (10, (1 << 30) + 99)),  # into the first
        ((10, WRAPPED), (20, 1 << 30), (20, 1 << 30)),
        ((10, 1 << 32), (20, 5), (20, 5)),  # more than 32 bits, and nowhere near the end of 64
    ],
)
def test_what_counters_counted_between_two_readings(
    before: tuple[int, ...], now: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert counted(before, now) == expected


def test_a_port_that_was_made_for_the_job_is_the_jobs_from_its_first_packet() -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(3, 300, 2, 200), port_age=11.0)
    assert used(ledger) == Usage(bytes_in=200, bytes_out=300, packets_in=2, packets_out=3)


def test_of_an_old_port_the_job_gets_what_comes_after_the_first_reading() -> None:
    ledger = opened()
    ledger.read(1, NOW, PortReading(1000, 10**6, 1000, 10**6), port_age=86_400.0)
    assert used(ledger) == NOTHING
    ledger.read(1, NOW + 10, PortReading(1003, 10**6 + 300, 1002, 10**6 + 200), port_age=86_410.0)
    assert used(ledger) == Usage(bytes_in=200, bytes_out=300, packets_in=2, packets_out=3)


def test_jobs_that_follow_each_other_on_a_port_add_up_to_its_counters() -> None:
    ledger = opened(port="p1")
    ledger.read(1, NOW + 10, PortReading(10, 1000, 0, 0), port_age=10.0)
    ledger.close(1, NOW + 11)
    ledger.begin(job(2, port="p1", datapath=2, slot="slot1_1@worker0"), "")
    ledger.read(2, NOW + 30, PortReading(15, 1500, 4, 400), port_age=30.0)
    assert used(ledger).bytes_out + used(ledger, 2).bytes_out == 1500
    assert used(ledger, 2) == Usage(bytes_in=400, bytes_out=500, packets_in=4, packets_out=5)


def test_ports_of_one_name_at_two_hosts_are_two_ports() -> None:
    """Jobs on a Linux bridge and behind NAT are at no switch, and each worker names their ports as it likes."""
    ledger = opened(port="p1", datapath=None, host="worker1")
    ledger.read(1, NOW + 10, PortReading(10, 1000, 0, 0), port_age=10.0)
    ledger.close(1, NOW + 11)
    for number, host in ((2, "worker2"), (3, "Worker1")):
        ledger.begin(job(number, port="p1", datapath=None, host=host), "")
        ledger.read(number, NOW + 30, PortReading(15, 1500, 4, 400), port_age=30.0)
    assert used(ledger, 2) == Usage(bytes_in=400, bytes_out=1500, packets_in=4, packets_out=15)
    assert used(ledger, 3) == Usage(bytes_in=400, bytes_out=500, packets_in=4, packets_out=5)


@pytest.mark.parametrize("age", [10.0, 100_000.0])
def test_jobs_that_take_each_others_port_add_up_to_its_counters_though_the_last_ones_are_late(age: float) -> None:
    ledger, port, at = Ledger(), "lark1", NOW
    ledger.begin(job(1, port=port, datapath=1), "")
    ledger.read(1, at, PortReading(0, 1000, 0, 0, 0, 0), port_age=100_000.0)
    ledger.read(1, at, PortReading(0, 2000, 0, 0, 0, 0), port_age=100_000.0)
    ledger.leaves(1)
    ledger.close(1, at)
    for number in (2, 3, 4):
        ledger.begin(job(number, port=port, datapath=1), "")
        ledger.read(number, at, PortReading(0, number * 2000, 0, 0, 0, 0), port_age=age)
        if number > 2:
            # The port was asked for the one before, and then for this one; the first answer is looked at last.
            ledger.read(number - 1, at, PortReading(0, number * 2000, 0, 0, 0, 0), port_age=age)
            ledger.close(number - 1, at)
        ledger.leaves(number)
    ledger.close(4, at)
    assert [used(ledger, number).bytes_out for number in (1, 2, 3, 4)] == [1000, 4000, 2000, 0]


def test_the_jobs_of_some_hosts_alone_are_asked_for() -> None:
    ledger = Ledger()
    for number, host in ((1, "worker1.example"), (2, "Worker2.EXAMPLE")):
        ledger.begin(job(number, host=host), "")
        ledger.read(number, NOW + 10, PortReading(0, 0, 0, 0), port_age=1.0)
        ledger.read(number, NOW + 20, PortReading(10, 10_000_000, 0, 0), port_age=11.0)
    assert {each.host for each in ledger.flowing("job", 9)} == {"worker1.example", "Worker2.EXAMPLE"}
    # A host is the same in any case.
    assert [each.name for each in ledger.flowing("job", 9, {"worker2.example"})] == [job(2).id]
    assert ledger.flowing("job", 9, {"worker3.example"}) == ()


def test_rates_are_between_readings_and_add_up_by_group() -> None:
    ledger = opened()
    ledger.begin(job(2), "group_cms")
    ledger.read(1, NOW + 10, PortReading(0, 0, 0, 0), port_age=1.0)
    ledger.read(1, NOW + 20, PortReading(10, 10_000_000, 10, 5_000_000), [FlowReading(CountKind.WAN_OUT, 5, 4_000_000)])
    ledger.read(2, NOW + 20, PortReading(10, 25_000_000, 0, 0), port_age=1.0)
    found = ledger.usage(1)
    assert found is not None
    assert found.rate == Rate(inward=4_000_000, outward=8_000_000, wan_outward=3_200_000)
    assert ledger.rates() == {"group_cms": Rate(4_000_000, 18_000_000, 0, 3_200_000)}
    assert [(each.name, each.jobs) for each in ledger.flowing("job", 9)] == [(job(1).id, 1), (job(2).id, 1)]
    assert [(each.name, each.jobs) for each in ledger.flowing("job", 1)] == [(job(1).id, 1)]
    assert [each.global_job_id for each in ledger.flowing("job", 1)] == [job(1).run.global_job_id]
    ledger.begin(job(2), "other")
    assert ledger.rates()["group_cms"] == found.rate
    ledger.quiet([1])
    assert ledger.rates()["group_cms"] == IDLE
    assert used(ledger).bytes_out == 10_000_000


def test_those_that_move_most_move_it_either_way() -> None:
    ledger = Ledger()
    for number, received, sent in ((1, 3000, 0), (2, 2500, 2000), (3, 0, 4000), (4, 0, 0)):
        ledger.begin(job(number), "group_cms")
        ledger.read(number, NOW + 10, PortReading(sent // 100, sent, received // 100, received), port_age=10.0)
    assert [each.name for each in ledger.flowing("job", 9)] == [job(number).id for number in (2, 3, 1)]
    assert [each.name for each in ledger.flowing("job", 2)] == [job(number).id for number in (2, 3)]


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0, 0, 1, 7, 10**12]), st.integers(0, 9)), max_size=40))
def test_rates_by_subject_are_those_of_its_jobs_whatever_came_before(changes: list[tuple[int, int, int]]) -> None:
    rates, now = Rates(), dict.fromkeys(range(6), IDLE)
    for number, inward, outward in changes:
        new = Rate(inward, outward)
        old = now[number]
        delta = (*map(sub, new, old), (new != IDLE) - (old != IDLE))
        rates.change(f"g{number % 2}", f"u{number % 3}", f"h{number % 4}", f"a{number % 2}", delta)
        now[number] = new
    for by, letter, count in (("group", "g", 2), ("host", "h", 4), ("access_point", "a", 2)):
        meant: dict[str, list[Rate]] = {}
        for number, rate in now.items():
            if rate != IDLE:
                meant.setdefault(f"{letter}{number % count}", []).append(rate)
        found = rates.most(by, 9)
        assert {each.name: (each.rate.inward, each.rate.outward, each.jobs) for each in found} == {
            name: (sum(rate.inward for rate in some), sum(rate.outward for rate in some), len(some))
            for name, some in meant.items()
        }
        order = [(-each.rate.inward - each.rate.outward, each.name) for each in found]
        assert order == sorted(order)
        assert rates.most(by, 1) == found[:1]
    assert {(each.user, each.group) for each in rates.most("user", 9)} == {
        (f"u{number % 3}", f"g{number % 2}") for number, rate in now.items() if rate != IDLE
    }


def test_a_jobs_last_rates_are_kept_while_it_lives() -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(0, 0, 0, 0), port_age=1.0)
    for turn in range(1, READINGS + 30):
        ledger.read(1, NOW + 10 + 10 * turn, PortReading(turn, turn * 1_250_000, 0, 0))
    kept = ledger.recent(1)
    assert len(kept) == READINGS
    assert {rate for _, rate in kept} == {Rate(outward=1_000_000)}
    times = [at for at, _ in kept]
    assert times == pytest.approx([NOW + 310 + 10 * turn for turn in range(READINGS)], abs=0.01)
    assert ledger.recent(2) == []
    ledger.close(1, NOW + 9999)
    assert ledger.recent(1) == []


def test_of_too_many_jobs_those_that_came_last_have_a_past(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "JOBS", 2)
    kept = recent.Recent()
    for number in (1, 2):
        kept.keep(number, NOW, Rate(number), first=False)
    kept.keep(3, NOW, Rate(3), first=False)
    assert [bool(kept.of(number)) for number in (1, 2, 3)] == [True, True, False]
    kept.keep(4, NOW, Rate(4), first=True)
    kept.keep(1, NOW + 10, Rate(1), first=False)
    assert [bool(kept.of(number)) for number in (1, 2, 3, 4)] == [False, True, False, True]
    assert kept.of(4) == [(NOW, Rate(4))]


def test_drops_by_rate_are_counted_and_timed() -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(5, 500, 5, 500), port_age=1.0)
    ledger.read(1, NOW + 12.5, PortReading(6, 600, 6, 600, 0, 3))
    ledger.read(1, NOW + 20, PortReading(7, 700, 7, 700, 0, 3))
    assert used(ledger)[8:13] == (0, 0, 3, 0, 2500)


def test_what_a_jobs_queues_drop_and_hold_back_is_counted_once() -> None:
    ledger = opened()
    ledger.queues(1, QueueReading(2, 30, 1000, 4000))
    ledger.queues(1, QueueReading(2, 30, 1000, 4000))
    ledger.queues(1, QueueReading(5, 31, 2500, 5000))
    assert used(ledger) == Usage(rate_drops_in=5, rate_drops_out=31, throttled=4000 + 1500)
    (entry,) = ledger.entries(ledger.changed())
    again = Ledger()
    again.resume(job(), "group_cms", entry.readings, entry.usage)
    again.queues(1, QueueReading(5, 31, 2500, 5000))
    assert used(again) == entry.usage
    # A queue went while no controller looked: nothing is counted twice.
    again.queues(1, QueueReading(5, 4, 2500, 1000))
    again.queues(1, QueueReading(5, 7, 2500, 2000))
    assert used(again) == Usage(rate_drops_in=5, rate_drops_out=34, throttled=6500)


def test_a_workers_last_word_closes_the_totals_and_nothing_is_counted_twice() -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(5, 500, 5, 500), port_age=10.0)
    assert ledger.report(1, NOW + 20, WorkerCounts(PortReading(9, 900, 6, 600)), True)
    # The switch's answer was under way; it is older than what the worker said.
    ledger.read(1, NOW + 21, PortReading(8, 800, 6, 600), [FlowReading(CountKind.WAN_OUT, 2, 200)])
    assert used(ledger) == Usage(600, 900, 6, 9, 0, 200, 0, 2)
    assert not ledger.report(1, NOW + 22, WorkerCounts(PortReading(9, 900, 6, 600)), True)
    ledger.close(1, NOW + 23)
    ledger.read(1, NOW + 24, PortReading(10, 1000, 6, 600))
    assert used(ledger) == Usage(600, 900, 6, 9, 0, 200, 0, 2)


def test_a_worker_counts_what_no_switch_sees() -> None:
    ledger = opened()
    report = WorkerCounts(PortReading(9, 900, 6, 600, 1, 2), (400, 500, 4, 5), (7, 8))
    for _ in range(2):
        assert ledger.report(1, NOW + 20, report, False)
    assert used(ledger) == Usage(600, 900, 6, 9, 400, 500, 4, 5, 7, 8, 2, 1, 20_000)
    # A worker whose nftables were made anew counts from 0; the port goes on.
    assert ledger.report(1, NOW + 30, WorkerCounts(PortReading(10, 1000, 6, 600, 1, 2), (0, 100, 0, 1), (0, 0)), True)
    assert used(ledger)[:10] == (600, 1000, 6, 10, 400, 600, 4, 6, 7, 8)


def test_the_counts_of_flows_and_of_a_worker_are_kept_beside_each_other() -> None:
    ledger = opened()
    flows = [FlowReading(kind, 3 + kind, 300) for kind in CountKind]
    ledger.read(1, NOW + 10, PortReading(100, 10_000, 100, 10_000), flows, port_age=10.0)
    ledger.queues(1, QueueReading(1, 2, 3, 4))
    before = used(ledger)
    assert ledger.report(1, NOW + 20, WorkerCounts(PortReading(100, 10_000, 100, 10_000), (0,) * 4, (0, 0)), False)
    ledger.read(1, NOW + 30, PortReading(100, 10_000, 100, 10_000), flows)
    ledger.queues(1, QueueReading(1, 2, 3, 4))
    assert used(ledger) == before


def test_no_part_of_use_is_more_than_its_whole() -> None:
    parts = {"wan_bytes_in": 9, "wan_bytes_out": 1, "wan_packets_in": 9, "wan_packets_out": 1}
    more = Usage(5, 6, 7, 8, **parts)
    bounded = {"wan_bytes_in": 5, "wan_bytes_out": 1, "wan_packets_in": 7, "wan_packets_out": 1}
    assert more.bounded() == Usage(5, 6, 7, 8, **bounded)
    other = Usage(5, 6, 7, 8, wan_bytes_in=1, wan_bytes_out=9, wan_packets_in=1, wan_packets_out=9)
    assert other.bounded() == Usage(5, 6, 7, 8, wan_bytes_in=1, wan_bytes_out=6, wan_packets_in=1, wan_packets_out=8)


def test_a_flow_that_went_is_counted_to_its_end_and_the_next_begins_at_nothing() -> None:
    ledger = opened()
    ledger.read(1, NOW, None, [FlowReading(CountKind.WAN_IN, 5, 500), FlowReading(CountKind.DROP_IN, 3, 300)])
    ledger.flow_gone(1, FlowReading(CountKind.WAN_IN, 7, 700))
    ledger.read(1, NOW, PortReading(0, 0, 16, 1600), [FlowReading(CountKind.WAN_IN, 9, 900)], 0.0)
    assert used(ledger) == Usage(1600, 0, 16, 0, wan_bytes_in=1600, wan_packets_in=16, policy_drops_in=3)


def test_a_flow_may_go_before_anything_was_read_and_is_its_own_jobs_alone() -> None:
    ledger = opened()
    ledger.begin(job(2), "group_cms")
    ledger.flow_gone(1, FlowReading(CountKind.DROP_IN, 7, 700))
    assert used(ledger) == Usage(policy_drops_in=7)
    ledger.begin(job(3), "group_cms")
    assert used(ledger, 2) == used(ledger, 3) == NOTHING


def test_a_switch_that_lost_its_flows_counts_from_nothing_even_when_it_is_past_the_last_reading() -> None:
    ledger = opened()
    ledger.read(1, NOW, None, [FlowReading(CountKind.WAN_IN, 5, 500)])
    ledger.flows_there(1, [])
    ledger.read(1, NOW, PortReading(0, 0, 14, 1400), [FlowReading(CountKind.WAN_IN, 9, 900)], 0.0)
    assert used(ledger).wan_packets_in == 14


def port_made_anew(ledger: Ledger) -> None:
    ledger.read(1, NOW + 20, PortReading(0, 0, 0, 0))


def flow_gone(ledger: Ledger) -> None:
    ledger.flow_gone(1, FlowReading(CountKind.WAN_IN, 5, 500))


def flows_lost(ledger: Ledger) -> None:
    ledger.flows_there(1, [])


def worker_made_anew(ledger: Ledger) -> None:
    ledger.report(1, NOW + 20, WorkerCounts(PortReading(5, 500, 5, 500), (0, 0, 0, 0), (0, 0)), False)


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("begins_anew", [port_made_anew, flow_gone, flows_lost, worker_made_anew])
def test_that_a_counter_began_anew_outlives_the_controller(
    begins_anew: Callable[[Ledger], None], between: bool
) -> None:
    """Also where nothing was counted with it, and while an entry is on its way to the database."""
    ledger = opened()
    ledger.report(1, NOW + 9, WorkerCounts(PortReading(5, 500, 5, 500), (50, 50, 5, 5), (5, 5)), False)
    ledger.read(1, NOW + 10, PortReading(5, 500, 5, 500), [FlowReading(CountKind.WAN_IN, 5, 500)], port_age=10.0)
    first = ledger.entries(ledger.changed())
    if not between:
        ledger.wrote(first)
        assert ledger.changed() == []
    begins_anew(ledger)
    if between:
        ledger.wrote(first)
    (last,) = ledger.entries(ledger.changed())
    assert not any(last.new)
    ledger.wrote([last])
    assert ledger.changed() == []
    ledger.read(1, NOW + 30, PortReading(6, 600, 5, 500), [FlowReading(CountKind.WAN_IN, 6, 600)])
    restarted = Ledger()
    restarted.resume(job(), "group_cms", last.readings, last.usage)
    restarted.read(1, NOW + 30, PortReading(6, 600, 5, 500), [FlowReading(CountKind.WAN_IN, 6, 600)])
    assert used(restarted) == used(ledger)


def test_what_is_written_is_what_is_new_and_a_closed_account_is_forgotten_when_it_is_written() -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(5, 500, 5, 500), port_age=10.0)
    (first,) = ledger.entries(ledger.changed())
    assert (first.new, first.usage, first.final) == (first.usage, Usage(500, 500, 5, 5), False)
    ledger.read(1, NOW + 20, PortReading(6, 600, 5, 500))
    ledger.wrote([first])
    (second,) = ledger.entries(ledger.changed())
    assert second.new == Usage(bytes_out=100, packets_out=1)
    ledger.wrote([second])
    assert ledger.changed() == []
    ledger.close(1, NOW + 30)
    (last,) = ledger.entries(ledger.ended())
    assert (last.new, last.final, last.readings) == (NOTHING, True, "")
    ledger.wrote([last])
    assert len(ledger) == 0
    assert ledger.usage(1) is None


def test_a_part_is_never_more_than_its_whole_though_flows_are_read_ahead_of_ports() -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(10, 1000, 10, 1000), [FlowReading(CountKind.WAN_IN, 12, 1200)], 10.0)
    found = ledger.usage(1)
    assert found is not None
    assert (found.usage.wan_bytes_in, found.rate) == (1000, Rate(800, 800, 800, 0))
    # The rest comes with the next reading, and not into a rate that is more than the port's.
    ledger.read(1, NOW + 20, PortReading(11, 1100, 21, 2100), [FlowReading(CountKind.WAN_IN, 20, 2000)])
    found = ledger.usage(1)
    assert found is not None
    assert (found.usage.wan_bytes_in, found.rate.wan_inward, found.rate.inward) == (2000, 800, 880)
    (entry,) = ledger.entries([1])
    again = Ledger()
    again.resume(job(), "group_cms", entry.readings, entry.usage)
    # Dropped by the job's own queue after it was counted: it never arrives, and local traffic is not taken for it.
    reading: list[FlowReading] = []
    for turn in range(1, 50):
        reading = [FlowReading(CountKind.WAN_IN, 20 + 9 * turn, 2000 + 900 * turn)]
        again.read(1, NOW + 20 + 10 * turn, PortReading(11, 1100, 21, 2100), reading)
    again.read(1, NOW + 1000, PortReading(11, 1100, 90, 9000), reading)
    assert used(again).wan_bytes_in == 2000 + 100 + 900


def test_sums_since_a_start_have_no_part_of_bytes_from_before_it() -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(10, 1000, 0, 0), [FlowReading(CountKind.WAN_OUT, 5, 500)], 10.0)
    (entry,) = ledger.entries([1])
    again = Ledger()
    again.resume(job(), "group_cms", entry.readings, entry.usage)
    # The flow has counted the rest of the same packets by now.
    again.read(1, NOW + 20, PortReading(10, 1000, 0, 0), [FlowReading(CountKind.WAN_OUT, 10, 1000)])
    assert used(again).wan_bytes_out == 1000
    assert again.sums()["group_cms"].is_bounded()
    again.read(1, NOW + 30, PortReading(20, 2000, 0, 0), [FlowReading(CountKind.WAN_OUT, 15, 1500)])
    found = again.sums()["group_cms"]
    assert (found.bytes_out, found.is_bounded()) == (1000, True)


def test_drops_of_now_are_those_between_the_last_two_readings() -> None:
    ledger = opened()

    def read(at: int, dropped: int, port_drops: int = 0) -> None:
        flows = [FlowReading(CountKind.DROP_OUT, dropped, 100 * dropped)]
        ledger.read(1, NOW + at, PortReading(0, 0, 0, 0, 0, port_drops), flows, port_age=1.0)

    read(10, 0)
    assert ledger.dropping(9) == []
    read(20, 500)
    (found,) = ledger.dropping(9)
    assert (found.rate, found.at, found.group) == (DropRate(policy_out=50.0), NOW + 20, "group_cms")
    assert ledger.drop_sum() == DropSum(1, 50.0)
    assert (ledger.drops_by_policy([1]), ledger.drops_by_policy([2])) == (True, False)
    # What queues report comes between readings, and belongs to the next one.
    ledger.queues(1, QueueReading(dropped_in=30))
    read(30, 500)
    assert ledger.dropping(9)[0].rate == DropRate(rate_in=3.0)
    assert not ledger.drops_by_policy([1])
    # A controller that starts again takes what was dropped before for nothing new.
    (entry,) = ledger.entries([1])
    read(40, 500)
    assert ledger.dropping(9) == []
    ledger = Ledger()
    ledger.resume(job(), "group_cms", entry.readings, entry.usage)
    read(40, 500)
    assert ledger.dropping(9) == []
    read(50, 600)
    assert len(ledger.dropping(9)) == 1
    ledger.quiet([1])
    assert ledger.dropping(9) == []
    read(60, 700)
    ledger.close(1, NOW + 61)
    assert ledger.drop_sum() == DropSum(0, 0.0)

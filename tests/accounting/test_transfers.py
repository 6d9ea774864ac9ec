"""The accounts of what HTCondor moves for jobs, and what an account takes no more, or takes first."""

from __future__ import annotations

from dataclasses import replace

from lark_common.runs import RunKey
from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.readings import (
    CountKind,
    FlowReading,
    PortReading,
    QueueReading,
    TransferCounts,
    WorkerCounts,
)
from lark_controller.accounting.usage import MOST, Rate, Usage
from tests.accounting.test_ledger import job, opened, used
from tests.fixtures.databases import NOW


def test_transfers_are_apart_from_the_jobs_own_use_and_go_on_after_a_restart() -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(5, 500, 5, 500), port_age=1.0)
    assert ledger.transferred(1, NOW + 20, TransferCounts(8_000, 400, 5_000, 0, 1500), None)
    assert ledger.transferred(1, NOW + 30, TransferCounts(18_000, 400, 5_000, 0, 2500), 10.0)
    found = ledger.usage(1)
    assert found is not None
    assert found.usage[-5:] == (18_000, 400, 5_000, 0, 2500)
    assert (found.usage.bytes_in, found.rate.transfer_inward, found.rate.transfer_outward) == (500, 8_000, 0)
    # A reading of the port leaves them alone, and so does a switch that goes away.
    ledger.read(1, NOW + 40, PortReading(6, 600, 5, 500))
    ledger.quiet([1])
    assert ledger.rates()["group_cms"] == Rate(transfer_inward=8_000)
    assert ledger.flowing("user", 5)[0].rate.transfer_inward == 8_000
    assert ledger.sums()["group_cms"][-5:] == (18_000, 400, 5_000, 0, 2500)
    (entry,) = ledger.entries(ledger.changed())
    again = Ledger()
    again.resume(job(), "group_cms", entry.readings, entry.usage)
    # A worker that lost a few seconds of its own count has less: nothing is counted twice, and it goes on from there.
    assert again.transferred(1, NOW + 50, TransferCounts(17_000, 400, 5_000, 0, 2400), 10.0)
    assert again.transferred(1, NOW + 60, TransferCounts(20_000, 400, 5_000, 0, 3000), 10.0)
    assert used(again)[-5:] == (20_000, 400, 5_000, 0, 3000)


def test_transfers_of_a_job_without_a_network_are_written_when_they_happened() -> None:
    ledger = opened()
    assert ledger.transferred(1, NOW + 600, TransferCounts(8_000, 0, 0, 0, 1500), 30.0)
    (entry,) = ledger.entries(ledger.changed())
    assert (entry.begun, entry.at, entry.new.transfer_bytes_in) == (NOW + 570, NOW + 600, 8_000)
    ledger.wrote([entry])
    ledger.close(1, NOW + 700)
    assert not ledger.transferred(1, NOW + 800, TransferCounts(9_000, 0, 0, 0, 1500), 30.0)
    assert not ledger.transferred(2, NOW + 800, TransferCounts(9_000, 0, 0, 0, 1500), 30.0)


def test_a_rate_of_transfers_is_over_a_second_at_least_and_since_the_jobs_beginning_at_most() -> None:
    ledger = opened()
    for at, moved, within, rate in (
        (10, TransferCounts(1_000, 500, 0, 0, 1), None, Rate(transfer_inward=800, transfer_outward=400)),
        (20, TransferCounts(2_000, 1_500, 0, 0, 2), 0.25, Rate(transfer_inward=8_000, transfer_outward=8_000)),
        (30, TransferCounts(4_000, 1_500, 0, 0, 3), 2.0, Rate(transfer_inward=8_000)),
    ):
        assert ledger.transferred(1, NOW + at, moved, within)
        found = ledger.usage(1)
        assert found is not None
        assert (found.rate, found.at) == (rate, NOW + at)


def test_a_controller_that_goes_on_from_what_was_written_takes_no_minute_for_a_second() -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(5, 500, 5, 500), port_age=1.0)
    (entry,) = ledger.entries(ledger.changed())
    again = Ledger()
    again.resume(job(), "group_cms", entry.readings, entry.usage)
    # The worker reported two seconds before to another controller, which had not written that yet.
    for at, moved in ((70, 60_000), (72, 62_000)):
        assert again.transferred(1, NOW + at, TransferCounts(moved, 0, 0, 0, 1), 2.0)
        found = again.usage(1)
        assert found is not None
        assert found.rate.transfer_inward == 8_000
    # A worker service that has just started has no time; what is new came since its last report all the same.
    assert again.transferred(1, NOW + 82, TransferCounts(72_000, 0, 0, 0, 1), None)
    found = again.usage(1)
    assert found is not None
    assert found.rate.transfer_inward == 8_000


def test_a_job_that_comes_back_after_its_lease_has_nothing_counted_again() -> None:
    def ended(ledger: Ledger) -> Usage:
        ledger.leaves(1)
        ledger.close(1, NOW + 50)
        entries = ledger.entries(ledger.changed())
        ledger.wrote(entries)
        assert (len(ledger), [each.final for each in entries]) == (0, [True])
        return entries[0].new

    ledger, moved = opened(), TransferCounts(8_000, 400, 5_000, 0, 1500)
    ledger.read(1, NOW + 10, PortReading(5, 500, 5, 500), port_age=1.0)
    ledger.transferred(1, NOW + 20, moved, 10.0)
    ledger.report(1, NOW + 30, WorkerCounts(PortReading(5, 500, 5, 500), wan=(300, 200, 3, 2)), final=False)
    assert ended(ledger)[-5:] == moved
    # Its worker counts on since the job's start, and the first account is in the store.
    ledger.begin(job(), "group_cms")
    ledger.transferred(1, NOW + 60, moved._replace(bytes_in=9_000), None)
    ledger.report(1, NOW + 60, WorkerCounts(PortReading(5, 500, 6, 700), wan=(350, 200, 4, 2)), final=False)
    assert used(ledger)[-5:] == (9_000, 400, 5_000, 0, 1500)
    new = ended(ledger)
    assert new[-5:] == (1_000, 0, 0, 0, 0)
    assert (new.bytes_in, new.bytes_out, new.wan_bytes_in, new.wan_packets_in) == (200, 0, 50, 1)


def test_an_account_of_a_job_that_comes_back_before_it_is_closed_or_written_goes_on() -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(5, 500, 5, 500), port_age=1.0)
    # Back before its last counters.
    ledger.leaves(1)
    ledger.begin(job(), "group_cms")
    ledger.close(1, NOW + 20)
    assert ledger.transferred(1, NOW + 20, TransferCounts(8_000, 0, 0, 0, 1), None)
    # Back before its entry is written, which is under way.
    ledger.leaves(1)
    ledger.close(1, NOW + 30)
    under_way = ledger.entries(ledger.changed())
    assert [each.final for each in under_way] == [True]
    ledger.begin(job(), "group_cms")
    ledger.wrote(under_way)
    assert ledger.transferred(1, NOW + 40, TransferCounts(9_000, 0, 0, 0, 1), None)
    (entry,) = ledger.entries(ledger.changed())
    assert (entry.final, entry.new.transfer_bytes_in, entry.usage.bytes_out) == (False, 1_000, 500)
    assert ledger.ended() == []


def test_what_the_wan_moved_of_transfers_is_a_part_of_them() -> None:
    ledger = opened()
    ledger.transferred(1, NOW + 10, TransferCounts(8_000, 400, 5_000, 300, 1500), None)
    assert used(ledger)[-5:] == (8_000, 400, 5_000, 300, 1500)
    much = Usage(transfer_bytes_in=5, transfer_bytes_out=6, transfer_wan_bytes_in=9, transfer_wan_bytes_out=9)
    assert much.bounded()[-5:] == (5, 6, 5, 6, 0)
    little = Usage(transfer_bytes_in=5, transfer_bytes_out=6, transfer_wan_bytes_in=1, transfer_wan_bytes_out=2)
    assert little.bounded() == little


def test_transfers_count_among_those_that_move_most() -> None:
    ledger = opened()
    for number, moved in ((2, (0, 0)), (3, (700, 0)), (4, (0, 900))):
        ledger.begin(job(number), "group_cms")
        ledger.transferred(number, NOW + 8, TransferCounts(*moved, 0, 0, 1), 8.0)
    ledger.read(1, NOW + 8, PortReading(1, 400, 1, 400), port_age=1.0)
    assert [each.name for each in ledger.flowing("job", 9)] == [job(number).id for number in (4, 1, 3)]
    assert Rate(1, 2, 3, 4, 5, 6).moving == 1 + 2 + 5 + 6
    assert ledger.access_points() == {"schedd.example": Rate(400, 400, 0, 0, 700, 900)}


def test_an_access_point_is_one_in_any_case() -> None:
    ledger = opened()
    ledger.begin(replace(job(2), run=RunKey("Schedd.EXAMPLE#2.0#1", 1, "slot2")), "group_cms")
    for number in (1, 2):
        ledger.read(number, NOW + 8, PortReading(1, 100, 0, 0), port_age=1.0)
    assert ledger.access_points() == {"schedd.example": Rate(outward=200)}


def test_a_count_that_cannot_be_is_bounded() -> None:
    ledger = opened()
    for turn in range(3):
        ledger.transferred(1, NOW + 10 + turn, TransferCounts(MOST + turn, 5, 0, 0, 1), 1.0)
    assert used(ledger).transfer_bytes_in == MOST
    ledger.read(1, NOW + 20, PortReading(1, 2**64 - 1, 1, 7), port_age=1.0)
    assert (used(ledger).bytes_out, used(ledger).bytes_in) == (MOST, 7)
    # 144 PB, of which a database's column of 64 bits has room for many.
    assert 144e15 < MOST < 145e15


def test_a_closed_account_takes_nothing_more() -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(5, 500, 5, 500), port_age=10.0)
    ledger.close(1, NOW + 11)
    before = used(ledger)
    ledger.queues(1, QueueReading(1, 2, 3, 4))
    ledger.flow_gone(1, FlowReading(CountKind.DROP_IN, 7, 700))
    ledger.flows_there(1, [FlowReading(CountKind.DROP_IN, 7, 700)])
    ledger.read(1, NOW + 12, PortReading(9, 900, 5, 500))
    ledger.leaves(1)
    assert not ledger.report(1, NOW + 12, WorkerCounts(PortReading(9, 900, 5, 500)), final=False)
    assert used(ledger) == before
    for number in (2, 99):
        ledger.queues(number, QueueReading(1, 2, 3, 4))
        ledger.flow_gone(number, FlowReading(CountKind.DROP_IN, 7, 700))
        ledger.flows_there(number, [])
        assert ledger.usage(number) is None


def test_a_switch_that_connects_may_have_counted_before_anything_was_read() -> None:
    ledger = opened()
    ledger.flows_there(1, [FlowReading(CountKind.DROP_IN, 7, 700), FlowReading(CountKind.DROP_OUT, 3, 9)])
    assert used(ledger) == Usage(policy_drops_in=7, policy_drops_out=3)
    ledger.flows_there(1, [FlowReading(CountKind.DROP_IN, 8, 800)])
    # The other was missing, and has begun anew.
    ledger.flows_there(1, [FlowReading(CountKind.DROP_IN, 8, 800), FlowReading(CountKind.DROP_OUT, 3, 9)])
    assert used(ledger) == Usage(policy_drops_in=8, policy_drops_out=6)


def test_drops_may_be_those_of_some_jobs() -> None:
    ledger = opened()
    ledger.begin(job(2), "other")
    for number in (1, 2):
        ledger.read(number, NOW + 10, PortReading(0, 0, 0, 0), port_age=1.0)
        ledger.read(number, NOW + 20, PortReading(0, 0, 0, 0, 0, 10 * number))
    assert [each.number for each in ledger.dropping(9)] == [2, 1]
    assert [each.number for each in ledger.dropping(9, lambda each: each.group == "group_cms")] == [1]
    assert [each.number for each in ledger.dropping(1, lambda each: each.number > 0)] == [2]
    assert ledger.dropping(9, lambda each: each.group == "nobody") == []


def test_rates_are_added_part_by_part() -> None:
    one, other = Rate(1, 2, 3, 4, 5, 6), Rate(10, 20, 30, 40, 50, 60)
    assert one.plus(other) == Rate(11, 22, 33, 44, 55, 66)
    assert one.with_transfers_of(other) == Rate(1, 2, 3, 4, 50, 60)
    assert one.moving == 14

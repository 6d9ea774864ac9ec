"""From readings of reserved flows' queues to the use of each pair."""

from __future__ import annotations

import json
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lark_controller.accounting.pairs import MOST_PORTS, PAIRS_OF_JOB, PairLedger, PairUse, key_of
from lark_controller.accounting.readings import FlowQueue
from lark_controller.jobs.job import Job, ReservedFlow
from tests.fixtures.databases import NOW, a_run

PEER = "ab" * 8
MEGA = 125_000  # bytes a second


def flow(
    number: int = 7, kbps: int = 100_000, peer: str | None = PEER, node: str = "worker2", **more: Any
) -> ReservedFlow:
    return ReservedFlow(number, kbps, peer=peer, node=node, **more)


def sending(*flows: ReservedFlow, number: int = 1) -> Job:
    return replace(a_run(number), number=number, host="Worker1", reserved=flows)


def following(*flows: ReservedFlow) -> PairLedger:
    ledger = PairLedger()
    ledger.follow(sending(*(flows or (flow(),))), NOW)
    return ledger


def read(ledger: PairLedger, at: float, sent: int, dropped: int = 0, waited: float = 0.0, number: int = 7) -> None:
    queue = FlowQueue(sent, dropped, round(1000 * waited))
    ledger.read({number: {"eth0": queue}}, NOW + at)


def used(ledger: PairLedger, number: int = 1) -> PairUse:
    (found,) = ledger.of_job(number) or ()
    return found


def test_a_pair_has_what_its_queue_sent_dropped_and_held_back() -> None:
    ledger = following()
    assert used(ledger) == PairUse(PEER, "worker2", "", False, False, 100_000, 100_000, at=NOW)
    read(ledger, 10, 20 * MEGA, dropped=2)
    read(ledger, 20, 20 * MEGA + 340 * MEGA, dropped=2, waited=3)
    read(ledger, 30, 400 * MEGA, dropped=5, waited=4)
    found = used(ledger)
    assert (found.sent, found.dropped, found.counted, found.settled) == (400 * MEGA, 5, 30_000, 30_000)
    assert (found.throttled, found.peak, found.peak_millis, found.at) == (4_000, 34_000_000, 10_000, NOW + 30)
    assert not found.final


def test_nothing_is_kept_of_jobs_that_have_reserved_nothing() -> None:
    ledger = PairLedger()
    for number in range(1, 1001):
        ledger.follow(sending(number=number), NOW)
        # Another job's flow to it is that job's.
        ledger.follow(sending(ReservedFlow(number, 1000, incoming=True), number=number), NOW)
        ledger.close(number, NOW)
    assert len(ledger) == 0
    assert ledger.of_job(1) is None
    assert not ledger.has(1)
    assert ledger.changed() == []


def test_the_highest_rate_is_of_stretches_of_five_seconds_and_more() -> None:
    ledger = following()
    # A burst of a second is none.
    for at, sent in ((1, 1000), (2, 1000), (3, 1000), (4, 1000), (5, 1010)):
        read(ledger, at, sent * MEGA)
    assert (used(ledger).peak, used(ledger).peak_millis) == (202_000_000, 5_000)
    read(ledger, 15, 1110 * MEGA)
    assert used(ledger).peak == 202_000_000


def test_a_flow_at_two_uplinks_is_one_pair() -> None:
    ledger = following()
    queues = {"eth0": FlowQueue(10 * MEGA, 1, 4_000), "eth1": FlowQueue(5 * MEGA, 2, 6_000)}
    ledger.read({7: queues}, NOW + 10)
    # At both at once it was held back no longer than the longer of the two.
    assert (used(ledger).sent, used(ledger).dropped, used(ledger).throttled) == (15 * MEGA, 3, 6_000)


def test_a_worker_that_names_ports_without_end_fills_no_memory() -> None:
    for ledger in (following(), PairLedger()):
        ledger.follow(sending(flow()), NOW, {7})
        for time in range(3):
            many = {f"{time}-{port}": FlowQueue(10) for port in range(1000)}
            ledger.read({7: many}, NOW + time)
            (entry,) = ledger.entries([(1, PEER)])
            assert len(json.loads(entry.readings)["queues"]) == MOST_PORTS
    # A port that is read again and again is kept among others that come and go.
    ledger = following()
    for time in range(3 * MOST_PORTS):
        ledger.read({7: {"eth0": FlowQueue(100), f"veth{time}": FlowQueue(0)}}, NOW + time)
    assert used(ledger).sent == 100


def test_a_queue_that_was_made_anew_counts_from_0_and_so_does_a_worker_service_that_has_started_again() -> None:
    ledger = following()
    read(ledger, 10, 100, dropped=10, waited=5)
    read(ledger, 20, 30, dropped=1, waited=1)
    assert (used(ledger).sent, used(ledger).dropped, used(ledger).throttled) == (130, 11, 6_000)
    read(ledger, 30, 40, dropped=1, waited=0.5)
    assert (used(ledger).sent, used(ledger).dropped, used(ledger).throttled) == (140, 11, 6_500)


def test_counts_that_a_reading_lacks_stay_as_they_were() -> None:
    ledger = following()
    ledger.read({7: {"eth0": FlowQueue(50, None, None)}}, NOW + 5)
    read(ledger, 10, 100, dropped=10, waited=5)
    ledger.read({7: {"eth0": FlowQueue(200, None, None)}}, NOW + 20)
    read(ledger, 30, 300, dropped=11, waited=6)
    assert (used(ledger).sent, used(ledger).dropped, used(ledger).throttled) == (300, 11, 6_000)
    # Of a flow that had sent before, nothing is known until the first one.
    late = PairLedger()
    late.follow(sending(flow()), NOW, {7})
    late.read({7: {"eth0": FlowQueue(50, None, None)}}, NOW + 5)
    read(late, 10, 60, dropped=10, waited=5)
    read(late, 20, 70, dropped=12, waited=6)
    assert (used(late).sent, used(late).dropped, used(late).throttled) == (20, 2, 1_000)


def test_throttled_time_is_that_at_the_highest_rate() -> None:
    ledger = following(flow(kbps=50_000))
    read(ledger, 10, 0, waited=9)
    assert (used(ledger).settled, used(ledger).throttled) == (10_000, 9_000)
    ledger.follow(sending(flow(kbps=100_000)), NOW + 15)
    assert (used(ledger).kbps, used(ledger).least) == (100_000, 50_000)
    # The reading in which the rate has changed is of both.
    read(ledger, 20, 0, waited=18)
    assert (used(ledger).settled, used(ledger).throttled) == (0, 0)
    read(ledger, 30, 0, waited=19)
    assert (used(ledger).settled, used(ledger).throttled) == (10_000, 1_000)
    ledger.follow(sending(flow(kbps=20_000)), NOW + 30)
    read(ledger, 40, 0, waited=29)
    read(ledger, 50, 0, waited=39)
    found = used(ledger)
    assert (found.kbps, found.least, found.settled, found.throttled) == (100_000, 20_000, 10_000, 1_000)
    assert found.counted == 50_000


def test_a_flow_that_becomes_steady_begins_to_be_throttled_then() -> None:
    ledger = following()
    read(ledger, 10, 0, waited=9)
    ledger.follow(sending(flow(steady=True)), NOW + 10)
    assert (used(ledger).steady, used(ledger).settled, used(ledger).throttled) == (True, 0, 0)


def test_a_pair_that_is_reserved_again_goes_on_and_time_without_a_reservation_is_not_counted() -> None:
    ledger = following()
    read(ledger, 10, 100)
    ledger.follow(sending(), NOW + 12)
    # The last counters come after the release, and after the next reservation.
    ledger.follow(sending(flow(8)), NOW + 100)
    read(ledger, 100.5, 130)
    assert (used(ledger).sent, used(ledger).counted) == (130, 10_000)
    read(ledger, 110, 50, number=8)
    assert (used(ledger).sent, used(ledger).counted) == (180, 20_000)
    # Once another has come, nothing more comes of the first.
    ledger.follow(sending(flow(9)), NOW + 120)
    read(ledger, 121, 1000)
    read(ledger, 121, 60, number=8)
    assert used(ledger).sent == 190


def test_the_last_counters_of_a_released_flow_are_of_the_time_until_its_release() -> None:
    ledger = following()
    ledger.follow(sending(), NOW + 12)
    read(ledger, 20, 480 * MEGA)
    found = used(ledger)
    assert (found.counted, found.at, found.peak) == (12_000, NOW + 12, 40_000_000)


def test_a_flow_that_comes_back_goes_on() -> None:
    ledger = following()
    ledger.follow(sending(), NOW + 2)
    ledger.follow(sending(flow()), NOW + 3)
    read(ledger, 10, 60)
    assert (used(ledger).sent, used(ledger).counted) == (60, 10_000)


def test_a_clock_that_is_set_back_counts_no_time_twice() -> None:
    ledger = following()
    read(ledger, 10, 100)
    read(ledger, -100, 200)
    assert used(ledger).counted == 10_000
    read(ledger, -90, 300)
    assert (used(ledger).sent, used(ledger).counted) == (300, 20_000)


def test_pairs_inside_a_worker_are_known_by_their_node() -> None:
    ledger = following(flow(node="worker1"), flow(8, peer=None, node="worker1"))
    inside, host = ledger.of_job(1) or ()
    assert (inside.inside, host.inside) == (True, False)


def test_pairs_are_known_by_the_job_at_the_other_end_or_by_its_addresses() -> None:
    wan = flow(3, peer=None, node="wan", target=(ip_network("192.0.2.0/24"),))
    assert key_of(wan) == "wan 192.0.2.0/24"
    assert key_of(flow(4, peer=None, node="wan")) == "wan"
    six = flow(5, target=(ip_network("2001:db8::7/128"),))
    assert key_of(six) == PEER
    ledger = following(wan, six)
    assert [each.target for each in ledger.of_job(1) or ()] == ["192.0.2.0/24", "2001:db8::7/128"]


def test_a_pair_with_a_host_has_the_addresses_that_the_host_has_now() -> None:
    before = flow(3, peer=None, node="files", target=(ip_network("10.0.0.5/32"),))
    ledger = following(before)
    read(ledger, 10, 100, number=3)
    ledger.follow(sending(replace(before, target=(ip_network("10.0.0.55/32"),))), NOW + 10)
    read(ledger, 20, 300, number=3)
    assert (used(ledger).target, used(ledger).sent) == ("10.0.0.55/32", 300)


def test_two_flows_to_one_job_are_two_pairs_as_long_as_both_are_there() -> None:
    both = (flow(7, target=(ip_network("10.0.0.1/32"),)), flow(8, target=(ip_network("10.0.0.2/32"),)))
    ledger = following(*both)
    for number in (7, 8):
        read(ledger, 10, 100 * number, number=number)
    ledger.follow(sending(both[1]), NOW + 10)
    read(ledger, 20, 900, number=8)
    assert [each.sent for each in ledger.of_job(1) or ()] == [700, 900]


def test_a_job_has_so_many_pairs_and_the_number_of_the_others() -> None:
    flows = [flow(number, peer=f"{number:016x}") for number in range(1, PAIRS_OF_JOB + 4)]
    ledger = following(*flows)
    for _ in range(2):
        ledger.follow(sending(*flows), NOW + 1)
    found = ledger.of_job(1) or ()
    assert (len(found), found[0].left_out) == (PAIRS_OF_JOB, 3)
    read(ledger, 10, 100, number=PAIRS_OF_JOB + 1)
    assert sum(each.sent for each in ledger.of_job(1) or ()) == 0
    # Each that is reserved anew counts once more, since which it was is not kept.
    ledger.follow(sending(*flows[:-1]), NOW + 2)
    ledger.follow(sending(*flows[:-1], flow(999, peer="ff" * 8)), NOW + 3)
    assert (ledger.of_job(1) or ())[0].left_out == 4


def test_a_flow_that_has_sent_before_is_counted_from_its_first_reading_on() -> None:
    ledger = PairLedger()
    ledger.follow(sending(flow()), NOW, {7})
    # The mark is of flows that are new here.
    ledger.follow(sending(flow()), NOW + 1, {7})
    read(ledger, 10, 100_000 * MEGA, dropped=1000, waited=900)
    found = used(ledger)
    assert (found.sent, found.dropped, found.counted, found.peak, found.at) == (0, 0, 0, 0, NOW + 10)
    # Also by a controller that goes on, whether the first reading has come or not.
    (entry,) = ledger.entries(ledger.changed())
    fresh = PairLedger()
    fresh.follow(sending(flow()), NOW, {7})
    (unread,) = fresh.entries(fresh.changed())
    for stored, at in ((entry, 20.0), (unread, 20.0)):
        ledger = PairLedger()
        ledger.restore(stored.number, stored.job_id, stored.key, stored.use, stored.readings)
        ledger.follow(sending(flow()), NOW + 11, {7})
        if stored is unread:
            read(ledger, 10, 100_000 * MEGA, dropped=1000, waited=900)
        read(ledger, at, 100_010 * MEGA, dropped=1002, waited=901)
        found = used(ledger)
        assert (found.sent, found.dropped, found.counted, found.throttled) == (10 * MEGA, 2, 10_000, 1_000)
        # A stretch is between two readings of one controller.
        assert found.peak == (0 if stored is entry else 8 * MEGA)


def test_a_controller_whose_clock_is_behind_has_no_rate_that_was_none() -> None:
    ledger = following()
    read(ledger, 10, 100 * MEGA)
    read(ledger, 20, 200 * MEGA)
    (entry,) = ledger.entries(ledger.changed())
    again = PairLedger()
    again.restore(entry.number, entry.job_id, entry.key, entry.use, entry.readings)
    again.follow(sending(flow()), NOW + 12, {7})
    # Ten seconds after the last reading, by a clock that is fifteen behind.
    read(again, 15, 300 * MEGA)
    assert (used(again).sent, used(again).counted, used(again).peak) == (300 * MEGA, 20_000, 80 * MEGA)
    read(again, 25, 400 * MEGA)
    assert (used(again).sent, used(again).counted, used(again).peak) == (400 * MEGA, 30_000, 80 * MEGA)


def test_a_flow_that_has_sent_before_and_is_released_before_its_first_reading_counts_nothing() -> None:
    ledger = PairLedger()
    ledger.follow(sending(flow()), NOW, {7})
    ledger.follow(sending(flow(8)), NOW + 5)
    read(ledger, 6, 1000 * MEGA)
    assert used(ledger).sent == 0
    read(ledger, 6.5, 1001 * MEGA)
    read(ledger, 15, 10 * MEGA, number=8)
    assert (used(ledger).sent, used(ledger).counted) == (11 * MEGA, 10_000)


def test_readings_are_taken_of_the_named_jobs_alone() -> None:
    ledger = following()
    queues = {"eth0": FlowQueue(100)}
    ledger.read({7: queues, 99: queues}, NOW + 10, [2])
    assert used(ledger).sent == 0
    ledger.read({7: queues}, NOW + 10, [2, 1])
    assert used(ledger).sent == 100


def test_what_is_written_is_forgotten_once_the_job_is_over() -> None:
    ledger = following(flow(), flow(8, peer="cd" * 8))
    ledger.wrote(ledger.entries(ledger.changed()))
    assert ledger.changed() == []
    read(ledger, 10, 0)
    assert ledger.changed() == []
    read(ledger, 20, 100)
    (entry,) = ledger.entries(ledger.changed())
    assert (entry.number, entry.job_id, entry.key, entry.use.sent, entry.ended_at) == (1, a_run(1).id, PEER, 100, None)
    # What comes while it is written is written the next time.
    read(ledger, 30, 200)
    ledger.wrote([entry])
    assert ledger.changed() == [(1, PEER)]
    assert ledger.changed(only_ended=True) == []
    ledger.close(1, NOW + 40)
    ledger.close(1, NOW + 50)
    read(ledger, 45, 900)
    ledger.follow(sending(flow(9)), NOW + 45)
    entries = ledger.entries(ledger.changed(only_ended=True))
    assert [(each.use.sent, each.use.final, each.ended_at, each.readings) for each in entries] == [
        (200, True, NOW + 40, ""),
        (0, True, NOW + 40, ""),
    ]
    ledger.wrote(entries)
    assert len(ledger) == 0
    assert not ledger._flows


def test_a_job_that_is_over_has_all_its_pairs_until_the_last_is_written() -> None:
    ledger = following(flow(), flow(8, peer="cd" * 8))
    ledger.close(1, NOW + 40)
    first, second = ledger.changed(only_ended=True)
    ledger.wrote(ledger.entries([first]))
    assert len(ledger.of_job(1) or ()) == 2
    assert ledger.changed(only_ended=True) == [second]
    ledger.wrote(ledger.entries([second]))
    assert ledger.of_job(1) is None
    assert not ledger._flows


READINGS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(0, 20), st.integers(0, 10**9), st.integers(0, 9), st.integers(0, 20)),
        st.tuples(st.just("rate"), st.integers(1, 10**6), st.booleans()),
        st.tuples(st.just("again")),
        st.tuples(st.just("start")),
    ),
    max_size=40,
)


@given(READINGS)
def test_any_history_is_counted_once_also_by_a_controller_that_goes_on(history: list[tuple[Any, ...]]) -> None:
    ledger, number, terms = following(), 7, flow()
    at, total, peak = 0.0, [0, 0], 0
    counted = {7: [0, 0, 0]}
    for what, *values in history:
        if what == "read":
            seconds, sent, dropped, waited = values
            at += seconds
            queue = counted[number]
            for place, value in enumerate((sent, dropped, min(waited, seconds))):
                queue[place] += value
            total[0] += sent
            total[1] += dropped
            ledger.read({number: {"eth0": FlowQueue(queue[0], queue[1], 1000 * queue[2])}}, NOW + at)
        elif what == "rate":
            terms = replace(terms, kbps=values[0], steady=values[1])
            ledger.follow(sending(terms), NOW + at)
        elif what == "again":
            ledger.follow(sending(), NOW + at)
            number += 1
            terms, counted[number] = replace(terms, number=number), [0, 0, 0]
            ledger.follow(sending(terms), NOW + at)
        else:
            entries = ledger.entries([(1, PEER)])
            ledger = PairLedger()
            for each in entries:
                ledger.restore(each.number, each.job_id, each.key, each.use, each.readings)
            ledger.follow(sending(terms), NOW + at)
        found = used(ledger)
        assert (found.sent, found.dropped) == tuple(total)
        assert found.counted == round(1000 * at)
        assert found.throttled <= found.settled <= found.counted
        assert found.least <= found.kbps
        assert found.peak >= peak
        assert found.peak * found.peak_millis <= 8000 * found.sent + found.peak_millis
        peak = found.peak

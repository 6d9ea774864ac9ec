"""Sums of queues that come and go: nothing that a job's queue has counted is lost, and nothing counted twice."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.queue_sums import JobQueue, Place, QueueSums
from lark_controller.accounting.readings import QueueReading
from lark_controller.accounting.usage import MOST
from tests.fixtures.databases import a_run

PLACES: dict[Place, JobQueue] = {
    ("eth0", 5): JobQueue(1, inward=False),
    ("eth0", 40_000): JobQueue(1, inward=False),
    ("veth1", 0): JobQueue(1, inward=True),
    ("eth0", 6): JobQueue(2, inward=False),
}


def test_a_queue_of_nobody_is_nobodys() -> None:
    assert QueueSums().read(PLACES, {("eth0", 0): 9, ("eth0", 7): 3}, {("eth0", 0): 4.0}) == {}


def test_what_a_queue_had_counted_stays_when_it_goes() -> None:
    sums = QueueSums()
    sums.read(PLACES, {("eth0", 5): 100, ("eth0", 40_000): 50, ("veth1", 0): 2}, {("veth1", 0): 1.0})
    assert sums.read(PLACES, {("eth0", 5): 101}, {}) == {1: QueueReading(2, 151, 1000, 0)}
    assert sums.read({("eth0", 6): JobQueue(2, inward=False)}, {}, {}) == {}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(PLACES)), st.sampled_from(["counts", "goes", "is made anew"]), st.integers(0, 9)
        ),
        max_size=40,
    )
)
def test_the_sums_are_all_that_was_counted_whatever_came_and_went(steps: list[tuple[Place, str, int]]) -> None:
    sums, held, every = QueueSums(), dict[Place, int](), Counter[JobQueue]()
    for place, what, count in steps:
        if what == "goes":
            held.pop(place, None)
        elif what == "is made anew":
            # Between two looks it counts less than the one before had, or the change could not be seen.
            held[place] = min(count, max(0, held.get(place, 0) - 1))
            every[PLACES[place]] += held[place]
        else:
            held[place] = held.get(place, 0) + count
            every[PLACES[place]] += count
        found = sums.read(PLACES, held, {})
        for job_queue, total in every.items():
            reading = found.get(job_queue.number, QueueReading())
            inward, outward = JobQueue(job_queue.number, inward=True), JobQueue(job_queue.number, inward=False)
            assert (reading.dropped_in, reading.dropped_out) == (every[inward], every[outward]), total


def test_a_database_that_holds_any_numbers_makes_no_sum_that_an_account_cannot_hold() -> None:
    sums, ledger = QueueSums(), Ledger()
    ledger.begin(a_run(1), "")
    most = 10**18 - 1
    found = QueueReading()
    for count in [most, 0] * 40:
        found = sums.read(PLACES, {("eth0", 5): count, ("veth1", 0): count}, {("eth0", 5): float(count)})[1]
        ledger.queues(1, found)
    assert max(found) == MOST

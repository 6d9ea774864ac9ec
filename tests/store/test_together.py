"""Posts and ends in one transaction: the same as one after the other, and an error is its own job's alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine
from sqlalchemy import event as sql_event

from lark_common.errors import AddressError, CapacityError, StoreError
from lark_controller.jobs.job import Job, JobState
from lark_controller.qos.reservation import Booking, ReservationKind
from lark_controller.qos.topology import Channel
from lark_controller.store import LEASE_EXPIRED, Finish, Post, Store, StoredRun, together
from lark_controller.store.together import Request
from tests.fixtures.databases import LEASE, NOW, a_run


def post(job: Job, now: float = NOW, booking: Booking | None = None, ad: str = "job ad", unseen: bool = False) -> Post:
    return Post(job, ad, "machine ad", "hook", now, "digest", booking, unseen)


def over(job: Job, now: float = NOW, exit_ad: str = "") -> Finish:
    return Finish(job.id, now, "exited", exit_ad, "hook")


def booked(job: Job, kbps: int, capacity: int = 1000) -> Booking:
    channel = Channel("link", "a", "b", capacity)
    return Booking(ReservationKind.JOB, kbps, "a", "b", ((channel, kbps),), job=job.id)


@contextmanager
def counted() -> Iterator[list[str]]:
    """The statements that are carried out meanwhile, and commits."""
    seen: list[str] = []

    def statement(*arguments: object) -> None:
        seen.append(str(arguments[2]))

    def commit(_: object) -> None:
        seen.append("COMMIT")

    sql_event.listen(Engine, "before_cursor_execute", statement)
    sql_event.listen(Engine, "commit", commit)
    try:
        yield seen
    finally:
        sql_event.remove(Engine, "before_cursor_execute", statement)
        sql_event.remove(Engine, "commit", commit)


def test_64_posts_and_ends_take_as_many_statements_as_one_and_one_commit(store: Store) -> None:
    store.runs.carry_out([post(a_run(number)) for number in range(100, 170)])
    with counted() as alone:
        store.runs.carry_out([post(a_run(0)), over(a_run(100), exit_ad="ExitCode = 0")])
    with counted() as many:
        asked: list[Request] = [post(a_run(number)) for number in range(1, 65)]
        outcomes = store.runs.carry_out([*asked, *(over(a_run(101 + number), exit_ad="x") for number in range(64))])
    assert len(many) == len(alone)
    assert many.count("COMMIT") == 1
    assert len(outcomes) == 128
    assert len(list(store.runs.live())) == 70


def test_the_error_of_one_fails_no_other(store: Store) -> None:
    holder = store.runs.register(a_run(50), "", "", "hook", NOW).job
    ending = store.runs.register(a_run(51), "", "", "hook", NOW).job
    book = booked(a_run(4), 2000)
    outcomes = store.runs.carry_out(
        [
            post(a_run(1)),
            post(a_run(2, ipv4=holder.ipv4)),
            post(a_run(3), ad="half a pair \ud800"),
            post(a_run(4), booking=book),
            post(a_run(5), ad="a NUL \0"),
            over(a_run(6)),
            over(ending),
            post(a_run(7)),
        ]
    )
    kinds = [type(each) for each in outcomes]
    assert kinds == [StoredRun, AddressError, StoreError, CapacityError, StoreError, type(None), Job, StoredRun]
    assert {job.id for job in store.runs.live()} == {holder.id, a_run(1).id, a_run(7).id}
    assert "Unicode" in str(outcomes[2])
    assert store.reservations.use() == {}


def test_two_for_the_same_in_one_transaction_meet_each_other(store: Store) -> None:
    one, again = a_run(1), a_run(1, lease_until=LEASE + 60)
    rival = a_run(2, started=2000, slot=one.run.slot, host=one.host)
    other = a_run(3, ipv4=a_run(4).ipv4)
    outcomes = store.runs.carry_out([post(one), post(again), post(rival), post(a_run(4)), post(other), over(rival)])
    first, second, third, fourth, fifth, sixth = outcomes
    assert isinstance(first, StoredRun)
    assert isinstance(second, StoredRun)
    assert (first.created, second.created) == (True, False)
    assert second.job.number == first.job.number
    assert isinstance(third, StoredRun)
    assert [job.id for job in third.superseded] == [one.id]
    assert isinstance(fourth, StoredRun)
    assert isinstance(fifth, AddressError)
    # It was not there yet: ends come first.
    assert sixth is None
    assert {job.id for job in store.runs.live()} == {rival.id, a_run(4).id}


def test_a_slow_database_keeps_nobody_waiting_for_all_others(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that books bandwidth is carried out by itself; those for which there is no time are told at once."""
    now = [0.0]
    monkeypatch.setattr("lark_controller.store.together.time.monotonic", lambda: now[0])
    by_itself = together._by_itself

    def slow(connection: Connection, request: Request) -> together.Outcome:
        now[0] += 2.0
        return by_itself(connection, request)

    monkeypatch.setattr(together, "_by_itself", slow)
    plain = a_run(9)
    outcomes = store.runs.carry_out(
        [*(post(a_run(number), booking=booked(a_run(number), 10)) for number in range(1, 5)), post(plain)]
    )
    kinds = [type(each) for each in outcomes]
    assert kinds == [StoredRun, StoredRun, StoreError, StoreError, StoredRun]
    assert "slow" in str(outcomes[2])
    assert {job.id for job in store.runs.live()} == {a_run(1).id, a_run(2).id, plain.id}
    assert [each.kbps for each in store.reservations.page(None, NOW, None, 10).reservations] == [10, 10]
    # However slow it is, one comes through each time.
    monkeypatch.setattr(together, "_PATIENCE", 0.0)
    asked = [post(a_run(number), booking=booked(a_run(number), 10)) for number in (3, 4)]
    assert [type(each) for each in store.runs.carry_out(asked)] == [StoredRun, StoreError]


def test_an_unseen_run_that_its_lease_has_ended_is_left_as_it_is(store: Store) -> None:
    made = store.runs.register(a_run(1), "", "", "hook", NOW).job
    store.runs.end(made.id, NOW, LEASE_EXPIRED, "", "lark")
    (left,) = store.runs.carry_out([post(replace(made, ipv4=a_run(9).ipv4), unseen=True)])
    assert isinstance(left, Job)
    assert left.state is JobState.ENDED
    assert left.ipv4 == made.ipv4
    (again,) = store.runs.carry_out([post(made)])
    assert isinstance(again, StoredRun)
    assert again.job.live


def test_numbers_go_on_after_the_last_run_was_removed(store: Store) -> None:
    (first,) = store.runs.carry_out([post(a_run(1))])
    store.runs.end(a_run(1).id, NOW, "exited", "", "hook")
    store.prune(NOW + 1e9)
    (second,) = store.runs.carry_out([post(a_run(2))])
    third = store.runs.register(a_run(3), "", "", "hook", NOW)
    assert isinstance(first, StoredRun)
    assert isinstance(second, StoredRun)
    assert first.job.number < second.job.number < third.job.number


@pytest.mark.parametrize("seed", range(6))
def test_histories_are_the_same_together_and_one_by_one(tmp_path: Path, seed: int) -> None:
    stores = []
    for name in ("together", "singly"):
        store = Store.open(f"sqlite:///{tmp_path}/{name}.db")
        store.migrate()
        stores.append(store)
    draw = random.Random(seed)
    now = NOW
    for _ in range(25):
        now += 50
        asked = _batch(draw, now)
        outcomes = stores[0].runs.carry_out(asked)
        # Ends come first.
        turns = sorted(range(len(asked)), key=lambda place: isinstance(asked[place], Post))
        for place in turns:
            (alone,) = stores[1].runs.carry_out([asked[place]])
            assert _plain(outcomes[place]) == _plain(alone)
    assert _content(stores[0]) == _content(stores[1])
    for store in stores:
        store.close()


def _batch(draw: random.Random, now: float) -> list[Request]:
    """Posts and ends of different runs, slots and addresses; many concern runs of batches before."""
    asked: list[Request] = []
    numbers = draw.sample(range(30), 12)
    slots, addresses = draw.sample(range(14), 12), draw.sample(range(25), 12)
    for number, slot, address in zip(numbers, slots, addresses, strict=True):
        started = 1000 + draw.randrange(3)
        changes = {"ipv4": a_run(address).ipv4, "ipv6": None, "lease_until": now + draw.choice((10, 75, 1000))}
        job = a_run(number, started, f"slot{slot}@w", host="w", **changes)
        if draw.random() < 0.3:
            asked.append(over(job, now, draw.choice(("", "ExitCode = 1"))))
        else:
            asked.append(post(job, now, booked(job, 300) if draw.random() < 0.2 else None))
    return asked


def _plain(outcome: object) -> object:
    if isinstance(outcome, Exception):
        return type(outcome), str(outcome)
    if isinstance(outcome, StoredRun):
        runs = [outcome.job, *outcome.superseded]
        return outcome.created, [replace(job, number=0) for job in runs]
    return replace(outcome, number=0) if isinstance(outcome, Job) else outcome


def _content(store: Store) -> object:
    entries = store.trail.page(None, None, 10_000).entries
    subjects = {entry.subject for entry in entries}
    return (
        {replace(job, number=0) for job in store.runs.live()},
        {subject: store.runs.ads(subject) for subject in subjects},
        {subject: _plain(store.runs.find(subject)) for subject in subjects},
        sorted((entry.at, entry.actor, entry.action, entry.subject, entry.detail) for entry in entries),
        store.reservations.use(),
    )

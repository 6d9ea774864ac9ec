"""Reservations in the database: no link is over its capacity, and none loses any, whoever asks and whatever dies."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from threading import Barrier
from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, create_engine, select, text

from lark_common.errors import CapacityError, NotFoundError
from lark_controller.jobs.job import JobState
from lark_controller.policies.model import Duplex, HostSpec, LinkSpec, TopologySpec
from lark_controller.qos.reservation import Booking, Reservation, ReservationKind
from lark_controller.qos.topology import Demand, Topology, requested_rate
from lark_controller.store import LEASE_EXPIRED, Post, Store, StoredRun, cluster_rates, reservations
from lark_controller.store.database import connect
from lark_controller.store.schema import runs
from tests.fixtures.databases import NOW, a_run, at_once
from tests.fixtures.service import wait

ROOT = Path(__file__).parents[2]
WAN = 100.0


def network(wan: float = WAN, duplex: Duplex = Duplex.FULL) -> Topology:
    links = (LinkSpec("out", ("core", "wan"), wan, duplex),)
    return Topology(TopologySpec(links, default=HostSpec("default", "core", 1000.0)), {})


NET = network()


def flow(
    rate: float,
    until: float | None = None,
    source: str = "worker0",
    job: str | None = None,
    peer: str | None = None,
) -> Booking:
    kbps = requested_rate(rate)
    demand = NET.flow(source, "wan", kbps)
    return Booking(ReservationKind.FLOW, kbps, source, "wan", demand, job=job, peer=peer, until=until)


def of_job(job_id: str, rate: float, net: Topology = NET) -> Booking:
    kbps = requested_rate(rate)
    return Booking(ReservationKind.JOB, kbps, "worker0", "wan", net.both_ways("worker0", "wan", kbps), job=job_id)


def to(rate: float, until: float | None = None) -> Callable[[Reservation], tuple[int, float | None, bool, Demand]]:
    return lambda held: (requested_rate(rate), until, held.steady, NET.flow(held.source, "wan", requested_rate(rate)))


def out(store: Store) -> int:
    return store.reservations.use().get("out core>wan", 0)


def test_a_reservation_is_what_was_booked(store: Store, store_url: str) -> None:
    job = store.runs.register(a_run(1), "", "", "hook", NOW).job
    booking = Booking(
        ReservationKind.FLOW,
        requested_rate(10.5),
        "worker0",
        "worker1",
        NET.flow("worker0", "worker1", 10_500),
        job=job.id,
        target=(ip_network("10.64.0.7/32"), ip_network("2001:db8::/64")),
        until=NOW + 60,
    )
    made = store.reservations.admit(booking, NOW, "ops")
    assert (made.rate, made.job, made.target, made.until) == (10.5, job.id, booking.target, NOW + 60)
    assert made.holds == {"access:worker0 worker0>core": 10_500, "access:worker1 core>worker1": 10_500}
    assert store.reservations.find(made.id, NOW) == made
    assert store.reservations.flows(NOW) == [made]
    assert store.reservations.page(job.id, NOW, None, 10).reservations == (made,)
    assert store.reservations.page("other", NOW, None, 10).reservations == ()
    assert store.reservations.page(None, NOW, None, 10, job.owner).reservations == (made,)
    assert store.reservations.page(None, NOW, None, 10, "nobody").reservations == ()
    assert store.reservations.find(made.id, NOW, job.owner) == made
    assert store.reservations.find(made.id, NOW, "nobody") is None
    store.close()
    again = Store.open(store_url)
    assert again.reservations.find(made.id, NOW) == made
    assert again.reservations.use() == made.holds
    again.close()


def test_what_does_not_fit_changes_nothing(store: Store) -> None:
    first = store.reservations.admit(flow(70), NOW, "ops")
    with pytest.raises(CapacityError, match=r"link out .core to wan. has 30 of 100 Mb/s left, and 31 are asked"):
        store.reservations.admit(flow(31), NOW, "ops")
    with pytest.raises(CapacityError):
        store.reservations.change(first.id, to(101), NOW, "ops")
    assert out(store) == 70_000
    assert store.reservations.page(None, NOW, None, 10).reservations == (first,)
    changed = store.reservations.change(first.id, to(100), NOW, "ops")
    assert changed is not None
    assert changed.id == first.id
    assert out(store) == 100_000
    assert store.reservations.release(first.id, NOW, "ops") == changed
    assert store.reservations.release(first.id, NOW, "ops") is None
    assert store.reservations.change(first.id, to(1), NOW, "ops") is None
    assert store.reservations.use() == {}
    assert [entry.action for entry in store.trail.page(first.id, None, 10).entries] == ["release", "change", "reserve"]


def test_a_refusal_tells_what_jobs_of_the_same_cluster_hold_from_what_others_do(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last one is of another access point's cluster of the same number.
    keys = [
        a_run(number).run._replace(global_job_id=name)
        for number, name in ((1, "s#1.0#1"), (2, "s#1.1#1"), (3, "t#1.0#1"))
    ]
    made = [a_run(number, run=key, id=key.id, cluster=1, owner="alice") for number, key in enumerate(keys, 1)]
    jobs = [store.runs.register(each, "", "", "hook", NOW).job for each in made]
    for job, rate in zip(jobs, (20, 30, 10), strict=True):
        store.reservations.admit(flow(rate, job=job.id), NOW, "ops")
    with pytest.raises(CapacityError) as refused:
        store.reservations.admit(flow(41, job=jobs[0].id), NOW, "ops")
    (short,) = refused.value.shortages
    assert (short.reserved, short.own, short.held) == (60.0, 50.0, 0.0)
    said = "has 40 of 100 Mb/s left, and 41 are asked (others hold 10, jobs of the same cluster hold 50 besides)"
    assert said in str(refused.value)
    first = store.reservations.page(jobs[0].id, NOW, None, 1).reservations[0]
    with pytest.raises(CapacityError) as refused:
        store.reservations.change(first.id, to(61), NOW, "ops")
    (short,) = refused.value.shortages
    assert (short.reserved, short.own, short.held, short.available) == (40.0, 30.0, 20.0, 60.0)
    assert store.reservations.use()["out core>wan"] == 60_000
    # So many are looked at, while other posts wait, and no more.
    monkeypatch.setattr(cluster_rates, "MOST_OF_CLUSTER", 2)
    with pytest.raises(CapacityError, match="others and jobs of the same cluster hold 60") as refused:
        store.reservations.admit(flow(41, job=jobs[0].id), NOW, "ops")
    assert [each.own for each in refused.value.shortages] == [None]


def test_a_jobs_reservations_are_in_its_own_trail(store: Store) -> None:
    one, other = (store.runs.register(a_run(number), "", "", "hook", NOW).job for number in (1, 2))
    made = store.reservations.admit(flow(10, job=one.id, peer=other.id), NOW, "ops")
    store.reservations.change(made.id, to(20), NOW, "ops")
    store.reservations.release(made.id, NOW, "ops")
    lines = [(each.action, each.detail) for each in store.trail.page(one.id, None, 3).entries]
    assert lines == [
        ("release", f"reservation {made.id}"),
        ("change", f"reservation {made.id}: 10 to 20 Mb/s"),
        ("reserve", f"reservation {made.id}: 10 Mb/s from worker0 to wan, to job {other.called}"),
    ]


def test_several_bookings_are_admitted_together_where_the_rest_has_room_as_well(store: Store) -> None:
    one, other = (a_run(number) for number in (1, 2))
    for run in (one, other):
        store.runs.register(run, "", "", "hook", NOW)
    bookings = [flow(30, job=one.id), flow(20, job=other.id)]
    rest = flow(50).demand
    post = Post(a_run(3), "", "", "hook", NOW, "", flows=tuple(bookings), what="the pattern", rest=flow(51).demand)
    (refused,) = store.runs.carry_out([post])
    assert isinstance(refused, CapacityError)
    assert "no room for the pattern: link out (core to wan) has 50 of 100 Mb/s left, and 51 are asked" in str(refused)
    assert store.reservations.use() == {}
    assert store.runs.find(post.job.id) is None
    (stored,) = store.runs.carry_out([replace(post, rest=rest)])
    assert isinstance(stored, StoredRun)
    assert [(each.job, each.rate) for each in stored.reserved] == [(one.id, 30), (other.id, 20)]
    # The rest is looked at and not kept.
    assert out(store) == 50_000
    store.runs.end(other.id, NOW, "over", "", "hook")
    (gone,) = store.runs.carry_out([replace(post, job=a_run(4), flows=(flow(1, job=other.id),), rest=())])
    assert isinstance(gone, NotFoundError)
    assert out(store) == 30_000


def test_pages_go_through_all(store: Store) -> None:
    made = [store.reservations.admit(flow(1), NOW, "ops") for _ in range(5)]
    first = store.reservations.page(None, NOW, None, 2)
    second = store.reservations.page(None, NOW, first.next_cursor, 2)
    third = store.reservations.page(None, NOW, second.next_cursor, 2)
    assert [*first.reservations, *second.reservations, *third.reservations] == made
    assert third.next_cursor is None


def test_an_expired_reservation_frees_its_capacity(store: Store) -> None:
    made = store.reservations.admit(flow(WAN, NOW + 60), NOW, "ops")
    with pytest.raises(CapacityError):
        store.reservations.admit(flow(WAN), NOW + 59, "ops")
    assert store.reservations.find(made.id, NOW + 60) is None
    assert store.reservations.page(None, NOW + 60, None, 10).reservations == ()
    # Over it is at once; what it held is free when whoever looks after queues says so.
    with pytest.raises(CapacityError):
        store.reservations.admit(flow(WAN, NOW + 120), NOW + 60, "ops")
    assert store.reservations.change(made.id, to(1, None), NOW + 60, "ops") is None
    assert store.reservations.sweep(NOW + 60, {made.id}) == 0
    assert store.reservations.sweep(NOW + 60) == 1
    store.reservations.admit(flow(WAN, NOW + 120), NOW + 60, "ops")
    assert store.reservations.sweep(NOW + 120) == 1
    assert store.reservations.sweep(NOW + 120) == 0
    assert store.reservations.use() == {}


def test_a_job_without_room_is_not_registered(store: Store) -> None:
    first, second = a_run(1), a_run(2)
    store.runs.register(first, "", "", "hook", NOW, booking=of_job(first.id, 60))
    with pytest.raises(CapacityError, match="RequestBandwidth = 60 Mb/s on worker0"):
        store.runs.register(second, "", "", "hook", NOW, booking=of_job(second.id, 60))
    assert store.runs.find(second.id) is None
    assert out(store) == 60_000
    store.runs.end(first.id, NOW, "exited", "", "hook")
    assert store.reservations.use() == {}
    store.runs.register(second, "", "", "hook", NOW, booking=of_job(second.id, 60))
    assert out(store) == 60_000


def test_a_job_posted_again_has_one_reservation_of_its_latest_rate(store: Store) -> None:
    run = a_run(1)
    for rate in (60, 60, 90, 30):
        store.runs.register(run, "", "", "hook", NOW, booking=of_job(run.id, rate))
        assert out(store) == rate * 1000
    assert len(store.reservations.page(run.id, NOW, None, 10).reservations) == 1
    store.runs.register(run, "", "", "hook", NOW)
    assert store.reservations.use() == {}


def test_whatever_ends_a_job_ends_what_is_reserved_for_it(store: Store) -> None:
    expired = a_run(1, lease_until=NOW + 1)
    superseded = a_run(2, slot="slot1@worker0", started=1000)
    refused = a_run(3)
    for run in (expired, superseded, refused):
        store.runs.register(run, "", "", "hook", NOW, booking=of_job(run.id, 10))
        store.reservations.admit(flow(5, job=run.id), NOW, "hook")
        store.reservations.admit(flow(5, peer=run.id), NOW, "hook")
    assert out(store) == 60_000
    store.runs.set_states([(refused.id, JobState.REFUSED, "no room in the switch")])
    assert out(store) == 40_000
    store.runs.register(a_run(4, slot="slot1@worker0", started=2000, host="worker0"), "", "", "hook", NOW)
    assert out(store) == 20_000
    store.runs.end(expired.id, NOW + 2, LEASE_EXPIRED, "", "lark")
    assert store.reservations.use() == {}
    assert store.reservations.page(None, NOW, None, 10).reservations == ()


@pytest.mark.parametrize("books", [True, False])
def test_rows_of_jobs_are_locked_before_the_sums(store: Store, monkeypatch: pytest.MonkeyPatch, books: bool) -> None:
    """Or a registration and an end of the job at the other end of its flow would wait for each other."""
    peer, node = a_run(1), a_run(2)
    store.runs.register(peer, "", "", "hook", NOW)
    own = of_job(node.id, 10)
    if not books:
        # It gives up what it had.
        store.runs.register(node, "", "", "hook", NOW, booking=own)
    order: list[str] = []
    for name, word in (("_lock", "sums"), ("_keep_alive", "rows")):
        monkeypatch.setattr(reservations, name, partial(_noted, order, word, getattr(reservations, name)))
    flows = (flow(5, job=node.id, peer=peer.id),)
    store.runs.carry_out([Post(node, "", "", "hook", NOW, "", own if books else None, flows=flows)])
    assert out(store) == (15_000 if books else 5_000)
    assert {*order} == {"rows", "sums"}
    assert order == sorted(order)


def _noted(order: list[str], word: str, call: Callable[..., None], *passed: object) -> None:
    order.append(word)
    call(*passed)


def test_a_flow_of_a_job_that_has_ended_is_not_reserved(store: Store) -> None:
    run = a_run(1)
    store.runs.register(run, "", "", "hook", NOW)
    store.runs.end(run.id, NOW, "exited", "", "hook")
    for booking in (flow(1, job=run.id), flow(1, peer=run.id)):
        with pytest.raises(NotFoundError, match="no live job"):
            store.reservations.admit(booking, NOW, "ops")
    assert store.reservations.use() == {}


def test_a_new_topology_counts_all_anew_and_takes_nothing_away(store: Store) -> None:
    made = store.reservations.admit(flow(80), NOW, "ops")
    gone = store.reservations.admit(flow(10, source="worker1"), NOW, "ops")
    smaller = network(50.0, Duplex.HALF)

    def demand_of(held: Reservation) -> Demand:
        if held.source == "worker1":
            return Topology(TopologySpec(), {}).flow("worker1", "wan", held.kbps)
        return smaller.flow(held.source, held.destination, held.kbps)

    assert store.reservations.reroute(demand_of, {}, NOW) == [gone.id]
    assert store.reservations.use() == {"access:worker0 worker0>core": 80_000, "out": 80_000}
    assert store.reservations.reroute(demand_of, {}, NOW) == [gone.id]
    store.reservations.release(made.id, NOW, "ops")
    store.reservations.release(gone.id, NOW, "ops")
    assert store.reservations.use() == {}


def test_what_machine_ads_say_of_links_is_kept(store: Store) -> None:
    store.reservations.set_worker_capacity("Worker1", 1000.0)
    store.reservations.set_worker_capacity("worker1", 10_000.0)
    store.reservations.set_worker_capacity("worker2", 1000.0)
    assert store.reservations.worker_capacities() == {"worker1": 10_000.0, "worker2": 1000.0}


def test_a_post_brings_the_speed_of_its_workers_link(store: Store) -> None:
    post = Post(replace(a_run(3), host="Worker3"), "", "", "hook", NOW, "", link=1000.0)
    store.runs.carry_out([post, Post(a_run(4), "", "", "hook", NOW, "")])
    assert store.reservations.worker_capacities() == {"worker3": 1000.0}
    # Nothing of this run is kept, since there is no room for its booking; the link is as its machine ad has it.
    refused = Post(replace(a_run(5), host="worker3"), "", "", "hook", NOW, "", booking=of_job("j", 101), link=10_000.0)
    (outcome,) = store.runs.carry_out([refused])
    assert isinstance(outcome, CapacityError)
    assert store.reservations.worker_capacities() == {"worker3": 10_000.0}


def test_many_threads_race_for_a_link(store: Store, store_url: str) -> None:
    """Some ask, some change, some release, on connections of two controllers; the sum is never over."""
    other = Store.open(store_url)
    threads = 12
    barrier = Barrier(threads)
    refused = []

    def work(number: int) -> None:
        mine = (store, other)[number % 2]
        barrier.wait()
        held: list[Reservation] = []
        for turn in range(12):
            try:
                if len(held) < 2:
                    held.append(mine.reservations.admit(flow(7 + number, source=f"worker{number}"), NOW, "ops"))
                elif turn % 3:
                    mine.reservations.change(held[0].id, to(3 + turn), NOW, "ops")
                else:
                    mine.reservations.release(held.pop().id, NOW, "ops")
            except CapacityError as error:
                refused.append(error)
            assert out(mine) <= WAN * 1000

    with ThreadPoolExecutor(threads) as executor:
        for _ in executor.map(work, range(threads)):
            pass
    assert refused
    left = store.reservations.page(None, NOW, None, 100).reservations
    assert 0 < sum(each.kbps for each in left) == out(store) <= WAN * 1000
    for each in left:
        other.reservations.release(each.id, NOW, "ops")
    assert store.reservations.use() == {}
    other.close()


PROGRAM = """
import sys
from lark_common.errors import CapacityError
from lark_controller.store import Store
from tests.store.test_reservations import NOW, flow
store = Store.open(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
won = 0
for _ in range(30):
    try:
        store.reservations.admit(flow(1.5), NOW, "ops")
        won += 1
    except CapacityError:
        pass
print(won)
"""


def test_several_processes_race_for_a_link(store: Store, store_url: str) -> None:
    won = at_once(PROGRAM, store_url, 4, ROOT)
    # 66 reservations of 1.5 Mb/s fit into 100 Mb/s; 120 were asked for.
    assert sum(map(int, won)) == 66
    assert out(store) == 99_000


class Crash(Exception):
    """The process dies before it commits."""


def crash(*_: object) -> NoReturn:
    raise Crash


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("flow", "job", "change", "release", "end", "expire", "crash", "restart")),
        st.integers(0, 5),
        st.integers(1, 80),
    ),
    max_size=25,
)


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_no_order_of_steps_and_crashes_overloads_a_link_or_loses_capacity(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    url = f"sqlite:///{tmp_path_factory.mktemp('steps') / 'lark.db'}"
    store, now, number = Store.open(url), NOW, 0
    store.migrate()
    for what, which, rate in steps:
        now += 1
        known = store.reservations.page(None, now, None, 100).reservations
        chosen = known[which % len(known)] if known else None
        jobs = list(store.runs.live())
        try:
            if what == "flow":
                store.reservations.admit(flow(rate, now + 5 if which % 2 else None), now, "ops")
            elif what == "job":
                number += 1
                run = a_run(number, lease_until=now + 1000)
                store.runs.register(run, "", "", "hook", now, booking=of_job(run.id, rate))
                store.reservations.admit(flow(rate / 8, job=run.id), now, "hook")
            elif what == "change" and chosen is not None and chosen.kind is ReservationKind.FLOW:
                store.reservations.change(chosen.id, to(rate, chosen.until), now, "ops")
            elif what == "release" and chosen is not None:
                store.reservations.release(chosen.id, now, "ops")
            elif what == "end" and jobs:
                store.runs.end(jobs[which % len(jobs)].id, now, "exited", "", "hook")
            elif what == "expire":
                now += 5
                store.reservations.sweep(now)
            elif what == "crash":
                _die_halfway(url, which, rate, now, None if chosen is None else chosen.id)
            elif what == "restart":
                store.close()
                store = Store.open(url)
        except CapacityError:
            pass
        store.reservations.sweep(now)
        left = store.reservations.page(None, now, None, 100).reservations
        total: dict[str, int] = {}
        for each in left:
            for channel, kbps in each.holds.items():
                total[channel] = total.get(channel, 0) + kbps
        assert store.reservations.use() == total
        assert out(store) <= WAN * 1000
    for each in store.reservations.page(None, now, None, 100).reservations:
        store.reservations.release(each.id, now, "ops")
    assert store.reservations.use() == {}
    store.close()


def _die_halfway(url: str, which: int, rate: int, now: float, chosen: str | None) -> None:
    """Do all of a change, and die before it is committed."""
    database = connect(url)
    changes: list[Callable[[Connection], object]] = [
        partial(reservations.admit, booking=flow(rate), now=now, actor="ops"),
        partial(reservations.release, reservation_id=chosen or "none", now=now, actor="ops"),
        partial(reservations.sweep, now=now + 100),
    ]
    try:
        with pytest.raises((Crash, CapacityError)):
            database.write(lambda connection: crash(changes[which % 3](connection)))
    finally:
        database.close()


@pytest.mark.parametrize("store_url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_whoever_waits_for_a_job_holds_up_no_other_reservation(store: Store, store_url: str) -> None:
    """Two transactions that lock a job and the sums of links in different orders would wait for each other."""
    job = store.runs.register(a_run(1), "", "", "hook", NOW).job
    made = store.reservations.admit(of_job(job.id, 10), NOW, "hook")
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    engine = create_engine(store_url)
    with ThreadPoolExecutor(2) as executor:
        with engine.connect() as ending, engine.connect() as watching:
            watching.execution_options(isolation_level="AUTOCOMMIT")
            ending.execute(select(runs.c.id).where(runs.c.id == job.id).with_for_update())
            released = executor.submit(store.reservations.release, made.id, NOW, "ops")
            wait(lambda: watching.scalar(waiting) == 1)
            assert executor.submit(store.reservations.admit, flow(10), NOW, "ops").result(20).rate == 10
        assert released.result(20) == made
    engine.dispose()
